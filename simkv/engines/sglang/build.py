"""From a plan to an engine that can serve."""

from __future__ import annotations

from simkv.allocations import AllocationLog
from simkv.arch import Arch
from simkv.engines.base import Plan
from simkv.engines.sglang.batch import RetractionOrder, default_retraction_order
from simkv.engines.sglang.plan import server_refusal
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.settings import Settings
from simkv.errors import InfeasibleError

__all__ = ["build_scheduler"]


def build_scheduler(
    arch: Arch,
    settings: Settings,
    plan: Plan,
    retraction_order: RetractionOrder = default_retraction_order,
    log: AllocationLog | None = None,
) -> Scheduler:
    """A scheduler with empty pools of the plan's sizes.

    Parameters
    ----------
    arch : Arch
        The served model.
    settings : Settings
        What the plan was made from.
    plan : Plan
        Sizes of the pools.
    retraction_order : callable
        Policy: which requests to keep.
    log : AllocationLog, optional
        Where to write down every slot that changes hands.

    Raises
    ------
    InfeasibleError
        The engine would not start.
    """
    refused = plan.infeasible or server_refusal(arch, plan, settings)
    if refused is not None:
        raise InfeasibleError(refused.text(), refused.engine_error)
    all_swa = plan.full_max_total_num_tokens == 0
    full = plan.max_total_num_tokens if plan.full_max_total_num_tokens is None else plan.full_max_total_num_tokens
    drafts = [p.tokens for p in plan.pools if p.worker != "target" and p.layers and p.indexed_by == "full"]
    smallest = min(drafts, default=None)
    return Scheduler(
        settings,
        full_tokens=None if all_swa else full,
        swa_tokens=plan.swa_max_total_num_tokens,
        max_running_requests=plan.max_running_requests or 0,
        draft_slots=smallest if smallest is not None and full is not None and smallest < full else None,
        retraction_order=retraction_order,
        log=log,
    )
