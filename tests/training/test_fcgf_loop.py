from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.descriptors.test_fcgf import TINY
from tests.training.test_ready_places import SCALE, scans, write_scene
from vbreg.descriptors.fcgf import DetailedCloud, load_fcgf
from vbreg.descriptors.prepared import ThinnedCloud
from vbreg.errors import VBRegError
from vbreg.geometry import degrees, random_rotation, rotation_angle
from vbreg.scale import Scale
from vbreg.training import descriptor_loss
from vbreg.training.config import OptimizerConfig
from vbreg.training.descriptor_config import (
    FcgfTrainConfig,
    is_descriptor_config,
    is_fcgf_config,
    read_fcgf_config,
)
from vbreg.training.descriptor_loss import ContrastName
from vbreg.training.fcgf_loop import FcgfRun, detailed_crop
from vbreg.training.journal import read_log
from vbreg.training.loop import WEIGHTS_FILE
from vbreg.training.places import PlacesConfig
from vbreg.training.places_run import train_on_places
from vbreg.training.ready_places import CloudPair, ReadyPlace, ready_place, to_arrays

CPU = torch.device("cpu")
CONFIG = FcgfTrainConfig(
    pairs=2,
    precision="fp32",
    fcgf=TINY,
    places=PlacesConfig(kinds=("room_camera",), weights=(1.0,)),
    optimizer=OptimizerConfig(warmup_steps=2, learning_rate=1e-2, ema=0.5),
)


@pytest.fixture(autouse=True)
def fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step draws a quarter of the points that it usually does."""
    monkeypatch.setattr(descriptor_loss, "DRAWN", 256)


@pytest.fixture(scope="module")
def place() -> ReadyPlace[DetailedCloud]:
    return to_arrays(ready_place("corner", scans(), SCALE, 0, detailed_crop))


@pytest.mark.parametrize("loss", ["infonce", "hardest"])
def test_it_learns(
    place: ReadyPlace[DetailedCloud], loss: ContrastName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To tell the points of a cloud apart that is not turned; turned ones take many more steps."""
    run = FcgfRun(replace(CONFIG, loss=loss, pairs=1), CPU)
    monkeypatch.setattr(run, "turns", lambda R: torch.eye(3).expand(2 * len(R), 3, 3))
    run.places.add(replace(place, pairs=(CloudPair(0, 0, np.eye(4), 1.0),)))
    held = list(run.places.held)
    for _ in range(3):  # before, the norms of the averaged network have seen nothing
        run.take_step()
    before = run.validate(held)
    for _ in range(12):
        run.take_step()
    after = run.validate(held)
    assert after["contrast"] < 0.95 * before["contrast"]
    assert after["right_anchors"] > before["right_anchors"]
    assert run.state.pairs == 15


def test_every_step_turns_the_clouds_anew(place: ReadyPlace[DetailedCloud]) -> None:
    run = FcgfRun(CONFIG, CPU)
    run.places.add(place)
    clouds = [run.places.held[0].clouds[k] for k in (0, 1)]
    rows = torch.arange(100).view(2, 50)
    T = torch.eye(4)[None]
    for network, same in ((run.state.network, False), (run.state.averaged, True)):
        found = []
        for seed in (0, 0, 1):
            run.generator.manual_seed(seed)
            found.append(run.described(network, clouds, rows, T).detach())
        assert found[0].shape == (2, 50, TINY.output)
        assert torch.equal(found[0], found[1])
        assert torch.allclose(found[0], found[2], atol=1e-3) == same  # to look at: as they are


