from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import EAGLE, TINY

import simkv
from simkv.errors import ModelError, ScenarioError, SimkvError, TraceError, UserError
from simkv.scenario import Scenario

# Two layers, one slides.
HYBRID = {
    **TINY,
    "architectures": ["ExampleHybridForCausalLM"],
    "is_hybrid_swa": True,
    "num_hidden_layers": 2,
    "hybrid_layer_pattern": [0, 1],
    "sliding_window": 32,
}
WORK = {"kind": "constant", "rate": 10, "num_requests": 5, "input_tokens": 20, "output_tokens": 4}
MIB, GIB = 1 << 20, 1 << 30


def document(**sections: Any) -> dict[str, Any]:
    """A valid scenario with changes to its sections; None removes a key or a section."""
    data: dict[str, Any] = {
        "schema": 1,
        "name": "tiny",
        "model": {"config": TINY},
        "memory": {
            "kv_bytes": 256_000,
            "max_running_requests": 4,
            "chunked_prefill_size": 512,
            "disable_radix_cache": True,
        },
        "steptime": {"kind": "constant", "ms": 10},
        "workload": WORK,
    }
    for section, changes in sections.items():
        if changes is None:
            data.pop(section)
        elif isinstance(changes, dict) and section in ("model", "memory"):
            merged = {**data[section], **changes}
            data[section] = {k: v for k, v in merged.items() if v is not None}
        else:
            data[section] = changes
    return data


def problems(data: Any, *, run: bool = False) -> dict[str, str]:
    """Dotted key -> message of everything wrong."""
    with pytest.raises(UserError) as caught:
        if run:
            simkv.simulate(data)
        else:
            simkv.load(data)
    assert caught.value.exit_code == 2
    assert isinstance(caught.value, (ScenarioError, ModelError, TraceError))
    return {p.place: p.message for p in caught.value.problems}


def changed(section: str, key: str, value: Any) -> dict[str, Any]:
    data = document(draft=dict(EAGLE), policies={})
    if section:
        data[section] = {**data[section], key: value}
    else:
        data[key] = value
    return data


# Problems ----------------------------------------------------------------------------------------------------------


def test_the_example_of_the_contract() -> None:
    bad = document(
        model={"kv_cache_dtyp": "auto"}, memory={"mem_fraction_static": 1.7}, policies={"routing": "legacyy"}
    )
    with pytest.raises(ScenarioError) as caught:
        simkv.load(bad)
    assert str(caught.value).splitlines()[0] == "3 problems in <dict>"
    found = {p.place: p.message for p in caught.value.problems}
    assert found["model.kv_cache_dtyp"] == "unknown key; did you mean kv_cache_dtype?"
    assert found["memory.mem_fraction_static"] == "1.7 is not in (0, 1)"
    assert "is not one of legacy, generalized, depth-owned; did you mean legacy?" in found["policies.routing"]
    assert len(found) == 3


def test_problems_of_every_section_at_once() -> None:
    found = problems(
        {
            "schema": 3,
            "nam": "x",
            "seed": -1,
            "engine": "vllm",
            "model": {"tp_size": "2", "confg": "x"},
            "draft": {"algorithm": "eagle", "num_step": 2},
            "memory": {"gpuu": "h100", "page_size": 0, "kv_bytes": "much"},
            "policies": {"faults": ["x"], "routing": 3},
            "checks": {"a": 0},
        }
    )
    assert set(found) == {
        "schema",
        "nam",
        "seed",
        "engine",
        "model.tp_size",
        "model.config",
        "model.confg",
        "draft.algorithm",
        "draft.num_step",
        "memory.gpuu",
        "memory.page_size",
        "memory.kv_bytes",
        "policies.faults.0",
        "policies.routing",
        "checks.a",
    }
    assert found["model.config"] == "is missing"


def test_wrong_kinds_are_named_beside_wrong_keys() -> None:
    found = problems(
        document(acceptance={"kind": "geometrc"}, steptime="linar", memory={"gpu": "h10", "kv_bytes": None}, nam="x")
    )
    assert set(found) == {"acceptance", "steptime", "memory.gpu", "nam"}
    for place, near in (("acceptance", "geometric"), ("steptime", "linear"), ("memory.gpu", "h100")):
        assert f"did you mean {near}?" in found[place]


def test_contradictions_are_named_beside_wrong_keys() -> None:
    bad = document(memory={"kv_bytes": None}, nam="x", checks={"a": "?"})
    assert set(problems(bad)) == {"memory", "nam", "checks.a"}


