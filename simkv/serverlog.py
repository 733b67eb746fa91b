"""What a SGLang server wrote about itself: sizes, batches, retractions.

Formats are those of 0.5.23 (``managers/scheduler_components/metrics_reporter.py:759-800, 958-1044``,
``pool_stats_observer.py:99-143``, ``managers/scheduler.py:1266-1276, 4525-4537``, ``mem_cache/memory_pool.py:2073-2099``,
``model_executor/pool_configurator.py:869-891``, ``model_executor/model_runner.py:1273-1379``); what older releases wrote
otherwise is read as well.
"""

from __future__ import annotations

import ast
import gzip
import html
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tomli_w

from simkv.engines.sglang.flags import engine_flags
from simkv.errors import Problem, ScenarioError
from simkv.launch import Launch, import_launch

__all__ = ["Fit", "ServerLog", "is_server_log", "read_server_log"]

GIB = 1 << 30
DECODE_LOG_INTERVAL = 40  # --decode-log-interval

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LINE = re.compile(
    r"\[(?P<when>(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d)(?:[.,](?P<ms>\d{1,6}))?(?P<rank>(?: [A-Z_]+\d+)*)\] ?(?P<text>.*)"
)
_BATCH = re.compile(r"(?P<kind>Decode|Prefill) batch[.,]?(?: ?\[\d+\][,.]?)?,? ?(?P<pairs>.*)")
_SIZES = re.compile(r"max_total_num_tokens=\d+")
_FACTS = re.compile(r"(\w+)=(-?\d+(?:\.\d+)?)(?: GB)?")
_RETRACTION = re.compile(r"(?:KV cache pool is full\. Retract requests|Decode out of memory happened)\.(?P<pairs>.*)")
_POOL = re.compile(
    r"(?:(?P<label>.*?) )?KV Cache is allocated\.(?: dtype: (?P<dtype>[\w.]+),)? #tokens: (?P<tokens>\d+), "
    r"(?:K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB|KV size: (?P<kv>[\d.]+) GB)"
)
_SPLIT = re.compile(r"full_layer_tokens=(?P<full>\d+), swa_layer_tokens=(?P<swa>\d+)")
_ALL_SWA = re.compile(r"\(all SWA\)\. swa_layer_tokens=(?P<swa>\d+)")
_SWA_POOL = re.compile(r"SWAKVPool mem usage: (?P<gb>[\d.]+) GB, swa size: (?P<swa>\d+), full size: (?P<full>\d+)")
_BEGIN = re.compile(r"Load weight begin\. avail mem=(?P<gb>[\d.]+) GB")
_END = re.compile(r"Load weight end\..*?mem usage=(?P<gb>[\d.]+) GB")
_TROUBLE = (
    ("out of memory", re.compile(r"out of memory|OutOfMemoryError", re.IGNORECASE)),
    ("exception", re.compile(r"hit an exception|^Traceback \(most recent call last\)")),
)

# What a batch line calls it -> simkv's and SGLang's metric name.
_NAMES = {
    "#running-req": "num_running_reqs",
    "#queue-req": "num_queue_reqs",
    "#new-seq": "num_new_seqs",
    "#new-token": "prefill_tokens",
    "#cached-token": "hit_tokens",
    "#pending-token": "pending_tokens",
    "#replay-token": "replay_tokens",
    "#token": "full_used_tokens",
    "#full token": "full_used_tokens",
    "#swa token": "swa_used_tokens",
    "token usage": "full_token_usage",
    "full token usage": "full_token_usage",
    "swa token usage": "swa_token_usage",
    "accept len": "spec_accept_length",
    "accept rate": "spec_accept_rate",
    "gen throughput (token/s)": "gen_throughput",
    "input throughput (token/s)": "input_throughput",
    "cache hit rate": "cache_hit_rate",
    "#retracted-req": "num_retracted_reqs",
}
_NEEDED = {"num_running_reqs", "full_token_usage"}
_COUNTS = {
    "num_running_reqs",
    "num_queue_reqs",
    "num_new_seqs",
    "prefill_tokens",
    "hit_tokens",
    "pending_tokens",
    "replay_tokens",
    "full_used_tokens",
    "swa_used_tokens",
    "num_retracted_reqs",
}
_DECODE = ("time_s", "num_running_reqs", "num_queue_reqs", "full_token_usage", "gen_throughput")
_PREFILL = ("time_s", "num_new_seqs", "prefill_tokens", "hit_tokens", "full_token_usage", "num_running_reqs")
_EVENTS = ("time_s", "event", "num_retracted_reqs", "new_tokens_gained", "ratio_before", "ratio_after", "text")
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


