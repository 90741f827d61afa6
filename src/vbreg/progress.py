"""How far the work is, on the terminal: a row with a bar for each stage, and lines above them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

if TYPE_CHECKING:  # loaded where something is drawn
    import rich.progress

T = TypeVar("T")


class Progress:
    """Is told how far each stage is, and draws it where there is a terminal."""

    def __init__(self, console: Console, bars: rich.progress.Progress | None) -> None:
        self.console, self._bars = console, bars
        self._rows: dict[str | None, rich.progress.TaskID] = {}

    @property
    def drawn(self) -> bool:
        """Whether anybody sees the bars."""
        return self._bars is not None

    def __call__(
        self, stage: str, done: int | None = None, total: int | None = None, told: str = ""
    ) -> None:
        """Show how much of a stage is done, of how much, and what is told behind it.

        Stages whose length is unknown share a row, which is hidden while another stage goes on.
        """
        if self._bars is None:
            return
        row = None if total is None else stage
        if row not in self._rows:
            self._rows[row] = self._bars.add_task(stage, total=total, count="", told="")
        if None in self._rows:
            self._bars.update(self._rows[None], visible=row is None)
        count = "" if done is None else str(done) if total is None else f"{done}/{total}"
        self._bars.update(
            self._rows[row], description=stage, completed=done, total=total, count=count, told=told
        )

    def track(self, items: Sequence[T], stage: str) -> Iterator[T]:
        """Yield items one by one, and tell how many are done."""
        self(stage, 0, len(items))
        for done, item in enumerate(items, start=1):
            yield item
            self(stage, done, len(items))

    def say(self, text: str) -> None:
        """Print a line above the bars; it is printed without a terminal, too."""
        self.console.print(text, markup=False, highlight=False)  # vbreg[train] is no colour


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Show on stderr how far the stages of the block are; bars need a terminal.

    They are gone when the block ends. With `quiet`, nothing is shown or said.
    """
    console = Console(stderr=True, quiet=quiet)
    if quiet or not console.is_interactive:
        yield Progress(console, None)
        return
    from rich import progress as drawing

    columns = (
        drawing.TextColumn("{task.description}", markup=False),
        drawing.BarColumn(bar_width=24),
        drawing.TextColumn("{task.fields[count]}"),
        drawing.TimeElapsedColumn(),
        drawing.TimeRemainingColumn(),
        drawing.TextColumn("{task.fields[told]}", markup=False),
    )
    with drawing.Progress(*columns, console=console, transient=True) as bars:
        yield Progress(console, bars)
