"""`vbreg view` shows two clouds and their pose in the browser, or all scans of a folder."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from vbreg.cli.app import DeviceOption, VoxelSizeOption, command_line, examples
from vbreg.cli.checks import check_inputs, tell_which_size_counts
from vbreg.cli.console import print_row, stdout_console
from vbreg.cli.reconstruct import warn_of_scene
from vbreg.cli.register import DescriptorOption, PresetOption, WeightsOption
from vbreg.errors import VBRegError
from vbreg.progress import progress

EXAMPLES = examples(
    "vbreg view source.ply target.ply",
    "vbreg view scan1.pcd scan2.pcd --preset outdoor",
    "vbreg view scans/ --voxel-size 0.05              # all scans of a folder in one frame",
    "vbreg view                                       # an empty page: drop two files on it",
    "vbreg view source.ply target.ply --no-browser --port 8765    # and ssh -L 8765:localhost:8765",
)


def view(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(metavar="SOURCE", help="The cloud to move, or a folder of scans."),
    ] = None,
    target: Annotated[
        Path | None, typer.Argument(metavar="TARGET", help="The cloud that stays.")
    ] = None,
    voxel_size: VoxelSizeOption = None,
    preset: PresetOption = None,
    device: DeviceOption = "auto",
    weights: WeightsOption = None,
    descriptor: DescriptorOption = "learned",
    port: Annotated[
        int, typer.Option(help="The port on this machine; 0 is any that is free.", min=0, max=65535)
    ] = 0,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open the page, or only print where it is."),
    ] = True,
) -> None:
    """Show two clouds, or a folder of scans, in the browser.

    SOURCE and TARGET are shown before and after they are registered. Without files, the page is
    empty and waits for two that are dropped on it. The server answers this machine alone and ends
    with Ctrl-C. Scans of a folder are put into one frame, as by `vbreg reconstruct`; the page shows
    the scene, and each scan can be hidden.
    """
    options = {
        "voxel_size": voxel_size,
        "preset": preset,
        "device": device,
        "weights": weights,
        "descriptor": descriptor,
    }
    tell_which_size_counts(voxel_size, preset)
    if source is not None and source.is_dir():
        if target is not None:
            raise VBRegError(f"{source} is a folder: expected it alone, or two clouds")
        _view_scene(source, options, command_line(context), browser)
        return
    if (source is None) != (target is None):
        raise VBRegError(f"one cloud ({source}): expected SOURCE and TARGET, or neither")
    if source is not None and target is not None:
        check_inputs(source, target)
    from vbreg.viewer import Session, ViewServer

    with _folder() as folder:
        session = Session(folder, options, command=command_line(context) if source else None)
        try:
            with ViewServer(session, port) as server, _ended_by_signals():
                if source is not None and target is not None:
                    session.open(source, target)
                _tell(server.url, browser)
                server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:  # the usual end
            pass
        finally:
            session.close()


def _view_scene(folder: Path, options: Mapping[str, Any], command: str, browser: bool) -> None:
    """Put the scans of a folder into one frame, and show the page about them until it is ended."""
    from vbreg import scenes
    from vbreg.scenes.report import write_scene_report

    files = scenes.scan_files(folder)
    with progress() as tell:
        found = scenes.reconstruct(files, on_progress=tell, **options)
    with _folder() as place, _ended_by_signals():
        page = place / "scene.html"
        write_scene_report(page, found, files, command)
        warn_of_scene(found)
        try:
            _tell(page.as_uri(), browser)
            while True:  # the page is removed when it ends
                time.sleep(1.0)
        except KeyboardInterrupt:
            pass


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder that nobody else may read, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="vbreg-view-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let the end by a system or a closed terminal be as clean as that by Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    usual = {name: signal.signal(getattr(signal, name), end) for name in names}
    try:
        yield
    finally:
        for name, handler in usual.items():
            signal.signal(getattr(signal, name), handler)


def _tell(url: str, browser: bool) -> None:
    """Say where the page is, and open it if that is wanted and can be done."""
    console = stdout_console()
    print_row(console, "page", url)
    print_row(console, "end", "Ctrl-C")
    if browser and not webbrowser.open(url):
        print_row(console, "browser", "none could be started: open the address yourself")
