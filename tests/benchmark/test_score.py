import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from vbreg.benchmark.masks import pack
from vbreg.benchmark.predict import PROBLEMS, table_path
from vbreg.benchmark.problems import Settings
from vbreg.benchmark.score import Row, lead_interval, recall_interval, score, summarise
from vbreg.errors import VBRegError
from vbreg.io.tables import Table
from vbreg.metrics import registration_rmse

SETTINGS = Settings("3dmatch")


def pose(degrees: float = 0.0, x: float = 0.0) -> np.ndarray:
    angle = math.radians(degrees)
    T = np.eye(4)
    T[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    T[0, 3] = x
    return T


def write(
    output: Path,
    answers: dict[str, list[np.ndarray]],
    truth: list[np.ndarray],
    informed: tuple[int, ...] = (),  # numbers of the pairs with an information matrix
) -> None:
    header = {"settings": SETTINGS.to_dict()}
    problems = Table(output / PROBLEMS, header)
    labels = np.array([True, True, False, False])
    for k, T in enumerate(truth):
        problems.add(
            {
                "pair": f"s/{k}",
                "scene": "s",
                "overlap": 0.5,
                "consecutive": False,
                "T_target_source": T.ravel().tolist(),
                "information": np.eye(6).ravel().tolist() if k in informed else None,
                "matches": 4,
                "labels": pack(labels),
            }
        )
    for method, poses in answers.items():
        table = Table(table_path(output, method), {**header, "method": method})
        for k, T in enumerate(poses):
            row = {
                "pair": f"s/{k}",
                "T_target_source": T.ravel().tolist(),
                "seconds": 0.1 * (k + 1),
            }
            found = pack(np.array([True, False, True, True]))
            backend = ("cpu", "plain")[k % 2]
            table.add({**row, "inliers": found, "megabytes": k, "backend": backend})


def test_the_protocol_is_strict_and_errors_are_of_the_successes(tmp_path: Path) -> None:
    found = [pose(10, 0.1), pose(14.99, 0.2999), pose(15.01), pose(0, 0.3001)]
    write(tmp_path, {"m": found}, [pose()] * 4)
    rows = score(tmp_path, ["m"])
    assert [row.success for row in rows] == [True, True, False, False]
    (summary,) = summarise(rows)
    assert summary.recall.value == 0.5
    assert summary.rotation_error == pytest.approx((10 + 14.99) / 2)
    assert summary.translation_error == pytest.approx((0.1 + 0.2999) / 2)
    assert rows[0].inlier_precision == pytest.approx(1 / 3)
    assert rows[0].inlier_recall == pytest.approx(1 / 2)
    assert summary.seconds_median == pytest.approx(0.25)
    assert summary.megabytes == 3


def test_an_rmse_is_told_where_there_is_information_whatever_the_other_poses_are(
    tmp_path: Path,
) -> None:
    nothing = np.full((4, 4), np.nan)
    write(tmp_path, {"m": [pose(0, 0.1), nothing, pose(0, 0.3)]}, [pose()] * 3, informed=(0, 2))
    rows = score(tmp_path, ["m"])
    assert [row.success for row in rows] == [True, False, False]
    assert [row.rmse for row in rows] == pytest.approx([0.1, math.nan, 0.3], nan_ok=True)
    assert [row.rmse_counts for row in rows] == [True, False, True]


def test_a_summary_names_every_backend_that_took_part(tmp_path: Path) -> None:
    write(tmp_path, {"m": [pose()] * 3}, [pose()] * 3)
    rows = score(tmp_path, ["m"])
    assert [row.backend for row in rows] == ["cpu", "plain", "cpu"]
    assert [s.backend for s in summarise(rows)] == ["cpu, plain"]
    assert [s.backend for s in summarise(rows[:1])] == ["cpu"]


def test_a_method_without_a_pose_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"a": [pose()] * 2, "b": [pose()]}, [pose()] * 2)
    assert len(score(tmp_path, ["a", "b"])) == 2  # what both have
    with pytest.raises(VBRegError, match="b has no pose for s/1"):
        score(tmp_path, ["a", "b"], ["s/0", "s/1"])


def test_a_method_that_gave_up_has_failed(tmp_path: Path) -> None:
    write(tmp_path, {"m": []}, [pose()])
    table = Table(table_path(tmp_path, "m"), json.loads(table_path(tmp_path, "m").read_text()))
    table.add({"pair": "s/0", "T_target_source": np.eye(4).ravel().tolist(), "error": "too few"})
    (row,) = score(tmp_path, ["m"])
    assert not row.success
    assert row.error == "too few"
    assert row.backend == ""
    assert math.isnan(row.seconds)
    assert summarise([row])[0].backend == ""


