"""What one run of the viewer holds: two clouds, their pose, and the work on them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from vbreg import demo, io
from vbreg.errors import VBRegError
from vbreg.summary import as_json
from vbreg.types import PointCloud, Registration, Votes
from vbreg.viewer.jobs import Jobs, Stage
from vbreg.viewer.report import report_html
from vbreg.viewer.scene import ShownPair, votes_of, without_infinity

Role = Literal["source", "target"]
ROLES: tuple[Role, Role] = ("source", "target")
MAX_WAITING_JOBS = 4

Registered = tuple[Registration, Votes | None]
Register = Callable[[PointCloud, PointCloud, Stage, Mapping[str, Any]], Registered]


class Session:
    """Two clouds and what becomes of them; every method may be called from any thread."""

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, Any] | None = None,
        *,
        command: str | None = None,
        register: Register | None = None,
    ) -> None:
        """Take a folder for files that are ours alone, and options of `vbreg.register`."""
        self.folder, self.command = folder, command
        self.options = dict(options or {})
        self._register = register or register_with_votes
        self.jobs = Jobs(MAX_WAITING_JOBS)
        self._scene = ShownPair(None, None)
        self._paths = {role: Path(role) for role in ROLES}
        self._packed: tuple[int, bytes] | None = None  # with the number of the scene
        self._count = 0
        self._writing = Lock()

    def state(self, after: int = -1, seconds: float = 0.0) -> dict[str, Any]:
        """Return what there is to know; wait so long for news since the version `after`."""
        with self.jobs.changed:
            self.jobs.changed.wait_for(lambda: self.jobs.version > after, timeout=seconds)
            clouds = {"source": self._scene.source, "target": self._scene.target}
            return {
                "version": self.jobs.version,
                "clouds": {role: cloud and len(cloud) for role, cloud in clouds.items()},
                "job": self.jobs.describe(),
                "error": self.jobs.error,
                "failures": self.jobs.failures,
                "scene": None if self._packed is None else self._packed[0],
                "registered": self._scene.result is not None,
                "options": {name: self.options.get(name) for name in ("voxel_size", "preset")},
            }

    def open(self, source: Path, target: Path) -> None:
        """Read two files of the user's and find their pose."""

        def work(stage: Stage) -> None:
            for role, path in zip(ROLES, (source, target), strict=True):
                self._read(role, path, stage, path.name)
            self._show(stage)
            self._find(stage)

        self.jobs.submit("register", work)

    def load(self, role: Role, path: Path) -> None:
        """Read a file that was sent, which is removed afterwards."""

        def work(stage: Stage) -> None:
            try:
                self._read(role, path, stage, role)
            except VBRegError as error:  # the name that it has here says nothing to anybody
                raise VBRegError(str(error).replace(str(path), f"the {role} file")) from error
            self._show(stage)

        self.jobs.submit(f"read {role}", work, lambda: path.unlink(missing_ok=True))

    def example(self) -> None:
        """Load the pair of scans that comes with the package, and find its pose."""

        def work(stage: Stage) -> None:
            stage("read example")
            source, target, _ = demo.load()
            with self.jobs.changed:
                self._scene = ShownPair(source, target, names=("scan 1", "scan 2"))
                self._paths = {role: Path(f"demo_{role}.ply") for role in ROLES}
            self._show(stage)
            self.options |= {"voxel_size": None, "preset": "indoor"}
            self._find(stage)

        self.jobs.submit("example", work)

    def register(self, voxel_size: float | None, preset: str | None) -> None:
        """Find the pose of the clouds that are there."""
        self._both()

        def work(stage: Stage) -> None:
            self.options |= {"voxel_size": voxel_size, "preset": preset}
            self._find(stage)

        self.jobs.submit("register", work)

    def scene(self) -> bytes:
        """Return what the page draws."""
        with self.jobs.changed:
            if self._packed is None:
                raise VBRegError("there is no cloud yet: send a file, or load the example")
            return self._packed[1]

    def result_json(self) -> bytes:
        """Return the pose and the evidence for it, as `vbreg register --json` writes it."""
        return json.dumps(without_infinity(self._registered().said), indent=2).encode() + b"\n"

    def report(self) -> bytes:
        """Return the report of the pose, one file of HTML."""
        return report_html(self._registered())

    def aligned_file(self) -> Path:
        """Write the whole source in the target's frame; return a file for the caller to remove."""
        scene = self._registered()
        assert scene.result is not None
        assert scene.source is not None
        with self._writing:
            path = self.new_path(".ply")
            moved = scene.result.apply_to(scene.source)
            io.write(path, replace(moved, crs=scene.target.crs if scene.target else {}))
        return path

    def new_path(self, ending: str) -> Path:
        """Return a path that nobody else has, in the folder that is ours alone."""
        with self.jobs.changed:
            self._count += 1
            return self.folder / f"cloud{self._count}{ending}"

    def close(self) -> None:
        """Take no more work, and let go of what is done."""
        self.jobs.close()

    def _read(self, role: Role, path: Path, stage: Stage, name: str) -> None:
        stage(f"read {role}")
        cloud = io.read(path)
        with self.jobs.changed:
            held: dict[str, PointCloud | None] = {role: cloud}
            names = tuple(
                name if r == role else n for r, n in zip(ROLES, self._scene.names, strict=True)
            )
            self._scene = replace(
                self._scene,
                **held,
                names=(names[0], names[1]),
                result=None,
                votes=None,
                said={},
                command=None,
            )
            self._paths[role] = path

    def _find(self, stage: Stage) -> None:
        source, target = self._both()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            result, votes = self._register(source, target, stage, self.options)
        said = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
        paths = [self._paths[role] for role in ROLES]
        with self.jobs.changed:
            self._scene = replace(
                self._scene,
                result=result,
                votes=votes,
                said=as_json(result, result.timings, paths[0], paths[1], said),
                command=self.command,
            )
        self._show(stage)

    def _show(self, stage: Stage) -> None:
        """Make what the page draws."""
        stage("draw")
        packed = self._scene.packed()
        with self.jobs.changed:
            self._packed = (self._packed[0] if self._packed else 0) + 1, packed
            self.jobs.touch()

    def _both(self) -> tuple[PointCloud, PointCloud]:
        with self.jobs.changed:
            source, target = self._scene.source, self._scene.target
        if source is None or target is None:
            missing = "source" if source is None else "target"
            raise VBRegError(f"there is no {missing} yet: send a file for it first")
        return source, target

    def _registered(self) -> ShownPair:
        with self.jobs.changed:
            if self._scene.result is None:
                raise VBRegError("there is no pose yet: register the clouds first")
            return self._scene


def register_with_votes(
    source: PointCloud, target: PointCloud, stage: Stage, options: Mapping[str, Any]
) -> Registered:
    """Register two clouds, and return the votes of the search with the result."""
    stage("start torch")
    from vbreg import registration

    result = registration.register(source, target, on_stage=stage, **options)
    stage("votes of the seeds")
    return result, votes_of(result, options.get("weights"), options.get("device", "auto"))


def read_endings() -> Sequence[str]:
    """Return the endings of files that are read, each also with .gz behind it."""
    endings = [row.ending for row in io.FORMATS if row.reads]
    return [*endings, *(f"{ending}.gz" for ending in endings)]
