"""Kind `schedule`: SGLang 0.5.23's own Scheduler, step by step, over its own pools, with a scripted model.

    schedule.py < description.json             one description in, one result out
    schedule.py run in.jsonl out.jsonl         each line {"name","kind":"schedule","input"} -> + "result"
    schedule.py check cases.jsonl              re-runs every case, compares with "result"
    schedule.py checkreal cases.jsonl          same, but inside SGLang's own event_loop_normal / event_loop_overlap
    schedule.py check cases.jsonl rust         same as check with the compiled tree core

`Scheduler.__init__` runs as it is.  Ours: the hooks that would load weights, open sockets or start
threads, the worker whose forward returns scripted tokens, the bounded loop, and the recording.
See README.md for the input and output form.
"""

import contextlib
import json
import os
import sys
from array import array
from types import SimpleNamespace

import driver
from driver import err, make_allocator, make_model_config, toks, without_messages

import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.environ import envs
from sglang.srt.managers import scheduler as sched_mod
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.eagle_info import EagleDraftInput

OUT_TOKEN = 900000  # every output token of the request number j in the list is OUT_TOKEN + j
VOCAB = 1 << 24
REQ_FIELDS = ["committed", "allocated", "protected", "swa_evicted", "output_len"]
POOL_FIELDS = ["available", "evictable", "protected"]


# --------------------------------------------------------------------------- configuration
@contextlib.contextmanager
def published(d):
    """A real (dummy-model) ServerArgs with the named fields, and the environment switches."""
    spec = d.get("spec") or {}
    fields = dict(
        page_size=d.get("page_size", 1),
        disable_radix_cache=d.get("disable_radix_cache", False),
        chunked_prefill_size=d.get("chunked_prefill_size") or -1,
        max_prefill_tokens=d.get("max_prefill_tokens", 16384),
        max_running_requests=d.get("max_running_requests", 8),
        schedule_conservativeness=d.get("schedule_conservativeness", 1.0),
        disable_overlap_schedule=not d.get("overlap", True),
        context_length=d.get("context_len", 512),
        attention_backend="torch_native",
        device="cpu",
        skip_tokenizer_init=True,
        grammar_backend="none",
        sampling_backend="pytorch",
        stream_interval=1 << 20,
    )
    for ours, theirs in (
        ("algorithm", "speculative_algorithm"),
        ("num_steps", "speculative_num_steps"),
        ("topk", "speculative_eagle_topk"),
        ("num_draft_tokens", "speculative_num_draft_tokens"),
    ):
        if ours in spec:
            fields[theirs] = spec[ours]
    for k in ("schedule_policy", "enable_mixed_chunk", "prefill_max_requests"):
        if k in d:
            fields[k] = d[k]
    group = SimpleNamespace(
        world_size=1,
        rank_in_group=0,
        rank=0,
        first_rank=0,
        is_first_rank=True,
        is_last_rank=True,
        cpu_group=None,
        device_group=None,
        ranks=[0],
        size=1,
    )
    with contextlib.ExitStack() as st:
        st.enter_context(get_context().override_server_args(**fields))
        st.enter_context(
            get_parallel().override(
                **{f"{g}_group": group for g in ("tp", "attn_tp", "attn_cp", "pp", "world")},
                dp_rank=None,
                **{f"{r}_rank": 0 for r in ("tp", "pp", "attn_tp", "attn_cp", "attn_dp", "dcp", "attn_dcp")},
            )
        )
        st.enter_context(envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.override(d.get("core", "python")))
        for key, env in (
            ("eviction_interval", envs.SGLANG_SWA_EVICTION_INTERVAL),
            ("retract_decode_steps", envs.SGLANG_RETRACT_DECODE_STEPS),
            ("init_new_token_ratio", envs.SGLANG_INIT_NEW_TOKEN_RATIO),
            ("new_token_ratio_decay_steps", envs.SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS),
        ):
            if key in d:
                st.enter_context(env.override(d[key]))
        yield get_context().server_args


