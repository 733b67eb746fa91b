"""Runs recorded results of SGLang's own classes through simkv and prints every difference.

Usage::

    run_cases.py FILE.jsonl[.gz] [--kind KIND] [--quiet]

Kinds ``sizing``, ``sizes``, ``draft_pool`` go through the public API (``simkv.plan``); ``schedule`` through the engine's
seam; ``decode`` and ``prefill`` through the memory below it, ``radix`` and ``allocator`` through tree and allocators,
these four with real slot ids. Cases with a setting that simkv does not simulate are counted as skipped, by the reason.
Exit 1 if any case fails, 2 if nothing ran.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import allocator_driver  # noqa: E402
from memory_driver import DecodeDriver, prefill  # noqa: E402
from schedule_driver import Driver  # noqa: E402
from tree_driver import TreeDriver  # noqa: E402

import simkv  # noqa: E402
from simkv.engines.sglang import reserve  # noqa: E402
from simkv.engines.sglang.settings import Spec  # noqa: E402

Case = dict[str, Any]


class Skip(Exception):
    """The case needs something simkv does not simulate yet."""


# ------------------------------------------------------------------------------------------------- scenarios
def hf_config(m: Case) -> Case:
    """A case's model in HF key names."""
    config: Case = {
        "architectures": ["CustomForCausalLM"],
        "num_hidden_layers": m["num_layers"],
        "num_attention_heads": m.get("num_heads", m["num_kv_heads"]),
        "num_key_value_heads": m["num_kv_heads"],
        "head_dim": m["head_dim"],
        "max_position_embeddings": m.get("context_len", 131072),
        "torch_dtype": "bfloat16",
    }
    for key in ("v_head_dim", "swa_head_dim", "swa_v_head_dim", "num_nextn_predict_layers", "mtp_local_layer_ids"):
        if m.get(key) is not None:
            config[key] = m[key]
    if "swa_num_kv_heads" in m:
        config["swa_num_key_value_heads"] = m["swa_num_kv_heads"]
    if m.get("swa_layer_ids"):
        sliding = set(m["swa_layer_ids"])
        config["layer_types"] = [
            "sliding_attention" if i in sliding else "full_attention" for i in range(m["num_layers"])
        ]
        config["sliding_window"] = m.get("sliding_window") or 1
    return config


TARGET_OF = {
    "InklingForConditionalGenerationMTP": "InklingForConditionalGeneration",
    "Step3p5MTP": "Step3p5ForCausalLM",
    "MiMoV2MTP": "MiMoV2FlashForCausalLM",
}
DTYPES = {"bf16": "bf16", "fp16": "auto", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}


def scenario(case: Case) -> Case:
    """A sizing or draft_pool input as a scenario."""
    m = case["model"]
    kv = case.get("kv_dtype", "bf16")
    if kv not in DTYPES:
        raise Skip(f"KV dtype {kv}, which no launch flag asks for")
    model: Case = {"config": hf_config(m), "kv_cache_dtype": DTYPES[kv], "tp_size": case.get("tp_size", 1)}
    memory: Case = {
        "kv_bytes": case["available_bytes"],
        "page_size": case.get("page_size", 1),
        "max_running_requests": case.get("max_running_requests", "pool"),
    }
    if m.get("swa_layer_ids"):
        model |= {"hybrid_swa": True, "cache_window": m["sliding_window"]}
    for key in ("swa_full_tokens_ratio", "max_total_tokens", "disable_radix_cache", "disable_overlap_schedule"):
        if key in case:
            memory[key] = case[key]
    chunk = case.get("chunked_prefill_size")
    memory["chunked_prefill_size"] = -1 if chunk is None or chunk <= 0 else chunk
    if "eviction_interval" in case:
        memory["swa_eviction_interval"] = max(1, case["eviction_interval"])
    if case.get("disaggregation_mode", "null") != "null":
        raise Skip("prefill/decode disaggregation")
    made: Case = {"model": model, "memory": memory}
    read_as = case.get("draft_model")
    if read_as is not None and is_mtp_head(read_as):
        # Path-less MTP: the draft's class and layer count are read from the target's own config.
        model["config"]["architectures"] = [TARGET_OF.get(read_as.get("architecture"), "CustomForCausalLM")]
        if read_as.get("num_nextn_predict_layers") is not None:
            model["config"]["num_nextn_predict_layers"] = read_as["num_nextn_predict_layers"]
    spec = case.get("spec") or {}
    if spec.get("algorithm"):
        made["draft"] = draft(case, spec)
    return made


