"""Scenarios: the schema, overrides, built-in ones, and the factories that turn names into objects.

The only module that names concrete classes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from simkv.arch import Arch
from simkv.engines.base import Plan
from simkv.engines.sglang.budget import (
    KvBudget,
    default_chunked_prefill_size,
    default_mem_fraction_static,
    kv_budget,
)
from simkv.engines.sglang.drafts import StatedDraft
from simkv.engines.sglang.hybrid import cache_window, is_hybrid
from simkv.engines.sglang.plan import build_plan
from simkv.engines.sglang.routing import ROUTING_RULES, RoutingRule
from simkv.engines.sglang.settings import DTYPE_BYTES, FAULTS, Settings, Spec, resolve_ratio, resolve_spec
from simkv.errors import ModelError, Problem, ScenarioError, nearest
from simkv.hardware import GPUS, gpu
from simkv.steptime import Constant, Linear, Roofline, StepTime, Table
from simkv.workload.acceptance import ACCEPTANCE, Acceptance, NoDraft, Trace
from simkv.workload.generate import generate
from simkv.workload.request import Workload
from simkv.workload.traces import FORMATS, fit_context, read_trace

__all__ = ["Resolved", "Scenario", "builtin_names", "load", "plan", "schema"]

STEPTIMES = {"constant": Constant, "linear": Linear, "table": Table, "roofline": Roofline}
ENGINES = ("sglang", "sglang@0.5.23")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


# ------------------------------------------------------------------------------------------------- values
def _bytes(value: Any) -> int:
    """Bytes from an integer or from a string with its unit."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a number of bytes; write an integer or a string such as '60GiB' or '141GB'")
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"\s*(-?[0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", value)
    unit = match.group(2).upper() if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(f"{value!r} is not a number of bytes; allowed units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB")
    assert unit is not None
    return round(float(match.group(1)) * _UNITS[unit])


def _one_of(*allowed: str) -> BeforeValidator:
    """A word out of a list, with the nearest one named when it is not."""

    def check(value: Any) -> Any:
        if value not in allowed:
            hint = nearest(str(value), allowed)
            raise ValueError(f"{value!r} is not one of {', '.join(allowed)}{hint}")
        return value

    return BeforeValidator(check)


def _gpu_name(value: Any) -> str:
    """A GPU of the table, in any case."""
    name = str(value).lower()
    if name not in GPUS:
        raise ValueError(f"{value!r} is not one of {', '.join(GPUS)}{nearest(name, GPUS)}")
    return name


def _kind_of(families: Mapping[str, Any]) -> BeforeValidator:
    """A family member: its name, or a table with its kind."""

    def check(value: Any) -> Any:
        table = {"kind": value} if isinstance(value, str) else value
        if not isinstance(table, dict):
            raise ValueError(f"{value!r} is not a table {{kind = ...}} or the name of a kind")
        kind = table.get("kind")
        if kind not in families:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(families)}{nearest(str(kind), families)}")
        return table

    return BeforeValidator(check)


Bytes = Annotated[int, BeforeValidator(_bytes)]
Count = Annotated[int, Field(ge=1, strict=True)]
Ids = list[Annotated[int, Field(ge=0, strict=True)]]
Algorithm = Annotated[str, _one_of("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH", "DSPARK", "NGRAM")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(_Section):
    """Which model is served, and how its KV is stored."""

    config: str | dict[str, Any] = Field(description="built-in name, path of an HF config.json, or an inline table")
    kv_cache_dtype: Annotated[str, _one_of(*DTYPE_BYTES)] = Field("auto", description="--kv-cache-dtype")
    tp_size: Count = Field(1, description="--tp-size, ranks the attention heads are split over")
    hybrid_swa: bool | Literal["engine"] = Field(
        "engine", description="engine: its own allow-list decides; true opts in; false: --disable-hybrid-swa-memory"
    )
    cache_window: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="earlier tokens the SWA cache keeps, where the rule of the model class is not wanted"
    )
    context_length: Count | None = Field(None, description="--context-length; default: the model's")


