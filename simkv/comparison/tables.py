"""Two sides as tables: figures, inputs, memory plan, what happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from simkv.comparison.figures import better
from simkv.comparison.sides import Side
from simkv.comparison.tolerance import Tolerance

__all__ = ["event_table", "figure_row", "figure_table", "flat", "input_table", "plan_table", "pool_table"]

ABSENT = "not stated"
_FILES = ("workload.trace", "model.config", "draft.config")
# Of the plan, what has one value; what is only told again in the summary is told there.
_PLAN = (
    "engine",
    "model",
    "configurator",
    "routing",
    "kv_bytes",
    "bytes_per_token",
    "page_size",
    "window",
    "max_total_num_tokens",
    "full_max_total_num_tokens",
    "swa_max_total_num_tokens",
    "max_running_requests",
    "overcommit_bytes",
    "padding_bytes",
    "slack_bytes",
)


def _frame(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    """A frame that keeps integers and None as they are."""
    made = pd.DataFrame(list(rows), columns=list(columns), dtype=object)
    return made.astype({"changed": bool}) if "changed" in made else made


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ------------------------------------------------------------------------------------------------- figures
FIGURE_COLUMNS = ("figure", "a", "b", "change", "relative_change", "changed", "allowed", "within", "verdict")


def figure_row(
    figure: str, a: Any, b: Any, tolerance: Tolerance, *, judged: bool, sides: tuple[bool, bool] = (True, True)
) -> dict[str, Any]:
    """One figure of two sides.

    Parameters
    ----------
    figure : str
        Its name.
    a, b : int, float, str or None
        None where it has no value.
    tolerance : Tolerance
        ``within`` is None where it states nothing for this figure, and False where a and b cannot be subtracted.
    judged : bool
        Whether the two may be called better and worse.
    sides : (bool, bool)
        Whether a and b have the figure at all.
    """
    both = _is_number(a) and _is_number(b)
    change = b - a if both else None
    relative = change / abs(a) if both and a else None
    changed = a != b or sides[0] != sides[1]
    allowed = tolerance.allowed(figure, a if _is_number(a) else 0.0)
    within = None
    if allowed is not None:
        within = not changed or (both and abs(b - a) <= allowed)
    return {
        "figure": figure,
        "a": a,
        "b": b,
        "change": change,
        "relative_change": relative,
        "changed": changed,
        "allowed": allowed,
        "within": within,
        "verdict": _verdict(figure, change, changed, sides, judged),
    }


def _verdict(figure: str, change: Any, changed: bool, sides: tuple[bool, bool], judged: bool) -> str:
    if sides[0] != sides[1]:
        return "only in a" if sides[0] else "only in b"
    if not changed:
        return "same"
    way = better(figure)
    if way is None or not change or not judged:
        return "changed"
    return "improved" if (change < 0) == (way == "less") else "worse"


def figure_table(a: Side, b: Side, tolerance: Tolerance, *, judged: bool) -> pd.DataFrame:
    """Every figure of either side, in the order of the summary."""
    names = list(dict.fromkeys([*a.summary, *b.summary]))
    stated = tolerance if a.ran and b.ran else Tolerance()
    rows = (
        figure_row(
            name,
            a.summary.get(name),
            b.summary.get(name),
            stated,
            judged=judged,
            sides=(name in a.summary, name in b.summary),
        )
        for name in names
    )
    return _frame(rows, FIGURE_COLUMNS)


# ------------------------------------------------------------------------------------------------- inputs
def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; a part that holds a dot is quoted, as in ``checks."requests.refused"``.

    An empty table states nothing.
    """
    out: dict[str, Any] = {}
    for key, value in table.items():
        part = f'"{key}"' if "." in str(key) else str(key)
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{part}.")
        else:
            out[f"{prefix}{part}"] = value
    return out


def input_table(a: Side, b: Side) -> pd.DataFrame:
    """What differs in the resolved scenarios, and in what they were run with."""
    one, other = _inputs(a), _inputs(b)
    for key in ("engine", "simkv"):
        x, y = (side.provenance.get(key) for side in (a, b))
        if x is not None and y is not None:
            one[key], other[key] = x, y
    rows = [
        {"key": key, "a": one.get(key, ABSENT), "b": other.get(key, ABSENT)}
        for key in dict.fromkeys([*one, *other])
        if one.get(key, ABSENT) != other.get(key, ABSENT)
    ]
    # Two copies of one file: where they lie is no difference.
    same_requests = bool(a.workload_sha256) and a.workload_sha256 == b.workload_sha256
    rows = [row for row in rows if not _is_copy(row["key"], row["a"], row["b"], same_requests=same_requests)]
    return _frame(rows, ("key", "a", "b"))


