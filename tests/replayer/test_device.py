"""A replay lies on its device and does not wait for it, but where it looks whether a call went well.

Torch's meta device computes nothing: whatever asks it for a value fails, and so does whatever mixes it with another one.
"""

import pytest
import torch

import simkv
from simkv.replayer import start
from simkv.replayer.checks import Checks
from simkv.replayer.machine import Machine

# Requests so short that meta tensors, which are slow, take a second; a pool so small that the cache has to evict.
SHORT = (
    "workload.num_requests=8",
    "workload.input_tokens={kind = 'uniform', min = 50, max = 500}",
    "workload.output_tokens={kind = 'uniform', min = 5, max = 20}",
)
MIMO = ("mimo-v2-flash-chat", "memory.kv_bytes=256MiB", "workload.shared_prefix_tokens=200")


@pytest.mark.parametrize(
    "scenario",
    [
        MIMO,
        (*MIMO, "draft.eagle_topk=4", "draft.num_draft_tokens=8", "memory.page_size=1"),
        ("routing-legacy-vs-generalized", "policies.routing=legacy"),
        ("retraction-storm",),
    ],
    ids=["windows", "tree", "draft pools", "one pool"],
)
def test_only_the_verdict_of_a_call_is_fetched(scenario, monkeypatch):
    name, *changes = scenario
    run = simkv.simulate(simkv.load(name).override(*SHORT, *changes), record_allocations=True)
    monkeypatch.setattr(start, "_device", lambda device: torch.device("meta"))
    monkeypatch.setattr(Checks, "settle", lambda self: self._pending.clear())
    monkeypatch.setattr(Machine, "finish", lambda self, complete: None)
    replay = simkv.replay(run, layers=1, scale="1/64")
    assert replay.device == "meta"
    assert replay.tokens_written > 0
