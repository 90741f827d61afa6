"""Several problems of different sizes in one call, padded and masked."""

import numpy as np

from vbreg import VBReg

rng = np.random.default_rng(0)
sizes = (300, 120)
source = np.zeros((2, max(sizes), 3))
target = np.zeros_like(source)
mask = np.zeros(source.shape[:2], dtype=bool)
for b, n in enumerate(sizes):
    points = rng.uniform(0, 4, (n, 3))
    moved = points + np.array([1.0, 2.0, 3.0])  # the truth: a shift
    wrong = rng.random(n) < 0.7
    moved[wrong] = rng.uniform(0, 7, (wrong.sum(), 3))
    source[b, :n], target[b, :n], mask[b, :n] = points, moved, True

result = VBReg.from_pretrained("indoor", device="cpu").estimate(source, target, mask=mask)
print(result.T_target_source.round(3))
print(result.inlier_count, "inliers of", sizes)
