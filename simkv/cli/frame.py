"""What every command stands on: the app, shared options, printing, progress, and exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

__all__ = ["Bar", "Force", "Integer", "Json", "Overrides", "app", "dump", "emit", "load_scenario", "main"]

app = App(
    name="simkv",
    help="What a serving engine's KV memory does under your traffic, with speculative decoding on.",
    help_format="plaintext",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)

Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set", consume_multiple=False, negative="", help="Override one key: dotted.key=value. Repeatable."
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print the machine form instead of tables.")]
Force = Annotated[bool, Parameter(negative="")]


def _integer(_: Any, tokens: Sequence[Any]) -> int:
    """An integer and nothing that could be rounded to one."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not an integer") from None


Integer = Annotated[int, Parameter(converter=_integer)]


def emit(thing: Any) -> None:
    """Print a report."""
    from simkv.report import console

    console().print(thing)


def dump(thing: Any) -> None:
    """Print JSON."""
    print(json.dumps(thing, indent=1, allow_nan=False))


def load_scenario(scenario: str, overrides: tuple[str, ...]) -> Any:
    """A scenario with overrides."""
    from simkv.scenario import load

    return load(scenario).override(*overrides)


class Bar:
    """Progress on stderr while a run lasts; nothing where stderr is no terminal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._live: Any = None

    def __enter__(self) -> Callable[[int, int, Callable[[float], str]], None] | None:
        from simkv.report import console

        out = console(stderr=True)
        if not out.is_terminal or os.environ.get("NO_COLOR"):
            return None
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (BarColumn(bar_width=10), TextColumn("{task.fields[facts]}"))
        self._live = RichProgress(*columns, console=out, transient=True)
        self._live.start()
        self._task = self._live.add_task(self.name, total=None, facts="")
        return self._update

    def _update(self, done: int, total: int, facts: Callable[[float], str]) -> None:
        """So much of it is done; ``facts`` says more, given the seconds since the start."""
        elapsed = self._live.tasks[0].elapsed or 0.0
        self._live.update(self._task, completed=done, total=total, facts=facts(elapsed))

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a termination signal unwind, so that nothing half written stays behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        print("terminated", file=sys.stderr)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reproduce(words: Sequence[str]) -> str:
    """The command of a breach, every step checked, to be pasted into a shell."""
    more = [] if "--check-every-step" in words else ["--check-every-step"]
    return shlex.join(["simkv", *words, *more])


def _mute() -> None:
    """Nothing more is to be written, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code of the table in the README."""
    from simkv.errors import InvariantError, SimkvError

    words = sys.argv[1:] if argv is None else argv
    try:
        with _terminable():
            code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return int(code or 0)
    except CycloptsError as error:
        print(f"error: {error}\ntry: simkv --help", file=sys.stderr)
        return 2
    except InvariantError as error:
        print(f"error: broken invariant, a fault of simkv: {error}", file=sys.stderr)
        print(f"reproduce: {_reproduce(words)}", file=sys.stderr)
        return error.exit_code
    except SimkvError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever reads has seen enough.
        _mute()
        return 0
    except OSError as error:
        print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        _mute()
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
