"""`python -m vbreg` is the command line."""

from vbreg.cli import main

main()
