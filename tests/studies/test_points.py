"""The runner of studies: what comes of a point, wherever it is run, and what may go wrong on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tiny import EAGLE, scenario, workload

import simkv
from simkv.errors import ScenarioError
from simkv.studies import cluster as on_a_cluster
from simkv.studies import parcel, processes
from simkv.studies.points import Point, PointResult, run_points
from simkv.workload.request import Workload

# Workers cannot import a test's module: its classes travel whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

CLOSED = {"kind": "closed", "concurrency": 1, "num_requests": 1, "input_tokens": 10, "output_tokens": 5}


def changes(key: str, values: Any) -> list[Point]:
    return [Point(number, ((key, value),)) for number, value in enumerate(values)]


def gathered(base: simkv.Scenario, points: list[Point], **more: Any) -> list[PointResult]:
    found = list(run_points(base, points, **more))
    assert len(found) == len(points)
    return sorted(found, key=lambda result: result.index)


@dataclass
class Steps:
    """Ten milliseconds a step; a prompt of so many tokens ends the process, or the run."""

    kills: int = -1
    breaks: int = -1
    pause: float = 0.0
    calls: int = 0

    def __call__(self, work: Any) -> tuple[int, int]:
        self.calls += 1
        time.sleep(self.pause)
        if work.prefill_tokens == self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if work.prefill_tokens == self.breaks:
            raise ZeroDivisionError("no tokens")
        # What a copy of its own has seen: 1, 2, 3 ... in every point.
        return 0, 10_000_000 + self.calls


# ------------------------------------------------------------------------------------------------- what comes of a point
def test_a_request_alone_takes_a_step_a_token() -> None:
    # One prefill step gives the first token, four decode steps the others.
    found = gathered(scenario(workload=CLOSED), changes("steptime.ms", [10, 20, 40]))
    assert [result.summary["simulated_s"] for result in found] == [0.05, 0.1, 0.2]
    assert [result.summary["steps.decode"] for result in found] == [4, 4, 4]
    assert {result.state for result in found} == {"ok"}


def test_every_state_and_its_exit_code() -> None:
    base = scenario(workload=CLOSED, checks={"requests.completed": "== 1"}, memory={"page_size": 16})
    points = [
        Point(0),
        Point(1, (('checks."requests.completed"', "== 2"),)),
        # A prompt of 18 in a pool of 32 tokens and pages of 16 is accepted and never admitted.
        Point(2, (("workload.input_tokens", 18), ("memory.kv_bytes", 32 * 256))),
        Point(3, (("memory.kv_bytes", 0),)),
        Point(4, (("memory.page_sizes", 2),)),
        Point(5, (("workload.input_tokens", 13),)),
        Point(6, (("page size", 13),)),
    ]
    found = gathered(base, points, steptime=Steps(breaks=13))
    assert [result.state for result in found] == [
        "ok",
        "check failed",
        "engine fault",
        "infeasible",
        "error",
        "error",
        "error",
    ]
    assert [result.exit_code for result in found] == [0, 1, 3, 3, 2, 70, 2]
    assert [result.failed for result in found] == [False] * 2 + [True] * 5
    assert found[0].error == found[1].error == ""
    assert found[1].checks == [{"key": "requests.completed", "condition": "== 2", "value": 1, "holds": False}]
    assert found[2].error.startswith("F5: ") and found[2].summary["requests.completed"] == 0
    assert found[3].summary == {} and found[3].plan["max_total_num_tokens"] in (None, 0)
    assert "did you mean page_size?" in found[4].error
    assert found[5].error == "ZeroDivisionError: no tokens"
    # 1000 tokens are 62 pages of 16.
    assert found[0].plan["max_total_num_tokens"] == 992
    for result in found:
        assert all(value is None or isinstance(value, (int, float, str)) for value in result.summary.values())
        assert not any(isinstance(value, np.generic) for value in (*result.summary.values(), *result.plan.values()))


def test_progress_counts_what_failed() -> None:
    told: list[tuple[int, int, int]] = []
    points = changes("memory.kv_bytes", [0, 256_000, 0])
    gathered(scenario(workload=CLOSED), points, progress=lambda *counts: told.append(counts))
    assert told == [(1, 1, 3), (2, 1, 3), (3, 2, 3)]


def test_a_policy_starts_anew_for_every_point() -> None:
    steps = Steps()
    found = gathered(scenario(workload=CLOSED), changes("seed", [1, 2, 3]), steptime=steps)
    # Five steps of 10 ms and 1 + 2 + 3 + 4 + 5 ns; the third point the same as the first.
    assert {result.summary["simulated_s"] for result in found} == {0.050000015}
    assert steps.calls == 0


def test_the_interrupt_key_ends_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return simulate(*_, **__)

    simulate = parcel.simulate
    monkeypatch.setattr(parcel, "simulate", stopped)
    with pytest.raises(KeyboardInterrupt):
        list(run_points(scenario(workload=CLOSED), changes("seed", [1, 2])))


@pytest.mark.parametrize("n_jobs", [0, -2, 1.5, True, "2", None])
def test_a_number_of_processes_that_is_none(n_jobs: Any) -> None:
    with pytest.raises(ScenarioError, match="n_jobs"):
        run_points(scenario(), [Point(0)], n_jobs=n_jobs)


def test_what_cannot_be_sent_or_used_is_told_at_once() -> None:
    with pytest.raises(ScenarioError, match="acceptance.*has no draw"):
        run_points(scenario(), [Point(0)], acceptance=object())
    steps = Steps()
    steps.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ScenarioError, match="steptime.*cannot be sent"):
        run_points(scenario(), [Point(0)], steptime=steps)
    with pytest.raises(TypeError, match="steptimes"):
        run_points(scenario(), [Point(0)], steptimes=Steps())
    with pytest.raises(ValueError, match="same index"):
        run_points(scenario(), [Point(0), Point(0)])


def test_points_have_a_hash_whatever_they_hold() -> None:
    one, same, other = (Point(0, (("policies.faults", [name]),)) for name in ("a", "a", "b"))
    assert {one, same} == {one} and one != other


# ------------------------------------------------------------------------------------------------- once a process
@pytest.fixture
def traced(tmp_path: Path) -> simkv.Scenario:
    """A scenario of a trace of three requests."""
    (tmp_path / "t.jsonl").write_text('{"arrival_s": 0, "input_tokens": 5, "output_tokens": 2}\n' * 3)
    return scenario(workload={"trace": str(tmp_path / "t.jsonl")})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the traces that were read in this process."""
    import simkv.scenario as module

    names: list[str] = []
    read = module.read_trace

    def counted(path: Any, **options: Any) -> Workload:
        names.append(Path(path).name)
        return read(path, **options)

    monkeypatch.setattr(module, "read_trace", counted)
    return names


