"""A command that starts a SGLang server, as a scenario.

Every flag is used, without effect on KV memory, or refused by name; the table is ``engines/sglang/flags.toml``. What the
engine would choose by itself (page size, algorithm's defaults) is written into the scenario where simkv's own default is
another.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simkv.engines.sglang.command import Command, read_command
from simkv.imports.launchreading import LaunchReading
from simkv.imports.launchsheet import LaunchFlag
from simkv.imports.scenariofile import scenario_toml
from simkv.overrides import parse_assignments
from simkv.scenario import Scenario

__all__ = ["Launch", "LaunchFlag", "import_launch"]


@dataclass(frozen=True, eq=False)
class Launch:
    """A launch command, read.

    Attributes
    ----------
    scenario : Scenario
        What that server is; without a workload unless one was given.
    toml : str
        The same as a scenario file, with a comment on what set each key.
    flags : tuple of LaunchFlag
        Every flag of the command and what became of it; then the defaults that were written out.
    notes : tuple of str
        What the reader should know: assumptions, what was ignored.
    words : tuple of str
        Flags and values as the server gets them.
    """

    scenario: Scenario
    toml: str
    flags: tuple[LaunchFlag, ...]
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = field(default=(), repr=False)
    because: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def written(
        cls,
        scenario: Scenario,
        flags: Iterable[LaunchFlag],
        notes: Iterable[str],
        words: Sequence[str],
        because: Mapping[str, str],
    ) -> Launch:
        """A launch with its scenario written out; ``because`` says what set each key."""
        rows = tuple(flags)
        head = ["sglang.launch_server " + shlex.join(words)]
        head += [f"ignored, though it matters: {one.flag} {one.value}" for one in rows if one.use == "ignored"]
        text = scenario_toml(scenario.data, because, head)
        return cls(scenario, text, rows, tuple(notes), tuple(words), because)

    def override(self, *assignments: str, because: str = "override") -> Launch:
        """A copy whose scenario has ``"dotted.key=value"`` changes, written out too."""
        scenario = self.scenario.override(*assignments)
        changed = {".".join(path): because for path, _ in parse_assignments(assignments)}
        return Launch.written(scenario, self.flags, self.notes, self.words, {**self.because, **changed})

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what ``simkv import-launch --json`` prints."""
        return {
            "scenario": self.scenario.data,
            "toml": self.toml,
            "flags": [one._asdict() for one in self.flags],
            "notes": list(self.notes),
            "words": list(self.words),
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in one) + "</tr>" for one in self.flags
        )
        head = "".join(f"<th>{name}</th>" for name in LaunchFlag._fields)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return f"<b>{html.escape(self.scenario.name)}</b><table><tr>{head}</tr>{rows}</table><ul>{notes}</ul>"


def import_launch(
    command: str | Sequence[str],
    *,
    gpu: str | None = None,
    hbm: int | str | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    weights: int | str | None = None,
    draft_config: str | Path | Mapping[str, Any] | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    workload: str | Path | Mapping[str, Any] | None = None,
    ignore: Iterable[str] = (),
) -> Launch:
    """Make a scenario of a command that starts a SGLang 0.5.23 server.

    Parameters
    ----------
    command : str or sequence of str
        ``python -m sglang.launch_server ...`` or ``sglang serve ...`` as a shell would run it, assignments and
        ``docker run`` before it included; or its words; or flags alone.
    gpu : str, optional
        GPU of each rank, a key of :data:`simkv.hardware.GPUS`. The engine keys defaults on it.
    hbm : int or str, optional
        Free memory of one GPU instead, in bytes or as ``"141GB"``. Defaults are then those of a Hopper GPU.
    config : str, path or mapping, optional
        The model's ``config.json``, where ``--model-path`` is not known.
    weights : int or str, optional
        Bytes of weights on one rank; default: from the parameter count.
    draft_config : str, path or mapping, optional
        The draft model's ``config.json``.
    name : str, optional
        Name of the scenario.
    env : mapping, optional
        Environment of the server, besides what the command sets.
    workload : str, path or mapping, optional
        A ``[workload]`` table, a request trace, or a built-in scenario whose workload it is.
    ignore : iterable of str
        Flags to leave out although they are refused or unknown; noted.

    Returns
    -------
    Launch

    Raises
    ------
    ScenarioError
        Everything that is wrong with the command, or refused, at once.
    ModelError
        A config that is wrong.
    """
    read = read_command(command)
    read = Command(read.words, {**(env or {}), **read.env})
    reading = LaunchReading(read, ignore=tuple(ignore))
    reading.hardware(gpu, hbm)
    reading.model(config, weights)
    reading.draft(draft_config)
    reading.memory()
    reading.environment()
    scenario = reading.finish(name, workload)
    return Launch.written(scenario, reading.rows, reading.notes, read.words, reading.because)
