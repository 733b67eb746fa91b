"""Drives SGLang 0.5.23's own memory classes on CPU and reports what they answer, as JSON.

    driver.py sizing  < description.json      one description in, one result out
    driver.py allocator < description.json
    driver.py draft_pool / radix / decode / prefill < description.json
    driver.py run cases_in.jsonl cases_out.jsonl     each line {"name","kind","input"} -> + "result"
    driver.py check cases.jsonl                      re-runs every case, compares with "result"

Everything that computes a number below is SGLang's; this file only builds the inputs and
reads the outputs. See README.md for the environment and for what is not the engine's own.
"""

import contextlib
import json
import logging
import os
import sys
import warnings
from types import SimpleNamespace

warnings.filterwarnings("ignore")
os.environ.setdefault("TRITON_INTERPRET", "1")  # one small kernel in `decode`; allocators use native torch
import stubs  # noqa: E402

stubs.install()
import torch  # noqa: E402
from sglang.srt.configs.model_config import AttentionArch, ModelConfig  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator  # noqa: E402
from sglang.srt.model_executor.model_runner_components.layer_setup import (  # noqa: E402
    ModelLayerInfo,
    resolve_layer_indices,
)
from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import (  # noqa: E402
    SpecAuxHiddenStateConfig,
)
from sglang.srt.model_executor.pool_configurator import create_memory_pool_configurator  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # noqa: E402

# The one method replaced: it only pre-compiles a Triton copy kernel, which needs a GPU driver.
MHATokenToKVPool._init_kv_copy_and_warmup = lambda self: None
logging.disable(logging.CRITICAL)
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp32": torch.float32,
}


def err(e):
    return {"error": type(e).__name__, "message": str(e)}


# --------------------------------------------------------------------------- configuration
@contextlib.contextmanager
def published(d):
    """Publish a real (dummy-model) ServerArgs with the fields the description names."""
    spec = d.get("spec") or {}
    fields = {"page_size": d.get("page_size", 1), "tp_size": d.get("tp_size", 1)}
    for key in (
        "swa_full_tokens_ratio",
        "max_running_requests",
        "max_total_tokens",
        "chunked_prefill_size",
        "disable_radix_cache",
        "disable_overlap_schedule",
        "disaggregation_mode",
        "disaggregation_decode_extra_slots",
        "context_length",
        "attention_backend",
    ):
        if key in d:
            fields[key] = d[key]
    for ours, theirs in (
        ("algorithm", "speculative_algorithm"),
        ("num_steps", "speculative_num_steps"),
        ("topk", "speculative_eagle_topk"),
        ("num_draft_tokens", "speculative_num_draft_tokens"),
        ("multi_layer", "enable_multi_layer_eagle"),
    ):
        if ours in spec:
            fields[theirs] = spec[ours]
    with contextlib.ExitStack() as st:
        st.enter_context(get_context().override_server_args(**fields))
        if "eviction_interval" in d:
            st.enter_context(envs.SGLANG_SWA_EVICTION_INTERVAL.override(d["eviction_interval"]))
        yield get_context().server_args