def test_a_trace_is_read_once_for_all_points_that_share_it(traced: simkv.Scenario, reads: list[str]) -> None:
    grid = [("memory.kv_bytes", 256 * n) for n in (100, 200, 300)]
    gathered(traced, [Point(n, (pair,)) for n, pair in enumerate(grid)])
    assert reads == ["t.jsonl"]
    # What a client asks for, or what the context leaves, needs no second look at the file.
    grid = [("workload.max_new_tokens", 1), ("model.context_length", 6), ("workload.on_oversize", "clip"), ("seed", 5)]
    gathered(traced, [Point(n, (pair,)) for n, pair in enumerate(grid)])
    assert reads == ["t.jsonl"]
    found = gathered(traced, changes("workload.rate_scale", [2.0, 4.0, 2.0]))
    assert reads == ["t.jsonl"] * 3
    assert found[0].workload_sha256 == found[2].workload_sha256


def test_points_that_share_their_requests_are_neighbours(traced: simkv.Scenario, reads: list[str]) -> None:
    # Ten workloads, each three times, and the next one at every point: more than are kept.
    scales = [1.0 + n for n in range(10)]
    grid = [
        (("memory.kv_bytes", 256 * size), ("workload.rate_scale", scale))
        for size in (100, 200, 300)
        for scale in scales
    ]
    found = gathered(traced, [Point(n, changes) for n, changes in enumerate(grid)])
    assert len(reads) == 10
    assert [result.plan["max_total_num_tokens"] for result in found] == [100] * 10 + [200] * 10 + [300] * 10


