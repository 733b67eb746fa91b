"""A command line that starts a SGLang server: its flags, and the environment it gives.

Commands come as people keep them: with assignments in front, over several lines, behind ``docker run`` or ``srun``,
inside ``bash -c "..."``, with redirections, or as flags alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from simkv.errors import Problem, ScenarioError

__all__ = ["Command", "read_command"]

SOURCE = "the launch command"
_MODULES = ("sglang.launch_server", "sglang.srt.launch_server")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_QUOTED = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*")""", re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_REDIRECT = re.compile(r"(?:(?<=\s)|^)(?:[12]|&)?>{1,2}\s*(?:&[12-]|[^\s;|&]+)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SEPARATORS = set(";&|\n")


@dataclass(frozen=True)
class Command:
    """What a command line says.

    Parameters
    ----------
    words : tuple of str
        Flags and values, as the server's parser gets them.
    env : mapping of str to str
        Variables that the command line sets.
    """

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def read_command(command: str | Sequence[str]) -> Command:
    """The one SGLang server that a command starts.

    Parameters
    ----------
    command : str or sequence of str
        A command line as a shell reads it, or its words.

    Raises
    ------
    ScenarioError
        No such server in it, more than one, or quotes that do not end.
    """
    if isinstance(command, str):
        found = list(_servers(command, {}))
    elif isinstance(command, Sequence) and all(isinstance(word, str) for word in command):
        found = list(_server_of(list(command), {}))
    else:
        raise _error(f"{command!r} is not a text or a list of words")
    if not found:
        raise _error(
            "starts no SGLang server: it holds neither `-m sglang.launch_server` nor `sglang serve`, nor flags alone"
        )
    if len(found) > 1:
        raise _error(f"starts {len(found)} servers; give one of them")
    return found[0]


def _error(message: str) -> ScenarioError:
    return ScenarioError(SOURCE, [Problem("command", message)])


# ------------------------------------------------------------------------------------------------------------ the shell
def _servers(text: str, env: dict[str, str]) -> Iterator[Command]:
    """Servers of a text, command by command; variables set by an earlier one hold for the later ones."""
    env = dict(env)

    def value(match: re.Match[str]) -> str:
        return env.get(match[1] or match[2], match[0])

    for words in _commands(text):
        words = [_VARIABLE.sub(value, word) for word in words]
        yield from _server_of(words, env)
        rest = words[1:] if words[:1] == ["export"] else words
        if all(_ASSIGNMENT.fullmatch(word) for word in rest):
            env |= dict(_assignments(rest))


def _commands(text: str) -> Iterator[list[str]]:
    """Words of each simple command of a text."""
    lexer = shlex.shlex(_plain(text.replace("\\\r\n", " ").replace("\\\n", " ")), posix=True, punctuation_chars=";&|\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and set(word) <= _SEPARATORS:
                yield words
                words = []
            else:
                words.append(word)
    except ValueError as error:
        raise _error(f"cannot be split into words: {str(error).lower()}") from None
    yield words


def _plain(text: str) -> str:
    """Without comments and redirections; what stands in quotes stays."""
    parts = _QUOTED.split(text)
    return "".join(
        part if number % 2 else _REDIRECT.sub(" ", _COMMENT.sub(r"\1", part)) for number, part in enumerate(parts)
    )


def _assignments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Assignments among words, also those that docker and env are given."""
    for number, word in enumerate(words):
        if match := re.fullmatch(r"(?:-e|--env=)(.+)", word, re.DOTALL):
            word = match[1]
        elif word.startswith("-") and (number == 0 or words[number - 1] not in ("-e", "--env")):
            continue
        if match := _ASSIGNMENT.fullmatch(word):
            yield match[1], match[2]


# ----------------------------------------------------------------------------------------------------------- the server
def _server_of(words: list[str], env: Mapping[str, str]) -> Iterator[Command]:
    """The server that one simple command starts, if it does."""
    for number, word in enumerate(words):
        rest = words[number + 1 :]
        given = {**env, **dict(_assignments(words[:number]))}
        if word == "-m" and rest[:1] and rest[0] in _MODULES:
            yield Command(tuple(rest[1:]), given)
            return
        if word.endswith("sglang/launch_server.py"):
            yield Command(tuple(rest), given)
            return
        if PurePosixPath(word).name == "sglang" and rest[:1] == ["serve"]:
            yield Command(_serve(rest[1:]), given)
            return
        if re.search(r"\s", word) and re.search(r"sglang\.launch_server|sglang/launch_server\.py|sglang\s+serve", word):
            # bash -c "...": a command of its own.
            yield from _servers(word, given)
            return
    if words and words[0].startswith("--"):
        yield Command(tuple(words), dict(env))


def _serve(words: list[str]) -> tuple[str, ...]:
    """``sglang serve`` takes the model without a flag, and a kind of server (cli/serve.py:27-66)."""
    if words and not words[0].startswith("-"):
        words = ["--model-path", *words]
    kept: list[str] = []
    kind = "auto"
    place = 0
    while place < len(words):
        if words[place] == "--model-type" and place + 1 < len(words):
            kind = words[place + 1]
            place += 2
        elif words[place].startswith("--model-type="):
            kind = words[place].partition("=")[2]
            place += 1
        else:
            kept.append(words[place])
            place += 1
    if kind not in ("auto", "llm"):
        raise _error(f"--model-type {kind}: only servers of language models (llm) have KV memory to simulate")
    return tuple(kept)