def is_mtp_head(d: Case) -> bool:
    """Whether a case's draft model stands for MTP heads inside the target's checkpoint."""
    return bool(d.get("is_hybrid_swa")) and d.get("num_nextn_predict_layers") is not None


def draft(case: Case, spec: Case) -> Case:
    """The draft section: what the engine would read from a draft config is stated."""
    section: Case = {
        "algorithm": spec["algorithm"],
        "num_steps": spec["num_steps"],
        "eagle_topk": spec.get("topk", 1),
        "num_draft_tokens": spec["num_draft_tokens"],
        "enable_multi_layer_eagle": bool(spec.get("multi_layer", False)),
        "num_layers": case.get("eagle_draft_num_layers") or 0,
    }
    if case.get("eagle_draft_swa_num_layers") is not None:
        section["num_swa_layers"] = case["eagle_draft_swa_num_layers"]
    else:
        section["num_swa_layers"] = 0
    if spec["algorithm"] in ("DFLASH", "DSPARK"):
        raise Skip("DFLASH sizing needs a draft config the case does not give")
    d = case.get("draft_model")
    if d is not None and is_mtp_head(d):
        section["mtp_layer_id_is_depth"] = bool(d.get("mtp_layer_id_is_depth", False))
        section["swa_attention_layer_ids"] = d.get("swa_layer_ids") or []
        section["full_attention_layer_ids"] = d.get("full_layer_ids") or []
    elif d is not None:
        section["config"] = {**hf_config(d), "is_hybrid_swa": bool(d.get("is_hybrid_swa"))}
    return section


# ------------------------------------------------------------------------------------------------- kinds
def sizing(case: Case) -> Case:
    """Pool sizes, through the public API; a refusal of the allocator comes after them and is no part of the case."""
    plan = simkv.plan(simkv.load(scenario(case))).to_dict()
    hybrid = plan["layers"]["swa"] > 0
    out: Case = {"configurator": plan["configurator"], "cell_size": plan["bytes_per_token"]}
    if hybrid:
        out |= {
            "full_per_token": plan["full_bytes_per_token_layer"],
            "swa_per_token": plan["swa_bytes_per_token_layer"],
            "full_layers_num": plan["layers"]["full"],
            "swa_layers_num": plan["layers"]["swa"],
            "draft_full_layers_num": plan["draft_layers"]["full"],
            "draft_swa_layers_num": plan["draft_layers"]["swa"],
            "draft_swa_full_layers_num": plan["draft_layers"]["swa_full"],
        }
    if plan["infeasible"] is not None and plan["max_total_num_tokens"] is None:
        return out | {"error": plan["infeasible"]["engine_error"]}
    return out | {
        key: plan[key]
        for key in (
            "max_total_num_tokens",
            "full_max_total_num_tokens",
            "swa_max_total_num_tokens",
            "max_running_requests",
        )
    }


def sizing_expected(result: Case) -> Case:
    """The engine's internal cap is not a figure of the plan."""
    return {key: value for key, value in result.items() if key != "swa_cap"}


def sizes(case: Case) -> Case:
    """Lengths that follow from the speculative arguments alone."""
    s = case.get("spec") or {}
    page = case.get("page_size", 1)
    spec = Spec(s["algorithm"], s["num_steps"], s["topk"], s["num_draft_tokens"]) if s.get("algorithm") else None
    ahead = reserve.alloc_reserve_per_decode(spec, page)
    out: Case = {
        "alloc_len_per_decode": reserve.alloc_len_per_decode(spec, page),
        "alloc_reserve_per_decode": ahead,
        "req_to_token_extra_context_len": reserve.extra_context_len(spec, page),
        "spec_v1_alloc_len_per_request": reserve.spec_v1_alloc_len(spec, page),
    }
    if "reqs" in case:
        held = [allocated for _, allocated in case["reqs"]]
        after = [int(reserve.decode_alloc_len(c, a, ahead, page)) for c, a in case["reqs"]]
        out["decode_alloc_lens"] = [held, after, sum(after) - sum(held)]
    return out


