"""What you know of the pose makes the search smaller: a guess with limits."""

import numpy as np

import vbreg
from vbreg.demo import load

source, target, T_true = load()
guess = T_true.copy()
guess[:3, 3] += [0.3, -0.2, 0.1]  # odometry that drifted by some decimetres

free = vbreg.register(source, target, voxel_size=0.1)
held = vbreg.register(
    source, target, voxel_size=0.1, guess=guess, max_translation=1.0, max_rotation=20
)
for name, result in (("nothing known", free), ("a guess", held)):
    off = np.linalg.norm(result.T_target_source[:3, 3] - T_true[:3, 3])
    print(
        f"{name}: {result.inlier_count} of {len(result.correspondences)} matches agree, "
        f"off by {100 * off:.1f} cm"
    )