# --------------------------------------------------------------------------- the scripted model
class Script:
    """What the model answers: a constant token per request and its list of accepted counts."""

    def __init__(self, d):
        self.index = {r["rid"]: j for j, r in enumerate(d["requests"])}
        self.accept = {r["rid"]: r.get("accept") or [1] for r in d["requests"]}
        self.width = (d.get("spec") or {}).get("num_draft_tokens", 1)
        self.launched = {r: 0 for r in self.index}  # verifies launched so far, discarded ones too
        self.last = None

    def token(self, rid):
        return OUT_TOKEN + self.index[rid]

    def next_accept(self, rid):
        a = self.accept[rid][self.launched[rid] % len(self.accept[rid])]
        self.launched[rid] += 1
        return max(1, min(a, self.width))

    def prefill(self, batch):
        return torch.tensor([self.token(r.rid) for r in batch.reqs], dtype=torch.int64)


class FakeTpWorker(TpModelWorker):
    """SGLang's worker class for what it answers about pools; no model behind it."""

    def __init__(self, d, sa, model_config, pool, alloc, script):  # not the parent's: it loads weights
        self.script, self.model_config, self.random_seed, self.device = script, model_config, 0, "cpu"
        self.dllm_algorithm, self.server_args = None, sa
        pure = d["allocator"] == "pure_swa"
        swa = pure or d["allocator"] == "swa"
        size = d["size_swa"] if pure else d["size"]
        self._model_runner = SimpleNamespace(
            device="cpu",
            forward_stream=torch.cpu.Stream(),
            attn_backend=SimpleNamespace(),
            model_config=model_config,
            spec_algorithm=driver.SpeculativeAlgorithm.from_string((d.get("spec") or {}).get("algorithm")),
            is_hybrid_swa=swa,
            sliding_window_size=d.get("window") if swa else None,
            req_to_token_pool=pool,
            token_to_kv_pool_allocator=alloc,
            token_to_kv_pool=SimpleNamespace(post_capture_active=False, size=size),
            full_max_total_num_tokens=0 if pure else size,
            swa_max_total_num_tokens=d.get("size_swa"),
            max_total_num_tokens=size,
            logical_max_total_num_tokens=size,
            effective_logical_max_total_num_tokens=size,
            max_running_requests=d.get("max_running_requests", 8),
            mtp_draft_device_pools=(),
            mtp_draft_mamba_pools=(),
            prefill_aware_swa=False,
            canary_manager=None,
            hisparse_coordinator=None,
            weight_load_mem_usage=0.0,
            memory_pool_config=object(),
            prewarm_sampling=lambda: None,
            model=SimpleNamespace(),
            shared_read_done_event=None,
            lora_manager=None,
            decode_cuda_graph_runner=None,
            ngram_embedding_manager=SimpleNamespace(prepare_for_forward=lambda b, chunked_req=None: b),
        )

    model_runner = property(lambda self: self._model_runner)
    weight_load_time = 0.0
    graph_time_usage = graph_memory_usage = property(lambda self: {})
    last_shared_read_runner = property(lambda self: self._model_runner)

    def forward_batch_generation(self, batch, **_):
        self.script.last = None
        return GenerationBatchResult(next_token_ids=self.script.prefill(batch))


