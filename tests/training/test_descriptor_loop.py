import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.descriptors.conftest import CONFIGS
from tests.training.test_ready_places import SCALE, scans, write_scene
from vbreg.descriptors.learned import load_descriptor
from vbreg.descriptors.prepared import Prepared
from vbreg.errors import VBRegError
from vbreg.training import descriptor_loss, journal
from vbreg.training.config import OptimizerConfig
from vbreg.training.descriptor_config import (
    DescriptorTrainConfig,
    is_descriptor_config,
    read_descriptor_config,
)
from vbreg.training.descriptor_loop import DescriptorRun, train_descriptor
from vbreg.training.journal import read_log
from vbreg.training.loop import WEIGHTS_FILE
from vbreg.training.places import PlacesConfig
from vbreg.training.places_run import Places
from vbreg.training.ready_places import ReadyPlace, prepared, ready_place, to_arrays
from vbreg.training.stream import Stream

CPU = torch.device("cpu")
CONFIG = DescriptorTrainConfig(
    pairs=2,
    precision="fp32",
    network=CONFIGS[1],
    places=PlacesConfig(kinds=("room_camera",), weights=(1.0,)),
    optimizer=OptimizerConfig(warmup_steps=2, learning_rate=3e-3, ema=0.5),
)


@pytest.fixture(autouse=True)
def fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step draws a quarter of the points that it usually does."""
    monkeypatch.setattr(descriptor_loss, "DRAWN", 256)


@pytest.fixture(scope="module")
def place() -> ReadyPlace[Prepared]:
    return to_arrays(ready_place("corner", scans(), SCALE, 0, prepared))


def test_it_learns(place: ReadyPlace[Prepared]) -> None:
    run = DescriptorRun(CONFIG, CPU)
    run.places.add(place)
    held = list(run.places.held)
    before = run.validate(held)
    for _ in range(12):
        run.take_step()
    after = run.validate(held)
    assert after["contrast"] < before["contrast"] - 0.3
    assert after["right_anchors"] > before["right_anchors"]
    assert run.state.pairs == 24


def test_a_run_goes_on_where_it_stopped(place: ReadyPlace[Prepared], tmp_path: Path) -> None:
    run = DescriptorRun(CONFIG, CPU)
    run.take_in(place)
    run.take_step()
    run.save(tmp_path)
    again = DescriptorRun(CONFIG, CPU)
    again.state.resume(tmp_path, CONFIG)
    assert (again.state.step, again.state.pairs, again.state.places) == (1, 2, 1)
    for a, b in zip(run.state.network.parameters(), again.state.network.parameters(), strict=True):
        assert torch.equal(a, b)
    assert load_descriptor(tmp_path / WEIGHTS_FILE).network.config == CONFIG.network
    with pytest.raises(VBRegError, match="another configuration"):
        again.state.resume(tmp_path, replace(CONFIG, pairs=3))


def test_a_step_without_overlap_teaches_nothing(place: ReadyPlace[Prepared]) -> None:
    run = DescriptorRun(replace(CONFIG, optimizer=OptimizerConfig(weight_decay=0.0)), CPU)
    away = np.eye(4)
    away[:3, 3] = 1e4
    run.take_in(replace(place, pairs=(place.pairs[0]._replace(T_target_source=away),)))
    before = [p.clone() for p in run.state.network.parameters()]
    terms = run.take_step()
    assert float(terms["pairs"]) == 0
    assert all(
        torch.equal(a, b) for a, b in zip(before, run.state.network.parameters(), strict=True)
    )
    assert run.validate(list(run.places.held))["contrast"] == 0.0


def test_it_is_not_for_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(VBRegError, match="torchrun"):
        train_descriptor(CONFIG, tmp_path)


def test_the_oldest_place_goes_and_one_without_pairs_does_not_come(
    place: ReadyPlace[Prepared],
) -> None:
    places = Places(2, CPU)
    places.add(replace(place, pairs=()))
    for kind in "abc":
        places.add(replace(place, kind=kind))
    assert [held.kind for held in places.held] == ["b", "c"]


def test_places_without_pairs_are_not_waited_for_without_end(
    place: ReadyPlace[Prepared], tmp_path: Path
) -> None:
    """Each third place has pairs: enough to begin with; a stream of others is an error."""
    barren = replace(place, pairs=())
    run = DescriptorRun(replace(CONFIG, places_first=2), CPU)
    with journal.opened(tmp_path, None, quiet=True) as notes:
        some = Stream(lambda k: barren if k % 3 else place, workers=0)
        run._take_in_first(some, math.inf, notes)
        assert (len(run.places.held), run.state.places) == (2, 4)
        run.places.held.clear()
        with pytest.raises(VBRegError, match="of 20 places in a row none has two scans"):
            run._take_in_first(Stream(lambda k: barren, workers=0), math.inf, notes)


def test_every_other_pair_overlaps_little(place: ReadyPlace[Prepared]) -> None:
    places = Places(2, CPU)
    low = place.pairs[0]._replace(overlap=0.15)
    places.add(replace(place, pairs=(low, *place.pairs[1:])))
    drawn = places.draw(40, np.random.default_rng(0))
    assert sum(pair.overlap < 0.3 for _, pair in drawn) >= 20


def test_a_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "descriptor.toml"
    path.write_text(
        'minutes = 2\n[places]\nkinds = ["mesh"]\nweights = [1.0]\nmeshes = "here"\n'
        "[network]\nwidth = 24\n"
    )
    assert is_descriptor_config(path)
    config = read_descriptor_config(path)
    assert config.places.meshes == tmp_path / "here"
    assert config.network.width == 24
    path.write_text('[places]\nkinds = ["mesh"]\nweights = [1.0, 2.0]\n')
    with pytest.raises(VBRegError, match="one for each of kinds"):
        read_descriptor_config(path)


def test_a_whole_run_from_scans_to_weights(tmp_path: Path) -> None:
    """Two calls: the second goes on where the first was stopped, with the places that follow."""
    write_scene(tmp_path / "scans" / "corner", 3)
    kind = {"kinds": ("fragments",), "weights": (1.0,), "fragments": tmp_path / "scans"}
    places = PlacesConfig(**kind, workers=0, held_out=1)
    config = replace(CONFIG, pairs=1, places=places, places_first=1, minutes=9.0, log_every=1)
    path = train_descriptor(config, tmp_path, minutes=0.0, quiet=True)
    assert not read_log(tmp_path, "train")
    assert train_descriptor(config, tmp_path, until=3, quiet=True) == path
    steps = read_log(tmp_path, "train")
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert np.isfinite([record["total"] for record in steps]).all()
    last = read_log(tmp_path, "validation")[-1]
    assert 0.0 <= last["inlier_ratio"] <= 1.0
    assert load_descriptor(path).network.config == CONFIG.network
