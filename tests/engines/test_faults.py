"""Faults of the engine, each in its smallest case: reproduced by name, or repaired so that everybody else is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from report_cases import PLENTY, model, prefills, requests, run, with_draft
from servers import Case, Server, cases

import simkv
from simkv.engines.base import Request
from simkv.engines.sglang.admission import PrefillPass
from simkv.engines.sglang.faults import ENGINE_FAULTS
from simkv.engines.sglang.numbered import NumberedPools
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.settings import Settings
from simkv.errors import EngineFault, ReplayMismatch

Lengths = Sequence[tuple[int, int]]


@dataclass
class Fault:
    """A server that breaks on some traffic.

    ``said`` are figures of the message worked out by hand; ``states`` are those of a repaired run.
    """

    name: str
    pools: tuple[int, int | None]
    lengths: Lengths
    said: tuple[str, ...]
    states: str
    window: int | None = None
    radix: tuple[bool, ...] = (True, False)
    overlap: tuple[bool, ...] = (True, False)
    memory: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, Any] = field(default_factory=dict)

    def scenario(self, mode: str, *, radix: bool, overlap: bool) -> dict[str, Any]:
        full, swa = self.pools
        memory: dict[str, Any] = {
            "kv_bytes": PLENTY,
            "max_total_tokens": full,
            "chunked_prefill_size": -1,
            "disable_radix_cache": not radix,
            "disable_overlap_schedule": not overlap,
            "swa_eviction_interval": 4,
        }
        kind: dict[str, Any] = {"config": model("FF")}
        if self.window is not None:
            pattern = "SS" if swa is None else "FS"
            kind = {"config": model(pattern, window=self.window), "hybrid_swa": True, "cache_window": self.window}
        if swa is not None:
            memory["swa_full_tokens_ratio"] = swa / full
        out = {
            "model": kind | self.model,
            "memory": memory | self.memory,
            "policies": {"engine_faults": mode} | self.policies,
        }
        return with_draft(out, **self.draft) if self.draft else out


FAULTS = [
    # Both prompts take 90 - 20 + 20 + 1 = 91 of 64 SWA tokens, so they never fit whole and are cut: the first at
    # 64 - (10 + 1) = 53, which leaves 10 - 1; the second, of one output, at 10 - (1 + 1).
    Fault(
        "F1",
        (300, 64),
        [(90, 10), (90, 1), (10, 3)],
        ("r0", "two prompts are cut in one pass", "dies"),
        "completed completed completed",
        window=20,
        radix=(True,),
        memory={"chunked_prefill_size": 128},
    ),
    # Chunks of 32 and 8 tokens leave 4 of 44: less than a page more than the page the pass keeps.
    Fault(
        "F2",
        (320, 44),
        [(89, 6), (5, 3)],
        ("r0", "40 of 44 SWA slots", "4 are free", "livelock"),
        "completed completed",
        window=8,
        radix=(False,),
        overlap=(True,),
        memory={"chunked_prefill_size": 32, "page_size": 4},
    ),
    Fault(
        "F3",
        (96, None),
        [(11, 40), (5, 3)],
        ("of 96", "free and cached at once", "dies"),
        "completed completed",
        window=8,
        radix=(True,),
    ),
    # 130 passes arrival (at most 144 - 1 - 6 = 137), but 130 + 0 + 16 is more than 144.
    Fault(
        "F5",
        (144, None),
        [(130, 5), (20, 5)],
        ("r0", "130", "144", "blocks the queue for ever"),
        "aborted completed",
        memory={"page_size": 16, "chunked_prefill_size": 8192},
    ),
    # (92 - 8) + 8 + 4 = 96 of 64 SWA tokens.
    Fault(
        "D14",
        (256, 64),
        [(89, 8), (7, 4)],
        ("r0", "89", "64", "waits for ever"),
        "aborted completed",
        window=8,
        memory={"page_size": 4},
    ),
    # 48 - (24 + 16) = 8 is no page of 16; the short one takes min(16 + 2, 24) + 16 = 34.
    Fault(
        "swa-never-fits",
        (480, 48),
        [(60, 30), (5, 2)],
        ("r0", "60", "48", "waits for ever"),
        "aborted completed",
        window=24,
        memory={"page_size": 16, "chunked_prefill_size": 8192},
    ),
    # 12 slots a step, 24 reserved; a row has 64 + 4 + 4: from 49 tokens on it is too short.
    Fault(
        "row-overrun",
        (1000, None),
        [(40, 12), (5, 3)],
        ("49 tokens", "slot 73 of a row of 72"),
        "completed completed",
        model={"context_length": 64},
        draft={"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 4},
    ),
]


def variants(faults: Sequence[Fault]) -> list[Any]:
    return [
        pytest.param(
            one, radix, overlap, id=f"{one.name}-{'radix' if radix else 'off'}-{'overlap' if overlap else 'sync'}"
        )
        for one in faults
        for radix in one.radix
        for overlap in one.overlap
    ]


def told(result: simkv.Run) -> list[tuple[str, str]]:
    """(event, fault it names) of everything that names one."""
    causes = zip(result.events["event"].astype(str), result.events["cause"].astype(str), strict=True)
    return [(kind, cause.split(":")[0]) for kind, cause in causes if cause.split(":")[0] in ENGINE_FAULTS]


@pytest.mark.parametrize(("fault", "radix", "overlap"), variants(FAULTS))
def test_a_fault_is_reproduced_by_name(fault: Fault, radix: bool, overlap: bool) -> None:
    one = fault.scenario("reproduce", radix=radix, overlap=overlap)
    plan = simkv.plan(one)
    full, swa = fault.pools
    assert plan.max_total_num_tokens == full
    assert swa is None or plan.swa_max_total_num_tokens == swa
    result = run(one, fault.lengths)
    assert result.fault is not None and result.fault["fault"] == fault.name
    for text in (*fault.said, ENGINE_FAULTS[fault.name]):
        assert text in result.fault["message"]
    assert result.exit_code == 3
    assert "fault" in result.events["event"].tolist()


@pytest.mark.parametrize(("fault", "radix", "overlap"), variants(FAULTS))
def test_a_fault_is_repaired_and_the_others_are_served(fault: Fault, radix: bool, overlap: bool) -> None:
    # Every pool is checked at every step.
    result = run(fault.scenario("repair", radix=radix, overlap=overlap), fault.lengths)
    assert (result.fault, result.exit_code) == (None, 0)
    assert result.requests["state"].tolist() == fault.states.split()
    done = result.requests["state"] == "completed"
    assert result.requests["output_tokens"][done].tolist() == [
        made for (_, made), ok in zip(fault.lengths, done, strict=True) if ok
    ]
    kind = "abort" if "aborted" in fault.states else "repair"
    assert told(result) == [(kind, fault.name)]
    if kind == "abort":
        assert fault.said[1] in result.requests["cause"][0]


# F1 frees what was never its own, which is the padding slot; F3's cache takes slots that the window gave back. The
# others stop before anything is wrong with memory.
CORRUPT = {"F1": "slot 0 is out of range", "F3": "the cache takes slot 17, which is free"}


@pytest.mark.parametrize(("fault", "radix", "overlap"), variants(FAULTS))
def test_a_replay_finds_a_fault_that_corrupts_memory(fault: Fault, radix: bool, overlap: bool) -> None:
    def replay(mode: str) -> simkv.Replay:
        one = fault.scenario(mode, radix=radix, overlap=overlap)
        made = simkv.simulate(one, workload=requests(fault.lengths), record_allocations=True)
        return simkv.replay(made, device="cpu", layers=1)

    assert replay("repair").tags_read > 0
    if fault.name in CORRUPT:
        with pytest.raises(ReplayMismatch, match=CORRUPT[fault.name]):
            replay("reproduce")
    else:
        replay("reproduce")


def test_the_repair_names_the_request_it_is_about() -> None:
    by_name = {fault.name: fault for fault in FAULTS}
    # F1: the second prompt has to wait; elsewhere it is the first request that would have broken the engine.
    for name, radix, request in (
        ("F1", True, "r1"),
        ("F2", False, "r0"),
        ("F3", True, "r0"),
        ("row-overrun", True, "r0"),
    ):
        result = run(by_name[name].scenario("repair", radix=radix, overlap=True), by_name[name].lengths)
        events = result.events[result.events["event"] == "repair"]
        assert events["request_id"].tolist() == [request], name


@pytest.mark.parametrize("mode", ["reproduce", "repair"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("radix", [True, False])
def test_a_lone_reserve_that_exceeds_the_pool_is_named_and_aborted(radix: bool, overlap: bool, mode: str) -> None:
    # 19 tokens and twice 8 of 34. The engine goes on here, so the run does (recorded: eagle1_abort_last_p1).
    fault = Fault("F4", (34, None), [(19, 12), (4, 3)], (), "", draft={"algorithm": "EAGLE", "num_steps": 7})
    result = run(fault.scenario(mode, radix=radix, overlap=overlap), fault.lengths)
    assert (result.fault, result.exit_code) == (None, 0)
    assert result.requests["state"].tolist() == ["aborted", "completed"]
    assert told(result) == [("fault", "F4")]
    events = result.events[result.events["event"].isin(["fault", "abort"])]
    assert events["request_id"].tolist() == ["r0", "r0"]


def test_a_speculative_request_that_decoded_before_is_no_case_of_F4() -> None:
    # 10 tokens and 16 reserved of 34: from 19 tokens on they do not fit, after several steps.
    fault = Fault("F4", (34, None), [(10, 20)], (), "", draft={"algorithm": "EAGLE", "num_steps": 7})
    result = run(fault.scenario("reproduce", radix=True, overlap=True), fault.lengths)
    assert result.requests["state"].tolist() == ["aborted"]
    assert result.requests["output_tokens"][0] > 1
    assert told(result) == []


# Mixed chunk: six requests decode while a prompt of 20 is prefilled in steps of 12 - 6. It is let in at a ratio of 0.035
# of what the six may still take, so that at last 5 of its tokens meet 4 free ones (recorded: chunk_without_room_p1).
CHUNK_OOM = Fault(
    "chunk-oom",
    (60, None),
    [*[(2, 20)] * 6, (20, 0)],
    ("5 tokens for a prefill of 5", "full pool has 4", "dies"),
    "",
    memory={"chunked_prefill_size": 12, "enable_mixed_chunk": True},
    policies={"schedule_conservativeness": 0.05},
)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("radix", [True, False])
def test_a_chunk_that_must_go_on_without_room(radix: bool, overlap: bool) -> None:
    def drive(mode: str) -> simkv.Run:
        one = CHUNK_OOM.scenario(mode, radix=radix, overlap=overlap) | {"steptime": {"kind": "constant", "ms": 10}}
        # The long prompt comes at the third step.
        return run(one, CHUNK_OOM.lengths, arrival_s=[0.0] * 6 + [0.02])

    broken = drive("reproduce")
    assert prefills(broken) == [4, 4, 2, 2, 6, 6, 3]
    assert broken.fault is not None and broken.fault["fault"] == "chunk-oom"
    assert broken.exit_code == 3
    for text in (*CHUNK_OOM.said, ENGINE_FAULTS["chunk-oom"]):
        assert text in broken.fault["message"]
    repaired = drive("repair")
    assert (repaired.fault, repaired.exit_code) == (None, 0)
    assert repaired.requests["state"].tolist() == ["completed"] * 7
    assert told(repaired) == [("repair", "chunk-oom")]
    assert repaired.events.loc[repaired.events["event"] == "repair", "request_id"].tolist() == ["r6"]


def test_an_unaligned_swa_pool_is_found_out_when_idle() -> None:
    # 100 = 6 pages of 16 and 4 slots nobody can take: 96 of 100 are there when all is done.
    def drive(repair: bool) -> Any:
        made = Settings(page_size=16, context_len=400, hybrid=True, window=24, repair_faults=repair)
        return Server(Case(made, 480, 100, 4, [(0, Request("r0", 20, 3), [1]), (1, Request("r1", 20, 3), [1])])).run()

    broken = drive(repair=False)
    assert broken.fault is not None and broken.fault.fault == "unaligned-swa-pool"
    assert "96 available of 100" in str(broken.fault) and broken.fault.exit_code == 3
    repaired = drive(repair=True)
    assert repaired.fault is None and repaired.ended
    assert sorted(repaired.finished) == [0, 1]
    assert repaired.repaired == ["unaligned-swa-pool"]


@pytest.mark.parametrize("repair", [True, False])
def test_a_second_prompt_is_not_cut_while_one_is_parked(repair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # No traffic is known that gets there: room for a second cut would be room for the first. So the first prompt is
    # told that there is no SWA room, and the second one is not.
    made = Settings(page_size=4, chunked_prefill_size=16, context_len=400, hybrid=True, window=8, repair_faults=repair)
    engine = Scheduler(made, full_tokens=400, swa_tokens=80, max_running_requests=4)
    engine.submit(Request("r0", 100, 2))
    assert engine.schedule() is not None
    add_chunk = PrefillPass.add_chunk

    def parked(self: PrefillPass, handle: int) -> bool:
        before, self.swa_offset = self.swa_offset, 1 << 30
        try:
            return add_chunk(self, handle)
        finally:
            self.swa_offset = before

    monkeypatch.setattr(PrefillPass, "add_chunk", parked)
    engine.submit(Request("r1", 100, 2))
    if not repair:
        with pytest.raises(EngineFault, match="r1 is cut as well") as caught:
            engine.schedule()
        assert (caught.value.fault, caught.value.exit_code) == ("second-chunk", 3)
        return
    assert engine.schedule() is None
    events = [(e.event, e.request, e.cause.split(":")[0]) for e in engine.drain_events()]
    assert events == [("repair", 1, "second-chunk")]
    engine.check()
    monkeypatch.setattr(PrefillPass, "add_chunk", add_chunk)
    step = engine.schedule()
    assert step is not None and step.batch.tolist()[0] == 0


# Any server --------------------------------------------------------------------------------------------------------

MANY = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(st.booleans().flatmap(lambda radix: cases(radix=radix, repair=True)))
def test_a_repaired_server_serves_refuses_or_aborts_everybody(case: Case) -> None:
    logs = []
    for pools in ({}, {"pools": NumberedPools}):
        server = Server(case, **pools)
        log = server.run()
        assert log.fault is None, str(log.fault)
        assert log.ended
        assert sorted(log.finished + log.aborted) == list(range(len(case.requests)))
        assert set(log.repaired) <= set(ENGINE_FAULTS)
        memory = server.engine.memory
        assert memory.rows_free == case.rows
        for pool in (memory.full, memory.swa):
            if pool is not None:
                have = memory.holding(pool)
                assert (have.protected, have.uncached) == (0, 0)
                assert have.available + have.evictable == pool.usable
        logs.append(log)
    one, two = logs
    assert one.steps == two.steps
    assert (one.finished, one.aborted, one.retracted) == (two.finished, two.aborted, two.retracted)
    event("repaired" if one.repaired else "aborted" if one.aborted else "retracted" if one.retracted else "plain")


@MANY
@given(cases(radix=True))
def test_with_a_prefix_cache_any_traffic_ends_or_a_fault_is_named(case: Case) -> None:
    server = Server(case)
    log = server.run()
    event(log.fault.fault if log.fault else "retracted" if log.retracted else "ended")
    assert log.ended or log.fault is not None
    ends = log.finished + log.aborted
    assert len(set(ends)) == len(ends)
    if log.fault is not None:
        assert log.fault.fault in ENGINE_FAULTS and log.fault.exit_code == 3
        return
    assert sorted(ends) == list(range(len(case.requests)))
    # What was computed and what was found make up at least the prompt.
    for step_kind, batch, extends, prefixes, _ in log.steps:
        if step_kind == "prefill":
            assert all(extend > 0 and prefix >= 0 for extend, prefix in zip(extends, prefixes, strict=True)), batch
    memory = server.engine.memory
    for pool in (memory.full, memory.swa):
        if pool is not None:
            have = memory.holding(pool)
            assert have.available + have.evictable == pool.usable
