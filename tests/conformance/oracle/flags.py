"""Every flag of the engine's own parser, as JSON lines: names, how many values, default, choices.

Usage: ``PY tests/conformance/oracle/flags.py > tests/data/oracle/flags.jsonl``. ``PY`` is the engine's environment; see
README.md.
"""

from __future__ import annotations

import argparse
import json
import sys

from sglang.srt.server_args import ServerArgs

PLAIN = (bool, int, float, str, type(None))


def facts(action: argparse.Action) -> dict:
    """One flag: ``takes`` is 0, 1, or argparse's own sign for a list."""
    default = action.default if isinstance(action.default, PLAIN) else None
    takes = "1" if action.nargs is None else str(action.nargs)
    return {"names": action.option_strings, "takes": takes, "default": default}


def main() -> None:
    """Print them, sorted by name."""
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    rows = [facts(action) for action in parser._actions if action.dest != "help"]
    for row in sorted(rows, key=lambda row: row["names"][0]):
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