def draft_pool(case: Case) -> Case:
    """Target and draft pools under the depth-owned rule, in the engine's own description."""
    made = scenario(case) | {"policies": {"routing": "depth-owned"}}
    # The recorded draft runners need not be num_steps of them: ask for as many as the deepest one.
    depths = case.get("draft_model_idx", [None])
    if depths != [None]:
        made["draft"] |= {
            "enable_multi_layer_eagle": True,
            "num_steps": max(depths) + 1,
            "num_draft_tokens": max(depths) + 2,
        }
    else:
        made["draft"]["enable_multi_layer_eagle"] = False
    plan = simkv.plan(simkv.load(made)).to_dict()
    if plan["infeasible"] is not None:
        return {"error": plan["infeasible"]["engine_error"]}
    page = case.get("page_size", 1)

    def pool(worker: str, name: str) -> Case | None:
        return next((p for p in plan["pools"] if p["worker"] == worker and p["pool"] == name and p["layers"]), None)

    def part(found: Case | None) -> Case:
        if found is None:
            return {"layers": 0, "bytes": 0, "rows": None}
        return {"size": found["tokens"], "layers": found["layers"], "bytes": found["bytes"], "rows": found["rows"]}

    split = plan["layers"]["swa"] > 0
    span = plan["full_max_total_num_tokens"] or plan["max_total_num_tokens"]
    drafts = []
    for depth in depths:
        worker = f"draft{depth or 0}"
        parts = {name: pool(worker, name) for name in ("full", "swa")}
        mappings = {p["mapping"] for p in parts.values() if p is not None}
        drafts.append(
            {
                "draft_model_idx": depth,
                "full": part(parts["full"]),
                "swa": part(parts["swa"]),
                "identity": "identity" in mappings,
                "targets": "target" in mappings,
            }
        )
    return {
        "config": {
            key: plan[key] for key in ("max_total_num_tokens", "full_max_total_num_tokens", "swa_max_total_num_tokens")
        },
        "target": {name: part(pool("target", name)) for name in (("full", "swa") if split else ("full",))},
        "mapping_len": span + page + 1 if split else None,
        "drafts": drafts,
    }


def draft_pool_expected(result: Case) -> Case:
    """The parts of the engine's description that a plan states."""
    if "error" in result:
        return {"error": result["error"]}

    def part(p: Case) -> Case:
        if not p["layers"]:
            return {"layers": 0, "bytes": 0, "rows": None}
        return {"size": p["size"], "layers": p["layers"], "bytes": p["bytes"], "rows": p["rows"]}

    def one(d: Case) -> Case:
        p = d["pool"]
        split = "full" in p
        return {
            "draft_model_idx": d["draft_model_idx"],
            "full": part(p["full"] if split else p),
            "swa": part(p["swa"]) if split else {"layers": 0, "bytes": 0, "rows": None},
            # The table of an all-SWA target happens to map every slot to itself.
            "identity": bool(split and p["mapping_is_identity"] and not d["mapping_is_targets"]),
            "targets": d["mapping_is_targets"],
        }

    target = result["target_pool"]
    split = "full" in target
    return {
        "config": result["config"],
        "target": {name: part(target[name]) for name in ("full", "swa")} if split else {"full": part(target)},
        "mapping_len": target["mapping_len"] if split else None,
        "drafts": [one(d) for d in result["drafts"]],
    }


def schedule(case: Case) -> Case:
    """The whole scheduler, step by step."""
    if case.get("schedule_policy", "fcfs") != "fcfs":
        raise Skip("a schedule policy other than fcfs")
    return Driver(case).run()


# The engine's own end of a run -> faults that explain it.
_ENDS = {"error": "the scheduler dies", "stuck": "nothing ever runs again"}


