"""simkv: what a serving engine's KV memory does under your traffic, with speculative decoding on.

>>> import simkv
>>> base = simkv.load("mimo-v2-flash-chat")
>>> run = simkv.simulate(base.override("workload.num_requests=50"))
>>> int(run.summary["requests.completed"])
50
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simkv.arch import Arch, Geometry
    from simkv.baseline import BaselineCheck, check_baseline, save_baseline
    from simkv.comparison import Comparison, compare
    from simkv.engines.base import Plan
    from simkv.engines.explanation import Explanation
    from simkv.imports.launch import Launch, import_launch
    from simkv.imports.measured import LogComparison, compare_log
    from simkv.imports.serverlog import ServerLog, read_server_log
    from simkv.replayer import Replay, replay
    from simkv.results import Run, load_run, simulate
    from simkv.scenario import Scenario, builtin_names, load, plan, schema
    from simkv.studies.capacity import Capacity, capacity
    from simkv.studies.explain import explain
    from simkv.studies.sweeps import Sweep, load_sweep, sweep
    from simkv.workload.request import Workload
    from simkv.workload.traces import read_trace, write_trace

# Public name -> module; loaded when first used, so that a command starts quickly.
_PUBLIC = {
    "Arch": "simkv.arch",
    "Capacity": "simkv.studies.capacity",
    "Explanation": "simkv.engines.explanation",
    "BaselineCheck": "simkv.baseline",
    "Comparison": "simkv.comparison",
    "Geometry": "simkv.arch",
    "Launch": "simkv.imports.launch",
    "LogComparison": "simkv.imports.measured",
    "Plan": "simkv.engines.base",
    "Replay": "simkv.replayer",
    "Run": "simkv.results",
    "Scenario": "simkv.scenario",
    "Sweep": "simkv.studies.sweeps",
    "Workload": "simkv.workload.request",
    "builtin_names": "simkv.scenario",
    "capacity": "simkv.studies.capacity",
    "explain": "simkv.studies.explain",
    "ServerLog": "simkv.imports.serverlog",
    "compare_log": "simkv.imports.measured",
    "import_launch": "simkv.imports.launch",
    "check_baseline": "simkv.baseline",
    "compare": "simkv.comparison",
    "load": "simkv.scenario",
    "load_run": "simkv.results",
    "load_sweep": "simkv.studies.sweeps",
    "plan": "simkv.scenario",
    "read_server_log": "simkv.imports.serverlog",
    "read_trace": "simkv.workload.traces",
    "replay": "simkv.replayer",
    "save_baseline": "simkv.baseline",
    "schema": "simkv.scenario",
    "simulate": "simkv.results",
    "sweep": "simkv.studies.sweeps",
    "write_trace": "simkv.workload.traces",
}

__all__ = [
    "Arch",
    "Capacity",
    "Explanation",
    "BaselineCheck",
    "Comparison",
    "Geometry",
    "Launch",
    "LogComparison",
    "Plan",
    "Replay",
    "Run",
    "Scenario",
    "Sweep",
    "Workload",
    "builtin_names",
    "capacity",
    "explain",
    "ServerLog",
    "compare_log",
    "import_launch",
    "check_baseline",
    "compare",
    "load",
    "load_run",
    "load_sweep",
    "plan",
    "read_server_log",
    "read_trace",
    "replay",
    "save_baseline",
    "schema",
    "simulate",
    "sweep",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'simkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
