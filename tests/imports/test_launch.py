"""Launch commands as scenarios: flags, values, defaults, refusals, against the engine's own launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import environment
import launch_cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simkv
from simkv.engines.sglang.backends import PLATFORMS
from simkv.engines.sglang.command import read_command
from simkv.engines.sglang.flags import engine_flags, read_flags
from simkv.errors import ScenarioError, UserError
from simkv.hardware import GPUS
from simkv.imports.launch import import_launch

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "oracle"
ORACLE = ROOT / "tests" / "conformance" / "oracle"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def refused(command: str | list[str], **kwargs: Any) -> dict[str, str]:
    """Places and messages of a refusal."""
    with pytest.raises(UserError) as caught:
        import_launch(command, **{"gpu": "h100", **kwargs})
    return {problem.place: problem.message for problem in caught.value.problems}


LLAMA = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct"


# ------------------------------------------------------------------------------------------------------- the flag table
def test_the_table_holds_exactly_the_engines_flags() -> None:
    theirs = {tuple(row["names"]): row["takes"] for row in rows("flags.jsonl")}
    ours = {flag.names: flag.takes for flag in engine_flags()}
    assert ours == theirs
    assert len(engine_flags()) == len(theirs) == 531


def test_every_flag_says_what_it_does() -> None:
    for flag in engine_flags():
        assert (flag.use == "used") == bool(flag.key), flag
        assert flag.use == "used" or flag.why, flag
        assert (flag.use == "refused") == bool(flag.remedy), flag
        assert flag.use == "refused" or not flag.harmless, flag


def test_the_engines_defaults_are_harmless() -> None:
    defaults = {row["names"][0]: row["default"] for row in rows("flags.jsonl")}
    for flag in engine_flags():
        default = defaults[flag.name]
        if flag.use == "refused" and default not in (None, False):
            assert str(default) in flag.harmless, flag


def test_every_gpu_has_a_platform() -> None:
    assert set(PLATFORMS) == set(GPUS)


def test_the_engine_still_has_these_flags_and_answers() -> None:
    """Asks the engine itself, where its environment is named; some 20 s."""
    if not os.environ.get("SIMKV_ORACLE"):
        pytest.skip("SIMKV_ORACLE does not name the engine's environment (tests/conformance/oracle/README.md)")
    try:
        python = environment.find()
    except environment.Unavailable as reason:
        pytest.skip(str(reason))
    told = subprocess.run([python, ORACLE / "flags.py"], capture_output=True, text=True, check=True, timeout=300)
    assert [json.loads(line) for line in told.stdout.splitlines()] == rows("flags.jsonl")
    asked = "\n".join(json.dumps(launch_cases.question(*case)) for case in launch_cases.CASES)
    told = subprocess.run(
        [python, ORACLE / "launches.py"], input=asked, capture_output=True, text=True, check=True, timeout=600
    )
    assert [json.loads(line) for line in told.stdout.splitlines()] == rows("launches.jsonl")


# --------------------------------------------------------------------------------------------- as the engine resolves it
ANSWERS = rows("launches.jsonl")


def test_the_answers_are_those_of_the_questions() -> None:
    asked = [launch_cases.question(*case) for case in launch_cases.CASES]
    assert [(a["model"], a["gpu"], a["argv"]) for a in ANSWERS] == [(q["model"], q["gpu"], q["argv"]) for q in asked]
    assert sum("refused" in answer for answer in ANSWERS) == 4


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: f"{a['model']} {a['gpu']} {' '.join(a['argv'][3:])}")
def test_the_engine_resolves_the_same(answer: dict[str, Any]) -> None:
    assert launch_cases.differences(answer) == []


@pytest.mark.parametrize("case", rows("launch_sizes.jsonl"), ids=lambda case: case["name"])
def test_the_engine_sizes_the_same(case: dict[str, Any]) -> None:
    """Pools of the engine's own sizing classes, for the arguments its launcher resolved and the bytes simkv budgets."""
    line = case["launch"]
    names = {"MODEL": line["model"], "DRAFT": line["draft"]}
    scenario = import_launch([names.get(w, w) for w in line["argv"]], gpu=line["gpu"], weights="20GiB").scenario
    assert scenario.resolved.budget.kv == case["input"]["available_bytes"]
    plan, wanted = scenario.plan().to_dict(), case["result"]
    assert plan["bytes_per_token"] == wanted["cell_size"]
    for name in ("configurator", "max_total_num_tokens", "swa_max_total_num_tokens", "max_running_requests"):
        assert plan[name] == wanted[name]