def test_clouds_are_turned_against_each_other_further_and_further() -> None:
    run = FcgfRun(replace(CONFIG, turning=0.5, minutes=1.0), CPU)
    generator = torch.Generator().manual_seed(0)
    R_target_source = random_rotation(200, generator=generator)
    for seconds, most in ((0.0, 0.0), (15.0, 90.0), (30.0, 180.0), (60.0, 180.0)):
        run.state.step_seconds = seconds
        turns = run.turns(R_target_source)
        source, target = turns[::2], turns[1::2]
        between = source @ (target @ R_target_source).transpose(1, 2)
        angle = degrees(rotation_angle(between))
        assert float(angle.max()) <= most + 0.1
        assert float(angle.max()) >= 0.9 * most
        alike = torch.eye(3).expand_as(turns)
        torch.testing.assert_close(turns @ turns.transpose(1, 2), alike, atol=1e-5, rtol=0)
    assert float(angle.mean()) > 115  # of any rotation: 126


def test_the_averaged_network_knows_what_its_norms_have_seen(
    place: ReadyPlace[DetailedCloud],
) -> None:
    run = FcgfRun(CONFIG, CPU)
    run.places.add(place)
    for _ in range(3):
        run.take_step()
    bn = run.state.averaged.network.norm1.bn
    assert bn.running_mean is not None
    assert bool(bn.running_mean.abs().gt(1e-4).any())
    assert not bn.training


def test_lower_precision_gives_nearly_the_same(place: ReadyPlace[DetailedCloud]) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        run = FcgfRun(replace(CONFIG, precision=precision), CPU)
        run.places.add(place)
        losses.append(float(run.take_step()["total"]))
        assert run.state.skipped == 0
        assert all(p.dtype == torch.float32 for p in run.state.network.parameters())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_finer_points_far_from_the_others_are_left_out() -> None:
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)) * 4
    detail = torch.cat([points + 0.1, points + 100])
    cloud = ThinnedCloud(points, points, detail, Scale(1.0))
    found = detailed_crop(cloud, torch.Generator())
    assert len(found.detail) == 50


def test_a_whole_run_from_scans_to_weights(tmp_path: Path) -> None:
    """Two calls: the second goes on where the first was stopped, with the places that follow."""
    write_scene(tmp_path / "scans" / "corner", 3)
    kind = {"kinds": ("fragments",), "weights": (1.0,), "fragments": tmp_path / "scans"}
    places = PlacesConfig(**kind, workers=0, held_out=1)
    config = replace(CONFIG, pairs=1, places=places, places_first=1, minutes=9.0, log_every=1)
    train_on_places(FcgfRun(config, CPU), tmp_path, until=1, quiet=True)
    path = train_on_places(FcgfRun(config, CPU), tmp_path, until=3, quiet=True)
    steps = read_log(tmp_path, "train")
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert np.isfinite([record["total"] for record in steps]).all()
    assert 0.0 <= read_log(tmp_path, "validation")[-1]["inlier_ratio"] <= 1.0
    network = load_fcgf(path).network
    assert network.config == TINY
    again = FcgfRun(replace(config, start_from=tmp_path / WEIGHTS_FILE), CPU)
    torch.testing.assert_close(again.state.network.network.conv2.kernel, network.conv2.kernel)
    with pytest.raises(VBRegError, match="holds another network"):
        FcgfRun(
            replace(config, start_from=path, fcgf=replace(TINY, output=7)),
            CPU,
        )


def test_a_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fcgf.toml"
    path.write_text(
        'loss = "hardest"\n[fcgf]\nchannels = [4, 8, 8, 8]\n'
        '[places]\nkinds = ["mesh"]\nweights = [1.0]\nmeshes = "here"\n'
    )
    assert is_fcgf_config(path)
    assert not is_descriptor_config(path)
    config = read_fcgf_config(path)
    assert config.places.meshes == tmp_path / "here"
    assert config.fcgf.channels == (4, 8, 8, 8)
    assert config.loss == "hardest"
    path.write_text('turning = 2.0\n[fcgf]\n[places]\nkinds = ["mesh"]\nweights = [1.0]\n')
    with pytest.raises(VBRegError, match="turning"):
        read_fcgf_config(path)
    path.write_text('loss = "softest"\n[fcgf]\n[places]\nkinds = ["mesh"]\nweights = [1.0]\n')
    with pytest.raises(VBRegError, match="softest"):
        read_fcgf_config(path)
