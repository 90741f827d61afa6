"""This file writes what `vbreg register` found: the poses first, then clouds and pictures.

A file that cannot be written is one line on stderr; the poses and all other files are there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import typer

from vbreg.cli.app import LESS_THAN_ASKED
from vbreg.cli.checks import check_outputs
from vbreg.cli.console import (
    collected_warnings,
    complain,
    forget_stdout,
    print_row,
    stdout_console,
)
from vbreg.cli.results import print_result, print_start, write_json
from vbreg.errors import FileFormatError, VBRegError, warn
from vbreg.summary import as_json
from vbreg.types import LIKELY, PointCloud, Registration


@dataclass(frozen=True)
class Aligned:
    """A source, its pose, and what there is to say about it."""

    path: Path
    cloud: PointCloud
    result: Registration
    timings: Mapping[str, float]
    warnings: Sequence[str]

    @property
    def shown(self) -> tuple[PointCloud, Registration]:
        """The source in the unit of the target, and the pose of that."""
        if self.result.scale == 1.0:
            return self.cloud, self.result
        scaling = np.diag([self.result.scale] * 3 + [1.0])
        return self.cloud.transformed(scaling), replace(self.result, scale=1.0)


@dataclass(frozen=True)
class Making:
    """How a pose was found, as far as a report tells it."""

    command: str
    weights: str | None
    device: str


@dataclass(frozen=True)
class Outputs:
    """Where the results go."""

    output: Path | None  # a file, or a folder, as for several sources
    merge: Path | None
    picture: Path | None
    figure: Path | None
    report: Path | None
    json_path: str | None
    coordinates: Literal["float32", "float64", "shifted"] | None
    quiet: bool
    roles: tuple[str, str] = ("SOURCE", "TARGET")  # as the verb calls its arguments

    def clouds(self, sources: Sequence[Path]) -> list[Path]:
        """Return the files of moved clouds, one a source, and the merged one."""
        several = len(sources) > 1
        moved = [] if self.output is None else [self.moved(path, several) for path in sources]
        return [*moved, *([] if self.merge is None else [self.merge])]

    def check(self, sources: Sequence[Path], target: Path) -> None:
        """Raise an error where something is wrong with the paths, before any work begins.

        If all is well, the folder for several sources is made where there is none.
        """
        several = len(sources) > 1
        for name in ("picture", "figure", "report"):
            if several and (path := getattr(self, name)) is not None:
                raise FileFormatError(f"--{name} {path}: it shows one source; give one")
        folder = self._folder(len(sources))
        check_outputs(
            clouds=self.clouds(sources),
            picture=self.picture,
            figure=self.figure,
            report=self.report,
            json_path=self.json_path,
            inputs=(*sources, target),
            new_folder=folder,
        )
        if folder is not None:
            folder.mkdir(exist_ok=True)

    def _folder(self, sources: int) -> Path | None:
        """Return the folder for several sources; raise where -o can be none, or neither."""
        output = self.output
        if output is None or output.is_dir() or (sources == 1 and output.suffix):
            return output if sources > 1 else None
        if sources == 1:
            raise FileFormatError(
                f"-o {output}: no ending and no folder; give a file such as {output}.ply, or "
                "create the folder"
            )
        if output.exists() or output.suffix:
            raise FileFormatError(
                f"-o {output}: expected a folder for the {sources} sources; create it, or choose "
                "a name without an ending"
            )
        return output

    def moved(self, path: Path, several: bool) -> Path:
        """Return where a source goes once it is moved.

        In a folder it is a file of the same name, or a .ply where its format is only read.
        """
        from vbreg.io import FORMATS

        assert self.output is not None
        if not several and not self.output.is_dir():
            return self.output
        written = any(row.writes for row in FORMATS if row.ending == path.suffix.lower())
        return self.output / (path.name if written else f"{path.name}.ply")

    def without(self, path: Path, several: bool) -> str:
        """Say which files go without a source that is not probable enough."""
        moved = "" if self.output is None else f"; {self.moved(path, several)} is not written"
        fate = "is without this source" if several else "is not written"
        return moved + ("" if self.merge is None else f"; {self.merge} {fate}")

    @property
    def need_clouds(self) -> bool:
        """Whether clouds are written or drawn, for which all their points are read."""
        return any((self.output, self.merge, self.picture, self.figure, self.report))

    @property
    def prints(self) -> bool:
        """Whether stdout is for people."""
        return not self.quiet and self.json_path != "-"


def align_each(paths: Sequence[Path], align: Callable[[Path], Aligned]) -> list[Aligned]:
    """Return what could be aligned; of several, one may fail."""
    found = []
    for path in paths:
        try:
            found.append(align(path))
        except VBRegError as error:
            if len(paths) == 1:
                raise
            complain("error", str(error))
    return found


def doubts(result: Registration, remedy: str) -> list[str]:
    """Say why not to trust a pose and what to do; nothing where it is probable and settled."""
    p = result.success_probability
    if p is not None and p < LIKELY:
        return [f"{result.verdict}; {remedy}"]
    if result.settled and p is not None:
        return []
    return list(result.reasons)


def probable(
    outputs: Outputs, found: Sequence[Aligned], least: float | None, several: bool
) -> list[Aligned]:
    """Return what is as probable as asked for, and say of the others that they are not."""
    kept = []
    for aligned in found:
        p = aligned.result.success_probability
        if least and (p is None or p < least):
            lost = outputs.without(aligned.path, several)
            complain("error", f"{aligned.path}: the pose {_improbable(p, least)}{lost}")
        else:
            kept.append(aligned)
    return kept


def leave(*, failed: bool, improbable: bool) -> None:
    """Raise the exit with the code that says how the command went, unless all is well."""
    if failed:
        raise typer.Exit(2)
    if improbable:
        raise typer.Exit(LESS_THAN_ASKED)


def write_poses(
    outputs: Outputs, found: Sequence[Aligned], target: Path, *, several: bool, start: float
) -> bool:
    """Write the JSON, print poses and warnings; return whether the JSON could be written.

    `start` are the seconds before the work, which are told once.
    """
    said = [as_json(a.result, a.timings, a.path, target, a.warnings) for a in found]
    written = True
    if outputs.json_path is not None:
        path = outputs.json_path
        written = _attempt(lambda: write_json(path, said if several else said[0]))
    if outputs.prints:
        console = stdout_console()
        for aligned in found:
            if several:
                console.print(f"{aligned.path}", style="bold", soft_wrap=True, markup=False)
            print_result(console, aligned.result, aligned.timings, outputs.roles)
        print_start(console, start)
        if outputs.json_path is not None and written:
            print_row(console, "wrote", outputs.json_path)
        _attempt(sys.stdout.flush)  # a cloud may take a while, and may fail
    for aligned in found:
        for warning in _beside_verdict(aligned) if outputs.prints else aligned.warnings:
            complain("warning", f"{aligned.path}: {warning}" if several else warning)
    return written


def _beside_verdict(aligned: Aligned) -> list[str]:
    """Return the warnings without the reason that the verdict on stdout gives."""
    verdict, reasons = aligned.result.verdict, aligned.result.reasons
    if aligned.result.success_probability is None or not reasons:
        return list(aligned.warnings)
    told = f": {reasons[0]}"
    return [
        said.replace(told, "", 1) if said.startswith(verdict) else said
        for said in aligned.warnings
        if not (said == reasons[0] and verdict.endswith(told))
    ]


def write_clouds(
    outputs: Outputs, found: Sequence[Aligned], cloud: PointCloud, several: bool
) -> bool:
    """Write moved clouds, and one merged with the target's cloud; return whether all could be."""
    from vbreg import io

    moved = [replace(a.result.apply_to(a.cloud), crs=cloud.crs) for a in found]
    jobs: list[tuple[Path, Callable[[], object]]] = []

    def write(path: Path, content: PointCloud) -> None:
        io.write(path, content, coordinates=outputs.coordinates)

    if outputs.output is not None:
        for aligned, content in zip(found, moved, strict=True):
            path = outputs.moved(aligned.path, several)
            jobs.append((path, partial(write, path, content)))
    if outputs.merge is not None and moved:
        merge = outputs.merge
        jobs.append((merge, lambda: write(merge, merged([cloud, *moved]))))
    return _write(outputs, jobs)