def test_a_difference_would_be_seen() -> None:
    answer = json.loads(json.dumps(next(a for a in ANSWERS if "resolved" in a)))
    answer["resolved"]["page_size"] = 17
    assert launch_cases.differences(answer) == ["page_size: 1 here, 17 there"]


# ------------------------------------------------------------------------------------------------------------ the shell
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python -m sglang.launch_server --model-path a --tp 2", ["--model-path", "a", "--tp", "2"]),
        ("python3.11 -u -m sglang.launch_server \\\n  --model-path a \\\n  --tp 2", ["--model-path", "a", "--tp", "2"]),
        ("sglang serve org/a --tp=2", ["--model-path", "org/a", "--tp=2"]),
        ("/venv/bin/sglang serve --model-type llm --model-path a", ["--model-path", "a"]),
        ("python /x/sglang/launch_server.py --model-path a", ["--model-path", "a"]),
        ("docker run --gpus all --rm img:tag python3 -m sglang.launch_server --model a", ["--model", "a"]),
        ("srun -N 2 --mpi=pmix bash -c 'python -m sglang.launch_server --model a'", ["--model", "a"]),
        ("nohup python -m sglang.launch_server --model a > server.log 2>&1 &", ["--model", "a"]),
        ("python -m sglang.launch_server --model a --tp 2 2>&1 | tee log", ["--model", "a", "--tp", "2"]),
        ("cd /srv && python -m sglang.launch_server --model a; echo done", ["--model", "a"]),
        ("# the big one\npython -m sglang.launch_server --model a  # here", ["--model", "a"]),
        (
            """python -m sglang.launch_server --model a --chat-template "x > y # z" """,
            ["--model", "a", "--chat-template", "x > y # z"],
        ),
        ("M=org/a\nTP=4\npython -m sglang.launch_server --model $M --tp ${TP}", ["--model", "org/a", "--tp", "4"]),
        ("--model-path a --tp 2", ["--model-path", "a", "--tp", "2"]),
    ],
)
def test_commands_as_people_keep_them(text: str, words: list[str]) -> None:
    assert list(read_command(text).words) == words


def test_the_environment_of_a_command() -> None:
    text = "export SGLANG_A=1\nSGLANG_B=2 docker run -e SGLANG_C=3 --env SGLANG_D=4 --env=SGLANG_E=5 img sglang serve a"
    assert dict(read_command(text).env) == {f"SGLANG_{name}": str(n) for n, name in enumerate("ABCDE", start=1)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ls -la",
        "python -m vllm.entrypoints.openai.api_server --model a",
        "python -m sglang.launch_server --model a; python -m sglang.launch_server --model b",
        "python -m sglang.launch_server --model 'a",
        "sglang serve a --model-type diffusion",
    ],
)
def test_what_is_no_server_is_an_error(text: str) -> None:
    assert set(refused(text)) == {"command"}


@pytest.mark.parametrize("command", [5, None, [1, 2], {"a": 1}])
def test_a_command_of_another_type_is_an_error(command: Any) -> None:
    assert set(refused(command)) == {"command"}


