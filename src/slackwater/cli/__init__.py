"""The command line. Only click and our errors are imported before a command runs: ``--help`` must be quick."""

from .entry import main

__all__ = ["main"]