class FakeDraftWorker:
    """Stands where EAGLEWorkerV2 stands: prefill answers one token, decode an accepted run."""

    draft_swa_window, hicache_draft_plan, weight_load_time = 0, None, 0.0
    draft_parallel_layout = None

    def __init__(self, d, target, script):
        self.target, self.script, self.topk = target, script, d["spec"].get("topk", 1)
        self.graph_time_usage = self.graph_memory_usage = {}
        self.last_shared_read_runner = target.model_runner

    def prewarm_sampling(self):
        pass

    def on_verify_complete_cpu(self, *_, **__):
        pass

    def forward_batch_generation(self, batch, on_publish=None, grammar_barrier=None, pp_proxy_tensors=None):
        n, extend = len(batch.reqs), batch.forward_mode.is_extend()
        if extend:
            self.script.last = None
            r = GenerationBatchResult(next_token_ids=self.script.prefill(batch), new_seq_lens=batch.seq_lens)
            bonus = r.next_token_ids
        else:
            acc = [self.script.next_accept(q.rid) for q in batch.reqs]
            self.script.last = acc
            ids = torch.tensor([self.script.token(q.rid) for q in batch.reqs], dtype=torch.int64)
            lens = torch.tensor(acc, dtype=torch.int64)
            w = self.script.width
            r = GenerationBatchResult(
                next_token_ids=ids.repeat_interleave(w),
                accept_lens=lens,
                new_seq_lens=batch.seq_lens + lens,
                speculative_num_draft_tokens=w,
            )
            bonus = ids
        if on_publish is not None:
            on_publish(r.new_seq_lens)
        r.next_draft_input = EagleDraftInput(
            topk_p=torch.ones((n, self.topk)),
            topk_index=torch.zeros((n, self.topk), dtype=torch.int64),
            hidden_states=torch.zeros((n, 1)),
            bonus_tokens=bonus,
            capture_hidden_mode=CaptureHiddenMode.LAST,
        )
        return r


# --------------------------------------------------------------------------- the scheduler
class Stop(Exception):
    pass