def schedule_compare(got: Case, want: Case) -> tuple[Case, Case, str]:
    """Equal in full; where the engine itself breaks, equal up to there and the fault named."""
    want = {key: value for key, value in want.items() if key not in ("req_fields", "pool_fields")}
    fault = got.pop("fault")
    note = ""
    if fault is not None:
        note = f"{_ENDS[got['end']]}: {fault}"
    if got["end"] == "error" and fault is not None:
        # simkv stops where the fault happens; the engine may run on with broken accounting before it dies.
        count = len(got["steps"])
        want = {**want, "steps": want["steps"][:count], "end": "error" if want["end"] == "error" else want["end"]}
        want["admitted"] = {rid: facts for rid, facts in want["admitted"].items() if rid in got["admitted"]}
    return got, want, note


def first_difference(got: Any, want: Any, path: str = "") -> str:
    """Path and both values of the first thing that differs."""
    if isinstance(got, dict) and isinstance(want, dict):
        for key in [*want, *(k for k in got if k not in want)]:
            if key not in got or key not in want or got[key] != want[key]:
                return first_difference(got.get(key), want.get(key), f"{path}.{key}")
    if isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        for place, (x, y) in enumerate(zip(got, want, strict=True)):
            if x != y:
                return first_difference(x, y, f"{path}[{place}]")
    return f"{path or '.'}: simkv {json.dumps(got)[:300]}, engine {json.dumps(want)[:300]}"


def _same(result: Case) -> Case:
    return result


KINDS: dict[str, tuple[Callable[[Case], Case], Callable[[Case], Case]]] = {
    "sizing": (sizing, sizing_expected),
    "sizes": (sizes, _same),
    "draft_pool": (draft_pool, draft_pool_expected),
    "allocator": (allocator_driver.run, _same),
    "replay": (allocator_driver.run, _same),
    "schedule": (schedule, _same),
    "decode": (lambda case: DecodeDriver(case).run(), _same),
    "prefill": (prefill, _same),
    "radix": (lambda case: TreeDriver(case).run(), lambda result: {"steps": result["steps"]}),
}


def sides(case: Case) -> tuple[Any, Any, str]:
    """What simkv and the engine say of one case, in comparable form, and a note; raises :class:`Skip`."""
    kind = case["kind"]
    if kind not in KINDS:
        raise Skip(f"kind {kind}")
    if case["input"].get("eviction_policy", "lru") != "lru":
        raise Skip("a radix eviction policy other than lru")
    if case["input"].get("draft_swa_window"):
        raise Skip("a fused draft, which widens the window")
    if kind == "schedule" and "steps" not in case["result"]:
        raise Skip("the engine refused to construct the case")
    run, expected = KINDS[kind]
    got, want, note = run(case["input"]), case["result"], ""
    if kind == "schedule":
        got, want, note = schedule_compare(got, want)
    else:
        want = expected(want)
    # Recorded results are JSON: compare in that form.
    return json.loads(json.dumps(got)), want, note


def check(case: Case) -> tuple[str | None, str]:
    """(difference or None, note) of one case; raises :class:`Skip`."""
    got, want, note = sides(case)
    return (None if got == want else first_difference(got, want)), note


def read(path: Path) -> Iterator[Case]:
    """Cases of a file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", choices=sorted(KINDS))
    parser.add_argument("--quiet", action="store_true", help="print no line for a named fault")
    options = parser.parse_args(argv)
    passed = failed = 0
    skipped: Counter[str] = Counter()
    for case in read(options.file):
        if options.kind is not None and case["kind"] != options.kind:
            continue
        try:
            difference, note = check(case)
        except Skip as reason:
            skipped[str(reason)] += 1
            continue
        except Exception as error:  # noqa: BLE001 - any crash is a failure of this case, the others go on
            difference, note = f"{type(error).__name__}: {error}", ""
        if difference is None:
            passed += 1
            if note and not options.quiet:
                print(f"{case['name']}: equal up to the engine's fault; {note}")
        else:
            failed += 1
            print(f"{case['name']}: {difference}")
    for reason, count in skipped.items():
        print(f"skipped {count}: {reason}")
    print(f"{passed} passed, {failed} failed")
    if failed:
        return 1
    return 0 if passed else 2


if __name__ == "__main__":
    sys.exit(main())