def test_wrong_parameters_of_the_families_are_named_together() -> None:
    bad = document(
        draft=EAGLE,
        acceptance={"kind": "fixed", "length": 0},
        steptime={"kind": "constant", "ms": -1},
        workload={**WORK, "rat": 1},
    )
    assert set(problems(bad)) == {"acceptance.length", "steptime.ms", "workload.rat"}


@pytest.mark.parametrize("section", ["", "model", "draft", "memory", "policies"])
def test_an_unknown_key_is_an_error_anywhere(section: str) -> None:
    place = f"{section}.nonsense" if section else "nonsense"
    found = problems(changed(section, "nonsense", 1))
    assert set(found) == {place}
    assert found[place].startswith("unknown key; allowed are ")


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [
        ("", "modle", "model"),
        ("model", "tp_siz", "tp_size"),
        ("draft", "eagle_topp", "eagle_topk"),
        ("memory", "max_running_request", "max_running_requests"),
        ("memory", "mem_fraction", "mem_fraction_static"),
        ("policies", "conservativeness", "schedule_conservativeness"),
    ],
)
def test_the_nearest_key_is_named(section: str, key: str, near: str) -> None:
    found = problems(changed(section, key, 1))
    assert list(found.values()) == [f"unknown key; did you mean {near}?"]


@pytest.mark.parametrize(
    ("section", "table", "key"),
    [
        ("workload", {**WORK, "raet": 1}, "raet"),
        ("workload", {**WORK, "input_tokens": {"kind": "uniform", "min": 1, "max": 2, "mid": 1}}, "input_tokens.mid"),
        ("workload", {"trace": "t.jsonl", "limt": 1}, "limt"),
        ("acceptance", {"kind": "geometric", "alpha": 0.5, "beta": 1}, "beta"),
        ("steptime", {"kind": "constant", "ms": 1, "draft": 1}, "draft"),
        ("steptime", {"kind": "roofline", "gpu": "h100", "efficienzy": 1}, "efficienzy"),
    ],
)
def test_an_unknown_key_of_a_family_is_an_error_of_the_run(section: str, table: dict[str, Any], key: str) -> None:
    found = problems(document(draft=EAGLE, acceptance={"kind": "none"}) | {section: table}, run=True)
    assert set(found) == {f"{section}.{key}"}
    assert "unknown key" in found[f"{section}.{key}"]


def test_an_unknown_key_of_an_unused_acceptance_is_an_error() -> None:
    assert set(problems(document(acceptance={"kind": "fixed", "lenth": 2}), run=True)) == {"acceptance.lenth"}


def test_every_unknown_key_of_a_family_is_named() -> None:
    found = problems(document(steptime={"kind": "constant", "ms": 1, "foo": 1, "bar": 2}), run=True)
    assert set(found) == {"steptime.foo", "steptime.bar"}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("", "name", 5),
        ("", "seed", 1.5),
        ("", "seed", "1"),
        ("", "seed", True),
        ("", "model", "llama-3.1-8b"),
        ("", "memory", []),
        ("", "checks", ["a"]),
        ("", "workload", "poisson"),
        ("", "schema", 2),
        ("", "schema", "1"),
        ("model", "config", 5),
        ("model", "config", ["llama-3.1-8b"]),
        ("model", "tp_size", 1.0),
        ("model", "tp_size", True),
        ("model", "cache_window", -1),
        ("model", "context_length", 0),
        ("model", "hybrid_swa", "sometimes"),
        ("model", "kv_cache_dtype", "fp4"),
        ("draft", "num_steps", 0),
        ("draft", "eagle_topk", "1"),
        ("draft", "swa_attention_layer_ids", 3),
        ("draft", "enable_multi_layer_eagle", "maybe"),
        ("memory", "page_size", 64.0),
        ("memory", "page_size", -1),
        ("memory", "mem_fraction_static", 0),
        ("memory", "mem_fraction_static", 1),
        ("memory", "mem_fraction_static", float("nan")),
        ("memory", "mem_fraction_static", "most"),
        ("memory", "swa_full_tokens_ratio", 0),
        ("memory", "swa_full_tokens_ratio", 1.01),
        ("memory", "max_running_requests", "pol"),
        ("memory", "max_running_requests", 0),
        ("memory", "chunked_prefill_size", 0),
        ("memory", "chunked_prefill_size", -2),
        ("memory", "swa_eviction_interval", True),
        ("memory", "disable_radix_cache", "maybe"),
        ("memory", "gpu", "h10"),
        ("memory", "gpu", 100),
        ("policies", "faults", "no-draft-budget"),
        ("policies", "schedule_conservativeness", -0.1),
        ("policies", "schedule_conservativeness", float("inf")),
        ("policies", "engine_faults", "repaired"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(section: str, key: str, value: Any) -> None:
    found = problems(changed(section, key, value))
    assert set(found) == {f"{section}.{key}" if section else key}
    if not isinstance(value, (list, dict)):
        assert repr(value) in next(iter(found.values()))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("memory", "disable_radix_cache", "yes"),
        ("memory", "enable_mixed_chunk", 1),
        ("model", "hybrid_swa", "true"),
        ("memory", "mem_fraction_static", "0.85"),
        ("policies", "schedule_conservativeness", True),
    ],
)
def test_a_value_of_another_type_is_not_converted(section: str, key: str, value: Any) -> None:
    assert problems(changed(section, key, value))


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [("model", "hybrid_swa", "sometimes", "engine"), ("memory", "max_running_requests", "pol", "pool")],
)
def test_the_words_allowed_beside_a_number_are_named(section: str, key: str, value: str, allowed: str) -> None:
    assert allowed in problems(changed(section, key, value))[f"{section}.{key}"]


