"""Matches of your own: several problems of different sizes in one call."""

import numpy as np

from vbreg import VBReg

rng = np.random.default_rng(0)
shift = np.array([1.0, 2.0, 3.0])  # the truth
sources, targets = [], []
for n in (300, 120):
    source = rng.uniform(0, 4, (n, 3))
    target = source + shift
    wrong = rng.random(n) < 0.7
    target[wrong] = rng.uniform(0, 7, (wrong.sum(), 3))
    sources.append(source)
    targets.append(target)

model = VBReg.from_pretrained("universal", device="cpu")
for result in model.estimate_batch(sources, targets, inlier_threshold=0.10):
    print(result.T_target_source.round(3))
    print(result.inlier_count, "of", len(result.correspondences), "matches agree")
