"""`vbreg methods` lists the methods that `vbreg benchmark` compares."""

from __future__ import annotations

from vbreg.cli.app import examples
from vbreg.cli.console import print_row, stdout_console

EXAMPLES = examples(
    "vbreg methods",
    "vbreg benchmark synthetic --methods vbreg,sc2pcr,mac --limit 10 -o out/synthetic",
)
LABEL_WIDTH = 17  # columns for the longest name


def methods() -> None:
    """List the compared methods and what each needs."""
    from vbreg.methods import METHODS, available

    console = stdout_console()
    for entry in METHODS.values():
        note = entry.about + f" ({entry.paper}). Needs {entry.needs}; runs on {entry.device}"
        if not available(entry.name):
            how = f"pip install 'vbreg[{entry.extra}]'" if entry.extra else f"see {entry.build}"
            if entry.package is None:
                how = f"give yours as {entry.name}:FILE, trained by configs/{entry.name}.toml"
            note += f"; {'not installed' if entry.package else 'no weights here'}: {how}"
        print_row(console, entry.name, note, LABEL_WIDTH)
