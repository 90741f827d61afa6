import math

import pytest
import torch

from vbreg.metrics import classification, pose_error


def test_errors_of_a_known_motion() -> None:
    truth = torch.eye(4, dtype=torch.float64)
    angle = math.radians(10)
    estimate = truth.clone()
    estimate[:2, :2] = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    estimate[:3, 3] = torch.tensor([0.3, 0.0, 0.4])
    error = pose_error(estimate, truth)
    assert float(error.rotation) == pytest.approx(10.0)
    assert float(error.translation) == pytest.approx(0.5)  # a length, not its square
    assert error.success(15, 0.6)
    assert not error.success(10.0, 0.6)  # strict
    assert not error.success(15, 0.5)


def test_classification_counts() -> None:
    predicted = torch.tensor([True, True, False, False])
    actual = torch.tensor([True, False, True, False])
    assert [float(v) for v in classification(predicted, actual)] == [0.5, 0.5, 0.5]
    nothing = torch.zeros(4, dtype=torch.bool)
    assert [float(v) for v in classification(nothing, actual)] == [0.0, 0.0, 0.0]
