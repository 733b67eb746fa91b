"""A comparison with a server's log, written down like the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from simkv.comparison.page import picture_bytes, picture_uri, template
from simkv.comparison.view import Grid
from simkv.imports.measured import LogComparison
from simkv.plotting.measured import OVERLAYS
from simkv.wording import value_text

__all__ = ["LogPages"]

_HEADS = {
    "bias": "bias",
    "mae": "mean abs. error",
    "max": "largest",
    "simulated_peak": "simulated peak",
    "measured_peak": "measured peak",
}


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
        (row["size"], *(_whole(row[key]) for key in keys), _verdict(row)) for row in c.plan_table.to_dict("records")
    )
    return Grid("sizes at start-up", ("size", *keys, ""), rows, left=1)


def _verdict(row: Mapping[Any, Any]) -> str:
    if not row["ok"]:
        return "NO"
    return "equal" if not row["difference"] else "within"


def _series(c: LogComparison) -> Grid:
    rows = tuple(
        (row["series"], f"{row['lines']:,}", *(value_text(float(row[key])) for key in _HEADS))
        for row in c.table.to_dict("records")
    )
    return Grid("simulated and measured, line by line", ("series", "lines", *_HEADS.values()), rows, left=1)


def _whole(value: Any) -> str:
    number = float(value)
    return value_text(int(number) if number.is_integer() else number)
