"""The command line: each verb is a file of this package, with the names that the library uses.

Only numpy, typer and rich are loaded for `--help`; torch is loaded inside the commands. Text for
people and JSON go to stdout; progress, warnings and errors go to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import vbreg.cli.clock  # noqa: F401  # first, since it notes when the program began
from vbreg.cli import (
    batch,
    benchmark,
    demo,
    experiment,
    export,
    formats,
    info,
    methods,
    reconstruct,
    register,
    train,
    transform,
    view,
)
from vbreg.cli.app import app
from vbreg.cli.console import allow_any_text, complain, forget_stdout
from vbreg.cli.map import map_app
from vbreg.errors import VBRegError

# Registered here and not by a decorator in each file, so that `vbreg --help` lists the verbs in
# this order whatever the order of the imports.
for _verb, _examples in (
    (register.register, register.EXAMPLES),
    (reconstruct.reconstruct, reconstruct.EXAMPLES),
    (batch.batch, batch.EXAMPLES),
    (view.view, view.EXAMPLES),
    (transform.transform, transform.EXAMPLES),
    (info.info, info.EXAMPLES),
    (demo.demo, demo.EXAMPLES),
    (formats.formats, formats.EXAMPLES),
    (train.train, train.EXAMPLES),
    (export.export, export.EXAMPLES),
    (methods.methods, methods.EXAMPLES),
    (benchmark.benchmark, benchmark.EXAMPLES),
    (experiment.experiment, experiment.EXAMPLES),
):
    _class = register.RegisterCommand if _verb is register.register else None
    app.command(epilog=_examples, cls=_class)(_verb)
app.add_typer(map_app, name="map")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: with code 2 and one line on stderr after an error that the
    user can put right, with code 130 after Ctrl-C."""
    # OpenMP reads these when torch is loaded: threads that wait for each other sleep instead of
    # spinning, which beside other work on the same cores is the difference between seconds and
    # minutes. GNU's (Linux) spin for a moment first, so that short operations need not wake them
    # every time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    given = list(sys.argv[1:] if arguments is None else arguments)
    allow_any_text()
    try:
        try:
            app(given, prog_name="vbreg", obj=given)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe has gone, as `head` does
        forget_stdout()
        sys.exit(141)
    except VBRegError as error:
        complain("error", str(error))
        sys.exit(2)
    except OSError as error:  # a full disk behind stdout, a folder that may not be read
        forget_stdout()
        complain("error", str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
