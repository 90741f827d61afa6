"""`vbreg train` trains a network, or the descriptor on scans of the user's own."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vbreg.cli.app import DeviceOption, QuietOption, examples
from vbreg.cli.console import print_row, stdout_console

if TYPE_CHECKING:
    import torch

    from vbreg.training.comparison import Comparison, DescriptorScore

EXAMPLES = examples(
    "vbreg train --scans my_scans -o runs/mine   (ten minutes, then a comparison)",
    "vbreg train configs/universal.toml -o runs/universal",
    "vbreg train configs/descriptor.toml -o runs/descriptor",
    "vbreg train configs/fcgf.toml -o runs/fcgf",
    "vbreg train configs/dgr.toml -o runs/dgr",
    "vbreg train configs/judge.toml -o runs/judge",
    "vbreg train configs/universal.toml -o runs/universal --minutes 30   (again: goes on)",
    "torchrun --nproc-per-node 4 -m vbreg train configs/universal.toml -o runs/universal",
    "tensorboard --logdir runs",
)
SCAN_MINUTES = 10.0  # of steps on a user's scans, if nothing else is said


def train(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for weights, checkpoint and log.")
    ],
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="A TOML file; see configs/.")
    ] = None,
    scans: Annotated[
        Path | None,
        typer.Option(
            help="In place of CONFIG: a folder of clouds with poses.txt, of such folders, or of "
            "meshes. The shipped descriptor is trained on them and compared with the result."
        ),
    ] = None,
    voxel_size: Annotated[
        float | None, typer.Option(help="Of --scans; left out, it is estimated.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after so long; the same command goes on. With --scans: minutes of steps "
            f"in all, {SCAN_MINUTES:g} if left out.",
            min=0.0,
        ),
    ] = None,
    until: Annotated[
        int | None, typer.Option(help="Stop at this step, before the last.", min=1)
    ] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Train a network, or a descriptor on your own scans.

    A network is trained on match sets, a descriptor on places or scans. The same command goes on
    with a run that was stopped.
    """
    from vbreg.backends.devices import choose_device
    from vbreg.errors import VBRegError

    where = choose_device(device)
    if (config is None) == (scans is None):
        given = "neither" if config is None else "both"
        raise VBRegError(f"{given} of CONFIG and --scans given: give one of them")
    if config is not None:
        if voxel_size is not None:
            raise VBRegError(f"--voxel-size {voxel_size:g} without --scans: CONFIG has its own")
        path = _train_by_plan(config, output, where, minutes, until, quiet)
    else:
        assert scans is not None
        path = _train_on_scans(scans, output, where, voxel_size, minutes, until, quiet)
    # Of the processes that torchrun starts only the first speaks.
    if not quiet and os.environ.get("RANK", "0") == "0":
        print_row(stdout_console(), "wrote", str(path))


def _train_by_plan(
    config: Path,
    output: Path,
    device: torch.device,
    minutes: float | None,
    until: int | None,
    quiet: bool,
) -> Path:
    """Train what a configuration plans."""
    from vbreg import training
    from vbreg.training.config import read_config
    from vbreg.training.descriptor_config import (
        is_descriptor_config,
        is_fcgf_config,
        read_descriptor_config,
        read_fcgf_config,
    )
    from vbreg.training.descriptor_loop import train_descriptor
    from vbreg.training.dgr_loop import DgrRun, is_dgr_config, read_dgr_config
    from vbreg.training.fcgf_loop import FcgfRun
    from vbreg.training.judge_loop import JudgeRun, is_judge_config, read_judge_config
    from vbreg.training.loop import train_on_matches
    from vbreg.training.places_run import train_on_places

    if is_judge_config(config):
        judge = JudgeRun(read_judge_config(config), device)
        return train_on_places(judge, output, minutes=minutes, until=until, quiet=quiet)
    if is_fcgf_config(config):
        fcgf = FcgfRun(read_fcgf_config(config), device)
        return train_on_places(fcgf, output, minutes=minutes, until=until, quiet=quiet)
    if is_dgr_config(config):
        dgr = read_dgr_config(config)
        run = partial(DgrRun, dgr)
        return train_on_matches(dgr, run, output, device, minutes=minutes, until=until, quiet=quiet)
    if is_descriptor_config(config):
        plan = read_descriptor_config(config)
        return train_descriptor(
            plan, output, device=device, minutes=minutes, until=until, quiet=quiet
        )
    return training.train(
        read_config(config), output, device=device, minutes=minutes, until=until, quiet=quiet
    )


def _train_on_scans(
    scans: Path,
    output: Path,
    device: torch.device,
    voxel_size: float | None,
    minutes: float | None,
    until: int | None,
    quiet: bool,
) -> Path:
    """Train the shipped descriptor on a user's scans, and tell whether that made it better."""
    from vbreg.errors import VBRegError
    from vbreg.training.comparison import compare_descriptors, held_out_pairs
    from vbreg.training.descriptor_loop import train_descriptor
    from vbreg.training.own_scans import prepare_scans

    if minutes == 0:
        raise VBRegError("--minutes 0 with --scans: expected a positive number, say 10")
    console = stdout_console()

    def say(text: str) -> None:
        if not quiet:
            print_row(console, "scans", text)

    ready = prepare_scans(scans, output / "scans", voxel_size, say)
    plan = ready.plan(SCAN_MINUTES if minutes is None else minutes)
    path = train_descriptor(plan, output, device=device, until=until, quiet=quiet)
    pairs = held_out_pairs(ready.look_at, quiet=quiet)
    if not quiet:
        print_row(console, "comparing", f"on {len(pairs)} pairs that were not trained on")
    _tell(compare_descriptors(pairs, "learned", path, device=device, quiet=quiet), path)
    return path


def _tell(comparison: Comparison, path: Path) -> None:
    """Print what both descriptors do, and which of them to use."""
    console = stdout_console()
    for name, score in (("shipped", comparison.before), ("trained", comparison.after)):
        print_row(console, name, _in_words(score))
    low, high = (100 * bound for bound in comparison.interval)
    print_row(console, "gain", f"{low:+.1f} .. {high:+.1f} points of right matches (95 %)")
    if comparison.better:
        print_row(console, "better", f"use it: vbreg register SOURCE TARGET --descriptor {path}")
    else:
        print_row(
            console,
            "not better",
            "on these pairs: keep the shipped descriptor, or add scans or minutes and try again",
        )


def _in_words(score: DescriptorScore) -> str:
    count = len(score.right)
    right = 100 * sum(score.right) / count
    return f"{right:.1f} % of the matches right, {sum(score.found)} of {count} poses"