def test_a_trace_that_changed_is_read_again(traced: simkv.Scenario, reads: list[str], tmp_path: Path) -> None:
    before = gathered(traced, [Point(0)])
    (tmp_path / "t.jsonl").write_text('{"arrival_s": 0, "input_tokens": 6, "output_tokens": 2}\n')
    after = gathered(traced, [Point(0)])
    assert reads == ["t.jsonl"] * 2
    assert [before[0].summary["requests.injected"], after[0].summary["requests.injected"]] == [3, 1]


def test_seeds_of_a_generator_have_requests_of_their_own() -> None:
    table = {"kind": "poisson", "rate": 9, "num_requests": 5, "input_tokens": 9, "output_tokens": 3}
    found = gathered(scenario(workload=table), changes("seed", [1, 2, 1]))
    assert found[0].workload_sha256 == found[2].workload_sha256 != found[1].workload_sha256
    alone = simkv.simulate(scenario(workload=table), seed=2)
    assert found[1].workload_sha256 == alone.provenance["workload_sha256"]


def test_only_so_many_workloads_are_kept() -> None:
    shelf: parcel.Shelf[int] = parcel.Shelf(2)
    made: list[int] = []

    def get(key: int) -> int:
        return shelf.get(key, lambda: made.append(key) or key)  # type: ignore[func-returns-value]

    assert [get(key) for key in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2] and shelf.made == 4


# ------------------------------------------------------------------------------------------------- processes
class Noted(Workload):
    """Requests that write down in which process they arrive."""

    def __reduce__(self) -> Any:
        values = {one.name: getattr(self, one.name) for one in fields(Workload)}
        return arrived, (values, self.request_id[0])


def arrived(values: dict[str, Any], path: str) -> Workload:
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return Workload(**values)


def shelves(_: Any) -> tuple[int, int]:
    """A process of joblib's, and how many workloads it read or generated."""
    from simkv.studies.parcel import WORKLOADS

    time.sleep(0.05)
    return os.getpid(), WORKLOADS.made


def test_processes_find_the_same_and_get_what_is_shared_once(
    tmp_path: Path, traced: simkv.Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = changes("steptime.ms", range(10, 22))
    pids = tmp_path / "pids"
    given = workload([(0, 7, 3)])
    noted = Noted(**{**{one.name: getattr(given, one.name) for one in fields(Workload)}, "request_id": (str(pids),)})
    assert gathered(scenario(), points, workload=noted, n_jobs=2) == gathered(scenario(), points, workload=noted)
    # Once to each process, however many points it has.
    unpickled = pids.read_text().split()
    assert 1 <= len(unpickled) <= 2 and len(set(unpickled)) == len(unpickled)

    # In the same processes, from another folder.
    monkeypatch.chdir(tmp_path)
    traced = traced.set(workload__trace="t.jsonl")
    before = dict(processes._streamed(shelves, range(6), 2))  # type: ignore[arg-type]
    assert gathered(traced, points, n_jobs=2) == gathered(traced, points)
    after = dict(processes._streamed(shelves, range(6), 2))  # type: ignore[arg-type]
    read = [made - before.get(pid, 0) for pid, made in after.items()]
    assert max(read) == 1


def test_a_process_that_dies_costs_its_own_point_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "RETRIES", 1)
    points = changes("workload.input_tokens", [11, 13, 12])
    found = gathered(scenario(workload=CLOSED), points, steptime=Steps(kills=13), n_jobs=2)
    assert [result.state for result in found] == ["ok", "error", "ok"]
    assert found[1].error == "its process died; perhaps it was killed for its memory"
    assert found[1].exit_code == 70
    assert found[0].summary["tokens.input"] == 11