# ---------------------------------------------------------------------------------------------------------- flags, values
def test_flags_are_split_as_argparse_does() -> None:
    found, problems = read_flags(["--tp", "2", "--cuda-graph-bs-decode", "1", "2", "--port=-1", "--trust-remote-code"])
    assert not problems
    told = [(one.flag.name, one.word, one.values) for one in found]
    assert told == [
        ("--tp-size", "--tp", ("2",)),
        ("--cuda-graph-bs-decode", "--cuda-graph-bs-decode", ("1", "2")),
        ("--port", "--port", ("-1",)),
        ("--trust-remote-code", "--trust-remote-code", ()),
    ]
    assert read_flags(["--chunked-prefill-size", "-1"])[0][0].values == ("-1",)


def test_every_bad_flag_is_told_at_once() -> None:
    told = refused(f"{LLAMA} --tensor 2 --tp-siez 4 --cuda-graph-max 8 --disable-radix-cache=1 --page-size x --tp-size")
    assert "did you mean --tp-size?" in told["--tp-siez"]
    assert "may mean --cuda-graph-max-bs-decode" in told["--cuda-graph-max"]
    assert "is a switch" in told["--disable-radix-cache"]
    assert told["--page-size"] == "'x' is not an integer"
    assert told["--tp-size"] == "lacks its value"
    assert "--tensor" not in told  # a beginning that one flag has
    assert refused(f"{LLAMA} stray")["stray"].startswith("is no flag")


def test_the_last_of_several_counts_and_is_told() -> None:
    found = import_launch(f"{LLAMA} --tp 2 --tensor-parallel-size 4", gpu="h100")
    assert found.scenario.data["model"]["tp_size"] == 4
    assert any("--tp-size is given more than once" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "value"), [("8192", 8192), ("8k", 8000), ("25.6k", 25600), ("8Ki", 8192), ("1M", 10**6), ("1Mi", 1 << 20)]
)
def test_counts_as_the_engine_reads_them(text: str, value: int) -> None:
    assert (
        import_launch(f"{LLAMA} --max-total-tokens {text}", gpu="h100").scenario.data["memory"]["max_total_tokens"]
        == value
    )


@pytest.mark.parametrize("text", ["8K", "1.5Ki", "1e6", "", "many", "1_"])
def test_counts_that_the_engine_refuses(text: str) -> None:
    assert "is not an integer" in refused([*LLAMA.split()[3:], f"--max-total-tokens={text}"])["--max-total-tokens"]


def test_a_flag_sets_its_key() -> None:
    line = (
        f"{LLAMA} --tp-size 2 --kv-cache-dtype fp8_e4m3 --context-length 65536 --mem-fraction-static 0.8 --page-size 16 "
        "--max-total-tokens 200000 --max-running-requests 100 --chunked-prefill-size 4096 --max-prefill-tokens 32768 "
        "--prefill-max-requests 8 --schedule-conservativeness 0.5 --disable-radix-cache --disable-overlap-schedule "
        "--enable-mixed-chunk --swa-full-tokens-ratio 0.5 --disable-hybrid-swa-memory --served-model-name mine"
    )
    found = import_launch("SGLANG_SWA_EVICTION_INTERVAL=64 " + line, gpu="H100", weights="10GiB")
    data = found.scenario.data
    assert data["name"] == "mine"
    assert data["model"] == {
        "config": "llama-3.1-8b",
        "tp_size": 2,
        "kv_cache_dtype": "fp8_e4m3",
        "context_length": 65536,
        "hybrid_swa": False,
    }
    assert data["policies"] == {"schedule_conservativeness": 0.5}
    assert data["memory"] == {
        "gpu": "h100",
        "weights": "10GiB",
        "mem_fraction_static": 0.8,
        "page_size": 16,
        "max_total_tokens": 200000,
        "max_running_requests": 100,
        "chunked_prefill_size": 4096,
        "max_prefill_tokens": 32768,
        "prefill_max_requests": 8,
        "disable_radix_cache": True,
        "disable_overlap_schedule": True,
        "enable_mixed_chunk": True,
        "swa_full_tokens_ratio": 0.5,
        "swa_eviction_interval": 64,
    }
    told = {one.flag: one for one in found.flags}
    assert told["--tp-size"].key == "model.tp_size"
    assert told["SGLANG_SWA_EVICTION_INTERVAL"].key == "memory.swa_eviction_interval"
    assert {one.use for one in found.flags} == {"used"}
    # 2 x 8 x 128 x 32 B at one byte and two ranks; the cap is below what fits.
    plan = found.scenario.plan()
    assert (plan.bytes_per_token, plan.max_total_num_tokens) == (32768, 200_000)


