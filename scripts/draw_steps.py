"""Draw the pictures of docs/how_it_works.md and the guides, from demo scans and simulated places.

python scripts/draw_steps.py              # all of them into docs/images; needs vbreg[plots]
python scripts/draw_steps.py matches      # one of them
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.collections import LineCollection

from vbreg import Registration, Scale, VBReg, demo
from vbreg.backends.plain import Backend
from vbreg.clouds import voxel_downsample
from vbreg.matching import MatchedClouds, describe, match_clouds
from vbreg.render import SOURCE, TARGET, Camera, render_clouds
from vbreg.simulator import drive_and_scan, make_place, make_street
from vbreg.simulator.sensors import LIDAR_32
from vbreg.surfaces import SurfacePair
from vbreg.types import Float64
from vbreg.verification import Question, give_verdict, shipped_judge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = Path(__file__).parents[1] / "docs" / "images"
PIXELS = (900, 700)  # of a panel, before it is shrunk into the figure
WIDE = (900, 420)
WHITE = (255, 255, 255)
PALE = 0.6  # whiteness of clouds that lines lie upon
RIGHT, WRONG = "#00664e", "#d6457f"
INK = "#262a30"
MAX_LINES = 250
COLOURS = 128  # of a file, which keeps it small


def matched_demo() -> tuple[VBReg, MatchedClouds, Registration, Float64]:
    """Return the network, the demo pair as matched, its registration and its true pose."""
    source, target, truth = demo.load()
    scale = Scale(0.05)
    matched = match_clouds(describe(source, scale), describe(target, scale), scale)
    model = VBReg.from_pretrained("fast", device="cpu")
    return model, matched, model.solve(matched), truth


def save(figure: mpl.figure.Figure, path: Path) -> None:
    """Write a figure with few colours."""
    from PIL import Image

    figure.savefig(path, dpi=130, facecolor="white")
    plt.close(figure)
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size // 1000} kB")


def panels(count: int, height: float = 3.0) -> tuple[mpl.figure.Figure, list[Axes]]:
    """Return a figure with so many empty pictures side by side."""
    figure, axes = plt.subplots(1, count, figsize=(11, height), layout="constrained", squeeze=False)
    for axis in axes[0]:
        axis.set_axis_off()
    return figure, list(axes[0])


def show(
    axis: Axes,
    clouds: list[tuple[Float64, tuple[int, int, int]]],
    title: str,
    pixels: tuple[int, int] = PIXELS,
    seen: Float64 | None = None,  # the cloud that the view is to suit
) -> Camera:
    """Draw clouds into a panel, in a view that suits the last of them if none is given."""
    everything = np.concatenate([points for points, _ in clouds])
    camera = Camera.facing(clouds[-1][0] if seen is None else seen).framing(everything, *pixels)
    axis.imshow(render_clouds(clouds, camera=camera, size=pixels, background=WHITE))
    axis.set_title(title, fontsize=9, color=INK)
    return camera


def paler(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    r, g, b = (round(value + PALE * (255 - value)) for value in colour)
    return r, g, b


def draw_matches(folder: Path) -> None:
    """Draw all matches, those that the network believes, and those that agree with the pose."""
    source, target, _ = demo.load()
    _, _, result, truth = matched_demo()
    ends = result.correspondences
    moved = ends.source @ truth[:3, :3].T + truth[:3, 3]
    right = np.linalg.norm(moved - ends.target, axis=1) < result.inlier_threshold
    turned = result.apply_to(source.points)  # drawn upright, beside the target
    lying = result.apply_to(ends.source)
    camera = Camera.facing(target.points)
    width = np.ptp(turned @ camera.axes[0]) + np.ptp(target.points @ camera.axes[0])
    shift = -0.62 * width * camera.axes[0]
    order = np.random.default_rng(0).permutation(len(ends))
    believed = result.confidence > 0.5
    shares = [100 * right[rows].mean() for rows in (np.arange(len(ends)), believed)]
    choices = (
        (np.ones(len(ends), bool), f"{len(ends)} matches, {shares[0]:.0f} % of them right"),
        (believed, f"{believed.sum()} that the network believes, {shares[1]:.0f} % right"),
        (result.inliers, f"{result.inlier_count} that agree with the pose"),
    )
    figure, axes = panels(3, 2.1)
    for axis, (chosen, title) in zip(axes, choices, strict=True):
        view = show(
            axis, [(turned + shift, paler(SOURCE)), (target.points, paler(TARGET))], title, WIDE
        )
        rows = [row for row in order if chosen[row]][:MAX_LINES]
        a, b = (view.project(points[rows], *WIDE)[:, :2] for points in (lying + shift, ends.target))
        colours = [RIGHT if right[row] else WRONG for row in rows]
        axis.add_collection(LineCollection(np.stack([a, b], 1), colors=colours, lw=0.6, alpha=0.6))
    save(figure, folder / "step_matches.png")


def draw_confidence(folder: Path) -> None:
    """Draw how the network's confidence of right and of wrong matches is spread."""
    _, _, result, truth = matched_demo()
    ends = result.correspondences
    moved = ends.source @ truth[:3, :3].T + truth[:3, 3]
    right = np.linalg.norm(moved - ends.target, axis=1) < result.inlier_threshold
    figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
    bins = np.linspace(0, 1, 26)
    for chosen, colour, name in ((~right, WRONG, "wrong"), (right, RIGHT, "right")):
        axis.hist(
            result.confidence[chosen], bins, color=colour, alpha=0.65,
            label=f"{name} matches ({chosen.sum()})",
        )  # fmt: skip
    axis.set(xlabel="confidence of the network", ylabel="matches", yscale="log")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    save(figure, folder / "step_confidence.png")


