"""Experiments by name: which data, which methods, where the page goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vbreg import pretrained
from vbreg.benchmark.predict import predict
from vbreg.benchmark.problems import Settings
from vbreg.errors import VBRegError
from vbreg.experiments import figures, tables, theorem1_page
from vbreg.experiments.tables import Runs

NAMES = ("table1", "table2", "table3", "figures", "theorem1")
DRAWN_METHODS = ("vbreg", "pointdsc", "sc2pcr", "ransac")


def run(
    name: str,
    root: Path,
    runs: Runs,
    *,
    methods: Sequence[str] | None = None,
    choice: tables.Choice = tables.EVERYTHING,
    weights: Path | None = None,
    training: Mapping[str, Sequence[Path]] | None = None,
) -> Path:
    """Run an experiment of the paper, and return the path of its page, or of its folder.

    `methods` are for table1, table2 and figures (left out: all that are installed, or a few),
    `choice` is the part of table1 or table2 that is asked for,
    `weights` is the folder of trained ablations for table3, `training` the logs for figures.
    """
    if name not in NAMES:
        raise VBRegError(f"no experiment {name!r}; choose from {', '.join(NAMES)}")
    runs.output.mkdir(parents=True, exist_ok=True)
    chosen = tables.installed_methods() if methods is None else methods
    if name == "table1":
        return tables.table1(root, runs, chosen, choice)
    if name == "table2":
        return tables.table2(root, runs, chosen, choice)
    if name == "table3":
        return tables.table3(root, runs, weights)
    if name == "figures":
        return _figures(root, runs, DRAWN_METHODS if methods is None else methods, training)
    return _theorem1(root, runs)


def _figures(
    root: Path,
    runs: Runs,
    methods: Sequence[str],
    training: Mapping[str, Sequence[Path]] | None,
) -> Path:
    """Draw all figures; recall and alignments on 3DLoMatch with FPFH, where methods differ most."""
    indoor = tables.threedmatch_root(root)
    folder = runs.output / "benchmark"
    predict(
        Settings.of("3dlomatch", descriptor="fpfh", seed=runs.seed),
        methods,
        folder,
        root=indoor,
        device=runs.device,
        every=runs.every,
        workers=runs.workers,
        quiet=runs.quiet,
    )
    figures.run(
        indoor,
        runs.output,
        weights={
            "VBNonlocal": pretrained.weights_path("universal"),
            "SCNonlocal": pretrained.weights_path("plain"),
        },
        benchmark=folder,
        training=training,
        device=runs.device,
        every=runs.every,
        quiet=runs.quiet,
    )
    return runs.output


def _theorem1(root: Path, runs: Runs) -> Path:
    """Measure on 3DMatch and 3DLoMatch, whose inlier ratios together span the range of interest."""
    indoor = tables.threedmatch_root(root)
    pages = [
        theorem1_page.run(
            Settings.of(dataset, descriptor="fpfh", seed=runs.seed),
            indoor,
            runs.output / dataset,
            device=runs.device,
            every=runs.every,
            seed=runs.seed,
            quiet=runs.quiet,
        )
        for dataset in ("3dmatch", "3dlomatch")
    ]
    return pages[0].parent.parent