def test_values_out_of_range_are_told_by_their_flags() -> None:
    told = refused(f"{LLAMA} --mem-fraction-static 1.5 --tp-size 0 --kv-cache-dtype int8 --max-running-requests -4")
    assert set(told) == {"--mem-fraction-static", "--tp-size", "--kv-cache-dtype", "--max-running-requests"}
    assert "1.5 is not in (0, 1)" in told["--mem-fraction-static"]


@pytest.mark.parametrize(
    "flag",
    [
        "--enable-hierarchical-cache",
        "--enable-hicache",
        "--enable-dp-attention",
        "--dp-size 2",
        "--pp 2",
        "--disaggregation-mode decode",
        "--enable-unified-memory",
        "--schedule-policy lpm",
        "--enable-priority-scheduling",
        "--kv-canary raise",
        "--kv-cache-dtype nvfp4",
        "--speculative-adaptive",
        "--radix-eviction-policy lfu",
        "--enable-lora",
        "--dtype float32",
        "--cpu-offload-gb 8",
        "--moe-a2a-backend deepep",
        "--config server.yaml",
        "--device cpu",
    ],
)
def test_what_is_not_modelled_is_refused_by_name(flag: str) -> None:
    told = refused(f"{LLAMA} {flag}")
    assert set(told) == {flag.split(maxsplit=1)[0]}


def test_a_refusal_says_why_and_what_to_do() -> None:
    told = refused(f"{LLAMA} --enable-hicache")["--enable-hicache"]
    assert "host memory" in told
    assert "leave it out" in told
    assert "--ignore --enable-hierarchical-cache" in told


def test_a_refused_flag_with_a_value_that_changes_nothing() -> None:
    found = import_launch(
        f"{LLAMA} --dp 1 --schedule-policy fcfs --disaggregation-mode null --dtype bfloat16", gpu="h100"
    )
    assert [one.use for one in found.flags if one.flag.startswith("--")] == ["used", *["no effect"] * 4]


def test_some_flags_are_harmless_once_their_effect_is_stated() -> None:
    weights = import_launch(f"{LLAMA} --cpu-offload-gb 8", gpu="h100", weights="8GiB")
    assert weights.flags[1].why == "the bytes of the weights are stated"
    fraction = import_launch(f"{LLAMA} --moe-a2a-backend deepep --mem-fraction-static 0.8", gpu="h100")
    assert fraction.flags[1].use == "no effect"
    assert import_launch(f"{LLAMA} --mamba-full-memory-ratio 0.5", gpu="h100").flags[1].use == "no effect"


def test_an_ignored_flag_is_told_loudly() -> None:
    found = import_launch(
        f"{LLAMA} --enable-hicache --enable-mtp x", gpu="h100", ignore=["--enable-hicache", "enable-mtp"]
    )
    assert [one.flag for one in found.flags if one.use == "ignored"] == ["--enable-mtp", "--enable-hierarchical-cache"]
    assert sum("is ignored as asked" in note for note in found.notes) == 2
    assert "# ignored, though it matters: --enable-hierarchical-cache" in found.toml
    assert "no flag of the command" in refused(LLAMA, ignore=["--enable-lora"])["--enable-lora"]


def test_variables_that_change_memory_are_refused() -> None:
    assert set(refused(f"SGLANG_TEST_RETRACT=1 {LLAMA}")) == {"SGLANG_TEST_RETRACT"}
    assert set(refused(f"SGLANG_SWA_EVICTION_INTERVAL=x {LLAMA}")) == {"SGLANG_SWA_EVICTION_INTERVAL"}
    assert set(refused(LLAMA, env={"SGLANG_RADIX_FORCE_MISS": "1"})) == {"SGLANG_RADIX_FORCE_MISS"}
    other = import_launch(f"SGLANG_USE_X=1 HF_HOME=/x {LLAMA}", gpu="h100")
    assert [one.flag for one in other.flags if one.use == "no effect"] == ["SGLANG_USE_X"]


