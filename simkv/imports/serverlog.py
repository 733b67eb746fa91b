"""What a SGLang server wrote about itself: sizes, batches, retractions, as frames and as parts of a scenario."""

from __future__ import annotations

import gzip
import html
import io
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from simkv.engines.sglang.flags import engine_flags
from simkv.errors import Problem, ScenarioError
from simkv.imports.launch import Launch, import_launch
from simkv.imports.logfit import Fit, accept_width, geometric_alpha, intervals, linear_steptime, mean_accept_length
from simkv.imports.loglines import (
    ANSI,
    BATCH,
    EVENTS,
    NEEDED,
    Line,
    event_of,
    pairs_of,
    rank_of,
    shown,
    split_lines,
    split_starts,
    startup_of,
)

__all__ = ["Fit", "ServerLog", "is_server_log", "read_server_log"]

GIB = 1 << 30
DECODE_LOG_INTERVAL = 40  # --decode-log-interval
_DECODE = ("time_s", "num_running_reqs", "num_queue_reqs", "full_token_usage", "gen_throughput")
_PREFILL = ("time_s", "num_new_seqs", "prefill_tokens", "hit_tokens", "full_token_usage", "num_running_reqs")
_TIMELINE = (
    "kind",
    "num_running_reqs",
    "num_queue_reqs",
    "full_token_usage",
    "swa_token_usage",
    "spec_accept_length",
    "gen_throughput",
    "prefill_tokens",
    "hit_tokens",
)


