"""`vbreg info` describes clouds in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from vbreg.cli.app import examples
from vbreg.cli.console import complain, print_row, stdout_console
from vbreg.errors import VBRegError
from vbreg.progress import progress
from vbreg.types import Float64

# Points whose nearest neighbour is looked for. Of a larger cloud every k-th point is taken, and
# since k is whole, between half of this number and all of it.
MAX_SPACING_SAMPLE = 4000

EXAMPLES = examples("vbreg info scan.ply", "vbreg info *.pcd --json")


def info(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Clouds to look at.")],
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """Describe clouds: points, extents, spacing, attributes."""
    described: list[dict[str, Any]] = []
    with progress() as stage:
        stage("start torch")
        for path in files:
            stage(f"read {path.name}")
            try:
                described.append(_describe(path))
            except VBRegError as error:
                described.append({"file": str(path), "error": str(error)})
    if json_:
        print(json.dumps(described, indent=2))
    console = stdout_console()
    for index, facts in enumerate(described):
        if "error" in facts:
            complain("error", facts["error"])
        elif not json_:
            if index:
                console.print()
            _print_facts(console, facts)
    if any("error" in facts for facts in described):
        raise typer.Exit(2)


def _describe(path: Path) -> dict[str, Any]:
    """Read a cloud and return what there is to say about it, in types that JSON knows."""
    from vbreg import io

    cloud = io.read(path)
    points = cloud.points[np.isfinite(cloud.points).all(axis=1)]
    facts: dict[str, Any] = {"file": str(path), "points": len(cloud), "finite": len(points)}
    if len(points) >= 3:
        facts |= _measure(points)
    facts["attributes"] = {
        name: f"{values.dtype}{list(values.shape[1:]) or ''}"
        for name, values in cloud.attributes.items()
    }
    return facts


def _measure(points: Float64) -> dict[str, Any]:
    """Return where finite points lie and how densely, and the voxel size that suits them."""
    import torch
    from scipy.spatial import cKDTree

    from vbreg.clouds import estimate_voxel_size

    low, high = points.min(axis=0), points.max(axis=0)
    sample = points[:: max(1, 2 * len(points) // MAX_SPACING_SAMPLE)]
    distance = np.asarray(cKDTree(points, balanced_tree=False).query(sample, k=2)[0])
    facts = {
        "low": low.tolist(),
        "high": high.tolist(),
        "extents": (high - low).tolist(),
        "median_spacing": float(np.median(distance[:, 1])),  # column 0 is the point itself
    }
    # float32 resolves little of coordinates far from the origin, as those of a map are.
    local = torch.from_numpy((points - points.mean(axis=0)).astype(np.float32))
    with suppress(VBRegError):  # points in one place have no scale
        facts["suggested_voxel_size"] = float(estimate_voxel_size(local))
    return facts


def _print_facts(console: Console, facts: Mapping[str, Any]) -> None:
    """Print what `_describe` found out about a cloud."""
    console.print(Text(facts["file"], style="bold"), soft_wrap=True)
    missing = facts["points"] - facts["finite"]
    points = f"{facts['points']}" + (f", {missing} not finite" if missing else "")
    print_row(console, "points", points)
    if "extents" in facts:
        for label in ("low", "high", "extents"):
            print_row(console, label, "  ".join(f"{value:.3f}" for value in facts[label]))
        spacing = f"{facts['median_spacing']:.4g} (median to the nearest point)"
        print_row(console, "spacing", spacing)
    if "suggested_voxel_size" in facts:
        print_row(console, "voxel size", f"{facts['suggested_voxel_size']:.4g} suggested")
    attributes = ", ".join(f"{name} {kind}" for name, kind in facts["attributes"].items())
    print_row(console, "attributes", attributes or "none")