# ---------------------------------------------------------------------------------------------------------- model, budget
def test_models_are_known_by_their_hugging_face_names() -> None:
    from simkv import catalogue

    known = catalogue.hf_ids()
    assert known["XiaomiMiMo/MiMo-V2-Flash"] == "mimo-v2-flash"
    assert set(known.values()) <= set(catalogue.names())
    assert len(known) == len({one.lower() for one in known})
    found = import_launch("sglang serve openai/GPT-OSS-120B", gpu="h100")
    assert found.scenario.data["model"]["config"] == "gpt-oss-120b"


def test_a_folder_name_is_taken_for_a_model_and_told() -> None:
    found = import_launch("sglang serve /models/gpt-oss-120b/", gpu="h100")
    assert found.scenario.data["model"]["config"] == "gpt-oss-120b"
    assert any("is not here: taken for the built-in model" in note for note in found.notes)


def test_an_unknown_model_needs_its_config(tmp_path: Path) -> None:
    told = refused("sglang serve org/unheard-of-7b")["--model-path"]
    assert "--config" in told
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_size": 512,
        "max_position_embeddings": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for form in (config, tmp_path / "config.json", str(tmp_path)):
        found = import_launch("sglang serve org/unheard-of-7b", gpu="l40s", config=form, weights="1GiB")
        # 2 layers x 2 heads x 64 x 2 (K, V) x 2 B
        assert found.scenario.plan().bytes_per_token == 1024
    here = import_launch(f"sglang serve {tmp_path}", gpu="l40s", weights="1GiB")
    assert here.scenario.plan().bytes_per_token == 1024
    # The file written elsewhere still finds the config.
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "s.toml").write_text(here.toml)
    assert simkv.plan(tmp_path / "sub" / "s.toml") == here.scenario.plan()
    assert set(refused("sglang serve x", config=config)) == {"--weights"}
    assert "--config" in refused("sglang serve x", config={"num_hidden_layers": -1})


def test_a_draft_that_is_built_in_is_offered() -> None:
    line = (
        "sglang serve openai/gpt-oss-120b --speculative-algorithm EAGLE3 --speculative-draft-model-path lmsys/EAGLE3-x"
    )
    told = refused(line)["--speculative-draft-model-path"]
    assert told.endswith("--draft-config; built in for gpt-oss-120b: draft-gpt-oss-120b-eagle3")
    assert (
        import_launch(line, gpu="h100", draft_config="draft-gpt-oss-120b-eagle3").scenario.plan().draft_layers["full"]
        == 1
    )


def test_heads_are_whole() -> None:
    assert "does not divide the 32 attention heads" in refused(f"{LLAMA} --tp 3")["--tp-size"]


def test_a_name_that_no_title_can_bear_is_told_by_its_flag() -> None:
    assert set(refused([*LLAMA.split()[3:], "--served-model-name", "a\u2028b"])) == {"--served-model-name"}


def test_a_refused_architecture_is_named() -> None:
    told = refused("sglang serve Qwen/Qwen3-Next-80B-A3B-Instruct --tp 8", gpu="h200")["--model-path"]
    assert "qwen3-next-80b-a3b holds what is not modelled yet" in told


def test_the_gpu_or_its_memory_is_needed() -> None:
    assert set(refused(LLAMA, gpu=None)) == {"--gpu"}
    assert set(refused(LLAMA, hbm="80GB")) == {"--gpu"}
    assert "did you mean h100" in refused(LLAMA, gpu="h10")["--gpu"]
    assert set(refused(LLAMA, gpu=None, hbm="much")) == {"--hbm"}
    found = import_launch(LLAMA, hbm="141GB")
    assert found.scenario.data["memory"]["chunked_prefill_size"] == 8192
    assert any("Hopper" in note for note in found.notes)