def make_model_config(m, *, draft=False):
    """A ModelConfig without a checkpoint: real class, so its head-splitting code is SGLang's."""
    mc = object.__new__(ModelConfig)
    swa_ids, full_ids = m.get("swa_layer_ids"), m.get("full_layer_ids")
    text = SimpleNamespace(
        num_key_value_heads=m["num_kv_heads"],
        model_type="llama",
        num_attention_heads=m.get("num_heads", m["num_kv_heads"]),
    )
    if "swa_num_kv_heads" in m:
        text.swa_num_key_value_heads = m["swa_num_kv_heads"]
    if "mtp_local_layer_ids" in m:
        text.mtp_local_layer_ids = m["mtp_local_layer_ids"]
    hf = SimpleNamespace(architectures=[m.get("architecture", "LlamaForCausalLM")], model_type="llama")
    hf.get_text_config = lambda: text
    attrs = dict(
        hf_config=hf,
        hf_text_config=text,
        head_dim=m["head_dim"],
        v_head_dim=m.get("v_head_dim", m["head_dim"]),
        swa_head_dim=m.get("swa_head_dim", m["head_dim"]),
        swa_v_head_dim=m.get("swa_v_head_dim", m.get("v_head_dim", m["head_dim"])),
        num_attention_heads=text.num_attention_heads,
        num_hidden_layers=m.get("num_layers", 0),
        num_attention_layers=m.get("num_layers", 0),
        num_nextn_predict_layers=m.get("num_nextn_predict_layers"),
        is_hybrid_swa=bool(m.get("is_hybrid_swa", swa_ids)),
        is_hybrid_swa_compress=False,
        swa_attention_layer_ids=swa_ids,
        full_attention_layer_ids=full_ids,
        sliding_window_size=m.get("sliding_window"),
        context_len=m.get("context_len", 131072),
        attention_arch=AttentionArch.MHA,
        linear_attn_registry_result=None,
        is_draft_model=draft,
        is_multimodal=False,
        quantization=None,
        dtype=torch.bfloat16,
    )
    for k, v in attrs.items():
        try:
            setattr(mc, k, v)
        except AttributeError:  # a read-only property of ModelConfig: leave the real one
            pass
    return mc


def make_kvc(
    d,
    sa,
    *,
    model_config=None,
    layer_info=None,
    is_draft=False,
    draft_model_idx=None,
    req_to_token_pool=None,
    allocator=None,
    memory_pool_config=None,
):
    m = d["model"]
    mc = model_config or make_model_config(m)
    spec = d.get("spec") or {}
    swa, full = m.get("swa_layer_ids"), m.get("full_layer_ids")
    n = m.get("num_layers", len(swa or []) + len(full or []))
    hybrid = bool(mc.is_hybrid_swa)
    info = layer_info or ModelLayerInfo(
        start_layer=0,
        end_layer=n,
        num_effective_layers=n,
        swa_attention_layer_ids=swa if hybrid else None,
        full_attention_layer_ids=full if hybrid else None,
    )
    return KVCacheConfigurator(
        device="cpu",
        gpu_id=0,
        attn_dp_size=1,
        pp_size=1,
        pp_group=SimpleNamespace(rank_in_group=0),
        model=None,
        model_config=mc,
        server_args=sa,
        kv_cache_dtype=DTYPES[d.get("kv_dtype", "bf16")],
        model_dtype=torch.bfloat16,
        page_size=d.get("page_size", 1),
        sliding_window_size=m.get("sliding_window"),
        spec_algorithm=SpeculativeAlgorithm.from_string(spec.get("algorithm")),
        is_draft_worker=is_draft,
        post_capture_kv_active=False,
        spec_aux_config=SpecAuxHiddenStateConfig(
            eagle_draft_num_layers=d.get("eagle_draft_num_layers"),
            eagle_draft_swa_num_layers=d.get("eagle_draft_swa_num_layers"),
        ),
        is_hybrid_swa=hybrid,
        is_hybrid_swa_compress=False,
        use_mla_backend=False,
        layer_info=info,
        forward_stream=None,
        req_to_token_pool=req_to_token_pool,
        token_to_kv_pool_allocator=allocator,
        memory_pool_config=memory_pool_config,
        draft_model_idx=draft_model_idx,
        kv_cache_dtype_str="auto",
    )


# --------------------------------------------------------------------------- 1. pool sizing
def sizing(d):
    with published(d) as sa:
        kvc = make_kvc(d, sa)
        out = {}
        try:
            cfgr = create_memory_pool_configurator(kvc)
            out["configurator"] = type(cfgr).__name__
            for k in (
                "_cell_size",
                "_full_per_token",
                "_swa_per_token",
                "_full_layers_num",
                "_swa_layers_num",
                "_draft_full_layers_num",
                "_draft_swa_layers_num",
                "_draft_swa_full_layers_num",
                "_swa_cap",
            ):
                if hasattr(cfgr, k):
                    out[k.strip("_")] = getattr(cfgr, k)
            c = kvc.config_from_budget(d["available_bytes"])
            for k in ("max_total_num_tokens", "full_max_total_num_tokens", "swa_max_total_num_tokens"):
                out[k] = getattr(c, k)
            out["max_running_requests"] = kvc.resolve_max_num_reqs(c.max_total_num_tokens)
        except Exception as e:  # noqa: BLE001  (what SGLang raises is the result)
            out.update(err(e))
        return out