class OracleScheduler(Scheduler):
    """SGLang's Scheduler; only what touches weights, sockets, threads is replaced, and watched calls recorded."""

    def __init__(self, d, sa):
        self.d, self.script = d, Script(d)
        super().__init__(sa, SimpleNamespace(nccl_port=0))

    # ---- construction hooks (ours)
    def init_soft_watchdog(self):
        pass

    def init_model_config(self):
        d = self.d
        mc = make_model_config(
            {
                "num_kv_heads": 1,
                "head_dim": 1,
                "sliding_window": d.get("window"),
                "is_hybrid_swa": d["allocator"] in ("swa", "pure_swa"),
                "context_len": d.get("context_len", 512),
            }
        )
        for k, v in dict(
            vocab_size=VOCAB,
            is_encoder_decoder=False,
            is_generation=True,
            hf_eos_token_id=None,
            is_multimodal=False,
            num_key_value_heads=1,
            use_ngram_embedding=False,
            think_end_ids=None,
            self_opened_think_start_ids=None,
            _resolved_model_arch="LlamaForCausalLM",
            model_impl="auto",
        ).items():
            with contextlib.suppress(AttributeError):
                setattr(mc, k, v)
        self.model_config = mc

    def init_ipc_channels(self, port_args):
        out = SimpleNamespace(send_output=lambda *a, **k: None)
        self.ipc_channels = SimpleNamespace(
            send_to_tokenizer=out,
            send_to_detokenizer=out,
            recv_from_tokenizer=None,
            recv_from_rpc=None,
            send_metrics_from_scheduler=None,
        )
        self.load_snapshot_writer = self.recv_from_tokenizer = None

    def init_moe_gemm_config(self):
        self.require_mlp_sync = False

    def init_mamba_backend(self):
        pass

    def init_tp_model_worker(self):
        d = self.d
        pool = ReqToTokenPool(
            size=d.get("max_running_requests", 8),
            max_context_len=d.get("context_len", 512) + get_req_to_token_extra_context_len(),
            device="cpu",
            enable_memory_saver=False,
        )
        self.tp_worker = FakeTpWorker(d, self.server_args, self.model_config, pool, make_allocator(d), self.script)

    def maybe_init_draft_worker(self):
        self.external_corpus_manager = None
        self.draft_worker = (
            None if self.spec_algorithm.is_none() else FakeDraftWorker(self.d, self.tp_worker, self.script)
        )

    def init_memory_pools(self):
        pass

    def init_all_attention_backends(self):
        pass

    def init_all_cuda_graphs(self):
        pass

    def init_watch_dog_memory_saver_input_blocker(self):
        self.recv_skipper = self.input_blocker = self.watchdog = self.memory_saver_adapter = None

    def init_disaggregation(self):  # the real one reads a draft checkpoint's config
        self.disaggregation_mode = DisaggregationMode.NULL
        self.transfer_backend = self.mm_receiver = None
        for side in (
            "disagg_prefill_bootstrap",
            "disagg_prefill_inflight",
            "disagg_decode_prealloc",
            "disagg_decode_transfer",
        ):
            setattr(self, side + "_queue", None)

    def init_startup_timing_summary(self):
        pass

    # ---- watched calls: record, then SGLang's own
    def _add_request_to_queue(self, req, is_retracted=False):
        if is_retracted:
            self.step["retracted"].append(req.rid)
        self.seen.setdefault(req.rid, req)
        super()._add_request_to_queue(req, is_retracted)

    def send_abort_output(self, abort_req, req):
        self.step["aborted"].append(req.rid)
        super().send_abort_output(abort_req, req)

    def get_next_batch_to_run(self, running_batch, last_batch):
        plan = super().get_next_batch_to_run(running_batch=running_batch, last_batch=last_batch)
        s, b = self.step, plan.batch_to_run
        s["kind"] = "idle" if b is None else "decode" if b.forward_mode.is_decode() else "prefill"
        s["batch"] = [] if b is None else [r.rid for r in b.reqs]
        if s["kind"] == "prefill":
            s["extend_lens"], s["prefix_lens"] = list(b.extend_lens), list(b.prefix_lens)
            if b.decoding_reqs:
                s["mixed_decode"] = [r.rid for r in b.decoding_reqs]
        s["chunked"] = self.chunked_req.rid if self.chunked_req is not None else None
        s["running"] = [r.rid for r in plan.running_batch.reqs]
        s["batch_is_full"] = bool(plan.running_batch.batch_is_full)
        s["waiting_scheduled"] = [r.rid for r in self.waiting_queue]
        s["scheduled"], s["reqs_scheduled"] = self.pools(), self.reqs_view()
        return plan

    def run_batch(self, batch, pp_proxy_tensors=None):
        r = super().run_batch(batch, pp_proxy_tensors)
        if self.script.last is not None:
            self.step["accept"] = self.script.last
        return r

    def process_batch_result(self, batch, result):
        self.step["processed"].append(
            {"kind": "decode" if batch.forward_mode.is_decode() else "prefill", "batch": [r.rid for r in batch.reqs]}
        )
        super().process_batch_result(batch, result)

    def ingest_requests(self, stop_at_pause=False):
        """Only used by SGLang's own event loops (checkreal): close one step, open the next."""
        if self.step is not None:
            self.close_step()
        self.open_step()
        return []

    # ---- reading
    def pools(self):
        t, a = self.tree_cache, self.token_to_kv_pool_allocator
        if self.is_hybrid_swa:
            return {
                "full": [a.full_available_size(), t.full_evictable_size(), t.full_protected_size()],
                "swa": [a.swa_available_size(), t.swa_evictable_size(), t.swa_protected_size()],
                "rows": self.req_to_token_pool.available_size(),
            }
        return {
            "full": [a.available_size(), t.full_evictable_size(), t.full_protected_size()],
            "rows": self.req_to_token_pool.available_size(),
        }

    def reqs_view(self):
        return {
            rid: [
                r.kv.kv_committed_len,
                r.kv.kv_allocated_len,
                r.kv.cache_protected_len,
                r.kv.get_evicted_seqlen(ComponentType.SWA),
                len(r.output_ids),
            ]
            for rid, r in self.seen.items()
            if r.kv.holds_kv
        }

    # ---- steps
    def start(self):
        self.step, self.steps, self.seen, self.end = None, [], {}, None
        self.pending = sorted(self.d["requests"], key=lambda r: r.get("arrival_step", 0))
        self.admitted, self.finished_rids, self.stuck = {}, set(), 0

    def open_step(self):
        it = len(self.steps)
        if it >= self.d.get("max_steps", 400):
            self.end = "max_steps"
            raise Stop
        self.step = {"it": it, "arrived": [], "retracted": [], "aborted": [], "finished": [], "processed": []}
        now = [r for r in self.pending if r.get("arrival_step", 0) <= it]
        self.pending = [r for r in self.pending if r.get("arrival_step", 0) > it]
        for r in now:
            sp = SamplingParams(max_new_tokens=r["max_new_tokens"], ignore_eos=r.get("ignore_eos", False))
            sp.normalize(None)
            t = toks(r["tokens"])
            self.process_input_requests(
                [
                    TokenizedGenerateReqInput(
                        rid=r["rid"],
                        input_text="",
                        input_ids=array("q", t),
                        input_embeds=None,
                        mm_inputs=None,
                        token_type_ids=None,
                        sampling_params=sp,
                        return_logprob=False,
                        logprob_start_len=-1,
                        top_logprobs_num=0,
                        token_ids_logprob=None,
                        stream=False,
                    )
                ]
            )
            q = self.seen.get(r["rid"])
            self.step["arrived"].append(r["rid"])
            if q is not None:
                self.admitted[r["rid"]] = {
                    "input_len": len(t),
                    "max_new_tokens": q.sampling_params.max_new_tokens,
                    "refused": bool(q.to_finish or q.finished_reason),
                }
        self.step["new_token_ratio_before"] = self.new_token_ratio_tracker.current
        self.step["before"] = self.pools()

    def close_step(self):
        s = self.step
        s["after"], s["reqs"] = self.pools(), self.reqs_view()
        s["waiting"] = [r.rid for r in self.waiting_queue]
        s["new_token_ratio"] = self.new_token_ratio_tracker.current
        for rid, r in self.seen.items():
            if r.finished() and rid not in self.finished_rids:
                self.finished_rids.add(rid)
                s["finished"].append([rid, type(r.finished_reason).__name__, len(r.output_ids), r.finished_len])
        s["conserved"] = None  # SGLang's busy check looks at nothing when no batch was launched
        if self.last_batch is not None:
            try:
                self.invariant_checker.self_check_during_busy()
                s["conserved"] = True
            except AssertionError:
                s["conserved"] = False
        self.steps.append(s)
        self.step = None
        if s["kind"] == "idle" and not s["processed"]:
            if not self.pending and self.is_fully_idle():
                self.end = "done"
                raise Stop
            self.stuck += 1
            if not self.pending and self.stuck >= 3:
                self.end = "stuck"
                raise Stop
        else:
            self.stuck = 0

    # ---- our bounded loop: the calls of event_loop_normal / event_loop_overlap in their order
    def plan_once(self):
        plan = self.get_next_batch_to_run(running_batch=self.running_batch, last_batch=self.last_batch)
        self.running_batch = plan.running_batch
        self.cur_batch_for_debug = plan.batch_to_run
        return plan.batch_to_run

    def step_normal(self):
        batch = self.plan_once()
        if batch:
            self.process_batch_result(batch, self.run_batch(batch))
        else:
            self._sched_idled = True
            self.on_idle()
        self.last_batch = batch

    def step_overlap(self):
        batch = self.plan_once()
        early = self.is_disable_overlap_for_batch(batch, last_batch=self.last_batch)
        if early:
            self.process_batch_result(*self.result_queue.popleft())
        result = None
        if batch:
            result = self.run_batch(batch)
            self._apply_war_barrier()
            self.result_queue.append((batch.copy(), result))
        else:
            self._sched_idled = True
        if self.last_batch:
            if not early:
                self.process_batch_result(*self.result_queue.popleft())
        elif batch is None:
            self.on_idle()
        self.launch_batch_sample_if_needed(result, batch)
        self.last_batch = batch

    def drive(self, real_loop=False):
        self.start()
        self._war_barrier_enabled = False
        self.schedule_stream.synchronize = lambda: None
        try:
            if real_loop:
                (self.event_loop_overlap if self.enable_overlap else self.event_loop_normal)()
            self.enable_skip_finishing_decode = self.enable_overlap
            while True:
                self.open_step()
                (self.step_overlap if self.enable_overlap else self.step_normal)()
                self.close_step()
        except Stop:
            pass
        except Exception as e:  # noqa: BLE001  (SGLang's scheduler process would die here)
            if os.environ.get("ORACLE_DEBUG"):
                raise
            s = self.step or {}
            s.update(err(e), after=self.pools(), reqs=self.reqs_view(), waiting=[r.rid for r in self.waiting_queue])
            self.steps.append(s)
            self.end = "error"
        return {
            "end": self.end,
            "req_fields": REQ_FIELDS,
            "pool_fields": POOL_FIELDS,
            "new_token_ratio": [
                self.new_token_ratio_tracker.init,
                self.new_token_ratio_tracker.min,
                self.new_token_ratio_tracker.decay,
            ],
            "admitted": self.admitted,
            "steps": self.steps,
        }


