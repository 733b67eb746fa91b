"""Results as text for a terminal; one module a kind of result."""

from simkv.report.capacity import capacity_report
from simkv.report.explain import explain_report
from simkv.report.imports import launch_report, log_report
from simkv.report.plan import models_report, plan_report, routes_report
from simkv.report.replay import replay_report
from simkv.report.run import run_report
from simkv.report.sweep import sweep_report
from simkv.report.text import console, size, table
from simkv.report.trace import trace_report

__all__ = [
    "capacity_report",
    "console",
    "explain_report",
    "launch_report",
    "log_report",
    "models_report",
    "plan_report",
    "replay_report",
    "routes_report",
    "run_report",
    "size",
    "sweep_report",
    "table",
    "trace_report",
]