# --------------------------------------------------------------------------- 2. allocators
def make_swa_pool(size, size_swa, page_size, *, full_layers=1, swa_layers=1):
    """SGLang's real SWAKVPool, one head of one element per layer, so that it fits anywhere."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    return SWAKVPool(
        size=size,
        size_swa=size_swa,
        page_size=page_size,
        dtype=torch.bfloat16,
        head_num=1,
        head_dim=1,
        swa_attention_layer_ids=list(range(full_layers, full_layers + swa_layers)),
        full_attention_layer_ids=list(range(full_layers)),
        device="cpu",
    )


def make_allocator(d):
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.swa import (
        PureSWATokenToKVPoolAllocator,
        SWATokenToKVPoolAllocator,
    )

    kind, size, ps = d["allocator"], d.get("size"), d.get("page_size", 1)
    common = dict(dtype=torch.bfloat16, device="cpu", need_sort=d.get("need_sort", False))
    if kind == "token":
        return TokenToKVPoolAllocator(size, kvcache=None, **common)
    if kind == "paged":
        return PagedTokenToKVPoolAllocator(size, page_size=ps, kvcache=None, **common)
    if kind == "swa":
        return SWATokenToKVPoolAllocator(
            size, d["size_swa"], page_size=ps, kvcache=make_swa_pool(size, d["size_swa"], ps), **common
        )
    if kind == "pure_swa":
        return PureSWATokenToKVPoolAllocator(
            d["size_swa"], page_size=ps, kvcache=make_swa_pool(0, d["size_swa"], ps, full_layers=0), **common
        )
    raise ValueError(kind)


def free_list(a):
    return {
        "free_pages": a.free_pages.tolist(),
        "held_back": (
            a.release_pages.tolist()
            if getattr(a, "release_pages", None) is not None
            else [x for t in getattr(a, "staged_pages", []) for x in t.tolist()]
        ),
    }


def alloc_state(a):
    if hasattr(a, "full_attn_allocator"):
        return {
            "available": a.available_size(),
            "full_available": a.full_available_size(),
            "swa_available": a.swa_available_size(),
            "full": free_list(a.full_attn_allocator),
            "swa": free_list(a.swa_attn_allocator),
        }
    return {"available": a.available_size(), **free_list(a)}


def alloc_op(a, op):
    name, ids = op["op"], torch.tensor(op.get("ids", []), dtype=torch.int64)
    if name == "alloc":
        return a.alloc(op["n"])
    if name in ("alloc_extend", "alloc_extend_swa_tail"):
        pre, seq = (torch.tensor(op[k], dtype=torch.int64) for k in ("prefix_lens", "seq_lens"))
        args = [pre, pre, seq, seq, torch.tensor(op["last_loc"], dtype=torch.int64), int((seq - pre).sum())]
        if name == "alloc_extend_swa_tail":
            args.append(op["swa_tail_len"])
        return getattr(a, name)(*args)
    if name == "alloc_decode":
        seq = torch.tensor(op["seq_lens"], dtype=torch.int64)
        return a.alloc_decode(seq, seq, torch.tensor(op["last_loc"], dtype=torch.int64))
    if name in ("free", "free_swa", "free_full"):
        return getattr(a, name)(ids)
    if name in ("free_segment", "free_swa_segment", "free_full_segment"):
        return getattr(a, name)(ids, start_pos=op["start_pos"])
    if name == "move":  # as the prefix cache does (unified_cache/components/swa.py:326-329)
        incoming = torch.tensor(op["incoming"], dtype=torch.int64)
        peers = a.translate_loc_from_full_to_swa(incoming)
        a.clear_full_to_swa_mapping(incoming)
        return a.set_full_to_swa_mapping(ids, peers)
    if name in ("free_group_begin", "free_group_end", "clear", "merge_and_sort_free"):
        return getattr(a, name)()
    raise ValueError(name)


def allocator(d):
    with published({"page_size": d.get("page_size", 1)}), contextlib.ExitStack() as st:
        if d.get("invariant_check"):
            st.enter_context(envs.SGLANG_INVARIANT_CHECK.override(d["invariant_check"]))
        a = make_allocator(d)
        steps = [{"op": "init", **alloc_state(a)}]
        for op in d["ops"]:
            step = {"op": op["op"]}
            try:
                r = alloc_op(a, op)
                step["returned"] = r.tolist() if isinstance(r, torch.Tensor) else r
                if isinstance(r, torch.Tensor) and hasattr(a, "full_to_swa_index_mapping"):
                    step["swa_of_returned"] = a.translate_loc_from_full_to_swa(r).tolist()
            except Exception as e:  # noqa: BLE001
                step.update(err(e))
            step.update(alloc_state(a))
            steps.append(step)
        return {"steps": steps}


# --------------------------------------------------------------------------- 3. radix cache
def toks(x):
    """Token ids: a list, or {"range": [a, b]} for a..b-1, or {"cat": [...]} of those."""
    if isinstance(x, dict) and "range" in x:
        return list(range(*x["range"]))
    if isinstance(x, dict) and "cat" in x:
        return [t for part in x["cat"] for t in toks(part)]
    return list(x)


def make_tree(d, alloc, req_to_token_pool=None):
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    rtp = req_to_token_pool or ReqToTokenPool(
        size=d.get("max_reqs", 8), max_context_len=d.get("context_len", 1024), device="cpu", enable_memory_saver=False
    )
    pure = d["allocator"] == "pure_swa"
    comps = {"swa": (ComponentType.FULL, ComponentType.SWA)}.get(d["allocator"], (ComponentType.FULL,))
    params = CacheInitParams(
        disable=d.get("disable_radix_cache", False),
        req_to_token_pool=rtp,
        token_to_kv_pool_allocator=alloc,
        page_size=d.get("page_size", 1),
        is_eagle=d.get("is_eagle", False),
        sliding_window_size=d.get("window"),
        draft_swa_window=d.get("draft_swa_window", 0),
        eviction_policy=d.get("eviction_policy", "lru"),
        chunked_prefill_size=d.get("chunked_prefill_size"),
        tree_components=None if pure else comps,
        tree_core_backend=None if pure else d.get("core", "python"),
    )
    if pure:
        from sglang.srt.mem_cache.pure_swa_radix_cache import PureSWARadixCache

        return PureSWARadixCache(params), rtp
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    return UnifiedRadixCache(params), rtp


def alloc_tokens(a, n):
    """n fresh slots for one new sequence, the way SGLang allocates them for that page size."""
    if a.page_size == 1:
        return a.alloc(n)
    z = torch.zeros(1, dtype=torch.int64)
    t = torch.tensor([n], dtype=torch.int64)
    return a.alloc_extend(z, z, t, t, torch.tensor([-1]), n)


def tree_state(tree, a):
    out = {"full_evictable": tree.full_evictable_size(), "full_protected": tree.full_protected_size()}
    if tree.supports_swa():
        out.update(
            swa_evictable=tree.swa_evictable_size(),
            swa_protected=tree.swa_protected_size(),
            full_available=a.full_available_size(),
            swa_available=a.swa_available_size(),
        )
    else:
        out["available"] = a.available_size()
    return out


def radix(d):
    from array import array

    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    with published({"page_size": d.get("page_size", 1)}):
        a = make_allocator(d)
        tree, _ = make_tree(d, a)
        ps, locks, steps = d.get("page_size", 1), {}, []

        def match(t):
            return tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", t))))

        for op in d["ops"]:
            step = {"op": op["op"]}
            try:
                if op["op"] == "insert":
                    # a finished request holding its own slots for the whole sequence
                    t = toks(op["tokens"])
                    slots = alloc_tokens(a, len(t))
                    step["slots"] = None if slots is None else slots.tolist()
                    if slots is not None:
                        ev = op.get("swa_evicted", 0)
                        if ev:
                            a.free_swa_segment(slots[:ev], start_pos=0)
                        # a speculative tree's keys are pairs of tokens, one fewer than tokens
                        key = RadixKey(array("q", t), is_bigram=d.get("is_eagle", False)).page_aligned(ps)
                        p = InsertParams(key=key, value=slots[: len(key)].clone())
                        if ev:
                            p.set_evicted_seqlen(ComponentType.SWA, ev)
                        held = len(key)
                        r = tree.insert(p)
                        step["prefix_len"] = r.prefix_len
                        if d.get(
                            "free_duplicates"
                        ):  # the plain tree (all-SWA) leaves what it had already to its caller
                            a.free_segment(slots[: r.prefix_len], start_pos=0)
                        if held < len(t):  # the unaligned tail is the request's to free
                            a.free(slots[held:])
                elif op["op"] == "match":
                    r = match(toks(op["tokens"]))
                    step.update(
                        device_prefix_len=r.device_prefix_len,
                        full_kv_hit_length=r.full_kv_hit_length,
                        swa_branching_seqlen=r.swa_branching_seqlen,
                        slots=tree.path_device_indices(r.last_device_node).tolist()
                        if hasattr(tree, "path_device_indices")
                        else None,
                    )
                elif op["op"] == "evict":
                    r = tree.evict(
                        EvictParams(num_tokens=op.get("num_tokens", 0), swa_num_tokens=op.get("swa_num_tokens", 0))
                    )
                    step.update(
                        num_tokens_evicted=r.num_tokens_evicted, swa_num_tokens_evicted=r.swa_num_tokens_evicted
                    )
                elif op["op"] == "evict_for_alloc":
                    a.evict_to_free_tokens(tree, op["num_tokens"])
                elif op["op"] == "lock":
                    r = match(toks(op["tokens"]))
                    step["device_prefix_len"] = r.device_prefix_len
                    locks[op["as"]] = tree.lock(r.last_device_node)
                elif op["op"] == "unlock":
                    tree.unlock(locks.pop(op["as"]))
                elif op["op"] == "release_swa":
                    tree.release_swa(locks[op["as"]])
                else:
                    raise ValueError(op["op"])
            except Exception as e:  # noqa: BLE001
                step.update(err(e))
            step.update(tree_state(tree, a))
            steps.append(step)
        return {"core": getattr(tree, "_tree_core_backend", type(tree).__name__), "steps": steps}


# --------------------------------------------------------------------------- 5. draft pools
def describe_pool(pool):
    def one(p):
        return {
            "class": type(p).__name__,
            "size": p.size,
            "layers": p.layer_num,
            "bytes": int(sum(p.get_kv_size_bytes())) if p.layer_num else 0,
            "rows": (p.k_buffer[0].shape[0] if p.layer_num else None),
        }

    if hasattr(pool, "full_kv_pool"):
        m = pool.full_to_swa_index_mapping
        return {
            "class": type(pool).__name__,
            "size": pool.size,
            "size_swa": pool.size_swa,
            "full": one(pool.full_kv_pool),
            "swa": one(pool.swa_kv_pool),
            "layers_mapping": {str(k): list(v) for k, v in sorted(pool.layers_mapping.items())},
            "swa_uses_full_indices": pool.swa_uses_full_indices,
            "mapping_len": None if m is None else len(m),
            "mapping_is_identity": None if m is None else bool(torch.equal(m[:-1], torch.arange(len(m) - 1))),
        }
    return one(pool)


def draft_pool(d):
    """Build the target's pools, then each draft runner's, with KVCacheConfigurator's own code."""
    with published(d) as sa:
        kvc = make_kvc(d, sa)
        config = kvc.config_from_budget(d["available_bytes"])
        config.max_running_requests = d.get("max_running_requests", 4)
        pools = kvc._init_pools(
            sizes=kvc._derive_pool_sizes(config=config), req_to_token_pool=None, token_to_kv_pool_allocator=None
        )
        alloc = pools.token_to_kv_pool_allocator
        out = {
            "config": {
                k: getattr(config, k)
                for k in ("max_total_num_tokens", "full_max_total_num_tokens", "swa_max_total_num_tokens")
            },
            "target_pool": describe_pool(pools.token_to_kv_pool),
            "allocator": type(alloc).__name__,
            "req_to_token_shape": list(pools.req_to_token_pool.req_to_token.shape),
            "drafts": [],
        }
        dm = d["draft_model"]
        dcfg = make_model_config(dm, draft=True)
        model = SimpleNamespace(mtp_layer_id_is_depth=dm.get("mtp_layer_id_is_depth", False))
        for idx in d.get("draft_model_idx", [None]):
            info = resolve_layer_indices(model=model, model_config=dcfg, is_draft_worker=True, draft_model_idx=idx)
            dk = make_kvc(
                {**d, "model": dm},
                sa,
                model_config=dcfg,
                layer_info=info,
                is_draft=True,
                draft_model_idx=idx,
                req_to_token_pool=pools.req_to_token_pool,
                allocator=alloc,
                memory_pool_config=config,
            )
            step = {
                "draft_model_idx": idx,
                "is_hybrid_swa_mtp_draft": dk.is_hybrid_swa_mtp_draft,
                "draft_swa_full_capacity": dk.draft_swa_full_capacity,
                "swa_layer_ids": info.swa_attention_layer_ids,
                "full_layer_ids": info.full_attention_layer_ids,
                "num_effective_layers": info.num_effective_layers,
            }
            try:
                dp = dk._init_pools(
                    sizes=dk._derive_pool_sizes(config=config),
                    req_to_token_pool=pools.req_to_token_pool,
                    token_to_kv_pool_allocator=alloc,
                )
                step.update(
                    pool=describe_pool(dp.token_to_kv_pool),
                    shares_allocator=dp.token_to_kv_pool_allocator is alloc,
                    shares_req_to_token=dp.req_to_token_pool is pools.req_to_token_pool,
                    mapping_is_targets=getattr(dp.token_to_kv_pool, "full_to_swa_index_mapping", None)
                    is getattr(alloc, "full_to_swa_index_mapping", 0),
                )
            except Exception as e:  # noqa: BLE001
                step.update(err(e))
            out["drafts"].append(step)
        return out


