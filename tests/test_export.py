"""The ONNX file gives torch's answer, for any number of matches, and the same pose."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import SMALL, fresh, make_problem
from tests.docs.blocks import ROOT, run_python_of
from vbreg import Scale, VBReg, VBRegError, export, pretrained
from vbreg.backends.plain import Backend
from vbreg.datasets import open_pairs
from vbreg.errors import MissingExtraError
from vbreg.export import ExportedNetwork, export_onnx
from vbreg.frames import Matches
from vbreg.matching import describe, match_clouds
from vbreg.metrics import pose_error
from vbreg.network import NetworkOutput, VariationalNonLocalNetwork
from vbreg.solver import Solver

TOLERANCE = 0.02  # of logits and features, which are of the order of ten


def has_packages() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="vbreg[onnx] is not installed")


def opened(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path.read_bytes(), options)


@pytest.fixture(scope="module")
def model() -> VBReg:
    """Return a network of two iterations, since exporting takes as long as there are many."""
    return VBReg(fresh(replace(SMALL, iterations=2)), backend="plain")


@pytest.fixture(scope="module")
def exported(model: VBReg, tmp_path_factory: pytest.TempPathFactory) -> Path:
    has_packages()
    return export_onnx(model, tmp_path_factory.mktemp("onnx") / "small.onnx")


@pytest.fixture(scope="module")
def session(exported: Path) -> Any:
    return opened(exported)


@pytest.fixture(scope="module")
def fast() -> VBReg:
    return VBReg.from_pretrained("fast", device="cpu", backend="plain")


@pytest.fixture(scope="module")
def exported_fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the shipped network: half a minute, or a whole one."""
    has_packages()
    return export_onnx("fast", tmp_path_factory.mktemp("onnx") / "fast.onnx")


def matches_of(n: int, seed: int = 0) -> Matches:
    problem = make_problem(n, seed=seed)
    return Matches.of_points([problem.source], [problem.target], 0.1)


def run(session: Any, matches: Matches) -> tuple[np.ndarray, np.ndarray]:
    ends = {"source": matches.source[0].float(), "target": matches.target[0].float()}
    logits, features = session.run(None, {name: end.numpy() for name, end in ends.items()})
    return logits, features


class LastFeatures(Solver):
    """The search with the features of the last iteration alone, of torch or of a session."""

    session: Any = None

    def run_network(self, matches: Matches, *given: Any, **options: Any) -> NetworkOutput:
        if self.session is None:
            output = super().run_network(matches, *given, **options)
            return output._replace(features=output.features[-1:])
        logits, features = map(torch.from_numpy, run(self.session, matches))
        return NetworkOutput(logits[None], (features[None],), (), ())


def poses(model: VBReg, session: Any, matches: Matches) -> list[torch.Tensor]:
    """Return the pose by torch and that by the session, in the user's frames."""
    ours = LastFeatures(model.network, model.voting)
    theirs = LastFeatures(model.network, model.voting)
    object.__setattr__(theirs, "session", session)
    with torch.inference_mode():
        found = [solver(matches, Backend(), whole=True) for solver in (ours, theirs)]
    return [torch.from_numpy(matches.to_user(solution.T)[0]) for solution in found]


@pytest.mark.parametrize("n", [3, 64, 65, 700])
@pytest.mark.slow
def test_any_number_of_matches(session: Any, model: VBReg, n: int) -> None:
    matches = matches_of(n)
    logits, features = run(session, matches)
    with torch.inference_mode():
        expected = model.network(matches.source.float(), matches.target.float())
    assert logits.shape == (n,)
    assert features.shape == (n, model.network.config.width)
    np.testing.assert_allclose(logits, expected.logits[0], atol=TOLERANCE)
    np.testing.assert_allclose(features, expected.features[-1][0], atol=TOLERANCE)


@pytest.mark.slow
def test_the_pose_is_the_same(session: Any, model: VBReg) -> None:
    for seed in range(3):
        ours, theirs = poses(model, session, matches_of(400, seed))
        assert pose_error(ours, theirs).success(0.01, 1e-4)


