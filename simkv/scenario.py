"""Scenarios: overrides, built-in ones, and the factories that turn names into objects."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from simkv.arch import Arch
from simkv.document import Document, schema, validate
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
from simkv.engines.sglang.reserve import front_end_reserve
from simkv.engines.sglang.routing import ROUTING_RULES, RoutingRule
from simkv.engines.sglang.settings import DTYPE_BYTES, Settings, Spec, resolve_ratio, resolve_spec
from simkv.errors import ModelError, Problem, ScenarioError, nearest
from simkv.hardware import gpu
from simkv.overrides import overridden, parse_assignments, split_key
from simkv.steptime import STEPTIME, StepTime
from simkv.workload.acceptance import ACCEPTANCE, Acceptance, NoDraft, Trace
from simkv.workload.generate import generate
from simkv.workload.request import Workload
from simkv.workload.traces import fit_context, read_trace

__all__ = ["Resolved", "Scenario", "builtin_names", "load", "plan", "schema"]


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
        return validate(self.data, self.source)

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
        return replace(self, data=overridden(self.data, parse_assignments(assignments)))

    def set(self, **changes: Any) -> Scenario:
        """A copy with changes given as ``section__key=value``; None removes a key."""
        return replace(self, data=overridden(self.data, [(key.split("__"), value) for key, value in changes.items()]))

    def change(self, changes: Mapping[str, Any]) -> Scenario:
        """A copy with changes given as dotted key -> value, as a sweep's points are; None removes a key.

        Raises
        ------
        ScenarioError
            An unknown key, a bad value.
        """
        problems = [Problem(str(key), f"{key!r} is no dotted key") for key in changes if not split_key(key)]
        if problems:
            raise ScenarioError("override", problems)
        return replace(self, data=overridden(self.data, [(split_key(key), value) for key, value in changes.items()]))

    def with_arch(self, arch: Arch) -> Scenario:
        """A copy that serves this architecture instead of ``model.config``."""
        return replace(self, arch=arch)

    def with_routing(self, rule: RoutingRule | str) -> Scenario:
        """A copy that routes draft pools by a rule of one's own, or by the one of this name."""
        return self.set(policies__routing=rule) if isinstance(rule, str) else replace(self, rule=rule)

    def to_dict(self) -> dict[str, Any]:
        """The scenario with every key's value, defaults included; paths of files are absolute."""
        dumped: dict[str, Any] = self.document.model_dump(by_alias=True, exclude_none=True)
        for section, key in (("model", "config"), ("draft", "config"), ("workload", "trace")):
            value = (dumped.get(section) or {}).get(key)
            if isinstance(value, str) and (path := self._path(value)).exists():
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
                return Arch.from_config(config)
            path = self._path(config)
            return Arch.from_config(path if path.exists() else config)
        except ModelError as error:
            # "config" is the whole of it, which the key names already.
            whole = ("", "config")
            problems = [Problem(key if p.place in whole else f"{key}: {p.place}", p.message) for p in error.problems]
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
        if chunk is None:
            chunk = default_chunked_prefill_size(mib)
            if chunk % memory.page_size:
                message = f"the engine's default, {chunk}, is not a multiple of memory.page_size {memory.page_size}: state one"
                raise ScenarioError(self.source, [Problem("memory.chunked_prefill_size", message)])
        settings = Settings(
            page_size=memory.page_size,
            tp_size=model.tp_size,
            kv_cache_dtype=model.kv_cache_dtype,
            swa_full_tokens_ratio=resolve_ratio(arch, memory.swa_full_tokens_ratio),
            max_total_tokens=memory.max_total_tokens,
            max_running_requests=None if requests == "pool" else requests,
            chunked_prefill_size=chunk,
            max_prefill_tokens=memory.max_prefill_tokens,
            context_len=context,
            prefill_max_requests=memory.prefill_max_requests,
            swa_eviction_interval=max(1, memory.swa_eviction_interval),
            disable_radix_cache=memory.disable_radix_cache,
            disable_overlap_schedule=memory.disable_overlap_schedule,
            enable_mixed_chunk=memory.enable_mixed_chunk,
            schedule_conservativeness=policies.schedule_conservativeness,
            hybrid=hybrid,
            hybrid_disabled=model.hybrid_swa is False,
            window=window,
            attention_window=(arch.chunk or arch.window) if arch.count("sliding", "chunked") else None,
            spec=spec,
            faults=frozenset(policies.faults),
            repair_faults=policies.engine_faults == "repair",
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
            beside = ("mem_fraction_static", "weights", "draft_weights", "overhead", "state_bytes")
            ignored = [name for name in beside if getattr(memory, name)]
            if ignored:
                notes.append(f"memory.kv_bytes is the budget itself: {', '.join(ignored)} have no effect")
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
        return self.fitted(self.requests())

    def requests(self) -> Workload:
        """The requests as the trace has them or the generator makes them, whatever server they are for.

        Raises
        ------
        ScenarioError, TraceError
            As :meth:`workload`.
        """
        table = self._source()
        if not table:
            raise ScenarioError(
                self.source, [Problem("workload", 'is missing: give trace = "file" or kind = "poisson" ...')]
            )
        if "trace" in table:
            return read_trace(self._path(table.pop("trace")), **table)
        return generate(table, self.seed)

    def fitted(self, requests: Workload) -> Workload:
        """Those of :meth:`requests`, cut to what clients ask for and to the context of this server."""
        table = self.document.workload or {}
        max_new = table.get("max_new_tokens")
        made = requests if max_new is None else _ask_for(requests, max_new)
        settings = self.resolved.settings
        oversize = table.get("on_oversize", "refuse")
        return fit_context(made, settings.context_len, oversize, reserved=front_end_reserve(settings.spec))

    @property
    def requests_key(self) -> str:
        """Two scenarios with the same key have the same :meth:`requests`, while their trace's file stays as it is."""
        table = self._source()
        where = str(self.base_dir) if "trace" in table else self.seed
        return json.dumps([where, table], sort_keys=True, default=str)

    @property
    def trace_path(self) -> Path | None:
        """File of the trace, None where requests are generated."""
        trace = self._source().get("trace")
        return None if trace is None else self._path(trace)

    def _source(self) -> dict[str, Any]:
        """What of ``[workload]`` decides over :meth:`requests`."""
        table = self.document.workload or {}
        return {key: value for key, value in table.items() if key not in ("on_oversize", "max_new_tokens")}

    @property
    def accept_width(self) -> int:
        """Longest length a verify step can yield, the bonus token included; 1 without speculation."""
        spec = self.resolved.settings.spec
        if spec is None:
            return 1
        drafted = spec.num_draft_tokens if spec.is_dflash or not spec.has_draft_kv else spec.num_steps + 1
        return min(drafted, spec.num_draft_tokens)

    def acceptance(self, workload: Workload) -> Acceptance:
        """The acceptance model of this scenario, for its draft's width."""
        table = dict(self.document.acceptance)
        kind = table.pop("kind")
        if self.resolved.settings.spec is None:
            return NoDraft(width=1)
        try:
            if kind == "trace":
                return Trace(lengths=workload.accept or (), width=self.accept_width)
            family: Any = ACCEPTANCE[kind]
            made: Acceptance = family(width=self.accept_width, seed=self.seed, **table)
            return made
        except ScenarioError as error:
            raise ScenarioError(self.source, error.problems) from None

    def step_time(self) -> StepTime:
        """The step-time model of this scenario."""
        table = dict(self.document.steptime)
        kind = table.pop("kind")
        if kind == "roofline":
            table = self._roofline(table)
        try:
            made: StepTime = STEPTIME[kind](**table)
            return made
        except ScenarioError as error:
            raise ScenarioError(self.source, error.problems) from None

    def _roofline(self, table: dict[str, Any]) -> dict[str, Any]:
        table = dict(table)
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
    """Requests that all ask for ``max_new`` tokens, and stop by themselves where their own output is shorter."""
    cut = int((workload.output_tokens > max_new).sum())
    notes = list(workload.info.notes)
    if cut:
        notes.append(f"{cut} of {len(workload)} outputs end at workload.max_new_tokens = {max_new}")
    if workload.max_new_tokens is not None:
        notes.append(f"max_new_tokens of the trace is replaced by workload.max_new_tokens = {max_new}")
    return replace(
        workload,
        output_tokens=np.minimum(workload.output_tokens, max_new),
        max_new_tokens=np.full(len(workload), max_new, np.int64),
        info=replace(workload.info, notes=tuple(notes)),
    )


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
        line = match.group(1) if match else len(text.splitlines())
        raise ScenarioError(source, [Problem(f"{source}:{line}", f"is not valid TOML: {error}")]) from None


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
    if not isinstance(scenario, (str, Path)):
        message = f"{scenario!r} is not a name, a path, a dict or a Scenario"
        raise ScenarioError("load", [Problem("scenario", message)])
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
        shown = str(scenario) or "''"
        raise ScenarioError(
            shown,
            [Problem(shown, f"is no file and no built-in scenario{hint}; built in are {', '.join(names)}")],
        )
    text = (_builtin_dir() / f"{scenario}.toml").read_text(encoding="utf-8")
    return Scenario(_read_toml(text, f"{scenario}.toml"), f"{scenario}.toml")


def plan(scenario: str | Path | Mapping[str, Any] | Scenario) -> Plan:
    """Sizes of every pool of a scenario, without simulating."""
    return load(scenario).plan()
