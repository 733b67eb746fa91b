"""Commands: parse, call, print. No logic.

One module a family of commands; importing them registers the commands. Heavy modules are imported where they are used, so
that ``simkv --help`` starts at once.
"""

from simkv.cli import capacity, compare, imports, runs, server, sweep, traces
from simkv.cli.frame import app, main

__all__ = ["app", "capacity", "compare", "imports", "main", "runs", "server", "sweep", "traces"]