@pytest.mark.slow
def test_real_matches_give_the_same_pose(exported_fast: Path, fast: VBReg, data_root: Path) -> None:
    """Logits within the tolerance, poses within 0.1 degrees and 5 mm, on two real pairs."""
    session, model = opened(exported_fast), fast
    for pair in open_pairs("3dmatch", data_root / "3dmatch").select(every=500, limit=2):
        scale = Scale(0.05)
        ends = [describe(cloud, scale) for cloud in (pair.source, pair.target)]
        matches = match_clouds(*ends, scale).matches()
        with torch.inference_mode():
            expected = model.network(matches.source.float(), matches.target.float())
        logits, features = run(session, matches)
        np.testing.assert_allclose(logits, expected.logits[0], atol=TOLERANCE)
        np.testing.assert_allclose(features, expected.features[-1][0], atol=TOLERANCE)
        ours, theirs = poses(model, session, matches)
        assert pose_error(ours, theirs).success(0.1, 0.005)


@pytest.mark.slow
def test_the_file_says_what_it_is(session: Any, model: VBReg) -> None:
    about = json.loads(session.get_modelmeta().custom_metadata_map["vbreg"])
    assert about["sigma"] == pytest.approx(float(model.network.sigma.detach()))
    assert about["network"]["width"] == model.network.config.width
    assert about["every_iteration"] is False
    assert [end.name for end in session.get_inputs()] == ["source", "target"]
    assert [end.name for end in session.get_outputs()] == ["logits", "features"]


@pytest.mark.slow
def test_the_shipped_network_is_named_by_its_checksum(exported_fast: Path) -> None:
    about = json.loads(opened(exported_fast).get_modelmeta().custom_metadata_map["vbreg"])
    assert about["sha256"] == pretrained.read_header(pretrained.weights_path("fast"))["sha256"]


@pytest.mark.slow
def test_the_page_runs(exported_fast: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(exported_fast.parent)
    problem = make_problem(300)
    given = {"source_points": problem.source, "target_points": problem.target}
    names = run_python_of(ROOT / "docs" / "onnx.md", given)
    np.testing.assert_allclose(names["R"], problem.T[:3, :3], atol=0.01)
    np.testing.assert_allclose(names["t"], problem.T[:3, 3], atol=0.02)


def test_every_iteration_ends_with_the_last(model: VBReg) -> None:
    """In torch alone: a second export takes as long again."""
    ends = matches_of(40).source[0].float(), matches_of(40).target[0].float()
    with torch.inference_mode():
        every = ExportedNetwork(model.network, True)(*ends)
        last = ExportedNetwork(model.network, False)(*ends)
        output = model.network(ends[0][None], ends[1][None])
    assert every[1].shape == (model.network.config.iterations, 40, model.network.config.width)
    torch.testing.assert_close(every[1], torch.cat(output.features))
    torch.testing.assert_close(last[1], every[1][-1])
    torch.testing.assert_close(last[0], every[0])


def test_a_model_is_copied(model: VBReg) -> None:
    network, voting, digest = export._network_of(model)
    assert network is not model.network
    assert voting == asdict(model.voting)
    assert digest is None
    for name, tensor in model.network.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], tensor)


@pytest.mark.slow
def test_descriptors_have_no_input(
    exported: Path, feat_network: VariationalNonLocalNetwork, tmp_path: Path
) -> None:
    with pytest.raises(VBRegError, match="sees descriptors"):
        export_onnx(VBReg(feat_network, backend="plain"), tmp_path / "a.onnx")


@pytest.mark.slow
def test_what_is_no_network_is_named(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="weights are a int: expected"):
        export_onnx(3, tmp_path / "a.onnx")  # type: ignore[arg-type]
    with pytest.raises(VBRegError, match="no weights at"):
        export_onnx("no_such_weights", tmp_path / "a.onnx")


def test_without_the_packages_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"vbreg\[onnx\]"):
        export_onnx("fast", tmp_path / "fast.onnx")
    assert not list(tmp_path.iterdir())
