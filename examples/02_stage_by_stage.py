"""The same by hand: put your own descriptors or matches in at any step."""

import torch

from vbreg import VBReg
from vbreg.clouds import normals, voxel_downsample
from vbreg.correspondences import match
from vbreg.demo import load
from vbreg.descriptors import fpfh

voxel_size = 0.05
points, features = [], []
for cloud in load()[:2]:
    points.append(voxel_downsample(torch.from_numpy(cloud.points).float(), voxel_size))
    direction = normals(points[-1], 2 * voxel_size)
    features.append(fpfh(points[-1], direction, 5 * voxel_size))  # or any (N, D) of yours

source_index, target_index = match(*features)
model = VBReg.from_pretrained("indoor", device="cpu")
result = model.estimate(
    points[0][source_index], points[1][target_index], inlier_threshold=2 * voxel_size
)
print(result.T_target_source.round(3))