class DraftSection(_Section):
    """Speculative decoding; leave the section out for none."""

    algorithm: Algorithm = Field(description="--speculative-algorithm")
    config: str | dict[str, Any] | None = Field(
        None, description="a separate draft model; without it the target's own MTP heads draft"
    )
    num_steps: Count | None = Field(None, description="--speculative-num-steps")
    eagle_topk: Count | None = Field(None, description="--speculative-eagle-topk")
    num_draft_tokens: Count | None = Field(None, description="--speculative-num-draft-tokens, verify width")
    enable_multi_layer_eagle: bool | None = Field(None, description="--enable-multi-layer-eagle: one runner a step")
    num_layers: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="layers the budget counts, where the config is not to be asked"
    )
    num_swa_layers: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="of those, layers charged at the SWA share"
    )
    swa_attention_layer_ids: Ids | None = Field(None, description="sliding layer ids of the draft-mode config")
    full_attention_layer_ids: Ids | None = Field(None, description="full layer ids of the draft-mode config")
    mtp_layer_id_is_depth: bool | None = Field(None, description="class flag: an MTP head's layer id is its depth")


class MemorySection(_Section):
    """GPU, budget and the server's memory settings."""

    gpu: Annotated[str, BeforeValidator(_gpu_name)] | None = Field(
        None, description="name of a GPU; see simkv schema for the list"
    )
    hbm: Bytes | None = Field(None, description="free memory of one GPU before weights are loaded, instead of gpu")
    weights: Bytes | None = Field(None, description="target weights on one rank")
    draft_weights: Bytes = Field(0, description="draft weights on one rank")
    overhead: Bytes = Field(0, description="what the runtime takes besides (context, NCCL buffers), one rank")
    state_bytes: Bytes | None = Field(
        None, description="fixed state of all request slots, one rank (short convolutions)"
    )
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = Field(None, description="--mem-fraction-static")
    kv_bytes: Bytes | None = Field(None, description="KV budget of one rank, stated outright")
    page_size: Count = Field(1, description="--page-size")
    swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="--swa-full-tokens-ratio; default 0.8, 0.1 for Inkling"
    )
    max_total_tokens: Count | None = Field(None, description="--max-total-tokens")
    max_running_requests: Count | Literal["pool"] | None = Field(
        None,
        description="--max-running-requests; default 48 with speculation, else from the pool's size; "
        "'pool' takes it from the pool's size in any case",
    )
    chunked_prefill_size: Annotated[int, Field(strict=True)] | None = Field(
        None, description="--chunked-prefill-size; -1 switches chunking off; default by GPU memory"
    )
    max_prefill_tokens: Count = Field(16384, description="--max-prefill-tokens")
    swa_eviction_interval: Annotated[int, Field(ge=0, strict=True)] = Field(
        128, description="SGLANG_SWA_EVICTION_INTERVAL"
    )
    disable_radix_cache: bool = Field(False, description="--disable-radix-cache")
    disable_overlap_schedule: bool = Field(False, description="--disable-overlap-schedule")
    enable_mixed_chunk: bool = Field(False, description="--enable-mixed-chunk")


class PoliciesSection(_Section):
    """Rules that can be swapped."""

    routing: Annotated[str, _one_of(*ROUTING_RULES)] = Field("generalized", description="draft pool routing rule")
    faults: list[Annotated[str, _one_of(*FAULTS)]] = Field(
        default_factory=list, description="known engine faults to switch on"
    )
    retraction: Annotated[str, _one_of("default")] = Field("default", description="which request is retracted first")
    engine_faults: Annotated[str, _one_of("reproduce")] = Field(
        "reproduce", description="where the engine itself would break, the run ends as the engine's would"
    )
    schedule_conservativeness: Annotated[float, Field(ge=0)] = Field(1.0, description="--schedule-conservativeness")


