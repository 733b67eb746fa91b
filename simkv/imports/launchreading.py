"""From the flags of a server to the keys of a scenario, chapter by chapter, as the engine resolves its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simkv import catalogue
from simkv.arch import Arch
from simkv.engines.sglang.backends import PLATFORMS, Backends, Platform, resolve_backends, resolve_page_size
from simkv.engines.sglang.budget import (
    default_chunked_prefill_size,
    default_mem_fraction_static,
    prefill_graphs_up_to,
)
from simkv.engines.sglang.classes import (
    asks_for_fp8_kv,
    captures_prefill_graphs,
    is_multimodal,
    mixes_chunks,
    never_splits,
)
from simkv.engines.sglang.command import SOURCE, Command
from simkv.engines.sglang.flags import Flag, engine_environment, engine_flags
from simkv.engines.sglang.hybrid import BLOCK_ZERO
from simkv.engines.sglang.settings import DTYPE_BYTES
from simkv.errors import ModelError, Problem, ScenarioError, UserError, nearest
from simkv.hardware import GPUS
from simkv.hardware import gpu as gpu_named
from simkv.imports.launchsheet import LaunchFlag, LaunchSheet
from simkv.scenario import Scenario, builtin_names, load

__all__ = ["LaunchReading"]

_SECTIONS = ("model", "draft", "memory", "policies", "steptime", "workload")
_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH", "DSPARK", "NGRAM")
# Bits of a weight after --quantization of a 16-bit checkpoint, scales included.
_QUANTIZED_BITS = {
    "fp8": 8.0,
    "w8a8_fp8": 8.0,
    "w8a8_int8": 8.0,
    "modelopt_fp8": 8.0,
    "mxfp8": 8.25,
    "modelopt_fp4": 4.5,
    "mxfp4": 4.25,
}

# Flags whose value is the key's value.
_PLAIN = {
    "--tp-size": "integer",
    "--context-length": "human",
    "--mem-fraction-static": "number",
    "--swa-full-tokens-ratio": "number",
    "--max-total-tokens": "human",
    "--max-running-requests": "integer",
    "--chunked-prefill-size": "integer",
    "--max-prefill-tokens": "human",
    "--prefill-max-requests": "integer",
    "--schedule-conservativeness": "number",
}
_SWITCHES = {
    "--disable-hybrid-swa-memory": False,
    "--disable-radix-cache": True,
    "--disable-overlap-schedule": True,
    "--enable-mixed-chunk": True,
}


class LaunchReading(LaunchSheet):
    """One command, read chapter by chapter; each may rest on those before it."""

    def __init__(self, command: Command, ignore: tuple[str, ...]) -> None:
        super().__init__(command, ignore)
        self.arch: Arch | None = None
        self.platform: Platform = "hopper"
        self.mib: int | None = None
        self.weights_stated = False

    # ---- hardware
    def hardware(self, gpu: str | None, hbm: int | str | None) -> None:
        """The GPU of a rank."""
        if (gpu is None) == (hbm is None):
            both = "both are given; keep one" if gpu is not None else "is needed for the budget; or --hbm 141GB"
            self.wrong("--gpu", f"{both}. GPUs: {', '.join(GPUS)}")
            return
        if gpu is not None:
            try:
                found = gpu_named(str(gpu), place="--gpu")
            except ScenarioError as error:
                self.problems += error.problems
                return
            self.put("memory.gpu", found.name, "--gpu")
            self.mib, self.platform = found.memory_mib, PLATFORMS[found.name]
            return
        self.put("memory.hbm", hbm, "--hbm")
        # Whether it is a size at all is told with the scenario.
        probe = {"model": {"config": "llama-3.1-8b"}, "memory": {"hbm": hbm}}
        try:
            size = Scenario(probe).document.memory.hbm
            self.mib = None if size is None else size >> 20
        except ScenarioError:
            self.mib = None

    # ---- model
    def model(self, config: str | Path | Mapping[str, Any] | None, weights: int | str | None) -> None:
        """The model, and the bytes of its weights."""
        path = self.text("--model-path")
        if path is None and config is None:
            self.wrong("--model-path", "is missing")
        elif path is None or "$" not in path or config is not None:
            self.arch = self._config("model.config", "--model-path", path, config, "--config")
        if weights is not None:
            self.put("memory.weights", weights, "--weights")
            self.weights_stated = True
        self._quantization()
        arch = self.arch
        if arch is None:
            return
        if not self.weights_stated and arch.total_params is None:
            message = f"is needed: {arch.name} states no parameter count. Bytes of one rank, such as 78GiB"
            self.wrong("--weights", message)
        tp, heads = self.number("--tp-size"), arch.num_attention_heads
        if tp and tp > 0 and heads and heads % tp:
            # As in models/llama.py, models/gpt_oss.py and the others' attention.
            self.wrong(
                "--tp-size",
                f"{tp} does not divide the {heads} attention heads of {arch.name}: the engine would not start",
            )
        context = self.number("--context-length", "human")
        longer = self.command.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "0").lower()
        if context and arch.context_len and context > arch.context_len and longer not in ("1", "true"):
            message = f"{context} is longer than the model's {arch.context_len}: the engine would not start"
            self.wrong("--context-length", f"{message} (set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1)")

    def _config(
        self, key: str, flag: str, path: str | None, config: str | Path | Mapping[str, Any] | None, option: str
    ) -> Arch | None:
        """Facts of a model: of the config given, of a folder that is there, or of a built-in one of this name."""
        value: str | dict[str, Any] | None
        if config is not None:
            value = dict(config) if isinstance(config, Mapping) else _place(config)
            because = option
        else:
            assert path is not None
            value, because = self._known(flag, path)
            if value is None:
                message = f"{path!r} is no built-in model and no folder here: name its config.json with {option}"
                self.wrong(flag, message + self._near_model(path, draft=key == "draft.config"))
                return None
        try:
            arch = Arch.from_config(value)
        except ModelError as error:
            self.problems += [Problem(option if config is not None else flag, p.message) for p in error.problems]
            return None
        if arch.unsupported:
            self.wrong(flag, f"{arch.name} holds what is not modelled yet: {'; '.join(arch.unsupported)}")
        self.put(key, value, because)
        return arch

    def _near_model(self, path: str, *, draft: bool) -> str:
        """A built-in model that may be meant; for a draft those trained for the target."""
        if draft and self.arch is not None:
            own = [name for name in catalogue.names() if name.startswith(f"draft-{self.arch.name}")]
            return f"; built in for {self.arch.name}: {', '.join(own)}" if own else ""
        return nearest(re.split(r"[/\\]", path.rstrip("/\\"))[-1].lower(), catalogue.names())

    def _known(self, flag: str, path: str) -> tuple[str | None, str]:
        """A built-in model or a path, and how it was found."""
        known = {one.lower(): model for one, model in catalogue.hf_ids().items()}
        if path.lower() in known:
            return known[path.lower()], f"{flag} {path}"
        if (Path(path) / "config.json").is_file() or Path(path).is_file():
            return _place(path), flag
        if path in catalogue.names():
            return path, flag
        last = re.split(r"[/\\]", path.rstrip("/\\"))[-1].lower()
        by_end = {one.rpartition("/")[2]: model for one, model in known.items()} | {n: n for n in catalogue.names()}
        if last in by_end:
            self.notes.append(f"{flag} {path} is not here: taken for the built-in model {by_end[last]} by its name")
            return by_end[last], f"{flag}, by its name"
        return None, ""

    def _quantization(self) -> None:
        method, arch = self.text("--quantization"), self.arch
        if method is None or arch is None or self.weights_stated:
            return
        if arch.weight_bits < 16:
            self.notes.append(f"--quantization {method}: the weights are the checkpoint's own {arch.weight_bits:g} bit")
            return
        bits = _QUANTIZED_BITS.get(method)
        if bits is None:
            self.wrong("--quantization", f"how large weights are under {method!r} is not known: state --weights")
        elif arch.total_params is not None:
            tp = self.number("--tp-size") or 1
            # The embedding and the output head stay in 16 bits.
            tied = bool(arch.config.get("tie_word_embeddings"))
            kept = (arch.vocab_size or 0) * (arch.hidden_size or 0) * (1 if tied else 2)
            size = round(((arch.total_params - kept) * bits + kept * 16) / 8 / max(tp, 1))
            self.put("memory.weights", size, f"--quantization {method}: {bits:g} bit, embeddings 16 bit")
            self.weights_stated = True

    # ---- draft
    def draft(self, config: str | Path | Mapping[str, Any] | None) -> None:
        """Speculative decoding."""
        stated = self.text("--speculative-algorithm")
        if stated is None:
            return
        algorithm = stated.upper()
        if algorithm not in _ALGORITHMS:
            message = f"{stated!r} is not one of {', '.join(_ALGORITHMS)}{nearest(algorithm, _ALGORITHMS)}"
            self.wrong("--speculative-algorithm", message)
            return
        self.put("draft.algorithm", algorithm, "--speculative-algorithm")
        path = self.text("--speculative-draft-model-path")
        draft = None
        if algorithm == "NGRAM":
            if path is not None:
                self.notes.append("--speculative-draft-model-path has no effect: NGRAM drafts without a model")
        elif path is not None or config is not None:
            draft = self._draft_model(path, config)
        elif algorithm in ("EAGLE3", "STANDALONE", "DFLASH", "DSPARK"):
            self.wrong("--speculative-draft-model-path", f"is missing: {algorithm} drafts with a model of its own")
        self._draft_lengths(algorithm)
        self._multi_layer(stated, algorithm, separate=draft is not None)
        if draft is not None and draft.architecture.startswith("Gemma4") and "Assistant" in draft.architecture:
            message = f"{draft.architecture} drafts with the target's KV (FROZEN_KV_MTP), which is not modelled"
            self.wrong("--speculative-draft-model-path", message)
        if "memory.draft_weights" not in self.because and algorithm != "NGRAM":
            self.notes.append("memory.draft_weights is not known and taken as 0: state what the draft's weights take")

    def _draft_model(self, path: str | None, config: str | Path | Mapping[str, Any] | None) -> Arch | None:
        flag, option = "--speculative-draft-model-path", "--draft-config"
        if config is None and path is not None and path == self.text("--model-path") and self.arch is not None:
            # The same checkpoint: its MTP heads, with the budget of a separate draft.
            self.put("draft.config", self.data["model"]["config"], f"{flag}: the model itself")
            return self.arch
        if path is not None and "$" in path and config is None:
            return None
        return self._config("draft.config", flag, path, config, option)

    def _draft_lengths(self, algorithm: str) -> None:
        steps = self.number("--speculative-num-steps")
        topk = self.number("--speculative-eagle-topk")
        width = self.number("--speculative-num-draft-tokens")
        because = {"num_steps": "--speculative-num-steps", "eagle_topk": "--speculative-eagle-topk"}
        because["num_draft_tokens"] = "--speculative-num-draft-tokens"
        if algorithm == "NGRAM":
            # arg_groups/speculative_hook.py:1310-1333
            width = 12 if width is None else width
            breadth = self.number("--speculative-ngram-max-bfs-breadth")
            topk = 10 if breadth is None else breadth
            steps = width // max(topk, 1) if steps is None else steps
            because |= dict.fromkeys(("num_steps", "eagle_topk"), "the engine's choice for NGRAM")
        elif algorithm in ("DFLASH", "DSPARK"):
            width = self._block(algorithm, width)
        elif steps is None and (topk is not None or width is not None):
            # The engine asserts that all three are given or none (speculative_hook.py:1147-1150).
            self.wrong("--speculative-num-steps", "is missing: the engine takes the three lengths together or none")
        for name, value in (("num_steps", steps), ("eagle_topk", topk), ("num_draft_tokens", width)):
            if value is not None:
                self.put(f"draft.{name}", value, because[name])

    def _block(self, algorithm: str, width: int | None) -> int | None:
        """Verify width of DFLASH (its block) and DSPARK (its block and one): speculative_hook.py:365-425, 806-840."""
        flag = f"--speculative-{algorithm.lower()}-block-size"
        block = self.number(flag)
        if block is None:
            return width
        wanted: int = block + (algorithm == "DSPARK")
        if width is not None and width != wanted:
            self.wrong(flag, f"{block} makes {wanted} draft tokens, and --speculative-num-draft-tokens says {width}")
        return wanted

    def _multi_layer(self, stated: str, algorithm: str, *, separate: bool) -> None:
        """Multi-layer EAGLE: the flag, or the model's own choice, which asks for the word as it was written."""
        own = self.arch is not None and self.arch.architecture in BLOCK_ZERO and stated == "EAGLE"
        if "--enable-multi-layer-eagle" in self.given:
            self.put("draft.enable_multi_layer_eagle", True, "--enable-multi-layer-eagle")
        elif own and separate:
            self.default("draft.enable_multi_layer_eagle", True, "the engine's choice for this model")
        elif algorithm == "EAGLE" and stated != "EAGLE":
            self.put("draft.enable_multi_layer_eagle", False, "the engine's own choice asks for the word EAGLE")

    # ---- memory
    def memory(self) -> None:
        """Pools, pages and the fraction of memory they get."""
        for flag, kind in _PLAIN.items():
            value = self.number(flag, kind)
            if value is not None:
                self.put(self.given[flag].flag.key, value, flag)
        for flag, value in _SWITCHES.items():
            if flag in self.given:
                self.put(self.given[flag].flag.key, value, flag)
        if "--disable-hybrid-swa-memory" not in self.given and self.arch is not None and never_splits(self.arch):
            self.default("model.hybrid_swa", False, "the engine's choice for this model")
        self._dtype()
        self._mixed_chunk()
        backends = self._pages()
        self._chunk()
        self._fraction(backends)

    def _dtype(self) -> None:
        stated = self.text("--kv-cache-dtype")
        if stated in ("nvfp4", "fp4_mx_block16"):
            self.wrong("--kv-cache-dtype", f"{stated}: 4-bit KV is not modelled; of {', '.join(DTYPE_BYTES)}")
        elif stated is not None:
            self.put("model.kv_cache_dtype", stated, "--kv-cache-dtype")
        elif self.arch is not None and asks_for_fp8_kv(self.arch):
            self.default(
                "model.kv_cache_dtype", "fp8_e4m3", "the checkpoint asks for it (mem_cache/kv_cache_dtype.py:50-57)"
            )
        draft = self.text("--speculative-draft-kv-cache-dtype")
        served = self.data.get("model", {}).get("kv_cache_dtype", "auto")
        if draft is not None and DTYPE_BYTES.get(draft, 2) != DTYPE_BYTES.get(served, 2) and "draft" in self.data:
            message = f"{draft} beside --kv-cache-dtype {served}: a draft with another dtype is not modelled"
            self.wrong("--speculative-draft-kv-cache-dtype", message)

    def _mixed_chunk(self) -> None:
        algorithm = self.data.get("draft", {}).get("algorithm")
        if "--enable-mixed-chunk" in self.given and not mixes_chunks(algorithm):
            self.put("memory.enable_mixed_chunk", False, f"--enable-mixed-chunk: switched off by {algorithm}")

    def _pages(self) -> Backends | None:
        stated = self.number("--page-size")
        flags = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
        attention, prefill, decode = (self.text(flag) for flag in flags)
        given = Backends(attention, prefill, decode, self.text("--speculative-draft-attention-backend"))
        if self.arch is None or (stated is None and "--page-size" in self.given):
            return None
        topk = self.number("--speculative-eagle-topk")
        algorithm = self.text("--speculative-algorithm")
        backends = resolve_backends(
            self.arch, self.platform, given, algorithm=algorithm, eagle_topk=topk, page_size=stated
        )
        size, why = resolve_page_size(self.arch, self.platform, backends, stated, eagle_topk=topk)
        if stated is not None and size != stated:
            self.notes.append(f"--page-size {stated} becomes {size}: {why}")
        if stated is not None and size == stated:
            self.put("memory.page_size", size, "--page-size")
        else:
            self.default("memory.page_size", size, why)
        if "hbm" in self.data.get("memory", {}) and stated is None:
            self.notes.append("the GPU is not named: attention backend and page size are a Hopper GPU's")
        self._tree_fits(backends, size)
        return backends

    def _tree_fits(self, backends: Backends, page_size: int) -> None:
        """Draft trees that the engine refuses (arg_groups/speculative_hook.py:1153-1157, 1268-1282, 1355-1367)."""
        draft = self.data.get("draft", {})
        topk = draft.get("eagle_topk") or 1
        if not isinstance(topk, int) or topk <= 1:
            return
        flag = "--speculative-ngram-max-bfs-breadth" if draft["algorithm"] == "NGRAM" else "--speculative-eagle-topk"
        pages = ("flashinfer",) if draft["algorithm"] == "NGRAM" else ("flashinfer", "fa3", "triton")
        if backends.has("trtllm_mha"):
            self.wrong(flag, f"{topk}: the attention backend trtllm_mha drafts chains only; the engine would not start")
        elif page_size > 1 and backends.attention not in pages:
            message = f"{topk} with pages of {page_size} needs the attention backend {' or '.join(pages)}"
            self.wrong(flag, f"{message}, not {backends.attention}: the engine would not start")

    def _chunk(self) -> None:
        """The default chunk, and whether pages divide it (validation_hook.py:240-246)."""
        page = self.data.get("memory", {}).get("page_size", 1)
        if "--chunked-prefill-size" in self.given:
            chunk = self.data.get("memory", {}).get("chunked_prefill_size")
            if chunk is not None and chunk <= 0:
                self.put("memory.chunked_prefill_size", -1, "--chunked-prefill-size: switched off")
        else:
            chunk = default_chunked_prefill_size(self.mib)
            if self.mib is not None:
                self.default("memory.chunked_prefill_size", chunk, "the engine's default for this much memory")
        if chunk is not None and chunk > 0 and page > 0 and chunk % page:
            self.wrong(
                "--chunked-prefill-size",
                f"{chunk} is not a multiple of the page size {page}: the engine would not start",
            )

    def _fraction(self, backends: Backends | None) -> None:
        graphs = [flag for flag, one in self.given.items() if _of_graphs(one.flag)]
        arch, memory = self.arch, self.data.get("memory", {})
        stated = memory.get("mem_fraction_static")
        context = self.data.get("model", {}).get("context_length") or (arch.context_len if arch else None) or 0
        aiter = backends is not None and backends.attention == "aiter" and context > 8192
        if stated is None and "--mem-fraction-static" not in self.given and arch is not None:
            if is_multimodal(arch):
                self.notes.append(
                    f"{arch.architecture} has other parts than a language model, for which the engine keeps more memory "
                    "free than is reckoned here: state --mem-fraction-static"
                )
            # A chunk that is no number has been told already.
            known = self.mib is not None and "chunked_prefill_size" in memory
            if known and (graphs or self._no_prefill_graphs(arch)):
                stated = self._heuristic(arch)
                why = ", ".join(graphs) or "the engine's own heuristic, without prefill graphs"
                self.put("memory.mem_fraction_static", stated, why)
        if aiter and stated is not None:
            # attention_hook.py:247-275
            self.put(
                "memory.mem_fraction_static", stated * 0.85, "x 0.85: the attention backend aiter, context above 8192"
            )

    def _no_prefill_graphs(self, arch: Arch) -> bool:
        """Whether the engine captures none by itself."""
        if "--cuda-graph-backend-prefill" in self.given:
            return False
        return "--enable-two-batch-overlap" in self.given or not captures_prefill_graphs(arch, self.platform)

    def _heuristic(self, arch: Arch) -> float:
        """The engine's fraction with other graphs than its own."""
        memory = self.data["memory"]
        chunk, longest = memory["chunked_prefill_size"], memory.get("max_prefill_tokens", 16384)
        none = "--disable-cuda-graph" in self.given

        def sizes(phase: str) -> tuple[bool, list[int], int | None]:
            backend = self.text(f"--cuda-graph-backend-{phase}")
            off = none or f"--disable-{phase}-cuda-graph" in self.given or backend == "disabled"
            listed = self.given.get(f"--cuda-graph-bs-{phase}")
            words = listed.values if listed is not None else ()
            if not all(word.isdecimal() for word in words):
                self.wrong(f"--cuda-graph-bs-{phase}", f"{' '.join(words)!r} is not a list of integers")
                words = ()
            return off, [int(word) for word in words], self.number(f"--cuda-graph-max-bs-{phase}")

        off, listed, most = sizes("decode")
        decode = 0 if off else max(listed) if listed else most
        off, listed, most = sizes("prefill")
        off = off or self._no_prefill_graphs(arch)
        prefill = 0 if off else len(listed) if listed else prefill_graphs_up_to(most or chunk)
        return default_mem_fraction_static(
            self.mib,
            tp_size=self.data.get("model", {}).get("tp_size", 1),
            chunked_prefill_size=chunk,
            max_prefill_tokens=longest,
            max_running_requests=memory.get("max_running_requests"),
            mla=arch.count("mla") > 0,
            decode_graph_bs=decode,
            prefill_graphs=prefill,
        )

    # ---- environment
    def environment(self) -> None:
        """Variables that the engine reads."""
        used, refused = engine_environment()
        for name, value in self.command.env.items():
            if name in used:
                try:
                    self.put(used[name], int(value), name)
                    self.rows.append(LaunchFlag(name, value, "used", used[name], ""))
                except ValueError:
                    self.wrong(name, f"{value!r} is not an integer")
            elif name in refused:
                self.wrong(name, f"{refused[name]}, which is not modelled; leave it out")
            elif name.startswith(("SGLANG_", "SGL_")):
                self.rows.append(LaunchFlag(name, value, "no effect", "", "taken for one that changes no KV memory"))

    # ---- the end
    def _judge(self) -> list[LaunchFlag]:
        """Every flag's use; refused ones become problems."""
        rows = []
        harmless_now = {
            "weights": self.weights_stated,
            "fraction": "--mem-fraction-static" in self.given,
            "stateless": self.arch is not None and not self.arch.state_bytes(1),
        }
        for one in self.given.values():
            flag = one.flag
            use, key, why = str(flag.use), flag.key, flag.why
            if flag.use == "refused":
                if one.values and all(value in flag.harmless for value in one.values):
                    why = "the value that changes nothing"
                elif flag.unless is not None and harmless_now[flag.unless]:
                    why = _UNLESS[flag.unless]
                else:
                    self.wrong(one.word, f"{why}: not modelled; {flag.remedy}, or pass --ignore {flag.name}")
                use = "no effect"
            elif flag.use == "used":
                use, key, why = self._used(flag)
            rows.append(LaunchFlag(flag.name, one.value, use, key, why))
        return rows

    def _used(self, flag: Flag) -> tuple[str, str, str]:
        if _of_draft(flag) and "draft" not in self.data:
            return "no effect", "", "no --speculative-algorithm"
        if flag.key == "memory.weights" and "memory.weights" not in self.because:
            return "no effect", "", "the weights are the checkpoint's own"
        if _of_graphs(flag) and "--mem-fraction-static" in self.given:
            return "no effect", "", "--mem-fraction-static is stated"
        return "used", flag.key, ""

    def finish(self, name: str | None, workload: str | Path | Mapping[str, Any] | None) -> Scenario:
        """The scenario; afterwards ``rows``, ``notes`` and ``because`` are whole.

        Raises
        ------
        ScenarioError
            Everything that is wrong.
        """
        self.rows = [
            *self._judge(),
            *(row for row in self.rows if row.flag),
            *(row for row in self.rows if not row.flag),
        ]
        served = self.text("--served-model-name")
        if name is None and served is not None:
            self.because["name"] = "--served-model-name"
        title = name or served or (self.arch.name if self.arch is not None else "launch")
        if workload is not None:
            self._workload(workload)
        data: dict[str, Any] = {"schema": 1, "name": title, "engine": "sglang@0.5.23"}
        data |= {section: self.data[section] for section in _SECTIONS if section in self.data}
        scenario = self._scenario(data)
        if self.problems or scenario is None:
            raise ScenarioError(SOURCE, sorted(dict.fromkeys(self.problems), key=lambda p: p.place))
        if "gpu" in self.data["memory"] and _roofline_knows(scenario):
            self.put("steptime.kind", "roofline", "step times from the model and the GPU: a choice, not the command's")
            data["steptime"] = self.data["steptime"]
            scenario = Scenario(data, SOURCE)
        if "draft" in data:
            self.notes.append("no [acceptance] is stated: the command does not say how many drafts are accepted")
        return scenario

    def _workload(self, workload: str | Path | Mapping[str, Any]) -> None:
        if isinstance(workload, Mapping):
            table = dict(workload)
        elif str(workload) in builtin_names():
            base = load(str(workload))
            table = dict(base.document.workload or {})
        elif Path(workload).is_file():
            table = {"trace": _place(workload)}
        else:
            message = (
                f"{str(workload)!r} is no trace here and no built-in scenario{nearest(str(workload), builtin_names())}"
            )
            self.wrong("--workload", message)
            return
        self.data["workload"] = table

    def _scenario(self, data: dict[str, Any]) -> Scenario | None:
        """A valid scenario; its problems are told by the flags that made them."""
        told = {problem.place for problem in self.problems}
        told |= {flag.key for flag in engine_flags() if flag.name in told}
        try:
            scenario = Scenario(data, SOURCE)
            if not self.problems:
                _ = scenario.resolved
            return scenario
        except UserError as error:
            for problem in error.problems:
                because = self.because.get(problem.place, "")
                place = because if because.startswith("--") and " " not in because else problem.place
                # What is missing for lack of a model or a GPU has been told.
                missing = place in ("model", "memory", "model.config") and bool(self.problems)
                if place not in told and problem.place not in told and not missing:
                    self.problems.append(Problem(place, problem.message))
            return None


_UNLESS = {
    "weights": "the bytes of the weights are stated",
    "fraction": "--mem-fraction-static is stated",
    "stateless": "this model holds no state but KV",
}


def _of_draft(flag: Flag) -> bool:
    return flag.key.startswith("draft.") or flag.name.startswith("--speculative-draft")


def _of_graphs(flag: Flag) -> bool:
    """Flags that decide which graphs are captured."""
    return flag.key == "memory.mem_fraction_static" and flag.name != "--mem-fraction-static"


def _place(path: str | Path) -> str:
    """A built-in name as it is; a path made absolute, so that the scenario holds wherever it is written."""
    return str(Path(path).resolve()) if Path(path).exists() else str(path)


def _roofline_knows(scenario: Scenario) -> bool:
    try:
        Scenario({**scenario.data, "steptime": {"kind": "roofline"}}, SOURCE).step_time()
    except UserError:
        return False
    return True