class _Line(NamedTuple):
    """One line: seconds since the first, the rank that wrote it, and what it says."""

    time_s: float
    rank: str
    text: str


@dataclass(frozen=True)
class Fit:
    """A table of a scenario that was fitted to a log.

    Parameters
    ----------
    section : str
        ``acceptance`` or ``steptime``.
    table : dict
        What belongs under it.
    notes : tuple of str
        What it rests on, and what a log cannot tell.
    """

    section: str
    table: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def toml(self) -> str:
        """The table as part of a scenario file, the notes as comments."""
        return "".join(f"# {note}\n" for note in self.notes) + tomli_w.dumps({self.section: self.table})


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
            frame.assign(kind=kind) for kind, frame in (("decode", self.decode), ("prefill", self.prefill)) if len(frame)
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
        words, unknown = _words(self.server_args)
        notes = list(unknown)
        measured = "load_begin" in self.startup and "gpu" not in kwargs and "hbm" not in kwargs
        if measured:
            kwargs["hbm"] = round(self.startup["load_begin"] * GIB)
            if "weights" in self.startup and "weights" not in kwargs:
                kwargs["weights"] = round(self.startup["weights"] * GIB)
        launch = import_launch(words, **kwargs)
        scenario, toml = launch.scenario, launch.toml
        draft = self.startup.get("draft_weights")
        if measured and draft and "draft" in scenario.data:
            size = round(draft * GIB)
            scenario = scenario.set(memory__draft_weights=size)
            toml = toml.replace("\n[memory]\n", f"\n[memory]\ndraft_weights = {size}  # of the log\n")
            notes += [note for note in launch.notes if "draft_weights" not in note]
        else:
            notes += launch.notes
        return Launch(scenario, toml, launch.flags, tuple(notes), launch.words)

    # ---- fits
    @property
    def accept_length(self) -> float:
        """Accepted tokens of a verify step, the bonus included; over the log, by running requests. NaN without drafts."""
        if "spec_accept_length" not in self.decode:
            return math.nan
        rows = self.decode.dropna(subset=["spec_accept_length"])
        weight = rows["num_running_reqs"].sum()
        return float((rows["spec_accept_length"] * rows["num_running_reqs"]).sum() / weight) if weight else math.nan

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
            raise ScenarioError(self.path, [Problem("accept len", "no decode line has it: the server does not speculate")])
        width, source = (num_draft_tokens, "as given") if num_draft_tokens is not None else self._width()
        if width is None or width < 1:
            message = "cannot be told from the log: state num_draft_tokens"
            raise ScenarioError(self.path, [Problem("num_draft_tokens", message)])
        alpha = _alpha(mean, width)
        notes = [
            f"mean accepted length {mean:.4f} of at most {width} ({source}), over {len(self.decode)} decode lines",
            "one probability for every position; the log has means only: neither positions nor requests can be told apart",
        ]
        if mean > width:
            notes.append(f"the log's length is beyond {width}: alpha is 1")
        return Fit("acceptance", {"kind": "geometric", "alpha": alpha}, tuple(notes))

    def _width(self) -> tuple[int | None, str]:
        """Longest accepted length: by the arguments, or by how length and rate go together."""
        args = self.server_args
        drafted, steps = args.get("speculative_num_draft_tokens"), args.get("speculative_num_steps")
        if isinstance(drafted, int):
            chain = isinstance(steps, int) and str(args.get("speculative_algorithm")) in ("EAGLE", "EAGLE3", "STANDALONE")
            return (min(drafted, steps + 1) if chain and isinstance(steps, int) else drafted), "server_args"
        if "spec_accept_rate" in self.decode:
            # rate = (length - 1) / (draft tokens - 1); metrics_reporter.py:974-982
            rows = self.decode[self.decode["spec_accept_rate"] > 0]
            if len(rows):
                ratio = ((rows["spec_accept_length"] - 1) / rows["spec_accept_rate"]).median()
                return 1 + round(float(ratio)), "from accept len and accept rate"
        return None, ""

    def fit_steptime(self) -> Fit:
        """A linear ``[steptime]`` by least squares, no coefficient below zero.

        A decode line's throughput and its requests give the time since the line before; that time is decode steps and the
        prefill steps between. The tokens in use stand for the contexts.

        Raises
        ------
        ScenarioError
            Fewer than two decode lines with a throughput.
        """
        rows = self._intervals()
        if len(rows) < 2:
            message = f"{len(rows)} decode lines with requests and a throughput behind another; at least 2 are needed"
            raise ScenarioError(self.path, [Problem("gen throughput", message)])
        steps = float(self.interval)
        features = np.column_stack(
            [
                1 + rows["prefills"] / steps,
                rows["prefill_tokens"] / steps,
                rows["requests"],
                rows["tokens"],
            ]
        )
        seconds = (rows["duration_s"] / steps).to_numpy(float)
        found, error = _not_negative(features, seconds)
        units = (1e3, 1e6, 1e6, 1e9)
        keys = ("base_ms", "per_prefill_token_us", "per_decode_request_us", "per_context_token_ns")
        table: dict[str, Any] = {"kind": "linear"}
        table |= {key: float(f"{value * unit:.6g}") for key, value, unit in zip(keys, found, units, strict=True)}
        notes = [
            f"{len(rows)} intervals of {self.interval} decode steps; typical error {error:.1%} of a step",
            "contexts are the tokens in use; the drafts' part is in base_ms and per_decode_request_us",
        ]
        notes += [f"{key} is 0: the log does not tell it apart" for key in keys if not table[key]]
        if not table["base_ms"] and not table["per_decode_request_us"]:
            table["base_ms"] = float(f"{seconds.min() * 1e3:.6g}")
        return Fit("steptime", table, tuple(notes))

    def _intervals(self) -> pd.DataFrame:
        """One row a pair of neighbouring decode lines: what was done, and how long it took."""
        decode, prefill = self.decode, self.prefill
        rows = []
        if "gen_throughput" not in decode or "line" not in decode:
            return pd.DataFrame(rows)
        length = decode.get("spec_accept_length", pd.Series(1.0, index=decode.index)).fillna(1.0)
        used = decode.get("full_used_tokens", pd.Series(0.0, index=decode.index)).fillna(0)
        for before, row in zip(decode.index[:-1], decode.index[1:], strict=True):
            rate = decode.at[row, "gen_throughput"]
            requests = (decode.at[before, "num_running_reqs"] + decode.at[row, "num_running_reqs"]) / 2
            if not rate > 0 or not requests:
                continue
            first, last = decode.at[before, "line"], decode.at[row, "line"]
            between = prefill[(prefill["line"] > first) & (prefill["line"] < last)] if len(prefill) else prefill
            rows.append(
                {
                    "requests": float(requests),
                    "tokens": float((used[before] + used[row]) / 2),
                    "prefills": len(between),
                    "prefill_tokens": float(between["prefill_tokens"].sum()) if len(between) else 0.0,
                    "duration_s": self.interval * float(requests) * float(length[row]) / float(rate),
                }
            )
        return pd.DataFrame(rows)

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
            "events": [_plain(row) for row in self.events.to_dict("records")],
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
            head = file.read(1 << 18)
        if b"\0" in head:
            return False
        if place.stat().st_size > 1 << 18 and not _is_gzip(place):
            with place.open("rb") as plain:
                plain.seek(-(1 << 16), io.SEEK_END)
                head += plain.read()
    except (OSError, EOFError, ValueError):
        return False
    text = _ANSI.sub("", head.decode("utf-8", "replace"))
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
    lines = list(_lines(text))
    starts = _starts(lines)
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
        while chunk := file.read(1 << 20):
            parts.append(chunk)
    except EOFError:
        notes.append("the gzip file ends in the middle: what came before is read")
    text = _ANSI.sub("", b"".join(parts).decode("utf-8", "replace"))
    if text and not text.endswith("\n"):
        text, _, cut = text.rpartition("\n")
        notes.append(f"the last line does not end and is left out: {_shown(cut)}")
    return text, notes