def write_pictures(outputs: Outputs, aligned: Aligned, target: Path, cloud: PointCloud) -> bool:
    """Write picture and figure as far as they are asked for; return whether all could be."""
    from vbreg.figure import draw_figure
    from vbreg.render import before_after

    source, result = aligned.shown
    pair = source.points, cloud.points
    title = f"{aligned.path.name} to {target.name}"
    jobs: list[tuple[Path, Callable[[], object]]] = []
    if (picture := outputs.picture) is not None:
        shown = *pair, result.T_target_source, picture, title, result.verdict
        jobs.append((picture, lambda: before_after(*shown)))
    if (figure := outputs.figure) is not None:
        jobs.append((figure, lambda: draw_figure(*pair, result, figure)))
    return _write(outputs, jobs)


def write_report(
    outputs: Outputs, aligned: Aligned, target: Path, cloud: PointCloud, making: Making
) -> bool:
    """Write the report, if one is asked for; return whether it could be."""
    from vbreg import viewer

    if (report := outputs.report) is None:
        return True

    def write() -> None:
        source, result = aligned.shown
        scene = viewer.ShownPair(
            source,
            cloud,
            result,
            viewer.votes_of(result, making.weights, making.device),
            as_json(aligned.result, aligned.timings, aligned.path, target, aligned.warnings),
            (aligned.path.name, target.name),
            making.command,
        )
        viewer.write_report(report, scene)

    return _write(outputs, [(report, write)])