def test_quantization_decides_the_weights() -> None:
    plain = import_launch(LLAMA, gpu="h100").scenario.resolved.budget.weights
    found = import_launch(f"{LLAMA} --quantization fp8 --tp 2", gpu="h100").scenario.resolved.budget.weights
    # 8,030,261,248 weights; two tables of 128,256 x 4,096 stay at two bytes, the rest takes one.
    tables = 2 * 128_256 * 4_096
    assert plain == 2 * 8_030_261_248
    assert found == (8_030_261_248 + tables) // 2
    own = import_launch("sglang serve openai/gpt-oss-120b --quantization mxfp4", gpu="h100")
    assert any("checkpoint's own" in note for note in own.notes)
    assert "state --weights" in refused(f"{LLAMA} --quantization awq")["--quantization"]


def test_a_context_beyond_the_models_needs_the_engines_consent() -> None:
    assert set(refused(f"{LLAMA} --context-length 200000")) == {"--context-length"}
    env = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    found = import_launch(f"{LLAMA} --context-length 200000", gpu="h100", env=env)
    assert found.scenario.data["model"]["context_length"] == 200_000


def test_the_backend_aiter_takes_a_part_of_the_fraction() -> None:
    found = import_launch(f"{LLAMA} --mem-fraction-static 0.8", gpu="mi300x")
    assert found.scenario.data["memory"]["mem_fraction_static"] == pytest.approx(0.68)
    short = import_launch(f"{LLAMA} --mem-fraction-static 0.8 --context-length 8192", gpu="mi300x")
    assert short.scenario.data["memory"]["mem_fraction_static"] == 0.8


# -------------------------------------------------------------------------------------------------------------- speculation
MIMO = "sglang serve XiaomiMiMo/MiMo-V2-Flash --tp 8 --speculative-algorithm"


def test_mtp_heads_and_separate_drafts() -> None:
    own = import_launch(f"{MIMO} EAGLE", gpu="h200").scenario
    assert own.data["draft"] == {"algorithm": "EAGLE"}
    assert own.resolved.settings.spec.enable_multi_layer_eagle is True
    named = import_launch(f"{MIMO} EAGLE --speculative-draft-model-path XiaomiMiMo/MiMo-V2-Flash", gpu="h200").scenario
    # The same checkpoint by name: the budget then counts one MTP layer.
    assert named.data["draft"]["config"] == "mimo-v2-flash"
    assert named.plan().draft_layers == {"full": 0, "swa": 1, "swa_full": 0}
    assert own.plan().draft_layers == {"full": 0, "swa": 0, "swa_full": 0}
    given = import_launch(f"{LLAMA} --speculative-algorithm EAGLE3", gpu="h100", draft_config="draft-llama3-8b-eagle3")
    assert given.scenario.resolved.settings.spec.eagle_topk == 4


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("--speculative-algorithm EAGEL", "--speculative-algorithm"),
        ("--speculative-algorithm UNO", "--speculative-algorithm"),
        ("--speculative-algorithm EAGLE3", "--speculative-draft-model-path"),
        ("--speculative-algorithm DFLASH --speculative-draft-model-path org/none", "--speculative-draft-model-path"),
        ("--speculative-algorithm EAGLE --speculative-eagle-topk 4", "--speculative-num-steps"),
        (
            "--speculative-algorithm DSPARK --speculative-draft-model-path draft-qwen3-8b-dspark "
            "--speculative-dspark-block-size 7 --speculative-num-draft-tokens 7",
            "--speculative-dspark-block-size",
        ),
        ("--speculative-algorithm NGRAM --page-size 64", "--speculative-ngram-max-bfs-breadth"),
        (
            "--speculative-algorithm NGRAM --speculative-draft-kv-cache-dtype fp8_e4m3",
            "--speculative-draft-kv-cache-dtype",
        ),
    ],
)
def test_wrong_drafts(line: str, flag: str) -> None:
    assert set(refused(f"{LLAMA} {line}")) == {flag}


