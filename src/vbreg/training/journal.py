"""What a run says about itself: lines in log.jsonl, TensorBoard if installed, a live bar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vbreg.io import atomic_path

T = TypeVar("T")
LOG = "log.jsonl"
SHOWN = {
    "total": "loss",
    "label_prior": "label",
    "kl": "KL",
    "recall": "recall",
    "right_anchors": "anchors right",
    "inlier_ratio": "inlier ratio",
    "pairs_per_second": "pairs/s",
}  # in the live line


class Journal:
    """Records of one run; `step` of each says where it belongs."""

    def __init__(self, folder: Path, progress: Progress, writer: Any, steps: int | None) -> None:
        self.file = folder / LOG
        self.progress, self.writer = progress, writer
        self.task = progress.add_task("train", total=steps, news="")
        self.shown: dict[str, float] = {}

    def advance(self, step: int) -> None:
        """Show that the training has come to this step."""
        self.progress.update(self.task, completed=step)

    def record(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write some values of a step; `kind` is "train" or "validation"."""
        with self.file.open("a", encoding="utf-8") as file:
            print(json.dumps({"kind": kind, "step": step, **values}), file=file)
        for name, value in values.items():
            if self.writer is not None:
                self.writer.add_scalar(f"{kind}/{name}", value, step)
        self._show(step, kind, values)

    def say(self, text: str) -> None:
        """Print a line above the progress bar."""
        self.progress.console.print(text)

    def track(self, items: Sequence[T], what: str) -> Iterator[T]:
        """Yield items one by one, with a bar of their own as long as they last."""
        self.say(f"{what}: {len(items)}")
        task = self.progress.add_task(what, total=len(items), news="")
        for item in items:
            yield item
            self.progress.advance(task)
        self.progress.remove_task(task)

    def _show(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self.shown |= {short: values[name] for name, short in SHOWN.items() if name in values}
        news = "  ".join(f"{name} {value:.3g}" for name, value in self.shown.items())
        self.progress.update(self.task, completed=step, news=news)
        if not self.progress.console.is_terminal:
            self.say(f"step {step} {kind}: {news}")


def forget_after(folder: Path, step: int) -> None:
    """Drop records beyond `step`: the run goes on from there and will write them again."""
    file = folder / LOG
    if not file.exists():
        return
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    kept = [line for line in lines if json.loads(line)["step"] <= step]
    with atomic_path(file) as path:
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def read_log(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Read all records of one kind, in order."""
    records = map(json.loads, (folder / LOG).read_text(encoding="utf-8").splitlines())
    return [record for record in records if record["kind"] == kind]


@contextmanager
def opened(
    folder: Path, steps: int | None, *, quiet: bool = False, writes: bool = True
) -> Iterator[Journal]:
    """Open the journal of a run, and close it at the end of the block.

    Progress goes to stderr unless `quiet`; one of several workers `writes`. `steps` may be unknown
    beforehand.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
    )
    console = Console(stderr=True, quiet=quiet or not writes)
    writer = _tensorboard(folder) if writes else None
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            journal = Journal(folder, progress, writer, steps)
            if writer is None:
                journal.say("no TensorBoard (pip install 'vbreg[train]'): records go to log.jsonl")
            yield journal
    finally:
        if writer is not None:
            writer.close()


def _tensorboard(folder: Path) -> Any:
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"))
