"""What a run says about itself: lines in log.jsonl, TensorBoard if installed, a live bar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from vbreg.io import atomic_path
from vbreg.progress import Progress, progress

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

    def __init__(self, folder: Path, tell: Progress, writer: Any, steps: int | None) -> None:
        self.file = folder / LOG
        self.tell, self.writer, self.steps = tell, writer, steps
        self.shown: dict[str, float] = {}

    def advance(self, step: int) -> None:
        """Show that the training has come to this step."""
        self.tell("train", step, self.steps, self.news)

    def record(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write some values of a step; `kind` is "train" or "validation"."""
        with self.file.open("a", encoding="utf-8") as file:
            print(json.dumps({"kind": kind, "step": step, **values}), file=file)
        for name, value in values.items():
            if self.writer is not None:
                self.writer.add_scalar(f"{kind}/{name}", value, step)
        self._show(step, kind, values)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.tell.say(text)

    def track(self, items: Sequence[T], what: str) -> Iterator[T]:
        """Yield items one by one, with a bar of their own."""
        self.say(f"{what}: {len(items)}")
        yield from self.tell.track(items, what)

    @property
    def news(self) -> str:
        """The last value of everything that is shown."""
        return "  ".join(f"{name} {value:.3g}" for name, value in self.shown.items())

    def _show(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        self.shown |= {short: values[name] for name, short in SHOWN.items() if name in values}
        self.advance(step)
        if not self.tell.drawn:
            self.say(f"step {step} {kind}: {self.news}")


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
    writer = _tensorboard(folder) if writes else None
    try:
        with progress(quiet or not writes) as tell:
            journal = Journal(folder, tell, writer, steps)
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