class Document(_Section):
    """A whole scenario file."""

    schema_: Literal[1] = Field(1, alias="schema", description="version of this format")
    name: str = Field("scenario", description="shown in reports and titles")
    description: str = Field("", description="what the scenario teaches")
    seed: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="seed of every random stream")
    engine: Annotated[str, _one_of(*ENGINES)] = Field("sglang", description="engine, or engine@version")
    model: ModelSection
    draft: DraftSection | None = None
    memory: MemorySection = Field(default_factory=MemorySection)
    policies: PoliciesSection = Field(default_factory=PoliciesSection)
    acceptance: Annotated[dict[str, Any], _kind_of(ACCEPTANCE)] = Field(default_factory=lambda: {"kind": "none"})
    steptime: Annotated[dict[str, Any], _kind_of(STEPTIMES)] = Field(
        default_factory=lambda: {"kind": "constant", "ms": 20.0}
    )
    workload: dict[str, Any] | None = None
    checks: dict[str, str] = Field(default_factory=dict)


def schema() -> dict[str, Any]:
    """JSON Schema of a scenario, for editors."""
    return Document.model_json_schema(by_alias=True)


# ------------------------------------------------------------------------------------------------- reading
_SECTIONS: dict[str, type[BaseModel]] = {
    "": Document,
    "model": ModelSection,
    "draft": DraftSection,
    "memory": MemorySection,
    "policies": PoliciesSection,
}


def _keys(section: str) -> list[str]:
    fields = _SECTIONS[section].model_fields if section in _SECTIONS else {}
    return [field.alias or name for name, field in fields.items()]


def _problem(error: Any) -> Problem:
    """One pydantic error in our words."""
    parts = [str(p) for p in error["loc"]]
    # Members of a union name their branch in the location; the user's path ends before it.
    parts = [p for p in parts if not re.fullmatch(r"(constrained-.*|literal\[.*|bool|str|int|function-.*|dict\[.*)", p)]
    place, kind, value = ".".join(parts), error["type"], error.get("input")
    if kind == "extra_forbidden":
        section = parts[0] if len(parts) > 1 else ""
        hint = nearest(parts[-1], _keys(section))
        allowed = "" if hint else f"; allowed are {', '.join(_keys(section))}"
        return Problem(place, f"unknown key{hint}{allowed}")
    if kind == "missing":
        return Problem(place, "is missing")
    context = error.get("ctx") or {}
    if kind == "value_error":
        return Problem(place, str(context.get("error", error["msg"])))
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        bounds = {
            "memory.mem_fraction_static": "(0, 1)",
            "memory.swa_full_tokens_ratio": "(0, 1]",
            "model.cache_window": "an integer >= 0",
        }
        sign = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}[kind]
        limit = next(iter(v for k, v in context.items() if k in ("gt", "ge", "lt", "le")), "")
        where = bounds.get(place)
        return Problem(place, f"{value!r} is not in {where}" if where else f"{value!r} is not {sign} {limit}")
    return Problem(place, f"{value!r}: {error['msg'][0].lower()}{error['msg'][1:]}")


def _merge_problems(problems: list[Problem]) -> list[Problem]:
    """Several branches of one union complain about the same place: keep one line a place."""
    seen: dict[str, Problem] = {}
    for problem in problems:
        seen.setdefault(problem.place, problem)
    return sorted(seen.values())


def _validate(data: Mapping[str, Any], source: str) -> Document:
    try:
        document = Document.model_validate(dict(data))
    except ValidationError as error:
        raise ScenarioError(source, _merge_problems([_problem(e) for e in error.errors()])) from None
    problems = _check_families(document)
    if problems:
        raise ScenarioError(source, problems)
    return document


def _check_families(document: Document) -> list[Problem]:
    """Problems that need more than one key, and kinds of the swappable families."""
    problems = []
    memory = document.memory
    chunk = memory.chunked_prefill_size
    if chunk is not None and chunk != -1 and chunk < 1:
        problems.append(Problem("memory.chunked_prefill_size", f"{chunk} is not -1 (off) or an integer >= 1"))
    elif chunk is not None and chunk > 0 and chunk % memory.page_size:
        problems.append(
            Problem("memory.chunked_prefill_size", f"{chunk} is not a multiple of memory.page_size {memory.page_size}")
        )
    if memory.gpu is not None and memory.hbm is not None:
        problems.append(Problem("memory.hbm", "stated beside memory.gpu; keep one of the two"))
    if memory.kv_bytes is None and memory.gpu is None and memory.hbm is None:
        problems.append(Problem("memory", "states no budget: give kv_bytes, or gpu (or hbm) with weights"))
    draft = document.draft
    if draft is not None and draft.algorithm in ("STANDALONE",) and draft.config is None and draft.num_layers is None:
        problems.append(Problem("draft.config", f"{draft.algorithm} drafts with a model of its own: name its config"))
    if draft is not None and draft.enable_multi_layer_eagle and (draft.eagle_topk or 1) != 1:
        problems.append(
            Problem("draft.eagle_topk", f"{draft.eagle_topk} with multi-layer EAGLE, which drafts a chain (1)")
        )
    for key, text in document.checks.items():
        if re.fullmatch(r"\s*(==|!=|<=|>=|<|>)\s*-?[0-9.eE+-]+\s*", text) is None:
            problems.append(Problem(f'checks."{key}"', f"{text!r} is not a comparison such as '== 0' or '< 0.95'"))
    return problems