def test_the_bound_of_the_cache_window_reads_like_a_sentence() -> None:
    assert "is not in an integer" not in problems(changed("model", "cache_window", -1))["model.cache_window"]


@pytest.mark.parametrize("condition", ["0", "= 0", "=> 1", "about 5", "== nan", "== five", "", "< 1 2"])
def test_a_check_that_is_no_comparison_is_refused(condition: str) -> None:
    found = problems(document(checks={"requests.completed": condition}))
    assert set(found) == {'checks."requests.completed"'}


@pytest.mark.parametrize("condition", ["== 1e", "== --", "== .", "< 1.2.3", ">= +"])
def test_a_check_against_half_a_number_is_refused(condition: str) -> None:
    assert problems(document(checks={"requests.completed": condition}))


@pytest.mark.parametrize(
    ("sections", "place"),
    [
        ({"memory": {"kv_bytes": None}}, "memory"),
        ({"memory": {"gpu": "h100", "hbm": "80GB"}}, "memory.hbm"),
        ({"memory": {"page_size": 48}}, "memory.chunked_prefill_size"),
        ({"draft": {"algorithm": "STANDALONE"}}, "draft.config"),
        ({"draft": {**EAGLE, "eagle_topk": 2, "enable_multi_layer_eagle": True}}, "draft.eagle_topk"),
        ({"draft": {"num_steps": 1}}, "draft.algorithm"),
        ({"acceptance": {"alpha": 1}}, "acceptance"),
        ({"steptime": {"ms": 1}}, "steptime"),
        ({"steptime": "constnt"}, "steptime"),
        ({"model": None}, "model"),
    ],
)
def test_contradictions_between_keys(sections: dict[str, Any], place: str) -> None:
    assert set(problems(document(**sections))) == {place}


def test_the_default_chunk_has_to_hold_whole_pages() -> None:
    one = document(memory={"page_size": 48, "chunked_prefill_size": None})
    with pytest.raises(SimkvError):
        simkv.plan(one)


@pytest.mark.parametrize(
    ("work", "places"),
    [
        (None, {"workload"}),
        ({}, {"workload"}),
        ({"rate": 3}, {f"workload.{k}" for k in ("kind", "num_requests", "input_tokens", "output_tokens")}),
        ({**WORK, "kind": "poison"}, {"workload.kind"}),
        ({**WORK, "rate": "x", "num_requests": 1.5}, {"workload.rate", "workload.num_requests"}),
        ({**WORK, "on_oversize": "x", "max_new_tokens": 0}, {"workload.on_oversize", "workload.max_new_tokens"}),
        ({**WORK, "trace": "x"}, {"workload.kind"}),
        ({"trace": "x.csv", "format": "azur"}, {"workload.format"}),
    ],
)
def test_a_wrong_workload(work: dict[str, Any] | None, places: set[str]) -> None:
    assert set(problems(document(workload=work), run=True)) == places


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text('{"arrival_s": 0, "input_tokens": 5, "output_tokens": 3}\n')
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", "x"),
        ("rate_scale", "x"),
        ("start_s", "a"),
        ("time_unit", 5),
        ("columns", 5),
        ("columns", {"a": 1}),
        ("turns", 5),
        ("block_size", "x"),
        ("rate", "x"),
        ("format", ["a"]),
        ("ignore_eos", "x"),
    ],
)
def test_wrong_types_of_the_keys_of_a_trace_are_named(trace: Path, key: str, value: Any) -> None:
    assert problems(document(workload={"trace": str(trace), key: value}), run=True)


