"""`vbreg train` trains a network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from vbreg.cli.app import DeviceOption, QuietOption, examples
from vbreg.cli.console import print_row, stdout_console

EXAMPLES = examples(
    "vbreg train configs/universal.toml -o runs/universal",
    "vbreg train configs/descriptor.toml -o runs/descriptor",
    "vbreg train configs/universal.toml -o runs/universal --minutes 30   (again: goes on)",
    "torchrun --nproc-per-node 4 -m vbreg train configs/universal.toml -o runs/universal",
    "tensorboard --logdir runs",
)


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; see configs/.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for weights, checkpoint and log.")
    ],
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; the same command goes on.", min=0.0)
    ] = None,
    until: Annotated[
        int | None, typer.Option(help="Stop at this step, before the last.", min=1)
    ] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Train a network on match sets or a descriptor on places, or go on with a stopped run."""
    from vbreg import training
    from vbreg.backends.devices import choose_device
    from vbreg.training.config import read_config
    from vbreg.training.descriptor_config import is_descriptor_config, read_descriptor_config
    from vbreg.training.descriptor_loop import train_descriptor
    from vbreg.training.judge_loop import is_judge_config, read_judge_config, train_judge

    where = choose_device(device)
    if is_judge_config(config):
        path = train_judge(
            read_judge_config(config),
            output,
            device=where,
            minutes=minutes,
            until=until,
            quiet=quiet,
        )
    elif is_descriptor_config(config):
        plan = read_descriptor_config(config)
        path = train_descriptor(
            plan, output, device=where, minutes=minutes, until=until, quiet=quiet
        )
    else:
        path = training.train(
            read_config(config), output, device=where, minutes=minutes, until=until, quiet=quiet
        )
    # Of the processes that torchrun starts only the first speaks.
    if not quiet and os.environ.get("RANK", "0") == "0":
        print_row(stdout_console(), "wrote", str(path))