def _parse_value(text: str) -> Any:
    """A TOML value, or the bare word itself."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _assign(data: dict[str, Any], key: str, value: Any) -> None:
    parts = re.findall(r'"([^"]*)"|([^."]+)', key)
    path = [quoted or bare for quoted, bare in parts]
    if not path or "".join(path) == "":
        raise ScenarioError("override", [Problem(key, "is not a dotted key")])
    node = data
    for part in path[:-1]:
        child = node.get(part)
        if isinstance(child, str) and part in ("acceptance", "steptime"):
            child = {"kind": child}
        elif child is not None and not isinstance(child, dict):
            raise ScenarioError("override", [Problem(key, f"{part} is {child!r}, not a table")])
        node[part] = dict(child or {})
        node = node[part]
    if value is None:
        node.pop(path[-1], None)
        return
    if path in (["workload", "trace"], ["workload", "kind"]) and path[-1] not in node:
        # Another source of requests: the old one's keys mean nothing to it.
        node.clear()
    node[path[-1]] = value


def _source_first(key: str) -> bool:
    """Sort key: whatever replaces the workload's source comes before what adjusts it."""
    return key not in ("workload.trace", "workload.kind", "workload")


# ------------------------------------------------------------------------------------------------- objects
@dataclass(frozen=True)
class Resolved:
    """A scenario with every default filled in: what the engine is built from."""

    arch: Arch
    draft: Arch | None
    settings: Settings
    budget: KvBudget
    rule: RoutingRule
    stated: StatedDraft
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """One experiment: model, draft, memory, policies, workload.

    Parameters
    ----------
    data : dict
        The scenario as written, overrides applied.
    source : str
        File, built-in name or ``<dict>``; errors name it.
    base_dir : Path or None
        Relative paths inside the scenario start here.
    arch : Arch or None
        Model facts that replace ``model.config`` (:meth:`with_arch`).
    rule : RoutingRule or None
        A routing rule of one's own that replaces ``policies.routing``.
    """

    data: dict[str, Any]
    source: str = "<dict>"
    base_dir: Path | None = None
    arch: Arch | None = None
    rule: RoutingRule | None = None

    def __post_init__(self) -> None:
        # Validate at once: a scenario that exists is a valid one.
        _ = self.document

    @cached_property
    def document(self) -> Document:
        """The validated document."""
        return _validate(self.data, self.source)

    @property
    def name(self) -> str:
        """Name for titles."""
        return self.document.name

    @property
    def seed(self) -> int:
        """Seed of every random stream."""
        return self.document.seed

    def override(self, *assignments: str) -> Scenario:
        """A copy with ``"dotted.key=value"`` changes; values are TOML, or bare words.

        ``workload.trace`` instead of a generator (or ``workload.kind`` instead of a trace) replaces the whole workload;
        other workload keys of the same call are applied to the new one.

        Raises
        ------
        ScenarioError
            A malformed assignment, an unknown key, a bad value.
        """
        parsed = []
        for text in assignments:
            key, sign, value = text.partition("=")
            if not sign or not key.strip():
                raise ScenarioError("override", [Problem(text, "is not of the form dotted.key=value")])
            parsed.append((key.strip(), _parse_value(value.strip())))
        return self._assigned(parsed)

    def set(self, **changes: Any) -> Scenario:
        """A copy with changes given as ``section__key=value``; None removes a key."""
        return self._assigned([(key.replace("__", "."), value) for key, value in changes.items()])

    def _assigned(self, changes: list[tuple[str, Any]]) -> Scenario:
        data = deepcopy(self.data)
        for key, value in sorted(changes, key=lambda change: _source_first(change[0])):
            _assign(data, key, value)
        return replace(self, data=data)

    def with_arch(self, arch: Arch) -> Scenario:
        """A copy that serves this architecture instead of ``model.config``."""
        return replace(self, arch=arch)

    def with_routing(self, rule: RoutingRule) -> Scenario:
        """A copy that routes draft pools by a rule of one's own."""
        return replace(self, rule=rule)

    def to_dict(self) -> dict[str, Any]:
        """The scenario with every key's value, defaults included; paths of files are absolute."""
        dumped: dict[str, Any] = self.document.model_dump(by_alias=True, exclude_none=True)
        for section, key in (("model", "config"), ("draft", "config"), ("workload", "trace")):
            value = (dumped.get(section) or {}).get(key)
            if isinstance(value, str) and (path := self._path(value)).is_file():
                dumped[section][key] = str(path.resolve())
        return dumped

    def _path(self, text: str) -> Path:
        """A path of the scenario: beside the scenario file if it is there, else as it stands."""
        path = Path(text)
        if self.base_dir is not None and not path.is_absolute() and (self.base_dir / path).exists():
            return self.base_dir / path
        return path

    # ---- factories
    def _config(self, config: str | dict[str, Any], key: str) -> Arch:
        try:
            if isinstance(config, dict):
                return Arch.from_config(config, name=config.get("name"))
            path = self._path(config)
            return Arch.from_config(path if path.is_file() else config)
        except ModelError as error:
            problems = [Problem(f"{key}: {p.place}" if p.place else key, p.message) for p in error.problems]
            raise ModelError(self.source, problems) from None

    @cached_property
    def resolved(self) -> Resolved:
        """Everything the engine is built from.

        Raises
        ------
        ModelError
            A config that is wrong, or an architecture that holds layers simkv cannot account for.
        ScenarioError
            Something else is missing or contradictory.
        """
        document = self.document
        arch = self.arch if self.arch is not None else self._config(document.model.config, "model.config")
        draft_section = document.draft
        draft = None
        if draft_section is not None and draft_section.config is not None:
            draft = self._config(draft_section.config, "draft.config")
        for one, key in ((arch, "model.config"), (draft, "draft.config")):
            if one is not None and one.unsupported:
                raise ModelError(
                    self.source,
                    [
                        Problem(
                            key,
                            f"{one.name} ({one.architecture or 'no architecture named'}) holds what simkv cannot "
                            f"account for yet: {'; '.join(one.unsupported)}",
                        )
                    ],
                )
        notes: list[str] = []
        spec = self._spec(arch, draft, notes)
        settings, gpu_mib = self._settings(arch, spec, notes)
        budget = self._budget(arch, draft, settings, gpu_mib, notes)
        rule = self.rule if self.rule is not None else ROUTING_RULES[document.policies.routing]()
        return Resolved(arch, draft, settings, budget, rule, self._stated(), tuple(notes))

    def _spec(self, arch: Arch, draft: Arch | None, notes: list[str]) -> Spec | None:
        section = self.document.draft
        if section is None:
            return None
        spec, said = resolve_spec(
            section.algorithm,
            arch,
            draft,
            num_steps=section.num_steps,
            eagle_topk=section.eagle_topk,
            num_draft_tokens=section.num_draft_tokens,
            enable_multi_layer_eagle=section.enable_multi_layer_eagle,
        )
        notes.extend(said)
        return spec

    def _stated(self) -> StatedDraft:
        section = self.document.draft
        if section is None:
            return StatedDraft()
        swa, full = section.swa_attention_layer_ids, section.full_attention_layer_ids
        return StatedDraft(
            num_layers=section.num_layers,
            num_swa_layers=section.num_swa_layers,
            swa_ids=None if swa is None else tuple(swa),
            full_ids=None if full is None else tuple(full),
            layer_id_is_depth=section.mtp_layer_id_is_depth,
        )

    def _settings(self, arch: Arch, spec: Spec | None, notes: list[str]) -> tuple[Settings, int | None]:
        document = self.document
        memory, model, policies = document.memory, document.model, document.policies
        mib = None
        if memory.gpu is not None:
            mib = gpu(memory.gpu).memory_mib
        elif memory.hbm is not None:
            mib = memory.hbm >> 20
        hybrid = is_hybrid(arch, None if model.hybrid_swa == "engine" else model.hybrid_swa)
        requests = memory.max_running_requests
        if requests is None and spec is not None:
            requests = 48
            notes.append("memory.max_running_requests is 48: the engine's default with speculation")
        context = model.context_length or arch.context_len
        if context is None:
            raise ScenarioError(
                self.source,
                [Problem("model.context_length", f"{arch.name} states no max_position_embeddings: state it here")],
            )
        window = cache_window(arch, model.cache_window) if hybrid else None
        chunk = memory.chunked_prefill_size
        settings = Settings(
            page_size=memory.page_size,
            tp_size=model.tp_size,
            kv_cache_dtype=model.kv_cache_dtype,
            swa_full_tokens_ratio=resolve_ratio(arch, memory.swa_full_tokens_ratio),
            max_total_tokens=memory.max_total_tokens,
            max_running_requests=None if requests == "pool" else requests,
            chunked_prefill_size=default_chunked_prefill_size(mib) if chunk is None else chunk,
            max_prefill_tokens=memory.max_prefill_tokens,
            context_len=context,
            swa_eviction_interval=max(1, memory.swa_eviction_interval),
            disable_radix_cache=memory.disable_radix_cache,
            disable_overlap_schedule=memory.disable_overlap_schedule,
            enable_mixed_chunk=memory.enable_mixed_chunk,
            schedule_conservativeness=policies.schedule_conservativeness,
            hybrid=hybrid,
            hybrid_disabled=model.hybrid_swa is False,
            window=window,
            spec=spec,
            faults=frozenset(policies.faults),
        )
        if hybrid and window is None:
            raise ScenarioError(
                self.source, [Problem("model.cache_window", f"{arch.name} slides but its config states no window")]
            )
        return settings, mib

    def _budget(
        self, arch: Arch, draft: Arch | None, settings: Settings, mib: int | None, notes: list[str]
    ) -> KvBudget:
        memory = self.document.memory
        if memory.kv_bytes is not None:
            return KvBudget(memory.kv_bytes, None)
        weights = memory.weights
        if weights is None:
            if arch.total_params is None:
                raise ScenarioError(
                    self.source,
                    [
                        Problem(
                            "memory.weights", f"is missing, and {arch.name} states no parameter count to derive it from"
                        )
                    ],
                )
            weights = round(arch.total_params * arch.weight_bits / 8 / settings.tp_size)
            notes.append(
                f"memory.weights is not stated: {arch.total_params / 1e9:,.4g} B parameters x {arch.weight_bits:g} bit / "
                f"{settings.tp_size} ranks = {weights / (1 << 30):.2f} GiB"
            )
        fraction = memory.mem_fraction_static
        if fraction is None:
            fraction = default_mem_fraction_static(
                mib,
                tp_size=settings.tp_size,
                chunked_prefill_size=settings.chunked_prefill_size,
                max_prefill_tokens=settings.max_prefill_tokens,
                # The engine chooses the fraction before speculation sets its 48 requests
                # (arg_groups/pipeline.py:218, 306).
                max_running_requests=memory.max_running_requests if memory.max_running_requests != "pool" else None,
                mla=arch.count("mla") > 0,
            )
            notes.append(f"memory.mem_fraction_static is {fraction}: the engine's own heuristic")
        assert mib is not None
        total = memory.hbm if memory.hbm is not None else mib << 20
        state = memory.state_bytes
        if state is None:
            state = self._state(arch, settings, notes)
        return kv_budget(
            total, fraction, weights=weights, draft_weights=memory.draft_weights, overhead=memory.overhead, state=state
        )

    def _state(self, arch: Arch, settings: Settings, notes: list[str]) -> int:
        """Fixed request state: one slot a request and a padding slot, and with speculation one copy a draft token.

        Rule: mem_cache/kv_cache_configurator.py:3229-3409, the branch with the radix cache off and the requests known.
        """
        per_request = arch.state_bytes(settings.tp_size)
        if not per_request:
            return 0
        slots = (settings.max_running_requests or 4096) + 1
        copies = 1 + (settings.spec.num_draft_tokens if settings.spec is not None else 0)
        notes.append(
            f"short-convolution state: {slots} slots x {copies} x {per_request:,} B = "
            f"{slots * copies * per_request / (1 << 30):.2f} GiB taken from the budget"
        )
        return slots * copies * per_request

    def plan(self) -> Plan:
        """Sizes of every pool."""
        r = self.resolved
        return build_plan(r.arch, r.draft, r.settings, r.budget, r.rule, r.stated, r.notes)

    def workload(self) -> Workload:
        """The requests of this scenario.

        Raises
        ------
        ScenarioError, TraceError
            No workload, wrong parameters, or a wrong trace.
        """
        table = dict(self.document.workload or {})
        if not table:
            raise ScenarioError(
                self.source, [Problem("workload", 'is missing: give trace = "file" or kind = "poisson" ...')]
            )
        try:
            return self._workload(table)
        except ScenarioError as error:
            raise ScenarioError(self.source, error.problems) from None

    def _workload(self, table: dict[str, Any]) -> Workload:
        oversize = table.pop("on_oversize", "refuse")
        max_new = table.pop("max_new_tokens", None)
        problems = []
        if oversize not in ("refuse", "clip", "drop"):
            problems.append(Problem("workload.on_oversize", f"{oversize!r} is not one of refuse, clip, drop"))
        if max_new is not None and (not isinstance(max_new, int) or isinstance(max_new, bool) or max_new < 1):
            problems.append(Problem("workload.max_new_tokens", f"{max_new!r} is not an integer >= 1"))
        if "trace" in table and "kind" in table:
            problems.append(Problem("workload.kind", "stated beside workload.trace; keep one of the two"))
        if problems:
            raise ScenarioError(self.source, problems)
        made = self._traced(table) if "trace" in table else generate(table, self.seed)
        if max_new is not None:
            made = _ask_for(made, max_new)
        context = self.resolved.settings.context_len
        return fit_context(made, context, oversize)

    def _traced(self, table: dict[str, Any]) -> Workload:
        allowed = (
            "trace",
            "format",
            "rate_scale",
            "limit",
            "start_s",
            "end_s",
            "time_unit",
            "columns",
            "rate",
            "ignore_eos",
            "turns",
            "block_size",
            "bad_rows",
        )
        problems = [
            Problem(f"workload.{key}", f"unknown key{nearest(key, allowed)}") for key in table if key not in allowed
        ]
        if table.get("format") is not None and table["format"] not in FORMATS:
            hint = nearest(str(table["format"]), FORMATS)
            problems.append(Problem("workload.format", f"{table['format']!r} is not one of {', '.join(FORMATS)}{hint}"))
        if problems:
            raise ScenarioError(self.source, problems)
        return read_trace(self._path(str(table.pop("trace"))), **table)

    def acceptance(self, workload: Workload) -> Acceptance:
        """The acceptance model of this scenario, for its draft's width."""
        spec = self.resolved.settings.spec
        table = dict(self.document.acceptance)
        kind = table.pop("kind")
        if spec is None:
            return NoDraft(width=1)
        width = spec.num_draft_tokens if spec.is_dflash or not spec.has_draft_kv else spec.num_steps + 1
        width = min(width, spec.num_draft_tokens)
        try:
            if kind == "trace":
                return Trace(lengths=workload.accept or (), width=width, **table)
            family: Any = ACCEPTANCE[kind]
            made: Acceptance = family(width=width, seed=self.seed, **table)
            return made
        except TypeError as error:
            raise ScenarioError(self.source, [_keyword_problem("acceptance", ACCEPTANCE[kind], error, table)]) from None
        except ScenarioError as error:
            raise ScenarioError(self.source, error.problems) from None

    def step_time(self) -> StepTime:
        """The step-time model of this scenario."""
        table = dict(self.document.steptime)
        kind = table.pop("kind")
        if kind == "roofline":
            table = self._roofline(table)
        try:
            made: StepTime = STEPTIMES[kind](**table)
            return made
        except TypeError as error:
            raise ScenarioError(self.source, [_keyword_problem("steptime", STEPTIMES[kind], error, table)]) from None
        except ScenarioError as error:
            raise ScenarioError(self.source, error.problems) from None

    def _roofline(self, table: dict[str, Any]) -> dict[str, Any]:
        name = table.pop("gpu", self.document.memory.gpu)
        if name is None:
            raise ScenarioError(
                self.source, [Problem("steptime.gpu", "is missing: the roofline needs a GPU (memory.gpu)")]
            )
        r = self.resolved
        return {
            "gpu": gpu(name, place="steptime.gpu"),
            "arch": r.arch,
            "tp_size": r.settings.tp_size,
            "kv_bytes": DTYPE_BYTES[r.settings.kv_cache_dtype],
            **table,
        }