@dataclass(frozen=True, eq=False)
class ServerLog:
    """One start of a server, as its log tells it.

    Attributes
    ----------
    path : str
        The file.
    start, starts : int
        Which start of the file this is, from 1, and how many it holds.
    rank : str
        Whose lines were read, such as ``TP0``; empty where lines name no rank.
    startup : dict
        Sizes at startup: ``max_total_num_tokens``, ``full_max_total_num_tokens``, ``swa_max_total_num_tokens``,
        ``max_running_requests``, ``chunked_prefill_size``, ``max_prefill_tokens``, ``context_len``, ``pools`` (one dict
        an allocation: label, dtype, tokens, GiB), ``available_gpu_mem``, ``load_begin``, ``weights``, ``draft_weights``
        (GiB, as the log rounds them); keys the log does not tell are absent.
    decode, prefill : DataFrame
        One row a batch line, ``time_s`` in seconds since the first line.
    events : DataFrame
        Retractions, exceptions, and where memory ran out.
    server_args : dict
        Arguments as the server printed them; empty where it did not.
    notes : tuple of str
        What was assumed, and what could not be read.
    """

    path: str
    start: int
    starts: int
    rank: str
    startup: dict[str, Any]
    decode: pd.DataFrame
    prefill: pd.DataFrame
    events: pd.DataFrame
    server_args: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def timeline(self) -> pd.DataFrame:
        """Decode and prefill lines in one frame, in the names of a run's timeline."""
        parts = [
            frame.assign(kind=kind)
            for kind, frame in (("decode", self.decode), ("prefill", self.prefill))
            if len(frame)
        ]
        both = pd.concat(parts) if parts else pd.DataFrame({"time_s": pd.Series(dtype=float)})
        both = both.sort_values("time_s", kind="stable", ignore_index=True).reindex(columns=["time_s", *_TIMELINE])
        both["token_usage"] = both[["full_token_usage", "swa_token_usage"]].max(axis=1)
        asked = both["hit_tokens"] + both["prefill_tokens"]
        both["cache_hit_rate"] = both["hit_tokens"] / asked.where(asked > 0)
        return both.dropna(axis=1, how="all") if len(both) else both

    @property
    def interval(self) -> int:
        """Decode steps between two decode lines."""
        stated = self.server_args.get("decode_log_interval")
        return stated if isinstance(stated, int) and stated > 0 else DECODE_LOG_INTERVAL

    def launch(self, **kwargs: Any) -> Launch:
        """The scenario of this server, from the arguments it printed.

        Parameters
        ----------
        **kwargs
            As for :func:`simkv.import_launch`; without ``gpu`` and ``hbm`` the memory before weights and the bytes of the
            weights are those of the log, which rounds them to 0.01 GiB.

        Raises
        ------
        ScenarioError
            The log holds no arguments, or they cannot be a scenario.
        """
        if not self.server_args:
            message = "prints no server_args: give the scenario, or the launch command to import-launch"
            raise ScenarioError(self.path, [Problem("server_args", message)])
        words = _words(self.server_args)
        measured = "load_begin" in self.startup and "gpu" not in kwargs and "hbm" not in kwargs
        if measured:
            kwargs["hbm"] = round(self.startup["load_begin"] * GIB)
            if "weights" in self.startup and "weights" not in kwargs:
                kwargs["weights"] = round(self.startup["weights"] * GIB)
        launch = import_launch(words, **kwargs)
        if "draft" in launch.scenario.data and self.server_args.get("enable_multi_layer_eagle") is False:
            # Printed are the arguments as they came out, and not what the model's class would choose.
            launch = launch.override("draft.enable_multi_layer_eagle=false", because="as it came out")
        draft = self.startup.get("draft_weights")
        if measured and draft and "draft" in launch.scenario.data:
            launch = launch.override(f"memory.draft_weights={round(draft * GIB)}", because="of the log")
            launch = replace(launch, notes=tuple(note for note in launch.notes if "draft_weights" not in note))
        return launch

    # ---- fits
    @property
    def accept_length(self) -> float:
        """Accepted tokens of a verify step, the bonus included, over the whole log; NaN without drafts."""
        return mean_accept_length(self.decode)

    def fit_acceptance(self, num_draft_tokens: int | None = None) -> Fit:
        """A geometric ``[acceptance]`` whose mean length is the log's.

        Parameters
        ----------
        num_draft_tokens : int, optional
            Longest length of a step, the bonus included; default: what the server's arguments or its accept rate say.

        Raises
        ------
        ScenarioError
            The log tells no accepted lengths, or not how long they can be.
        """
        mean = self.accept_length
        if math.isnan(mean):
            message = "no decode line has it: the server does not speculate"
            raise ScenarioError(self.path, [Problem("accept len", message)])
        width, source = accept_width(self.decode, self.server_args)
        if num_draft_tokens is not None:
            width, source = num_draft_tokens, "as given"
        if width is None:
            message = "cannot be told from the log: state num_draft_tokens"
            raise ScenarioError(self.path, [Problem("num_draft_tokens", message)])
        if width < 1:
            raise ScenarioError(self.path, [Problem("num_draft_tokens", f"{width} is not an integer >= 1")])
        notes = [
            f"mean accepted length {mean:.4f} of at most {width} ({source}), over {len(self.decode)} decode lines",
            "one probability for all positions: a log has means only, and tells neither positions nor requests apart",
        ]
        if mean > width:
            notes.append(f"the log's length is beyond {width}: alpha is 1")
        return Fit("acceptance", {"kind": "geometric", "alpha": geometric_alpha(mean, width)}, tuple(notes))

    def fit_steptime(self) -> Fit:
        """A linear ``[steptime]`` by least squares, no coefficient below zero.

        A decode line's throughput and its requests give the time since the line before; that time is decode steps and
        the prefill steps between. The tokens in use stand for the contexts.

        Raises
        ------
        ScenarioError
            Fewer than two decode lines with a throughput.
        """
        rows = intervals(self.decode, self.prefill, self.interval)
        if len(rows) < 2:
            message = f"{len(rows)} decode lines with requests and a throughput behind another; at least 2 are needed"
            raise ScenarioError(self.path, [Problem("gen throughput", message)])
        found, error = linear_steptime(rows, self.interval)
        notes = [
            f"{len(rows)} intervals of {self.interval} decode steps; typical error {error:.1%} of a step",
            "contexts are the tokens in use; what drafts take is in base_ms and per_decode_request_us",
        ]
        notes += [f"{key} is 0: the log does not tell it apart" for key, value in found.items() if not value]
        return Fit("steptime", {"kind": "linear", **found}, tuple(notes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what ``simkv import-log --json`` prints."""
        return {
            "path": self.path,
            "start": self.start,
            "starts": self.starts,
            "rank": self.rank,
            "startup": self.startup,
            "decode_lines": len(self.decode),
            "prefill_lines": len(self.prefill),
            "duration_s": float(self.timeline["time_s"].max()) if len(self.timeline) else 0.0,
            "spec_accept_length": None if math.isnan(self.accept_length) else self.accept_length,
            "events": [_plain(dict(row)) for _, row in self.events.iterrows()],
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        facts = {key: value for key, value in self.startup.items() if key != "pools"}
        rows = "".join(f"<tr><td>{html.escape(key)}</td><td>{value:,}</td></tr>" for key, value in facts.items())
        counts = f"{len(self.decode):,} decode and {len(self.prefill):,} prefill lines, {len(self.events):,} events"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return f"<b>{html.escape(self.path)}</b><br>{counts}<table>{rows}</table><ul>{notes}</ul>"

    def __repr__(self) -> str:
        return f"ServerLog({self.path!r}, {len(self.decode)} decode and {len(self.prefill)} prefill lines)"


# --------------------------------------------------------------------------------------------------------------- reading
def is_server_log(path: str | Path) -> bool:
    """Whether a file looks like a SGLang server's log; a look at its beginning (and end, where it is plain text)."""
    place = Path(path)
    try:
        if not place.is_file():
            return False
        with _opened(place) as file:
            head = file.read1(1 << 18)
        if b"\0" in head:
            return False
        if place.stat().st_size > 1 << 18 and not _is_gzip(place):
            with place.open("rb") as plain:
                plain.seek(-(1 << 16), io.SEEK_END)
                head += plain.read()
    except (OSError, EOFError, ValueError, zlib.error):
        return False
    text = ANSI.sub("", head.decode("utf-8", "replace"))
    return re.search(r"\] ?(?:Decode|Prefill) batch|max_total_num_tokens=\d|\] server_args=", text) is not None


def read_server_log(path: str | Path, *, start: int | None = None) -> ServerLog:
    """Read a server's log.

    Parameters
    ----------
    path : str or path
        Plain text or gzip.
    start : int, optional
        Which start of the server, from 1, where a file holds several; default: the last one.

    Raises
    ------
    ScenarioError
        The file cannot be read, holds no line of a SGLang server, or not so many starts.
    """
    source = str(path)
    try:
        with _opened(Path(path)) as file:
            text, notes = _text(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ScenarioError(source, [Problem(source, f"cannot be read: {reason}")]) from None
    lines = list(split_lines(text))
    starts = split_starts(lines)
    if not starts:
        message = "holds neither batch lines (Decode batch, Prefill batch) nor sizes (max_total_num_tokens=) of a SGLang server"
        raise ScenarioError(source, [Problem(source, message)])
    number = len(starts) if start is None else start
    if not 1 <= number <= len(starts):
        count = f"{len(starts)} start{'s' if len(starts) > 1 else ''}"
        raise ScenarioError(source, [Problem("start", f"{start!r} is none of the {count} of this file")])
    if len(starts) > 1:
        which = "the last one is read" if start is None else f"number {number} is read"
        notes.append(f"the file holds {len(starts)} starts of a server: {which}")
    first, last = starts[number - 1]
    return _read(source, number, len(starts), lines[first:last], notes)


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _opened(path: Path) -> Any:
    return gzip.open(path) if _is_gzip(path) else path.open("rb")


def _text(file: Any) -> tuple[str, list[str]]:
    """All of it, and what to say about its end."""
    parts, notes = [], []
    try:
        while chunk := file.read1(1 << 20):
            parts.append(chunk)
    except (EOFError, zlib.error):
        notes.append("the gzip file is cut or broken: what came before is read")
    text = ANSI.sub("", b"".join(parts).decode("utf-8", "replace"))
    if text and not text.endswith("\n"):
        text, _, cut = text.rpartition("\n")
        notes.append(f"the last line does not end and is left out: {shown(cut)}")
    return text, notes


def _read(source: str, start: int, starts: int, lines: Sequence[Line], notes: list[str]) -> ServerLog:
    rank, ranks = rank_of(lines)
    if len(ranks) > 1:
        others = ", ".join(sorted(one or "no rank" for one in ranks if one != rank))
        notes.append(f"lines of {rank or 'no rank'} are read, those of {others} are left out")
    zero = lines[0].time_s if lines else 0.0
    startup, args = startup_of(lines, rank, notes)
    rows: dict[str, list[dict[str, Any]]] = {"Decode": [], "Prefill": []}
    events: list[dict[str, Any]] = []
    unread = 0
    example = ""
    for number, line in enumerate(lines):
        if line.rank not in (rank, ""):
            continue
        match = BATCH.match(line.text)
        when = line.time_s - zero
        if match is None:
            events += event_of(line, when, events)
            continue
        pairs = pairs_of(match["pairs"])
        if line.rank == rank and pairs.keys() >= NEEDED:
            rows[match["kind"]].append({"time_s": when, "line": number, **pairs})
        elif line.rank == rank:
            unread, example = unread + 1, example or line.text
    if unread:
        notes.append(f"{unread} batch line{'s' if unread > 1 else ''} could not be read, the first: {shown(example)}")
    if not rows["Decode"] and not rows["Prefill"]:
        if not startup:
            message = "holds no batch line that can be read and no sizes"
            raise ScenarioError(
                source, [Problem(source, f"{message}; the first: {shown(example)}" if example else message)]
            )
        notes.append("no batch lines: only what was told at startup is known")
    return ServerLog(
        path=source,
        start=start,
        starts=starts,
        rank=rank,
        startup=startup,
        decode=_frame(rows["Decode"], _DECODE),
        prefill=_frame(rows["Prefill"], _PREFILL),
        events=pd.DataFrame(events, columns=list(EVENTS)),
        server_args=args,
        notes=tuple(notes),
    )


def _frame(rows: list[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    """Batch lines as a frame; the usual columns are there even where nothing was read."""
    frame = pd.DataFrame(rows)
    for name in (*columns, "line"):
        if name not in frame:
            frame[name] = pd.Series(math.nan, index=frame.index, dtype=float)
    return frame[["time_s", *(name for name in frame.columns if name not in ("time_s", "line")), "line"]]


# ------------------------------------------------------------------------------------------------------------- arguments
def _words(args: Mapping[str, Any]) -> list[str]:
    """Arguments as flags: those that matter for KV memory and have a value that does."""
    by_name = {
        name.removeprefix("--").replace("-", "_"): flag
        for flag in engine_flags()
        if flag.use != "no effect"
        for name in flag.names
    }
    words: list[str] = []
    for name, value in args.items():
        flag = by_name.get(name)
        if flag is None or value is None or value is False or isinstance(value, dict) or str(value) in flag.harmless:
            continue
        if value is True:
            words += [flag.name] if flag.takes == "0" else []
        elif isinstance(value, (list, tuple)):
            words += [flag.name, *map(str, value)] if value else []
        else:
            words.append(f"{flag.name}={value}")
    return words


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}
