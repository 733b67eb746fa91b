"""From a run to a replay: device, scale, pools, allocator; and what must be true of the bytes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simkv.errors import Problem, ReplayMismatch, ScenarioError, nearest
from simkv.replayer.outcome import Replay, ReplayedPool
from simkv.results import Run, load_run

if TYPE_CHECKING:
    import torch

    from simkv.replayer.slots import SlotAllocator
    from simkv.replayer.tensors import PoolTensors

__all__ = ["CHECKS", "DEVICES", "ENGINES", "LAYERS", "replay"]

DEVICES = ("auto", "cpu", "cuda")
LAYERS = ("all", "1")
CHECKS = ("every", "sample", "end")
ENGINES = ("simkv", "sglang")

# What a device's allocator may round a tensor up by.
_ROUNDING = 2 << 20


def replay(
    run: Run | str | Path,
    *,
    device: str = "auto",
    layers: str | int = "all",
    scale: str | float | Fraction | None = None,
    check: str = "every",
    engine: str = "simkv",
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Execute the allocation log of a run on real tensors.

    Parameters
    ----------
    run : Run, str or Path
        A run that recorded its allocations, or its directory.
    device : str
        ``cuda``, ``cpu``, or ``auto``: CUDA where there is a device.
    layers : str or int
        ``all`` layers of every pool, or ``1`` of each.
    scale : str, float or Fraction, optional
        Share of heads and widths, ``1/16``; rows are never fewer. The largest that fits by default.
    check : str
        Which steps' reads are compared: ``every``; ``sample``, one of 16; ``end``, the last one of each request.
    engine : str
        Whose allocator hands out the slots: ``simkv``, the replay's own on the device; ``sglang``, the engine's classes,
        where its package can be imported.
    progress : callable, optional
        Called now and then with rows of the log done and to do.

    Returns
    -------
    Replay
        Figures; that there is one says that everything matched.

    Raises
    ------
    ReplayMismatch
        Memory does not hold what the log claims.
    ScenarioError
        The run recorded no allocations, an argument is wrong, torch is missing, or the plan does not fit.
    """
    made = run if isinstance(run, Run) else load_run(run)
    wanted = _arguments(device, layers, scale, check, engine)
    log_rows = _recorded(made)
    try:
        import torch
    except ImportError:
        raise _problem("torch", "cannot be imported; pip install 'simkv[torch]'") from None
    from simkv.replayer.log import read_log
    from simkv.replayer.machine import Machine
    from simkv.replayer.tensors import build_pools

    place = _device(device)
    plan = made.plan
    share, notes = _scale(plan["pools"], wanted, place)
    names = made.requests["request_id"].astype(str).tolist()
    log = read_log(made.allocations, names)
    if len(log) != log_rows:
        last = f", after {log.line(len(log) - 1)}" if len(log) else ""
        raise ReplayMismatch(f"the log is cut off: it ends at row {len(log):,} of {log_rows:,}{last}")
    before = torch.cuda.memory_allocated(place) if place.type == "cuda" else 0
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    with torch.inference_mode():
        pools = build_pools(plan["pools"], wanted.layers, share, place)
        measured = torch.cuda.memory_allocated(place) - before if place.type == "cuda" else None
        told = _pools(pools, share, wanted.layers, measured)
        full, swa = _capacities(plan)
        page = int(plan["page_size"])
        machine = Machine(
            log,
            pools,
            _allocator(engine, full, swa, plan, place),
            capacity=(full if full is not None else swa) or 0,
            page=page,
            device=place,
            tree=int(plan["settings"].get("speculative_eagle_topk", 1)) > 1,
            check=check,
        )
        began = time.perf_counter()
        total = len(log)
        machine.run(None if progress is None else lambda row: progress(row, total))
        machine.finish(complete=made.fault is None and not made.partial)
        if place.type == "cuda":
            torch.cuda.synchronize(place)
    return Replay(
        name=made.name,
        device=place.type,
        device_name=torch.cuda.get_device_name(place) if place.type == "cuda" else platform.machine(),
        torch=str(torch.__version__),
        engine=engine,
        layers="all" if wanted.layers is None else str(wanted.layers),
        scale=str(share),
        check=check,
        pools=told,
        measured_bytes=measured,
        table_bytes=machine.rows.bytes,
        peak_bytes=torch.cuda.max_memory_allocated(place) - before if place.type == "cuda" else _peak(),
        requests=len(names),
        steps=machine.steps.steps,
        calls=machine.calls,
        tokens_written=machine.steps.tokens,
        slots_allocated=machine.slots_allocated,
        slots_freed=machine.slots_freed,
        tags_written=machine.steps.tags_written,
        tags_read=machine.steps.tags_read,
        seconds=time.perf_counter() - began,
        notes=tuple(notes),
    )


# ------------------------------------------------------------------------------------------------- arguments
class _Wanted:
    """Arguments, read."""

    def __init__(self, layers: int | None, scale: Fraction | None) -> None:
        self.layers = layers
        self.scale = scale


def _problem(place: str, message: str) -> ScenarioError:
    return ScenarioError("replay", [Problem(place, message)])