def _lines(text: str) -> Iterator[_Line]:
    """Lines with seconds since the first stamped one; a line without a stamp belongs to the one before it."""
    zero = None
    now, rank, days = 0.0, "", 0.0
    for raw in text.splitlines():
        match = _LINE.search(raw)
        if match is None:
            yield _Line(now, rank, raw)
            continue
        seconds = _seconds(match["when"], match["ms"])
        if seconds is not None:
            if len(match["when"]) == 8 and zero is not None and seconds + days < zero + now - 43200:
                days += 86400  # a clock without dates has passed midnight
            zero = seconds if zero is None else zero
            now = seconds + days - zero
        rank = match["rank"].strip()
        yield _Line(now, rank, match["text"])


def _seconds(when: str, fraction: str | None) -> float | None:
    try:
        stamp = datetime.fromisoformat(when if len(when) > 8 else f"2000-01-01 {when}")
    except ValueError:
        return None
    return (stamp - datetime(1970, 1, 1)).total_seconds() + (float(f"0.{fraction}") if fraction else 0.0)


def _starts(lines: Sequence[_Line]) -> list[tuple[int, int]]:
    """Where each start of a server begins and ends: at its arguments, or else where sizes come after batches."""
    told = [n for n, line in enumerate(lines) if line.text.startswith("server_args=")]
    if not told:
        batch = 0
        for n, line in enumerate(lines):
            if _BATCH.match(line.text):
                batch = n + 1
                told = told or [0]
            elif _SIZES.search(line.text) and (not told or told[-1] != batch):
                told.append(batch if told else 0)
    else:
        early = any(_BATCH.match(line.text) for line in lines[: told[0]])
        told = [0, *told] if early else told
    return list(zip(told, [*told[1:], len(lines)], strict=True))


