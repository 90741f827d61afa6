"""Descriptors from elsewhere: two arrays of points and features, matched here, in a pose out."""

import numpy as np
import torch

from vbreg import Scale, VBReg
from vbreg.clouds import normals, voxel_downsample
from vbreg.demo import load
from vbreg.descriptors import fpfh
from vbreg.matching import match

scale = Scale(voxel_size=0.05)


def keypoints_and_features(points: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for your network: points (N, 3) and one row of numbers for each (N, D)."""
    thinned = voxel_downsample(torch.from_numpy(points), scale.voxel_size)
    return thinned, fpfh(thinned, normals(thinned, scale.normal_radius), scale.feature_radius)


source, target, T_true = load()
points, features = zip(*(keypoints_and_features(c.points) for c in (source, target)), strict=True)

rows, columns = match(*features, matching="mutual")
model = VBReg.from_pretrained("fast", device="cpu")
result = model.estimate(
    points[0][rows], points[1][columns], inlier_threshold=scale.inlier_threshold
)
print(result.T_target_source.round(3))
print(f"{result.inlier_count} of {len(rows)} matches agree")