def _arguments(device: str, layers: str | int, scale: object, check: str, engine: str) -> _Wanted:
    choices = {
        "device": (device, DEVICES),
        "layers": (str(layers), LAYERS),
        "check": (check, CHECKS),
        "engine": (engine, ENGINES),
    }
    problems = [
        Problem(name, f"{value!r} is not one of {', '.join(allowed)}{nearest(str(value), allowed)}")
        for name, (value, allowed) in choices.items()
        if value not in allowed
    ]
    share = None
    if scale is not None:
        try:
            share = Fraction(str(scale)) if not isinstance(scale, Fraction) else scale
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share <= 1:
            problems.append(Problem("scale", f"{scale!r} is no share of heads and widths; write 1, 0.5 or 1/16"))
    if problems:
        raise ScenarioError("replay", problems)
    return _Wanted(None if str(layers) == "all" else int(layers), share)


def _recorded(run: Run) -> int:
    """Rows of the log that the run wrote."""
    if run.allocations is None or run.allocation_rows is None:
        raise _problem(run.name, "recorded no allocations; run it again with --record-allocations")
    return run.allocation_rows


def _device(device: str) -> torch.device:
    import torch

    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise _problem("device", "'cuda', and torch finds no CUDA device; use --device cpu")
    made: torch.device = torch.device("cuda" if device != "cpu" and found else "cpu")
    return made


def _scale(pools: list[dict[str, Any]], wanted: _Wanted, device: torch.device) -> tuple[Fraction, list[str]]:
    """The scale that was asked for, or the largest that fits; and what to say of it."""
    from simkv.replayer.tensors import fitting_scale, memory_free, planned_tensor_bytes

    free = memory_free(device)
    if wanted.scale is None:
        share = fitting_scale(pools, wanted.layers, free)
        least = share or Fraction(1, 1024)
    else:
        share = least = wanted.scale
    need = planned_tensor_bytes(pools, wanted.layers, least)
    if share is None or need > free:
        fewer = "" if wanted.layers else "; use --layers 1"
        smaller = "" if wanted.scale is None else "; leave --scale out"
        raise _problem(
            "scale", f"the tensors take {need:,} B at {least} of their width, {free:,} B are to be had{fewer}{smaller}"
        )
    notes = []
    if share != 1:
        whole = planned_tensor_bytes(pools, wanted.layers, Fraction(1))
        notes.append(
            f"heads and widths are {share} of the plan's: {whole:,} B of tensors become {need:,} B; rows are all there"
        )
    if wanted.layers is not None:
        notes.append(f"{wanted.layers} layer a pool is allocated, not all")
    return share, notes


def _capacities(plan: dict[str, Any]) -> tuple[int | None, int | None]:
    """Tokens of the target's full and SWA pool, None for none."""
    full, swa = plan["full_max_total_num_tokens"], plan["swa_max_total_num_tokens"]
    if full is None and swa is None:
        return int(plan["max_total_num_tokens"]), None
    return int(full) if full else None, int(swa) if swa is not None else None


def _allocator(
    engine: str, full: int | None, swa: int | None, plan: dict[str, Any], device: torch.device
) -> SlotAllocator:
    from simkv.replayer.slots import TorchSlots

    page = int(plan["page_size"])
    if engine == "simkv":
        return TorchSlots(full, swa, page, device)
    from simkv.replayer.sglang import sglang_slots

    return sglang_slots(full, swa, page, device)


# ------------------------------------------------------------------------------------------------- bytes
def _pools(
    pools: list[PoolTensors], share: Fraction, layers: int | None, measured: int | None
) -> tuple[ReplayedPool, ...]:
    """Pools with their bytes, which must be the plan's.

    Raises
    ------
    ReplayMismatch
        Tensors take another number of bytes than the plan says.
    """
    from simkv.replayer.tensors import planned_tensor_bytes

    told = []
    for pool in pools:
        plan = pool.plan
        whole = share == 1 and layers is None
        expected = int(plan["bytes"]) if whole else planned_tensor_bytes([plan], layers, share)
        full = planned_tensor_bytes([plan], None, Fraction(1))
        if full != plan["bytes"]:
            raise ReplayMismatch(
                f"{pool.name}: the plan says {plan['bytes']:,} B, its {plan['rows']:,} rows of {plan['layers']} layers with "
                f"{plan['kv_heads']} heads of {plan['head_dim']} + {plan['v_head_dim']} {plan['dtype']} take {full:,} B"
            )
        if pool.bytes != expected:
            raise ReplayMismatch(f"{pool.name}: {expected:,} B are planned, its tensors take {pool.bytes:,} B")
        count = min(int(plan["layers"]), layers or int(plan["layers"]))
        told.append(ReplayedPool(pool.worker, pool.pool, count, pool.rows, int(plan["bytes"]), expected, pool.bytes))
    if measured is not None:
        expected = sum(pool.allocated_bytes for pool in told)
        rounding = _ROUNDING * sum(len(pool.tensors) + len(pool.extra) for pool in pools)
        if not expected <= measured <= expected + rounding:
            raise ReplayMismatch(
                f"{expected:,} B of tensors are planned, the device says that {measured:,} B are allocated"
            )
    return tuple(told)


def _peak() -> int | None:
    """Most memory this process ever had."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024