def _read(source: str, start: int, starts: int, lines: Sequence[_Line], notes: list[str]) -> ServerLog:
    rank, ranks = _rank(lines)
    if len(ranks) > 1:
        others = ", ".join(sorted(one or "no rank" for one in ranks if one != rank))
        notes.append(f"lines of {rank or 'no rank'} are read, those of {others} are left out")
    zero = lines[0].time_s if lines else 0.0
    startup, args = _startup(lines, rank, notes)
    rows: dict[str, list[dict[str, Any]]] = {"Decode": [], "Prefill": []}
    events: list[dict[str, Any]] = []
    unread = 0
    example = ""
    for number, line in enumerate(lines):
        if line.rank not in (rank, ""):
            continue
        match = _BATCH.match(line.text)
        when = line.time_s - zero
        if match is None:
            events += _event(line, when, events)
            continue
        pairs = _pairs(match["pairs"])
        if line.rank == rank and pairs.keys() >= _NEEDED:
            rows[match["kind"]].append({"time_s": when, "line": number, **pairs})
        elif line.rank == rank:
            unread, example = unread + 1, example or line.text
    if unread:
        notes.append(f"{unread} batch line{'s' if unread > 1 else ''} could not be read, the first: {_shown(example)}")
    if not rows["Decode"] and not rows["Prefill"]:
        if not startup:
            message = "holds no batch line that can be read and no sizes"
            raise ScenarioError(source, [Problem(source, f"{message}; the first: {_shown(example)}" if example else message)])
        notes.append("no batch lines: only what was told at startup is known")
    return ServerLog(
        path=source,
        start=start,
        starts=starts,
        rank=rank,
        startup=startup,
        decode=_frame(rows["Decode"], _DECODE),
        prefill=_frame(rows["Prefill"], _PREFILL),
        events=pd.DataFrame(events, columns=list(_EVENTS)),
        server_args=args,
        notes=tuple(notes),
    )


