"""Every method on the same matches: predict into a cache, then score the cache, then report."""

from vbreg.benchmark.predict import predict
from vbreg.benchmark.problems import Settings, problem_of
from vbreg.benchmark.report import write_report
from vbreg.benchmark.score import score

__all__ = ["Settings", "predict", "problem_of", "score", "write_report"]