# ------------------------------------------------------------------------------------------------- Dask
def test_dask_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScenarioError, match="'locl' is not local or the address"):
        list(run_points(scenario(), [Point(0)], dask="locl"))
    monkeypatch.setattr(on_a_cluster, "DASK_TIMEOUT_S", 0.3)
    with pytest.raises(ScenarioError, match=r"'tcp://127.0.0.1:9' cannot be reached within 0.3 s"):
        list(run_points(scenario(), [Point(0)], dask="tcp://127.0.0.1:9"))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ScenarioError, match=r"pip install 'simkv\[dask\]'"):
        list(run_points(scenario(), [Point(0)], dask="local"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Address of a scheduler, and its two workers."""
    file = tmp_path / "scheduler.json"
    started = [_dask("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))]
    worker = ("worker", "--no-nanny", "--no-dashboard", "--nthreads", "1", "--scheduler-file", str(file))
    started += [_dask(*worker, "--local-directory", str(tmp_path / name)) for name in "ab"]
    try:
        for _ in range(600):
            if file.exists() and "address" in file.read_text():
                break
            time.sleep(0.05)
        yield str(json.loads(file.read_text())["address"]), started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def _dask(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_dask_cluster_finds_the_same_and_a_lost_worker_loses_nothing(
    cluster: tuple[str, list[subprocess.Popen[bytes]]],
    traced: simkv.Scenario,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, workers = cluster
    points = changes("steptime.ms", range(10, 18))
    here = gathered(traced, points)
    # The trace goes along: the workers' machine need not have it.
    (tmp_path / "t.jsonl").rename(tmp_path / "elsewhere.jsonl")
    parcel.WORKLOADS.get(  # as if the client had read it, where it still is
        (traced.requests_key, None), traced.set(workload__trace=str(tmp_path / "elsewhere.jsonl")).requests
    )
    assert gathered(traced, points, dask=address) == here

    base = scenario(workload=CLOSED)
    points = changes("workload.input_tokens", range(11, 27))
    found = []
    for result in run_points(base, points, dask=address, steptime=Steps(pause=0.03)):
        found.append(result)
        if len(found) == 3:
            workers[0].kill()
    assert sorted(found, key=lambda one: one.index) == gathered(base, points, steptime=Steps())

    # The last one goes too, and nobody waits for ever.
    monkeypatch.setattr(on_a_cluster, "DASK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(on_a_cluster, "DASK_PATIENCE", 2)
    with pytest.raises(ScenarioError, match=r"no worker is left, and none came in 0.4 s"):
        for _ in run_points(base, points, dask=address, steptime=Steps(pause=0.03)):
            workers[1].kill()


def test_acceptance_is_drawn_alike_everywhere() -> None:
    base = scenario(draft=EAGLE, acceptance={"kind": "geometric", "alpha": 0.5}, workload={**CLOSED, "num_requests": 5})
    (found,) = gathered(base, [Point(0, (("seed", 4),))])
    alone = simkv.simulate(base, seed=4)
    assert found.summary["spec_accept_length"] == alone.summary["spec_accept_length"] > 1


def test_a_cluster_is_left_also_where_nobody_asks_for_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    monkeypatch.setattr(on_a_cluster, "_connected", lambda *_: (None, lambda: left.append("left")))
    stream = on_a_cluster.on_dask(None, [], "local", 1)  # type: ignore[arg-type]
    assert not left
    del stream
    assert left == ["left"]
