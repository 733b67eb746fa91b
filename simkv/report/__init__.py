"""Results as text for a terminal; one module a kind of result, loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simkv.report.capacity import capacity_report
    from simkv.report.compare import baseline_report, comparison_report, saved_report, sweeps_report
    from simkv.report.explain import explain_report
    from simkv.report.imports import launch_report, log_comparison_report, log_report
    from simkv.report.plan import models_report, plan_report, routes_report
    from simkv.report.replay import replay_report
    from simkv.report.run import run_report
    from simkv.report.sweep import sweep_report
    from simkv.report.text import console, size, table
    from simkv.report.trace import trace_report

_PUBLIC = {
    "baseline_report": "simkv.report.compare",
    "capacity_report": "simkv.report.capacity",
    "comparison_report": "simkv.report.compare",
    "console": "simkv.report.text",
    "explain_report": "simkv.report.explain",
    "launch_report": "simkv.report.imports",
    "log_comparison_report": "simkv.report.imports",
    "log_report": "simkv.report.imports",
    "models_report": "simkv.report.plan",
    "plan_report": "simkv.report.plan",
    "replay_report": "simkv.report.replay",
    "routes_report": "simkv.report.plan",
    "run_report": "simkv.report.run",
    "saved_report": "simkv.report.compare",
    "size": "simkv.report.text",
    "sweep_report": "simkv.report.sweep",
    "sweeps_report": "simkv.report.compare",
    "table": "simkv.report.text",
    "trace_report": "simkv.report.trace",
}

__all__ = [
    "baseline_report",
    "capacity_report",
    "comparison_report",
    "console",
    "explain_report",
    "launch_report",
    "log_comparison_report",
    "log_report",
    "models_report",
    "plan_report",
    "replay_report",
    "routes_report",
    "run_report",
    "saved_report",
    "size",
    "sweep_report",
    "sweeps_report",
    "table",
    "trace_report",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'simkv.report' has no attribute {name!r}")