@pytest.mark.parametrize(("key", "value"), [("arch", "x"), ("gpu", 5)])
def test_wrong_values_of_the_roofline_are_named(key: str, value: Any) -> None:
    table = {"kind": "roofline", "gpu": "h100", key: value}
    assert problems(document(steptime=table), run=True)


# Bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("60GiB", 60 * GIB),
        ("141GB", 141 * 10**9),
        ("60gib", 60 * GIB),
        ("1 MiB", MIB),
        (" 512KiB ", 512 << 10),
        ("0.5TiB", GIB << 9),
        (".5GiB", GIB // 2),
        ("1.5MB", 1_500_000),
        ("300000", 300_000),
        ("7B", 7),
        (300_000, 300_000),
    ],
)
def test_bytes(text: Any, count: int) -> None:
    assert simkv.load(document(memory={"kv_bytes": text})).document.memory.kv_bytes == count


@given(st.integers(0, 2**50), st.sampled_from(["B", "KB", "MB", "KiB", "MiB", "GiB"]))
def test_bytes_of_any_whole_number(count: int, unit: str) -> None:
    scale = {"B": 1, "KB": 10**3, "MB": 10**6, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    if count * scale >= 2**53:
        count = count * 2**20 // scale // 2**20
    got = simkv.load(document(memory={"kv_bytes": f"{count}{unit}"})).document.memory.kv_bytes
    assert got == count * scale


@pytest.mark.parametrize(
    "text", ["", "GiB", "60G", "60 giga", "1e3GB", "five", "1,5GB", "0x10", "1GiB2", True, 1.5, [], {}]
)
def test_what_is_no_number_of_bytes(text: Any) -> None:
    found = problems(document(memory={"kv_bytes": text}))
    assert set(found) == {"memory.kv_bytes"}
    assert "is not a number of bytes" in found["memory.kv_bytes"]
    assert "GiB" in found["memory.kv_bytes"]


@pytest.mark.parametrize("key", ["weights", "draft_weights", "overhead", "state_bytes", "hbm"])
@pytest.mark.parametrize("value", [-1, "-5GiB"])
def test_negative_bytes_are_refused(key: str, value: Any) -> None:
    assert f"memory.{key}" in problems(document(memory={key: value}))


@pytest.mark.parametrize("hbm", [0, "1B", "1023KiB"])
def test_a_gpu_without_memory_is_an_error_and_no_traceback(hbm: Any) -> None:
    one = document(memory={"kv_bytes": None, "hbm": hbm, "weights": "1GiB"})
    with pytest.raises(SimkvError):
        simkv.simulate(one)


# Overrides ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("memory.page_size=2", "memory.page_size", 2),
        (" memory.page_size = 2 ", "memory.page_size", 2),
        ("seed=0x10", "seed", 16),
        ("name=two words", "name", "two words"),
        ('name="quoted"', "name", "quoted"),
        ("name=a=b", "name", "a=b"),
        ("memory.kv_bytes=1MiB", "memory.kv_bytes", MIB),
        ("memory.disable_radix_cache=false", "memory.disable_radix_cache", False),
        ("memory.mem_fraction_static=0.5", "memory.mem_fraction_static", 0.5),
        ("policies.routing=legacy", "policies.routing", "legacy"),
        ('policies.faults=["no-draft-budget"]', "policies.faults", ["no-draft-budget"]),
        ('acceptance={kind="fixed", length=2}', "acceptance", {"kind": "fixed", "length": 2}),
        ("acceptance=none", "acceptance", {"kind": "none"}),
        ("steptime.ms=5", "steptime", {"kind": "constant", "ms": 5}),
        ('checks={"requests.completed"="== 5"}', "checks", {"requests.completed": "== 5"}),
        ('checks."requests.completed"="== 5"', "checks", {"requests.completed": "== 5"}),
        ('checks."requests.completed"=== 5', "checks", {"requests.completed": "== 5"}),
        ("workload.rate=3", "workload.rate", 3),
        ('workload.input_tokens={kind="uniform", min=1, max=3}', "workload.input_tokens.max", 3),
    ],
)
def test_an_override(text: str, path: str, value: Any) -> None:
    one = simkv.load(document())
    got: Any = one.override(text).to_dict()
    for part in path.split("."):
        got = got[part]
    assert got == value
    assert one.to_dict() == simkv.load(document()).to_dict()


