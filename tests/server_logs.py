"""A run written down as a SGLang server would have logged it, in the engine's format and not in its words."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np

from simkv.results import Run

GIB = 1 << 30
BEGIN = datetime(2026, 1, 2, 23, 59, 30)


class Writer:
    """Lines with stamps; ``ms`` writes milliseconds as SGLANG_LOG_MS does."""

    def __init__(self, rank: str = "TP0", *, ms: bool = True) -> None:
        self.rank, self.ms = rank, ms
        self.lines: list[str] = []

    def say(self, seconds: float, text: str, rank: str | None = None) -> None:
        when = BEGIN + timedelta(seconds=seconds)
        stamp = when.strftime("%Y-%m-%d %H:%M:%S") + (f".{when.microsecond // 1000:03d}" if self.ms else "")
        who = self.rank if rank is None else rank
        self.lines.append(f"[{stamp}{' ' + who if who else ''}] {text}")

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def startup(write: Writer, plan: dict[str, Any], args: dict[str, Any] | None = None) -> None:
    """What a server says before its first request."""
    if args is not None:
        write.say(0, f"server_args={args!r}", rank="")
    if plan["full_max_total_num_tokens"] is not None:
        full, swa = plan["full_max_total_num_tokens"], plan["swa_max_total_num_tokens"]
        write.say(8, f"Use sliding window memory pool. full_layer_tokens={full}, swa_layer_tokens={swa}")
    for pool in plan["pools"]:
        if pool["layers"]:
            each = pool["layers"] * pool["rows"] * pool["kv_heads"] * pool_bytes(pool) / GIB
            k, v = each * pool["head_dim"], each * pool["v_head_dim"]
            sizes = f"K size: {k:.2f} GB, V size: {v:.2f} GB"
            write.say(9, f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {pool['tokens']}, {sizes}")
    settings = plan["settings"]
    write.say(
        10,
        f"max_total_num_tokens={plan['max_total_num_tokens']}, "
        f"chunked_prefill_size={settings['chunked_prefill_size']}, max_prefill_tokens=16384, "
        f"max_running_requests={plan['max_running_requests']}, context_len={settings['context_length']}, "
        "available_gpu_mem=9.87 GB",
    )


def pool_bytes(pool: dict[str, Any]) -> int:
    return 2 if pool["dtype"] == "bfloat16" else 1


def batches(write: Writer, run: Run, *, interval: int = 40, begin: float = 12.0) -> None:
    """Every prefill batch, every ``interval``-th decode batch, and the retractions."""
    plan, rows = run.plan, run.timeline
    hybrid = "swa_token_usage" in rows
    capacity = {"full": plan["full_max_total_num_tokens"] or plan["max_total_num_tokens"]}
    if hybrid:
        capacity["swa"] = plan["swa_max_total_num_tokens"]
    spec = plan["settings"].get("speculative_algorithm")
    width = plan["settings"].get("speculative_num_draft_tokens") or 1
    made = accepted = verified = 0.0
    last, count, retracted = 0.0, 0, 0
    for row in rows.to_dict("records"):
        when = row["time_s"]
        if row["num_retracted_reqs"] > 0:
            retracted += int(row["num_retracted_reqs"])
            write.say(
                begin + when,
                f"KV cache pool is full. Retract requests. #retracted_reqs: {int(row['num_retracted_reqs'])}, "
                f"#new_tokens_gained: 512, #new_token_ratio: 0.7000 -> {row['new_token_ratio']:.4f}",
            )
        if row["kind"] == "prefill":
            usage = (
                f"full token usage: {row['full_token_usage']:.2f}, swa token usage: {row['swa_token_usage']:.2f}"
                if hybrid
                else f"token usage: {row['full_token_usage']:.2f}"
            )
            write.say(
                begin + when,
                f"Prefill batch, #new-seq: {row['batch_size']}, #new-token: {row['prefill_tokens']}, #cached-token: "
                f"{row['hit_tokens'] + row['rehit_tokens']}, {usage}, #running-req: {row['num_running_reqs']}, #queue-req: "
                f"{row['num_queue_reqs']}, #pending-token: 0, cuda graph: False, input throughput (token/s): 1.00",
            )
        if row["kind"] != "decode":
            continue
        count += 1
        length = row["spec_accept_length"] if spec and not np.isnan(row["spec_accept_length"]) else 1.0
        made += row["batch_size"] * length
        accepted += row["batch_size"] * length
        verified += row["batch_size"]
        if count % interval:
            continue
        usage = ", ".join(
            f"#{name}token: {round(row[f'{pool}_token_usage'] * size)}, {name}token usage: {row[f'{pool}_token_usage']:.2f}"
            for pool, size in capacity.items()
            for name in [f"{pool} " if hybrid else ""]
        )
        drafts = ""
        if spec:
            mean = accepted / verified
            drafts = f"accept len: {mean:.2f}, accept rate: {(mean - 1) / (width - 1):.2f}, "
        write.say(
            begin + when,
            f"Decode batch, #running-req: {row['batch_size']}, {usage}, {drafts}cuda graph: True, "
            f"gen throughput (token/s): {made / max(when - last, 1e-9):.2f}, #queue-req: {row['num_queue_reqs']}",
        )
        made = accepted = verified = 0.0
        last = when


def log_of(
    run: Run, *, rank: str = "TP0", ms: bool = True, args: dict[str, Any] | None = None, interval: int = 40
) -> str:
    """The whole log of a run."""
    write = Writer(rank, ms=ms)
    startup(write, run.plan, args)
    batches(write, run, interval=interval)
    return write.text