def _rank(lines: Sequence[_Line]) -> tuple[str, set[str]]:
    """The rank whose batches are read: the first by name of those that tell batches, or else sizes."""
    told: Counter[str] = Counter(line.rank for line in lines if _BATCH.match(line.text))
    if not told:
        told = Counter(line.rank for line in lines if _SIZES.search(line.text))
    return (min(told, key=_natural) if told else ""), set(told)


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _pairs(text: str) -> dict[str, Any]:
    """Names and values of a batch line; what is no number or yes and no is left out."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, colon, value = part.strip().rpartition(": ")
        if not colon:
            continue
        key = _NAMES.get(name) or re.sub(r"\W+", "_", name).strip("_").lower()
        read = _value(value)
        if read is not None and (key not in _COUNTS or float(read).is_integer()):
            found[key] = int(read) if key in _COUNTS else read
    return found


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    match = re.fullmatch(r"(-?\d+(?:\.\d*)?)(%?)", text)
    return None if match is None else float(match[1]) / (100 if match[2] else 1)


def _event(line: _Line, when: float, before: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What a line tells besides batches: nothing, or one event."""
    blank = dict.fromkeys(_EVENTS, math.nan)
    if match := _RETRACTION.match(line.text):
        facts = dict(re.findall(r"#(\w+): ([\d.]+(?: -> [\d.]+)?)", match["pairs"]))
        old, _, new = facts.get("new_token_ratio", "").partition(" -> ")
        yield blank | {
            "time_s": when,
            "event": "retraction",
            "num_retracted_reqs": _number(facts.get("retracted_reqs")),
            "new_tokens_gained": _number(facts.get("new_tokens_gained")),
            "ratio_before": _number(old),
            "ratio_after": _number(new),
            "text": line.text,
        }
        return
    for event, pattern in _TROUBLE:
        if pattern.search(line.text):
            # One trouble, several lines: it is told once.
            same = before and before[-1]["event"] == event and before[-1]["time_s"] == when
            if not same:
                yield blank | {"time_s": when, "event": event, "text": line.text[:300]}
            return


def _number(text: str | None) -> float:
    try:
        return float(text) if text else math.nan
    except ValueError:
        return math.nan


