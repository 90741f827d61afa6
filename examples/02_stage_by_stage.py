"""The same stage by stage: put your own descriptors or matches in at any step."""

import torch

from vbreg import Scale, VBReg
from vbreg.demo import load
from vbreg.matching import describe, match_clouds

scale = Scale(voxel_size=0.05)  # owns every radius
clouds = load()[:2]  # or paths, or arrays (N, 3)

described = [describe(cloud, scale) for cloud in clouds]  # one point a voxel, thinned and described
matched = match_clouds(*described, scale)

model = VBReg.from_pretrained("fast", device="cpu")
result = model.solve(matched)
print(result.T_target_source.round(3))


def mine(points: torch.Tensor, normals: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Describe points (N, 3) by any (N, D) numbers: here FPFH at two radii."""
    from vbreg.descriptors import fpfh

    radii = scale.feature_radius, 0.6 * scale.feature_radius
    return torch.cat([fpfh(points, normals, radius) for radius in radii], dim=-1)


own = [describe(cloud, scale, descriptor=mine) for cloud in clouds]
print(model.solve(match_clouds(*own, scale)))  # the same as register(..., descriptor=mine)
