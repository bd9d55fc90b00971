"""Command line of hrx."""

from hrx.cli.main import main

__all__ = ["main"]
