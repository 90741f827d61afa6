"""The bar on the terminal that tells how far many pairs are."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar(quiet: bool) -> Progress:
    """Return a bar whose tasks have a field `told`: what is said behind it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}"),
        console=Console(stderr=True),
        disable=quiet,
    )
