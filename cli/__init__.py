"""The command line: the front door to every room. Holds no measurement of its own."""

from hrx.cli.main import main

__all__ = ["main"]