# --------------------------------------------------------------------------- 4. scheduler bookkeeping
def sizes(d):
    """The per-step lengths SGLang derives from the speculative arguments alone."""
    from sglang.srt.mem_cache import allocation_sizing as z
    from sglang.srt.utils.common import spec_decode_alloc_len_per_request

    with published(d):
        sp = d.get("spec") or {}
        out = {
            "alloc_len_per_decode": z.get_alloc_len_per_decode(),
            "alloc_reserve_per_decode": z.get_alloc_reserve_per_decode(),
            "req_to_token_extra_context_len": z.get_req_to_token_extra_context_len(),
            "spec_v1_alloc_len_per_request": spec_decode_alloc_len_per_request(
                page_size=d.get("page_size", 1),
                speculative_num_steps=sp.get("num_steps"),
                speculative_eagle_topk=sp.get("topk"),
                speculative_num_draft_tokens=sp.get("num_draft_tokens"),
            ),
        }
        if "reqs" in d:  # [committed, allocated] pairs
            reqs = [SimpleNamespace(kv=SimpleNamespace(kv_committed_len=c, kv_allocated_len=a)) for c, a in d["reqs"]]
            out["decode_alloc_lens"] = z.page_aligned_decode_alloc_lens(
                reqs, reserve=z.get_alloc_reserve_per_decode(), page_size=d.get("page_size", 1)
            )
        return out