def rows_of(method: str, hits: list[bool]) -> list[Row]:
    return [
        Row(
            f"s/{k}",
            "s",
            method,
            hit,
            1,
            0.1,
            math.nan,
            False,
            0.5,
            9,
            0.1,
            1,
            1,
            1,
            "cpu",
            "cpu",
            0.1,
            1.0,
        )
        for k, hit in enumerate(hits)
    ]


@pytest.mark.parametrize("share", [0.7, 0.98])
def test_the_interval_of_a_recall_covers_what_it_should(share: float) -> None:
    """Of many samples of a coin, about 95 % of the intervals hold its share, near 1 too."""
    generator = np.random.default_rng(0)
    intervals = [recall_interval(generator.random(200) < share) for _ in range(500)]
    covered = np.mean([low <= share <= high for _, low, high in intervals])
    assert 0.92 <= covered <= 0.985


def test_a_recall_of_all_pairs_is_not_certain() -> None:
    value, low, high = recall_interval(np.ones(51, dtype=bool))
    assert value == high == 1
    assert low == pytest.approx(0.930, abs=1e-3)  # 51 / (51 + 1.96^2)


@pytest.mark.parametrize("apart", [0.002, 0.02, 0.2])
def test_the_interval_of_a_lead_covers_what_it_should(apart: float) -> None:
    """Two methods that agree on most pairs: the interval holds the true difference."""
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(500):
        base = generator.random(200) < 0.9
        changed = generator.random(200)
        other = np.where(changed < apart, ~base, base)
        truth = apart * (0.1 - 0.9)  # of the pairs that change, one in ten is won
        _, low, high = lead_interval(other, base)
        covered.append(low <= truth <= high)
    assert np.mean(covered) >= 0.93


def test_methods_that_agree_on_few_pairs_may_still_differ() -> None:
    hits = np.array([True] * 10 + [False] * 2)
    value, low, high = lead_interval(hits, hits)
    assert value == 0
    assert -0.2 < low < -0.05
    assert high == pytest.approx(-low)


def test_a_lead_is_over_the_method_that_was_named() -> None:
    rows = rows_of("a", [True] * 2 + [False] * 8)
    rows += rows_of("b", [True] * 5 + [False] * 5) + rows_of("c", [True] * 9 + [False])
    leads = [s.lead.value for s in summarise(rows, over={"c": "b"})]
    assert leads == pytest.approx([0.0, 0.3, 0.4])
    assert [s.lead.value for s in summarise(rows)] == pytest.approx([0.0, 0.3, 0.7])


def test_a_lead_on_the_same_pairs_is_surer_than_two_recalls() -> None:
    base = [k % 2 == 0 for k in range(100)]
    better = [hit or k in (1, 3, 5, 7, 9, 11) for k, hit in enumerate(base)]
    first, second = summarise(rows_of("a", base) + rows_of("b", better))
    assert first.lead == (0, 0, 0)
    assert second.lead.value == pytest.approx(0.06)
    assert second.lead.low > 0
    assert first.recall.high > second.recall.low  # each alone could not tell


def test_the_rmse_is_that_of_the_shared_points() -> None:
    """The information matrix sums, over points, the squared first-order motion of each."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(500, 3, generator=generator, dtype=torch.float64)
    x, y, z = points.T
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, z, -y, -z, zero, x, y, -x, zero], -1).reshape(-1, 3, 3)
    J = torch.cat([torch.eye(3, dtype=torch.float64).expand(500, 3, 3), 2 * cross], -1)
    information = torch.einsum("nki,nkj->ij", J, J)
    truth = torch.from_numpy(pose(30, 1.0))
    moved = torch.from_numpy(pose(1.0, 0.03))
    # The error moves points of the source: estimate = inverse(moved) applied before the truth.
    estimate = truth @ torch.linalg.inv(moved)
    error = truth @ torch.linalg.inv(estimate)
    homogeneous = torch.cat([points, torch.ones(500, 1, dtype=torch.float64)], -1)
    distance = (homogeneous @ error.T - homogeneous)[:, :3].square().sum(-1).mean().sqrt()
    found = registration_rmse(estimate, truth, information)
    assert float(found) == pytest.approx(float(distance), rel=0.01)
    assert float(registration_rmse(truth, truth, information)) < 1e-9