def draw_poses(folder: Path) -> None:
    """Draw four poses of the search laid upon the target, and what the judge gives each."""
    source, target, _ = demo.load()
    model, matched, _, _ = matched_demo()
    matches = matched.matches(with_descriptors=False)
    with torch.inference_mode():
        solution = model.solver(matches, Backend(), whole=True, candidates=20)
        surfaces = SurfacePair.of(matched)
        assert surfaces is not None, "the demo scans have normals"
        verdict = give_verdict(shipped_judge().network, Question.of(matched, surfaces, solution))
    figure, axes = panels(4, 2.5)
    valid = torch.nonzero(solution.candidate_score[0] >= 0).flatten().tolist()
    for k, axis in zip(valid, axes, strict=False):
        T = matches.to_user(solution.candidates[:, k])[0]
        moved = source.points @ T[:3, :3].T + T[:3, 3]
        share, probability = solution.candidate_score[0, k], float(verdict.probabilities[k])
        said = f"{100 * probability:.1f} %" if probability > 0.0005 else "under 0.1 %"
        title = f"score {share:.3f}; probability {said}"
        show(axis, [(moved, SOURCE), (target.points, TARGET)], title)
    save(figure, folder / "step_poses.png")


def draw_voxels(folder: Path) -> None:
    """Draw a scan at four voxel sizes."""
    points = torch.from_numpy(demo.load()[1].points)
    figure, axes = panels(4, 2.4)
    for axis, size in zip(axes, (0.02, 0.05, 0.1, 0.25), strict=True):
        thinned = voxel_downsample(points, size).numpy()
        show(
            axis,
            [(thinned, TARGET)],
            f"{100 * size:.0f} cm: {len(thinned)} points",
            seen=points.numpy(),
        )
    save(figure, folder / "voxel_sizes.png")


def draw_places(folder: Path) -> None:
    """Draw two scans of a simulated street and two of an object, under their true pose."""
    generator = np.random.default_rng(0)
    drive = drive_and_scan(make_street(generator, "residential"), generator, 2, LIDAR_32)
    street = [(points.numpy(), T.numpy()) for points, T in drive]
    scans = make_place("object_turntable", 0).scans[:2]
    thing = [(scan.points, scan.T_world_scan) for scan in scans]
    for name, ((source, T_world_source), (target, T_world_target)) in (
        ("street", street),
        ("object", thing),
    ):
        T = np.linalg.inv(T_world_target) @ T_world_source
        moved = source @ T[:3, :3].T + T[:3, 3]
        figure, axes = panels(3, 2.8)
        show(axes[0], [(source, SOURCE)], f"source, {len(source)} points")
        show(axes[1], [(target, TARGET)], f"target, {len(target)} points")
        show(axes[2], [(moved, SOURCE), (target, TARGET)], "aligned")
        save(figure, folder / f"guide_{name}.png")


PICTURES = {
    "matches": draw_matches,
    "confidence": draw_confidence,
    "poses": draw_poses,
    "voxels": draw_voxels,
    "places": draw_places,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", nargs="*", choices=[*PICTURES, []], help="left out: all")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    mpl.use("agg")
    for name in options.pictures or PICTURES:
        PICTURES[name](options.folder)


if __name__ == "__main__":
    main()
