"""The one exception family that a user's mistake can raise.

Every message names the value, what was expected and the way out. The command line turns these
into one line and exit code 2; anything else is a fault of ours and keeps its traceback.
"""


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
