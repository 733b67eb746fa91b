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
    from simkv.replayer import Replay, replay
    from simkv.results import Run, load_run, simulate
    from simkv.scenario import Scenario, builtin_names, load, plan, schema
    from simkv.workload.request import Workload
    from simkv.workload.traces import read_trace, write_trace

# Public name -> module; loaded when first used, so that a command starts quickly.
_PUBLIC = {
    "Arch": "simkv.arch",
    "BaselineCheck": "simkv.baseline",
    "Comparison": "simkv.comparison",
    "Geometry": "simkv.arch",
    "Plan": "simkv.engines.base",
    "Replay": "simkv.replayer",
    "Run": "simkv.results",
    "Scenario": "simkv.scenario",
    "Workload": "simkv.workload.request",
    "builtin_names": "simkv.scenario",
    "check_baseline": "simkv.baseline",
    "compare": "simkv.comparison",
    "load": "simkv.scenario",
    "load_run": "simkv.results",
    "plan": "simkv.scenario",
    "read_trace": "simkv.workload.traces",
    "replay": "simkv.replayer",
    "save_baseline": "simkv.baseline",
    "schema": "simkv.scenario",
    "simulate": "simkv.results",
    "write_trace": "simkv.workload.traces",
}

__all__ = [
    "Arch",
    "BaselineCheck",
    "Comparison",
    "Geometry",
    "Plan",
    "Replay",
    "Run",
    "Scenario",
    "Workload",
    "builtin_names",
    "check_baseline",
    "compare",
    "load",
    "load_run",
    "plan",
    "read_trace",
    "replay",
    "save_baseline",
    "schema",
    "simulate",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'simkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
