"""A run against the log of a real server, beside comparisons of simulations: what can be asked of one, and its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from simkv.comparison.opening import Opened
from simkv.comparison.page import picture_bytes, picture_uri, template
from simkv.comparison.view import Grid
from simkv.errors import InfeasibleError
from simkv.imports.measured import LogComparison, compare_log
from simkv.plotting.measured import OVERLAYS
from simkv.results import simulate
from simkv.wording import value_text

__all__ = ["LogPages", "against_log"]

_HEADS = {
    "bias": "bias",
    "mae": "mean abs. error",
    "max": "largest",
    "simulated_peak": "simulated peak",
    "measured_peak": "measured peak",
}


def against_log(first: Opened, log: str | Path, progress: Any = None) -> LogComparison:
    """Compare a run, or a scenario once it is simulated, with the log of a server.

    Where the engine would not start, its plan alone is compared.

    Raises
    ------
    UserError
        The log or the workload cannot be read.
    """
    if first.kind != "scenario":
        return compare_log(first.thing, log)
    watch = None if progress is None else lambda p: progress(first.thing.name, p)
    try:
        return compare_log(simulate(first.thing, progress=watch), log)
    except InfeasibleError:
        return compare_log(first.thing.plan(), log)


@dataclass(frozen=True, eq=False)
class LogPages:
    """A comparison with a log, as :class:`~simkv.comparison.pages.Pages` writes comparisons down.

    Parameters
    ----------
    comparison : LogComparison
    """

    comparison: LogComparison

    @property
    def plots(self) -> tuple[str, ...]:
        """Kinds of overlays that the log has series for."""
        points = self.comparison.points
        kinds = OVERLAYS.items()
        return tuple(kind for kind, one in kinds if any(f"measured_{name}" in points for name in one.series))

    @cached_property
    def pictures(self) -> Mapping[str, bytes]:
        """Overlays as PNG files."""
        return {kind: picture_bytes(self.comparison, kind) for kind in self.plots}

    def to_markdown(self) -> str:
        """As the comparison's own."""
        return self.comparison.to_markdown()

    def to_html(self) -> str:
        """One page that needs nothing else."""
        c = self.comparison
        wrong = int((~c.plan_table["ok"]).sum())
        said = "every size of the plan is the log's" if not wrong else f"{wrong} of {len(c.plan_table)} sizes differ"
        part = {
            "fails": bool(wrong),
            "verdict": said if len(c.plan_table) else "the log tells no sizes",
            "sizes": _sizes(c),
            "series": _series(c),
            "notes": c.notes,
            "pictures": [
                {"uri": picture_uri(self.pictures[kind]), "alt": f"{kind} over time, simulated and measured"}
                for kind in self.plots
            ],
        }
        title = f"{c.name} against {Path(c.path).name}"
        return str(template("log.html.j2").render(title=title, part=part))


def _sizes(c: LogComparison) -> Grid:
    keys = ("planned", "logged", "difference")
    rows = tuple(
        (row["size"], *(_whole(row[key]) for key in keys), "equal" if row["ok"] else "NO")
        for row in c.plan_table.to_dict("records")
    )
    return Grid("sizes at start-up", ("size", *keys, ""), rows, left=1)


def _series(c: LogComparison) -> Grid:
    rows = tuple(
        (row["series"], f"{row['lines']:,}", *(value_text(float(row[key])) for key in _HEADS))
        for row in c.table.to_dict("records")
    )
    return Grid("simulated and measured, line by line", ("series", "lines", *_HEADS.values()), rows, left=1)


def _whole(value: Any) -> str:
    number = float(value)
    return value_text(int(number) if number.is_integer() else number)
