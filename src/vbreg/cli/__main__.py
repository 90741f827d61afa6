"""This file makes `python -m vbreg.cli` the command line, as `python -m vbreg` is."""

from vbreg.cli import main

main()