def _ask_for(workload: Workload, max_new: int) -> Workload:
    """Requests that ask for ``max_new`` tokens and stop by themselves at their recorded length."""
    import numpy as np

    return replace(workload, max_new_tokens=np.maximum(workload.output_tokens, max_new).astype(np.int64))


def _keyword_problem(section: str, cls: Any, error: TypeError, table: dict[str, Any]) -> Problem:
    """An unknown or a missing parameter of a family member, as a problem."""
    import dataclasses

    fields = [
        f for f in dataclasses.fields(cls) if f.init and f.name not in ("seed", "width", "gpu", "arch", "lengths")
    ]
    allowed = [f.name for f in fields]
    for key in table:
        if key not in allowed and key not in ("gpu", "arch", "tp_size"):
            hint = nearest(key, allowed)
            return Problem(f"{section}.{key}", f"unknown key{hint}; allowed are {', '.join(allowed) or 'none'}")
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    missing = next((name for name in required if name not in table), None)
    return Problem(f"{section}.{missing}" if missing else section, "is missing" if missing else str(error))


# ------------------------------------------------------------------------------------------------- lookup
def _builtin_dir() -> Any:
    """Where built-in scenarios lie: in the package once installed, beside it in a checkout."""
    inside = files("simkv") / "scenarios"
    return inside if inside.is_dir() else Path(__file__).resolve().parent.parent / "scenarios"