def test_a_trace_replaces_the_generator_and_a_generator_the_trace() -> None:
    one = simkv.load(document()).override("workload.limit=2", "workload.trace=t.jsonl")
    assert one.document.workload == {"trace": "t.jsonl", "limit": 2}
    closed = {"kind": "closed", "concurrency": 3, "num_requests": 4, "input_tokens": 5, "output_tokens": 6}
    assert one.override(*(f"workload.{key}={value}" for key, value in closed.items())).document.workload == closed
    assert one.override("workload.trace=u.jsonl").document.workload == {"trace": "u.jsonl", "limit": 2}


def test_later_overrides_win_and_change_nothing_else() -> None:
    one = simkv.load(document())
    got = one.override("memory.page_size=2", "seed=3", "memory.page_size=4").to_dict()
    want = one.to_dict()
    want["memory"]["page_size"], want["seed"] = 4, 3
    assert got == want


def test_an_override_opens_a_section() -> None:
    one = simkv.load(document()).override("draft.algorithm=EAGLE", "draft.num_steps=2", "draft.num_layers=0")
    assert one.document.draft is not None
    assert (one.document.draft.algorithm, one.document.draft.num_steps) == ("EAGLE", 2)


def test_a_word_for_a_family_can_be_extended() -> None:
    one = simkv.load(document(draft=EAGLE, acceptance="none")).override("acceptance.kind=fixed", "acceptance.length=2")
    assert one.document.acceptance == {"kind": "fixed", "length": 2}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("memory.page_size", "memory.page_size"),
        ("", ""),
        ("=1", "=1"),
        ("name.x=1", "name.x"),
        ("memory.page_siz=1", "memory.page_siz"),
        ("memory.page_size=big", "memory.page_size"),
        ("memory.page_size=", "memory.page_size"),
        ("MEMORY.page_size=1", "MEMORY"),
        ("memory=5", "memory"),
        ("policies.faults.x=1", "policies.faults"),
        ("draft.num_steps=2", "draft.algorithm"),
    ],
)
def test_a_malformed_override(text: str, place: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        simkv.load(document()).override(text)
    assert [p.place for p in caught.value.problems] == [place]


@pytest.mark.parametrize(
    "text", ["memory..page_size=1", ".seed=1", "seed.=1", 'memory."page_size=2', "seed=1\nname='x'"]
)
def test_a_malformed_key_or_value_is_not_repaired_in_silence(text: str) -> None:
    with pytest.raises(ScenarioError):
        simkv.load(document()).override(text)


def test_all_malformed_overrides_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        simkv.load(document()).override("a", "b")
    assert len(caught.value.problems) == 2


def test_set_writes_and_removes() -> None:
    one = simkv.load(document(draft=EAGLE)).set(memory__page_size=2, draft=None, seed=4)
    assert one.document.draft is None
    assert (one.document.memory.page_size, one.seed) == (2, 4)
    assert "max_running_requests" not in one.set(memory__max_running_requests=None).data["memory"]
    with pytest.raises(ScenarioError, match=r"memory.pagesize"):
        one.set(memory__pagesize=2)


# Files -------------------------------------------------------------------------------------------------------------

TEXT = """schema = 1
name = "file"
[model]
config = "m.json"
[memory]
kv_bytes = "1MiB"
disable_radix_cache = true
"""


def test_a_file_names_its_model_relative_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "deep"
    inside.mkdir()
    (inside / "m.json").write_text(json.dumps(TINY))
    (inside / "s.toml").write_text(TEXT)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert simkv.plan(inside / "s.toml").max_total_num_tokens == MIB // 256
    assert simkv.plan(Path("../deep/s.toml")).max_total_num_tokens == MIB // 256
    assert simkv.plan(str(inside / "s.toml")).model


def test_a_file_names_its_trace_relative_to_itself(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.json").write_text(json.dumps(TINY))
    (tmp_path / "s.toml").write_text(TEXT + f'[workload]\ntrace = "{trace.name}"\n')
    monkeypatch.chdir("/")
    assert len(simkv.load(tmp_path / "s.toml").workload()) == 1


def test_a_byte_order_mark_and_windows_lines_are_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert simkv.load(path).name == "file"


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(TEXT + "x == 3\n")
    with pytest.raises(ScenarioError) as caught:
        simkv.load(path)
    assert [p.place for p in caught.value.problems] == [f"{path}:8"]
    assert "not valid TOML" in str(caught.value)


def test_a_syntax_error_at_the_end_names_a_line(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(TEXT + 'x = """')
    with pytest.raises(ScenarioError) as caught:
        simkv.load(path)
    assert caught.value.problems[0].place.startswith(f"{path}:")


def test_problems_of_a_file_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(TEXT + "page_siz = 3\n")
    with pytest.raises(ScenarioError) as caught:
        simkv.load(path)
    assert str(caught.value).startswith(f"1 problem in {path}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        simkv.load(tmp_path / "none.toml")
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    with pytest.raises(ScenarioError, match="directory"):
        simkv.load(folder)
    utf16 = tmp_path / "u.toml"
    utf16.write_text(TEXT, encoding="utf-16")
    with pytest.raises(ScenarioError, match="cannot be read"):
        simkv.load(utf16)


def test_an_unknown_name_lists_the_built_in_ones() -> None:
    with pytest.raises(ScenarioError) as caught:
        simkv.load("retraction-strom")
    text = str(caught.value)
    assert "did you mean retraction-storm?" in text
    assert all(name in text for name in simkv.builtin_names())


def test_a_scenario_and_a_dict_are_taken_as_they_are() -> None:
    data = document()
    one = simkv.load(data)
    assert isinstance(one, Scenario)
    assert simkv.load(one) is one
    data["memory"]["kv_bytes"] = 1
    assert one.document.memory.kv_bytes == 256_000


# Models ------------------------------------------------------------------------------------------------------------


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"did you mean llama-3.1-8b\?"):
        simkv.plan(document(model={"config": "lama-3.1-8b"}))


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("qwen3-next-80b-a3b", "linear"),
        ("deepseek-v4-flash", "compressed KV"),
        ("mimo-v2.5", "KV heads"),
    ],
)
def test_an_architecture_that_cannot_be_accounted_for_is_refused_by_name(name: str, lacks: str) -> None:
    with pytest.raises(ModelError) as caught:
        simkv.plan(document(model={"config": name}))
    assert caught.value.exit_code == 2
    [problem] = caught.value.problems
    assert problem.place == "model.config"
    assert name in problem.message
    assert lacks in problem.message


def test_an_unsupported_draft_is_refused_too() -> None:
    draft = {"algorithm": "STANDALONE", "config": "deepseek-v4-flash"}
    with pytest.raises(ModelError) as caught:
        simkv.plan(document(draft=draft))
    assert [p.place for p in caught.value.problems] == ["draft.config"]


@pytest.mark.parametrize(
    ("config", "key"),
    [({}, "num_hidden_layers"), ({**TINY, "num_hidden_layers": "x"}, "num_hidden_layers")],
)
def test_a_wrong_inline_config_names_its_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError) as caught:
        simkv.plan(document() | {"model": {"config": config}})
    assert any(key in p.place for p in caught.value.problems)