def _is_copy(key: str, a: Any, b: Any, *, same_requests: bool) -> bool:
    """Whether two paths are of files with one name and one content; a trace's content is known by its requests."""
    if key not in _FILES or not (isinstance(a, str) and isinstance(b, str)) or Path(a).name != Path(b).name:
        return False
    if key == "workload.trace":
        return same_requests
    try:
        return Path(a).read_bytes() == Path(b).read_bytes()
    except (OSError, ValueError):
        return False


def _inputs(side: Side) -> dict[str, Any]:
    out = flat({key: value for key, value in side.scenario.items() if key not in ("description", "engine")})
    if side.provenance.get("given_in_python"):
        out["given_in_python"] = list(side.provenance["given_in_python"])
    return out


# ------------------------------------------------------------------------------------------------- memory plan
def plan_table(a: Side, b: Side) -> pd.DataFrame:
    """Figures of the two plans: budget, tokens, over-commit, slack, layers, draft depths, settings."""
    one, other = _plan(a), _plan(b)
    rows = []
    for name in dict.fromkeys([*one, *other]):
        x: Any = one.get(name)
        y: Any = other.get(name)
        change = y - x if _is_number(x) and _is_number(y) else None
        rows.append({"figure": name, "a": x, "b": y, "change": change, "changed": x != y})
    return _frame(rows, ("figure", "a", "b", "change", "changed"))


def _plan(side: Side) -> dict[str, Any]:
    plan = side.plan
    out = {name: plan.get(name) for name in _PLAN}
    if not plan["pools"]:
        out["overcommit_bytes"] = out["padding_bytes"] = None
    out["fits_slack"] = side.fits_slack
    out |= {f"layers.{kind}": count for kind, count in plan["layers"].items()}
    out |= {f"draft_layers.{kind}": count for kind, count in plan["draft_layers"].items()}
    out["draft_depths"] = len({pool["worker"] for pool in plan["pools"]} - {"target"})
    out |= {name: value for name, value in plan["settings"].items() if name not in out}
    return out


def pool_table(a: Side, b: Side) -> pd.DataFrame:
    """Pools side by side: target, then every draft depth; None where a side has no such pool.

    Columns: ``worker``, ``pool``, and of each side ``tokens_*``, ``bytes_*`` (allocated), ``budgeted_bytes_*`` and
    ``mapping_*``.
    """
    keys = ("tokens", "bytes", "budgeted_bytes", "mapping", "layers")
    sides = [{(p["worker"], p["pool"]): p for p in side.plan["pools"]} for side in (a, b)]
    rows = []
    for worker, pool in dict.fromkeys([*sides[0], *sides[1]]):
        row: dict[str, Any] = {"worker": worker, "pool": pool}
        for name, pools in zip("ab", sides, strict=True):
            found = pools.get((worker, pool), {})
            row |= {f"{key}_{name}": found.get(key) for key in keys}
        rows.append(row)
    rows.sort(key=lambda row: (row["worker"] != "target", len(row["worker"]), row["worker"], row["pool"]))
    return _frame(rows, ["worker", "pool", *(f"{key}_{name}" for key in keys for name in "ab")])


# ------------------------------------------------------------------------------------------------- what happened
def event_table(a: Side, b: Side) -> pd.DataFrame:
    """Retractions, aborts, refusals, faults and repairs by pool and cause, with count and first time (s) of each side."""
    sides = [{(c.event, c.pool, c.cause): c for c in side.causes} for side in (a, b)]
    rows: list[dict[str, Any]] = []
    for event, pool, cause in dict.fromkeys([*sides[0], *sides[1]]):
        x, y = (found.get((event, pool, cause)) for found in sides)
        counts = [0 if one is None else one.count for one in (x, y)]
        rows.append(
            {
                "event": event,
                "pool": pool,
                "cause": cause,
                "a": counts[0],
                "b": counts[1],
                "change": counts[1] - counts[0],
                "first_s_a": None if x is None else x.first_s,
                "first_s_b": None if y is None else y.first_s,
            }
        )
    rows.sort(key=lambda row: (-max(row["a"], row["b"]), row["event"], row["pool"], row["cause"]))
    return _frame(rows, ("event", "pool", "cause", "a", "b", "change", "first_s_a", "first_s_b"))