def test_draft_flags_without_an_algorithm_do_nothing() -> None:
    found = import_launch(f"{LLAMA} --speculative-num-steps 3 --speculative-draft-model-path x", gpu="h100")
    assert [one.use for one in found.flags[1:3]] == ["no effect", "no effect"]
    assert "draft" not in found.scenario.data


# ------------------------------------------------------------------------------------------------------------- the result
def test_the_file_is_the_scenario(tmp_path: Path) -> None:
    for answer in ANSWERS:
        if "resolved" in answer:
            names = {"MODEL": answer["model"], "DRAFT": answer["draft"]}
            found = import_launch([names.get(w, w) for w in answer["argv"]], gpu=answer["gpu"], weights="20GiB")
            (tmp_path / "s.toml").write_text(found.toml)
            assert simkv.load(tmp_path / "s.toml").data == found.scenario.data


def test_an_override_is_written_too() -> None:
    found = import_launch(LLAMA, gpu="h100").override("memory.overhead=2GiB", because="mine")
    assert found.scenario.document.memory.overhead == 2 << 30
    assert 'overhead = "2GiB"  # mine' in found.toml


def test_a_workload_of_another_scenario_runs() -> None:
    found = import_launch(LLAMA, gpu="h100", workload="retraction-storm")
    run = simkv.simulate(found.scenario.override("workload.num_requests=5"))
    assert run.summary["requests.completed"] == 5
    assert set(refused(LLAMA, workload="retraction-stomr")) == {"--workload"}


def test_html_is_escaped() -> None:
    found = import_launch([*LLAMA.split()[3:], "--served-model-name", "<b>x</b>"], gpu="h100")
    assert "<b>x</b>" not in found._repr_html_()
    assert "&lt;b&gt;x" in found._repr_html_()


NASTY = st.one_of(
    st.sampled_from([name for flag in engine_flags() for name in flag.names]),
    st.sampled_from(["0", "-1", "nan", "inf", "1e400", "", "None", "{}", "$X", "\0", "é", "--", "-", "=", "9" * 30]),
    st.text(max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(NASTY, max_size=8), st.sampled_from(["h100", "b200", "mi300x"]))
def test_any_words_are_a_launch_or_an_error_of_the_user(words: list[str], gpu: str) -> None:
    try:
        found = import_launch(["-m", "sglang.launch_server", "--model-path", "llama-3.1-8b", *words], gpu=gpu)
    except UserError as error:
        assert error.problems
        return
    assert tomllib.loads(found.toml) == found.scenario.data


@pytest.mark.parametrize("gpu", ["h100", "b200", "mi300x"])
@pytest.mark.parametrize("value", ["nan", "-1", "0", "x"])
def test_every_flag_with_a_value_that_is_none_is_a_launch_or_an_error_of_the_user(gpu: str, value: str) -> None:
    refused = 0
    for flag in engine_flags():
        try:
            import_launch(["-m", "sglang.launch_server", "--model-path", "qwen3-8b", flag.names[0], value], gpu=gpu)
        except UserError as error:
            assert error.problems
            refused += 1
    assert refused


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="abc '\"\\$&|;<>#=-\n", max_size=60))
def test_any_text_is_split_or_refused(text: str) -> None:
    try:
        read_command("python -m sglang.launch_server " + text)
    except ScenarioError as error:
        assert error.problems[0].place == "command"


def test_errors_come_in_one_order_whatever_the_hash_seed() -> None:
    script = (
        "import simkv\n"
        "config = {'architectures': ['X'], 'num_hidden_layers': 'a', 'head_dim': 'b', 'num_attention_heads': 'c'}\n"
        "try:\n"
        "    simkv.import_launch('sglang serve --model-path x --tp y --page-size z', gpu='h100', config=config)\n"
        "except simkv.errors.UserError as error:\n"
        "    print(error)\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1
    assert next(iter(told)).count("\n") > 3
