"""The experiments of the paper: numbers, tables and pictures, one command each."""
