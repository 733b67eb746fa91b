"""Colours, line styles and sizes: what all figures share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Plan: TypeAlias = Mapping[str, Any]
LineStyle: TypeAlias = str | tuple[int, tuple[int, ...]]
POOL_COLORS: dict[str, str] = {"full": "#0072B2", "swa": "#D55E00", "rows": "#222222", "-": "#808080"}
"""Colour of each pool (Okabe-Ito blue and vermilion; request rows and "no pool" in greys)."""
DRAFT_COLORS: tuple[str, ...] = (
    "#117733",
    "#AA4499",
    "#88CCEE",
    "#882255",
    "#999933",
    "#332288",
    "#44AA99",
    "#CC9A2B",
)
"""Colour of each draft depth (after Tol's "muted" set); deeper ones start again."""
EXACT_ROWS = 2000
"""Timelines of up to this many rows are drawn row by row, longer ones in time bins."""
BINS = 400  # about one bin for each two pixels of a panel
RATE_BINS = 120
OOM_EVENTS = ("retraction", "abort", "refusal")
OOM_COLUMNS = {"retraction": "num_retracted_reqs", "abort": "num_aborted_reqs", "refusal": "num_refused_reqs"}
OOM_LINES = 8  # lines of the oom panel; further kinds are added up into one, and the legend says so
OOM_STYLES: dict[str, LineStyle] = {"retraction": "-", "abort": (0, (5, 2)), "refusal": (0, (1, 1))}
EVICTION_LINES = 6  # lines of the eviction panel; the smallest reasons of a pool are added up beyond that
EVICTION_STYLES: dict[str, LineStyle] = {
    "window": "-",
    "prefill": (0, (5, 2)),
    "decode": (0, (1, 1)),
    "retraction": (0, (5, 1, 1, 1)),
}
MARKERS = "os^Dv<>p"
STALE_HATCHES = ("//", "\\\\", "||", "--")
TIME_UNITS = (("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0))
INK = "#222222"
GREY = "#666666"
TOMBSTONES = "#CC79A7"
PALE = "#8C8C8C"
NOTE = "simkv-note"
DPI = 150
LEGEND_CHARS = 36
STYLE: Any = {  # Any, because matplotlib types the keys one by one
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": PALE,
    "axes.facecolor": "white",
    "axes.unicode_minus": False,
    "axes.autolimit_mode": "data",
    "figure.facecolor": "white",
    "figure.titlesize": 15,
    "figure.titleweight": "bold",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.6,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "path.simplify": True,
    "path.simplify_threshold": 1 / 9,
    "svg.hashsalt": "simkv",
    "text.color": INK,
    "text.usetex": False,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "xtick.color": INK,
    "ytick.color": INK,
}


def draft_color(depth: int) -> str:
    """Colour of a draft depth, the same in every figure."""
    return DRAFT_COLORS[depth % len(DRAFT_COLORS)]