def schedule(d, real_loop=False, core=None):
    if core:
        d = {**d, "core": core}
    with published(d) as sa, contextlib.ExitStack() as st:
        # No processes, no NCCL: the two calls that would start them are the only patched module names.
        keep = sched_mod.bootstrap
        sched_mod.bootstrap = SimpleNamespace(
            init_parallel_runtime=lambda **k: None, init_layer_runtime=lambda **k: None
        )
        st.callback(lambda: setattr(sched_mod, "bootstrap", keep))
        with torch.no_grad():
            s = OracleScheduler(d, sa)
            return s.drive(real_loop)


def run_one(d, **kw):
    try:
        return schedule(d, **kw)
    except Exception as e:  # noqa: BLE001  (a constructor that refuses is a result too)
        if os.environ.get("ORACLE_DEBUG"):
            raise
        return err(e)


def first_difference(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        for k in list(a) + [k for k in b if k not in a]:
            if a.get(k) != b.get(k):
                return first_difference(a.get(k), b.get(k), f"{path}.{k}")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            if x != y:
                return first_difference(x, y, f"{path}[{i}]")
    return f"{path}: {str(a)[:200]} != {str(b)[:200]}"


def main(argv):
    cmd = argv[1] if len(argv) > 1 else ""
    if cmd == "run":
        with open(argv[2]) as f, open(argv[3], "w") as g:
            for line in f:
                case = json.loads(line)
                case["result"] = without_messages(json.loads(json.dumps(run_one(case["input"]))))
                g.write(json.dumps(case, separators=(",", ":")) + "\n")
                g.flush()  # a case that kills the process leaves those before it
    elif cmd in ("check", "checkreal"):
        bad = n = 0
        with open(argv[2]) as f:
            for line in f:
                case = json.loads(line)
                n += 1
                got = without_messages(
                    json.loads(
                        json.dumps(
                            run_one(
                                case["input"], real_loop=cmd == "checkreal", core=argv[3] if len(argv) > 3 else None
                            )
                        )
                    )
                )
                if got != case["result"]:
                    bad += 1
                    print("DIFFERS", case["name"], first_difference(got, case["result"]))
        print(f"{n - bad} passed, {bad} failed")
        return bad and 1
    else:
        print(json.dumps(schedule(json.load(sys.stdin))))


driver.KINDS["schedule"] = schedule

if __name__ == "__main__":
    sys.exit(main(sys.argv))
