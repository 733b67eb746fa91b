"""A thousand requests of a published trace, replayed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from replay_cases import server
from report_cases import model

import simkv

ROOT = Path(__file__).resolve().parents[2]
TRACE = Path(os.environ.get("SIMKV_SHARED", ROOT.parent / "shared")) / "traces" / "azure2023_conv.csv"


@pytest.mark.skipif(not TRACE.exists(), reason="the shared traces are not here")
def test_a_thousand_conversations_of_azure() -> None:
    scenario = server(
        model("FS", window=512, head_dim=4),
        1 << 18,
        memory={"page_size": 16, "max_running_requests": 256, "disable_overlap_schedule": False},
        workload={"trace": str(TRACE), "limit": 1000},
        # Slow steps have many requests in them, so that there are fewer.
        steptime={"kind": "constant", "ms": 60},
    )
    run = simkv.simulate(scenario, record_allocations=True)
    assert (run.summary["requests.completed"], run.summary["requests.retractions"]) == (1000, 0)
    found = simkv.replay(run, device="cpu", layers=1, check="sample")
    # Each token of prompts and answers is computed in a slot of its own, but for the last of an answer.
    computed = int((run.requests["input_tokens"] + run.requests["output_tokens"] - 1).sum())
    assert found.tokens_written == found.slots_allocated == computed > 1_000_000
    # Two pools, each with K and V.
    assert found.tags_written == 4 * computed
    pages = -(-(run.requests["input_tokens"] + run.requests["output_tokens"] - 1) // 16)
    assert found.slots_freed == int(pages.sum()) * 16