def test_a_model_without_a_context_asks_for_it() -> None:
    config = {k: v for k, v in TINY.items() if k != "max_position_embeddings"}
    with pytest.raises(ScenarioError, match=r"model.context_length"):
        simkv.plan(document(model={"config": config}))
    assert simkv.plan(document(model={"config": config, "context_length": 128})).max_total_num_tokens == 1000


# Schema and defaults -----------------------------------------------------------------------------------------------

SECTIONS = {
    "": "schema name description seed engine model draft memory policies acceptance steptime workload checks",
    "ModelSection": "config kv_cache_dtype tp_size hybrid_swa cache_window context_length",
    "DraftSection": "algorithm config num_steps eagle_topk num_draft_tokens enable_multi_layer_eagle num_layers "
    "num_swa_layers swa_attention_layer_ids full_attention_layer_ids mtp_layer_id_is_depth",
    "MemorySection": "gpu hbm weights draft_weights overhead mem_fraction_static kv_bytes page_size "
    "swa_full_tokens_ratio max_total_tokens max_running_requests chunked_prefill_size max_prefill_tokens "
    "swa_eviction_interval disable_radix_cache disable_overlap_schedule enable_mixed_chunk",
    "PoliciesSection": "routing faults retraction engine_faults schedule_conservativeness",
}


