"""How far ONNX Runtime's answers are from torch's, on real matches; needs vbreg[onnx].

    python benchmarks/onnx_error.py --root DATA/3dmatch

For every number of matches: the largest difference of a logit between ONNX Runtime and torch, and
between torch and torch in double precision, which says how much of it is rounding; the same of a
feature; and how far apart the poses are that the search gives from both.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from vbreg import Scale, VBReg
from vbreg.backends.plain import Backend
from vbreg.datasets import open_pairs
from vbreg.export import export_onnx
from vbreg.frames import Matches
from vbreg.matching import describe, match_clouds
from vbreg.metrics import pose_error
from vbreg.network import NetworkOutput
from vbreg.solver import Solver

VOXEL_SIZE = 0.05


class OnnxSolver(Solver):
    """The search of vbreg behind a network that ONNX Runtime computes, one problem at a time."""

    session: onnxruntime.InferenceSession

    def run_network(self, matches: Matches, *rest: object, **more: object) -> NetworkOutput:
        source, target = (end[0].numpy() for end in self.lowered(matches))
        logits, features = self.session.run(None, {"source": source, "target": target})
        every = torch.from_numpy(features).unsqueeze(1)  # (L, 1, N, d)
        return NetworkOutput(torch.from_numpy(logits)[None], tuple(every), (), ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--every", type=int, default=200, help="pairs of 3DMatch")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 1000, 3000])
    parser.add_argument("--weights", nargs="+", default=["fast", "universal"])
    options = parser.parse_args()
    scale = Scale(VOXEL_SIZE)
    matched = []
    for pair in open_pairs("3dmatch", options.root).select(every=options.every):
        ends = [describe(c, scale, keypoints="all") for c in (pair.source, pair.target)]
        matched.append(match_clouds(*ends, scale, matching="one-way"))
    print(f"{len(matched)} pairs of 3DMatch\n")
    print(
        "| weights | N | logits, ONNX - torch | logits, torch - double | features, ONNX - torch |"
    )
    print("| --- | --- | --- | --- | --- |")
    for weights in options.weights:
        model = VBReg.from_pretrained(weights, device="cpu", backend="plain")
        solver = OnnxSolver(model.network, model.voting)
        with tempfile.TemporaryDirectory() as folder:
            file = export_onnx(weights, Path(folder) / "network.onnx", every_iteration=True)
            session = onnxruntime.InferenceSession(file.read_bytes())
        object.__setattr__(solver, "session", session)
        poses = []
        for n in options.sizes:
            worst = np.zeros(3)
            for pair in matched:
                matches = pair.thinned(n).matches()
                with torch.inference_mode():
                    torchs = model.solver.run_network(matches, Backend(), whole=True)
                    onnxs = solver.run_network(matches)
                    exact = model.network.double()(matches.source, matches.target)
                    model.network.float()
                    found = [s(matches, Backend(), whole=True) for s in (solver, model.solver)]
                differences = (
                    onnxs.logits - torchs.logits,
                    torchs.logits - exact.logits,
                    onnxs.features[-1] - torchs.features[-1],
                )
                worst = np.maximum(worst, [float(d.abs().max()) for d in differences])
                T = [torch.from_numpy(matches.to_user(solution.T)[0]) for solution in found]
                poses.append((n, *pose_error(*T)))
            print(f"| `{weights}` | {n} | " + " | ".join(f"{value:.4f}" for value in worst) + " |")
        same = sum(rotation < 0.1 and shift < 0.005 for _, rotation, shift in poses)
        print(f"\n{weights}: {same} of {len(poses)} poses within 0.1 deg and 5 mm; the others:")
        for n, rotation, shift in poses:
            if not (rotation < 0.1 and shift < 0.005):
                print(f"N {n}: {float(rotation):.2f} deg, {float(shift):.3f} m")
        print()


if __name__ == "__main__":
    main()