def _improbable(p: float | None, least: float) -> str:
    """Say of a pose that it is less probable than asked for."""
    if p is None:
        return f"was not judged, and --min-probability asks for {least:g}"
    said = "is probably wrong" if p < LIKELY else "is not probable enough"
    # Rounded down, so that it is never told as what was asked for, or as certain.
    told = f"{math.floor(1000 * p) / 1000:g}" if p >= 0.001 else "below 0.001"
    return f"{said}: its probability is {told}, and --min-probability asks for {least:g}"


def _write(outputs: Outputs, jobs: Sequence[tuple[Path, Callable[[], object]]]) -> bool:
    """Do what writes files, and say which are there; return whether all are."""
    done = [path for path, job in jobs if _attempt(job)]
    if outputs.prints:
        for path in done:
            print_row(stdout_console(), "wrote", str(path))
    return len(done) == len(jobs)


def merged(clouds: Sequence[PointCloud]) -> PointCloud:
    """Join clouds of one frame, with the attributes that all have; warn of the others."""
    names = [n for n in clouds[0].attributes if all(n in c.attributes for c in clouds)]
    shapes = {n: {c.attributes[n].shape[1:] for c in clouds} for n in names}
    kept = [name for name in names if len(shapes[name]) == 1]
    if others := sorted({name for c in clouds for name in c.attributes} - set(kept)):
        text = f"the merged cloud is without {', '.join(others)}, which not all clouds have"
        warn(text)
    return PointCloud(
        np.concatenate([cloud.points for cloud in clouds]),
        {name: np.concatenate([cloud.attributes[name] for cloud in clouds]) for name in kept},
        crs=clouds[0].crs,
    )


def _attempt(job: Callable[[], object]) -> bool:
    """Run what writes a file; say what is lost or went wrong, and return whether it is there."""
    try:
        with collected_warnings() as said:
            job()
    except BrokenPipeError:  # nobody reads stdout, which costs no file
        forget_stdout()
        return True
    except (VBRegError, OSError, MemoryError) as error:
        complain("error", str(error) or type(error).__name__)
        return False
    for warning in said:
        complain("warning", warning)
    return True