def test_the_schema_lists_every_key_with_a_description() -> None:
    made = simkv.schema()
    json.dumps(made, allow_nan=False)
    for section, keys in SECTIONS.items():
        node = made["$defs"][section] if section else made
        assert set(keys.split()) <= set(node["properties"]), section
        assert node["additionalProperties"] is False
        for key, entry in node["properties"].items():
            if section:
                assert entry.get("description"), f"{section}.{key}"


def test_to_dict_is_a_scenario_again() -> None:
    one = simkv.load(document(draft=EAGLE, acceptance={"kind": "fixed", "length": 2}))
    again = simkv.load(one.to_dict())
    assert again.to_dict() == one.to_dict()
    assert again.plan() == one.plan()
    assert json.loads(json.dumps(one.to_dict())) == one.to_dict()


def settings_of(**sections: Any) -> Any:
    return simkv.load(document(**sections)).resolved.settings


def test_defaults_follow_the_engine() -> None:
    none = {"max_running_requests": None, "chunked_prefill_size": None}
    plain = settings_of(memory=none)
    assert plain.max_running_requests is None
    assert (plain.page_size, plain.max_prefill_tokens, plain.swa_eviction_interval) == (1, 16384, 128)
    assert settings_of(memory=none, draft=EAGLE).max_running_requests == 48
    assert settings_of(memory={**none, "max_running_requests": "pool"}, draft=EAGLE).max_running_requests is None
    assert settings_of(memory={"max_running_requests": 7}, draft=EAGLE).max_running_requests == 7


@pytest.mark.parametrize(("gib", "chunk"), [(16, 2048), (24, 4096), (48, 4096), (80, 8192), (141, 8192), (180, 16384)])
def test_the_default_chunk_follows_the_memory_of_the_gpu(gib: int, chunk: int) -> None:
    memory = {"kv_bytes": None, "hbm": f"{gib}GiB", "weights": "1GiB", "chunked_prefill_size": None}
    assert settings_of(memory=memory).chunked_prefill_size == chunk
    assert settings_of(memory={**memory, "chunked_prefill_size": 64}).chunked_prefill_size == 64
    assert settings_of(memory={**memory, "chunked_prefill_size": -1}).chunk is None


def test_without_a_gpu_the_default_chunk_is_the_small_one() -> None:
    assert settings_of(memory={"chunked_prefill_size": None}).chunked_prefill_size == 4096


def test_the_ratio_is_that_of_the_model() -> None:
    assert settings_of(model={"config": HYBRID}).swa_full_tokens_ratio == 0.8
    assert settings_of(model={"config": HYBRID}, memory={"swa_full_tokens_ratio": 0.3}).swa_full_tokens_ratio == 0.3
    assert simkv.load("inkling-agents").resolved.settings.swa_full_tokens_ratio == 0.1


def test_the_static_fraction_is_the_engines_heuristic() -> None:
    # 80 GiB, chunk 8192, 4 requests: 512 + 1.5 * 8192 + 1024 / 8 + 2 * 4 + 8 MiB a prefill graph, of which there are
    # 8 + 14 + 8 + 8 + 12 + 8 = 58 up to 8192 tokens.
    memory = {"kv_bytes": None, "hbm": "80GiB", "weights": "10GiB", "chunked_prefill_size": None}
    reserved = 512 + 1.5 * 8192 + 128 + 8 + 8 * 58
    fraction = round((81920 - reserved) / 81920, 3)
    one = simkv.load(document(memory=memory))
    assert any(f"mem_fraction_static is {fraction}" in note for note in one.resolved.notes)
    assert one.plan().kv_bytes == pytest.approx(80 * GIB * fraction - 10 * GIB, abs=2)


def test_the_budget_of_stated_figures() -> None:
    memory = {
        "kv_bytes": None,
        "hbm": "100GB",
        "weights": "10GB",
        "draft_weights": "1GB",
        "overhead": "2GB",
        "mem_fraction_static": 0.75,
    }
    # 100 - 13 free after loading, less the 25 outside the static fraction.
    assert simkv.plan(document(memory=memory)).kv_bytes == pytest.approx(62 * 10**9, abs=2)


