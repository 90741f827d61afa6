"""Two clouds in, a pose out."""

import vbreg
from vbreg.demo import load

source, target, _ = load()  # or paths: "source.ply", "target.ply"
result = vbreg.register(source, target, voxel_size=0.05)

print(result.T_target_source.round(3))
print(f"{result.inlier_count} of {len(result.correspondences)} matches agree")
print({stage: round(seconds, 2) for stage, seconds in result.timings.items()})
aligned = result.apply_to(source)  # the source in the target's frame
print(aligned)