def builtin_names() -> list[str]:
    """Names of the scenarios that ship with simkv, sorted."""
    return sorted(entry.name[:-5] for entry in _builtin_dir().iterdir() if entry.name.endswith(".toml"))


def _read_toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+)", str(error))
        place = f"{source}:{match.group(1)}" if match else source
        raise ScenarioError(source, [Problem(place, f"is not valid TOML: {error}")]) from None


def load(scenario: str | Path | Mapping[str, Any] | Scenario) -> Scenario:
    """A scenario from a built-in name, a file, or a dict.

    Parameters
    ----------
    scenario : str, Path, mapping or Scenario
        A Scenario is returned as it is.

    Raises
    ------
    ScenarioError
        All problems at once, with dotted keys.
    """
    if isinstance(scenario, Scenario):
        return scenario
    if isinstance(scenario, Mapping):
        return Scenario(deepcopy(dict(scenario)))
    path = Path(scenario)
    if path.suffix == ".toml" or path.is_file():
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ScenarioError(str(path), [Problem(str(path), f"cannot be read: {reason}")]) from None
        return Scenario(_read_toml(text, str(path)), str(path), path.resolve().parent)
    names = builtin_names()
    if str(scenario) not in names:
        hint = nearest(str(scenario), names)
        raise ScenarioError(
            str(scenario),
            [Problem(str(scenario), f"is no file and no built-in scenario{hint}; built in are {', '.join(names)}")],
        )
    text = (_builtin_dir() / f"{scenario}.toml").read_text(encoding="utf-8")
    return Scenario(_read_toml(text, f"{scenario}.toml"), f"{scenario}.toml")


def plan(scenario: str | Path | Mapping[str, Any] | Scenario) -> Plan:
    """Sizes of every pool of a scenario, without simulating."""
    return load(scenario).plan()