@pytest.mark.parametrize("name", simkv.builtin_names())
def test_a_built_in_scenario_loads_sizes_and_runs(name: str) -> None:
    one = simkv.load(name)
    assert one.name == name
    assert one.document.description
    assert one.plan().infeasible is None
    run = simkv.simulate(one.override("workload.num_requests=12", "checks={}"), check_every=1)
    assert run.fault is None
    assert run.summary["requests.injected"] == 12
    assert run.summary["requests.completed"] + run.summary["requests.refused"] == 12
    assert run.exit_code == 0


def test_built_in_scenarios_cover_the_folder() -> None:
    folder = Path(simkv.__file__).resolve().parent.parent / "scenarios"
    if folder.is_dir():
        assert simkv.builtin_names() == sorted(path.stem for path in folder.glob("*.toml"))
    assert len(simkv.builtin_names()) >= 7


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = [(None, key) for key in SECTIONS[""].split()] + [
    (section.removesuffix("Section").lower(), key)
    for section in SECTIONS
    if section
    for key in SECTIONS[section].split()
]


@given(VALUES, st.sampled_from(KEYS))
def test_any_value_of_any_key_is_taken_or_refused_by_name(value: Any, place: tuple[str | None, str]) -> None:
    section, key = place
    data = document(draft=dict(EAGLE), policies={})
    if section is None:
        data[key] = value
    else:
        data[section] = {**data[section], key: value}
    try:
        simkv.load(data)
    except UserError as error:
        assert error.problems
        assert all(p.message for p in error.problems)


# Sizes beyond what a machine word holds ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "key"),
    [("model", "context_length"), ("memory", "page_size"), ("memory", "max_total_tokens"), ("memory", "kv_bytes")],
)
def test_a_number_no_server_has_is_refused(section: str, key: str) -> None:
    assert set(problems(changed(section, key, 10**30))) == {f"{section}.{key}"}


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"rate": 1e-300}, "workload"),
        ({"num_requests": 10**30}, "workload.num_requests"),
        ({"input_tokens": {"kind": "lognormal", "median": 1e300, "sigma": 1}}, "workload.input_tokens"),
        ({"output_tokens": 10**30}, "workload.output_tokens.value"),
    ],
)
def test_a_workload_beyond_all_bounds_is_refused(changes: dict[str, Any], place: str) -> None:
    assert set(problems(document(workload={**WORK, **changes}), run=True)) == {place}


@pytest.mark.parametrize(("text", "hint"), [("60G", "GB or GiB"), ("1.5", "unit"), ("5M", "MB or MiB")])
def test_bytes_without_their_unit_get_a_hint(text: str, hint: str) -> None:
    assert hint in problems(document(memory={"kv_bytes": text}))["memory.kv_bytes"]


# What clients ask for ----------------------------------------------------------------------------------------------


def test_clients_ask_for_one_length_and_stop_by_themselves() -> None:
    work = {**WORK, "output_tokens": {"kind": "empirical", "values": [3, 50], "weights": [1, 1]}, "max_new_tokens": 20}
    made = simkv.load(document(workload={**work, "num_requests": 40})).workload()
    assert made.max_new_tokens is not None
    assert set(made.max_new_tokens.tolist()) == {20}
    assert set(made.output_tokens.tolist()) == {3, 20}
    cut = int((made.output_tokens == 20).sum())
    assert made.info.notes == (f"{cut} of 40 outputs end at workload.max_new_tokens = 20",)


@pytest.mark.parametrize("how", ["clip", "drop"])
def test_what_was_fitted_to_the_context_is_not_refused(how: str) -> None:
    # The front end counts 4 draft slots: 100 + 4 + 30 > 128.
    work = {**WORK, "input_tokens": 100, "output_tokens": 30, "on_oversize": how}
    one = simkv.load(document(model={"context_length": 128}, draft=EAGLE, workload=work))
    run = simkv.simulate(one)
    assert run.summary["requests.refused"] == 0
    assert run.summary["requests.injected"] == (5 if how == "clip" else 0)
    assert set(run.requests["output_tokens"]) <= {24}


def test_an_empty_file_says_all_that_is_missing() -> None:
    assert set(problems({})) == {"model", "memory"}
    assert set(problems({"schema": 2, "nam": "x"})) == {"model", "memory", "schema", "nam"}


def test_a_folder_beside_the_scenario_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "s.toml").write_text(TEXT.replace("m.json", "mine"))
    monkeypatch.chdir("/")
    one = simkv.load(tmp_path / "s.toml")
    assert one.plan().model == "mine"
    assert simkv.load(one.to_dict()).plan().max_total_num_tokens == MIB // 256