def _frame(rows: list[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    """Batch lines as a frame; the usual columns are there even where nothing was read."""
    frame = pd.DataFrame(rows)
    for name in (*columns, "line"):
        if name not in frame:
            frame[name] = pd.Series(math.nan, index=frame.index, dtype=float)
    return frame[["time_s", *(name for name in frame.columns if name not in ("time_s", "line")), "line"]]


def _startup(lines: Sequence[_Line], rank: str, notes: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sizes and arguments."""
    found: dict[str, Any] = {}
    args: dict[str, Any] = {}
    pools: list[dict[str, Any]] = []
    loads: list[float] = []
    for line in lines:
        text = line.text
        if text.startswith("server_args="):
            args = _arguments(text.partition("=")[2])
            if not args:
                notes.append("server_args= is there and cannot be read")
        elif line.rank not in (rank, ""):
            continue
        elif _SIZES.search(text):
            found |= {key: _whole(value) for key, value in _FACTS.findall(text)}
        elif match := _POOL.search(text):
            pools.append(_pool(match))
        elif match := _SPLIT.search(text):
            found.setdefault("full_max_total_num_tokens", int(match["full"]))
            found.setdefault("swa_max_total_num_tokens", int(match["swa"]))
        elif match := _ALL_SWA.search(text):
            found |= {"full_max_total_num_tokens": 0, "swa_max_total_num_tokens": int(match["swa"])}
        elif match := _SWA_POOL.search(text):
            found.setdefault("full_max_total_num_tokens", int(match["full"]))
            found.setdefault("swa_max_total_num_tokens", int(match["swa"]))
        elif match := _BEGIN.search(text):
            found.setdefault("load_begin", float(match["gb"]))
        elif match := _END.search(text):
            loads.append(float(match["gb"]))
    if loads:
        found["weights"] = loads[0]
    if len(loads) > 1:
        found["draft_weights"] = round(sum(loads[1:]), 2)
    if pools:
        found["pools"] = pools
    return found, args


def _whole(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _pool(match: re.Match[str]) -> dict[str, Any]:
    parts = [match["kv"]] if match["kv"] is not None else [match["k"], match["v"]]
    return {
        "label": match["label"] or "",
        "dtype": (match["dtype"] or "").removeprefix("torch."),
        "tokens": int(match["tokens"]),
        "gib": round(sum(map(float, parts)), 2),
        # Each printed figure is rounded to 0.01.
        "rounding": 0.005 * len(parts),
    }


# ------------------------------------------------------------------------------------------------------------- arguments
def _arguments(text: str) -> dict[str, Any]:
    """Arguments from ``{'a': 1}`` or ``ServerArgs(a=1)``; a value that is no plain one is left out."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        # Cut off, or with values that are no Python: what can be told one by one.
        pairs = re.findall(r"(?:'(\w+)': |\b(\w+)=)('(?:[^'\\]|\\.)*'|-?[\d.]+|True|False|None)", text)
        return {a or b: ast.literal_eval(value) for a, b, value in pairs if _literal(value) is not _NOTHING}
    if isinstance(tree, ast.Call):
        items = [(one.arg, one.value) for one in tree.keywords if one.arg is not None]
    elif isinstance(tree, ast.Dict):
        items = [(k.value, v) for k, v in zip(tree.keys, tree.values, strict=True) if isinstance(k, ast.Constant)]
    else:
        return {}
    read = {str(name): _literal(value) for name, value in items}
    return {name: value for name, value in read.items() if value is not _NOTHING}


_NOTHING = object()


def _literal(node: Any) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return _NOTHING


def _words(args: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Arguments as flags, those that matter for KV memory; and what to say about names that are no flags."""
    by_name = {
        name.removeprefix("--").replace("-", "_"): flag
        for flag in engine_flags()
        if flag.use != "no effect"
        for name in flag.names
    }
    words: list[str] = []
    for name, value in args.items():
        flag = by_name.get(name)
        if flag is None or value is None or value is False or isinstance(value, dict):
            continue
        if value is True:
            words += [flag.name] if flag.takes == "0" else []
        elif isinstance(value, (list, tuple)):
            words += [flag.name, *map(str, value)] if value else []
        else:
            words.append(f"{flag.name}={value}")
    known = {name.removeprefix("--").replace("-", "_") for flag in engine_flags() for name in flag.names}
    strange = sorted(name for name in args if name.startswith(("swa", "kv_", "mem_", "page", "spec")) and name not in known)
    return words, [f"server_args has {name}, which is no flag of SGLang 0.5.23" for name in strange]


# ------------------------------------------------------------------------------------------------------------------ fits
def _alpha(mean: float, width: int) -> float:
    """Probability whose mean length ``1 + a + ... + a**(width - 1)`` is this, by bisection."""
    low, high = 0.0, 1.0
    if mean <= 1 or width == 1:
        return 0.0
    if mean >= width:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(width)) < mean:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 6)


def _not_negative(features: Any, wanted: Any) -> tuple[list[float], float]:
    """Least squares without negative coefficients: the best of all subsets of columns whose own fit has none."""
    best: tuple[float, list[float]] = (math.inf, [0.0] * features.shape[1])
    count = features.shape[1]
    for size in range(1, count + 1):
        for columns in combinations(range(count), size):
            part = features[:, columns]
            scale = np.abs(part).max(axis=0)
            if not scale.all():
                continue
            found, _, rank, _ = np.linalg.lstsq(part / scale, wanted, rcond=None)
            found = found / scale
            if rank < size or (found < 0).any():
                continue
            error = float(((part @ found - wanted) ** 2).sum())
            if error < best[0] * (1 - 1e-9):
                full = [0.0] * count
                for column, value in zip(columns, found, strict=True):
                    full[column] = float(value)
                best = (error, full)
    relative = math.sqrt(best[0] / len(wanted)) / float(np.mean(wanted)) if len(wanted) else math.nan
    return best[1], relative


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def _shown(text: str) -> str:
    shown = text if text.isprintable() else repr(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."