def decode(d):
    """Real Req and ScheduleBatch over a real allocator, tree and req_to_token pool; no model."""
    from array import array

    from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch
    from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.sampling.sampling_params import SamplingParams

    with published({**d, "attention_backend": "torch_native"}):
        a = make_allocator(d)
        tree, rtp = make_tree(d, a)
        mc = make_model_config(
            {
                "num_kv_heads": 1,
                "head_dim": 1,
                "sliding_window": d.get("window"),
                "context_len": d.get("context_len", 1024),
            }
        )
        mc.vocab_size, mc.is_encoder_decoder = 32000, False
        algo = SpeculativeAlgorithm.from_string((d.get("spec") or {}).get("algorithm"))
        reqs, steps, batch = {}, [], None

        def view(r):
            row = None
            if r.kv.holds_kv:
                row = rtp.req_to_token[r.kv.req_pool_idx, : r.kv.kv_allocated_len].tolist()
            return {
                "row_index": r.kv.req_pool_idx,
                "committed": r.kv.kv_committed_len,
                "allocated": r.kv.kv_allocated_len,
                "protected": r.kv.cache_protected_len,
                "swa_evicted": r.kv.get_evicted_seqlen(ComponentType.SWA),
                "row": row,
            }

        def skipped(op):
            """Whether to leave the operation out, for one that says so (`if_fits`, `if_live`)."""
            live = {r.rid for r in batch.reqs} if batch is not None else set()
            if op.get("if_live"):  # decode: somebody is; finish: this one is
                return op.get("req") not in live if op["op"] == "finish" else not live
            if not op.get("if_fits"):
                return False
            ps, s = d.get("page_size", 1), tree_state(tree, a)
            need = sum(-(-len(toks(t)) // ps) * ps + ps for t in op["reqs"].values())
            full = s.get("full_available", s.get("available", 0)) + s["full_evictable"]
            swa = s["swa_available"] + s["swa_evictable"] if "swa_available" in s else full
            if d["allocator"] == "pure_swa":
                full = swa
            return need > min(full, swa) or len(op["reqs"]) > rtp.available_size()

        for op in d["ops"]:
            step = {"op": op["op"]}
            try:
                if skipped(op):
                    step["skipped"] = True
                elif op["op"] == "prefill":
                    new = []
                    for name, prompt in op["reqs"].items():
                        sp = SamplingParams(max_new_tokens=op.get("max_new_tokens", 64))
                        r = Req(name, "", array("q", toks(prompt)), sp, vocab_size=32000)
                        r.init_next_round_input(tree)
                        r.lock = tree.lock(r.last_node)
                        r.extend_end = len(r.full_untruncated_fill_ids)
                        reqs[name] = r
                        new.append(r)
                    step["prefix_len"] = {r.rid: r.prefix_len for r in new}
                    b = ScheduleBatch.init_new(new, rtp, a, tree, mc, d.get("overlap", True), algo)
                    b.prepare_for_extend()
                    step["out_cache_loc"] = b.out_cache_loc.tolist()
                    for r in new:
                        r.output_ids.append(9000)
                        checkpoint_kv_cache(r, tree)
                    if batch is None or not batch.reqs:
                        batch = b
                    else:
                        batch.merge_batch(b)
                elif op["op"] == "decode":
                    step["new_tokens_required"] = batch.new_tokens_required_next_decode()
                    step["fits"] = batch.check_decode_mem()
                    if not step["fits"] and op.get("retract", True):
                        got, ratio, aborted = batch.retract_decode()
                        step.update(
                            retracted=[r.rid for r in got], aborted=[r.rid for r in aborted], new_token_ratio=ratio
                        )
                    if batch.reqs:
                        batch.prepare_for_decode()
                    for r in batch.reqs:
                        k = op.get("accept", {}).get(r.rid, 1)
                        r.output_ids.extend([9001] * k)
                        if not algo.is_none():
                            r.kv.kv_committed_len += k
                            batch.seq_lens_cpu[batch.reqs.index(r)] += k
                            batch.seq_lens[batch.reqs.index(r)] += k
                elif op["op"] == "finish":
                    r = reqs[op["req"]]
                    r.finished_reason = FINISH_LENGTH(length=len(r.output_ids))
                    r.finished_len = len(r.output_ids)
                    release_kv_cache(r, tree, checkpoint=op.get("checkpoint", True))
                    batch.filter_batch()
                else:
                    raise ValueError(op["op"])
            except Exception as e:  # noqa: BLE001
                step.update(err(e))
                if d.get("debug"):
                    raise
            step["batch"] = [r.rid for r in batch.reqs] if batch is not None else []
            step["reqs"] = {n: view(r) for n, r in reqs.items()}
            step.update(tree_state(tree, a), row_slots_free=rtp.available_size())
            steps.append(step)
        return {"steps": steps}


def prefill(d):
    """PrefillAdder over a waiting list, with nothing running: what is admitted, what is reserved."""
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.schedule_policy import PrefillAdder
    from sglang.srt.sampling.sampling_params import SamplingParams

    with published({**d, "attention_backend": "torch_native"}):
        a = make_allocator(d)
        tree, _ = make_tree(d, a)
        adder = PrefillAdder(
            d.get("page_size", 1),
            tree,
            a,
            None,
            d.get("new_token_ratio", 1.0),
            d.get("max_prefill_tokens", 16384),
            d.get("chunked_prefill_size"),
        )
        steps = []
        for w in d["waiting"]:
            sp = SamplingParams(max_new_tokens=w["max_new_tokens"], ignore_eos=w.get("ignore_eos", False))
            r = Req(w["rid"], "", array("q", toks(w["tokens"])), sp, vocab_size=32000)
            r.init_next_round_input(tree)
            step = {"rid": r.rid, "prefix_len": r.prefix_len}
            try:
                step["result"] = adder.add_one_req(
                    r, has_chunked_req=adder.new_chunked_req is not None, truncation_align_size=None
                ).name
            except Exception as e:  # noqa: BLE001
                step.update(err(e))
                if d.get("debug"):
                    raise
            b = adder.memory_budget
            step.update(
                admitted=[x.rid for x in adder.can_run_list],
                chunked=adder.new_chunked_req.rid if adder.new_chunked_req else None,
                extend_end=r.extend_end,
                rem_chunk_tokens=adder.rem_chunk_tokens,
                rem_input_tokens=adder.rem_input_tokens,
                remaining_total=b.remaining_total,
                remaining_current=b.remaining_current,
                remaining_swa=b.remaining_swa,
            )
            steps.append(step)
        return {"steps": steps}


KINDS = {
    "sizing": sizing,
    "allocator": allocator,
    "replay": allocator,
    "radix": radix,
    "draft_pool": draft_pool,
    "sizes": sizes,
    "decode": decode,
    "prefill": prefill,
}


def without_messages(x):
    """A recorded case keeps an error's type, not its text."""
    if isinstance(x, dict):
        return {k: without_messages(v) for k, v in x.items() if not (k == "message" and "error" in x)}
    return [without_messages(v) for v in x] if isinstance(x, list) else x


def run_case(case):
    if case["kind"] == "schedule":  # pulls in SGLang's scheduler module: only when asked for
        import schedule

        return schedule.run_one(case["input"])
    try:
        return KINDS[case["kind"]](case["input"])
    except Exception as e:  # noqa: BLE001  (a constructor that refuses is a result too)
        return err(e)


def main(argv):
    cmd = argv[1]
    if cmd == "schedule":
        print(json.dumps(run_case({"kind": cmd, "input": json.load(sys.stdin)})))
    elif cmd in KINDS:
        print(json.dumps(KINDS[cmd](json.load(sys.stdin))))
    elif cmd == "run":
        with open(argv[2]) as f, open(argv[3], "w") as g:
            for line in f:
                if line.strip():
                    case = json.loads(line)
                    case["result"] = without_messages(json.loads(json.dumps(run_case(case))))
                    g.write(json.dumps(case, separators=(",", ":")) + "\n")
                    g.flush()  # a case that kills the process leaves those before it
    elif cmd == "check":
        bad = n = 0
        with open(argv[2]) as f:
            for line in f:
                case = json.loads(line)
                n += 1
                got = without_messages(json.loads(json.dumps(run_case(case))))
                if got != case["result"]:
                    bad += 1
                    print("DIFFERS", case["name"], got, case["result"])
        print(f"{n - bad} passed, {bad} failed")
        return bad and 1
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
