"""The one exception family that a user's mistake can raise.

Every message names the value, what was expected and the way out. The command line turns these
into one line and exit code 2; anything else is a fault of ours and keeps its traceback.
"""

import sys
import warnings

PACKAGE = __name__.partition(".")[0]


class VBRegError(ValueError):
    """Something about the input that the caller can put right."""


class FileFormatError(VBRegError):
    """A file is missing, truncated, empty or not what its ending says."""


class MissingExtraError(VBRegError, ImportError):
    """An optional package is needed here; the message says which extra installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed: "
            f"run `pip install 'vbreg[{extra}]'`"
        )


class VBRegWarning(UserWarning):
    """Something that the caller should know about a result that is given all the same."""


def warn(text: str) -> None:
    """Say something about a result, as of the line outside the package that asked for it."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, VBRegWarning, stacklevel=level)


def _is_ours(module: str) -> bool:
    """Tell whether a module belongs to the package."""
    return module.partition(".")[0] == PACKAGE
