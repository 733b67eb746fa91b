"""What a scenario file may hold: sections, keys, types, and every problem of one, found at once.

Only what can be told from the file alone is looked at here; what needs a model, a draft or a trace comes later.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from simkv.axes import axis_problems
from simkv.engines.sglang.routing import ROUTING_RULES
from simkv.engines.sglang.settings import DTYPE_BYTES, FAULTS
from simkv.errors import Problem, ScenarioError, nearest
from simkv.hardware import GPUS
from simkv.steptime import STEPTIME, steptime_problems
from simkv.tables import MOST, one_of
from simkv.workload.acceptance import ACCEPTANCE, acceptance_problems
from simkv.workload.generate import generate_problems
from simkv.workload.traces import option_problems

__all__ = [
    "Document",
    "DraftSection",
    "MemorySection",
    "ModelSection",
    "PoliciesSection",
    "comparison",
    "holds",
    "schema",
    "validate",
]

ENGINES = ("sglang", "sglang@0.5.23")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


class _Problems(ValueError):
    """Several problems of one table; pydantic carries it to :func:`_problems_of`."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(f"{len(problems)} problems")
        self.problems = problems


# ------------------------------------------------------------------------------------------------- values
def _bytes(value: Any) -> int:
    """Bytes from an integer or from a string with its unit."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not a number of bytes; write an integer or a string such as '60GiB' or '141GB'")
    if isinstance(value, int):
        count = value
    else:
        match = re.fullmatch(r"\s*(-?[0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", value)
        unit = match.group(2).upper() if match else ""
        if match is None or unit not in _UNITS:
            hint = f"; did you mean {unit}B or {unit}iB?" if match is not None and f"{unit}B" in _UNITS else ""
            allowed = "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
            raise ValueError(f"{value!r} is not a number of bytes; allowed units are {allowed}{hint}")
        if _UNITS[unit] == 1 and "." in match.group(1):
            raise ValueError(f"{value!r} is not a whole number of bytes; did you leave out its unit?")
        count = round(float(match.group(1)) * _UNITS[unit])
    if abs(count) > 1 << 60:
        raise ValueError(f"{value!r} is more than 1024 PiB")
    return count


def _no_debt(value: int) -> int:
    if value < 0:
        raise ValueError(f"{value} is less than no bytes")
    return value


def _one_of(*allowed: str) -> BeforeValidator:
    """A word out of a list, with the nearest one named when it is not."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(one_of(value, allowed))
        return value

    return BeforeValidator(check)


def _gpu_name(value: Any) -> str:
    """A GPU of the table, in any case."""
    name = str(value).lower()
    if name not in GPUS:
        raise ValueError(f"{value!r} is not one of {', '.join(GPUS)}{nearest(name, GPUS)}")
    return name


def _title(value: Any) -> Any:
    """A name that a title and a folder can bear."""
    if isinstance(value, str) and not (0 < len(value) <= 200 and value.isprintable()):
        shown = value if len(value) <= 40 else value[:37] + "..."
        raise ValueError(f"{shown!r} is not a name of 1 to 200 printable characters")
    return value


def _config(value: Any) -> Any:
    """A model: a name, or a table that a config.json could hold."""
    if isinstance(value, dict):
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"holds what no config.json can: {error}") from None
    return value


def comparison(text: str) -> tuple[str, float] | None:
    """Sign and number of a check such as ``"< 0.95"``, None if it is none."""
    match = re.fullmatch(r"\s*(==|!=|<=|>=|<|>)\s*([0-9.eE+-]+)\s*", text)
    try:
        number = float(match.group(2)) if match else math.nan
    except ValueError:
        return None
    return (match.group(1), number) if match and math.isfinite(number) else None


_SIGNS_OF = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def holds(condition: str, value: Any) -> bool:
    """Whether a figure is as a check wants it; what is no number is not."""
    parsed = comparison(condition)
    if parsed is None or not isinstance(value, (int, float)):
        return False
    return bool(_SIGNS_OF[parsed[0]](value, parsed[1]))


def _condition(value: Any) -> Any:
    if isinstance(value, str) and comparison(value) is None:
        raise ValueError(f"{value!r} is not a comparison such as '== 0' or '< 0.95'")
    return value


def _family(families: Mapping[str, Any], problems_of: Callable[[Mapping[str, Any]], list[Problem]]) -> BeforeValidator:
    """A family member: its name, or a table with its kind and the kind's parameters."""

    def check(value: Any) -> Any:
        table = {"kind": value} if isinstance(value, str) else value
        if not isinstance(table, dict):
            raise ValueError(f"{value!r} is not a table {{kind = ...}} or the name of a kind")
        kind = table.get("kind")
        if not isinstance(kind, str) or kind not in families:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(families)}{nearest(str(kind), families)}")
        problems = problems_of(table)
        if problems:
            raise _Problems(problems)
        return table

    return BeforeValidator(check)


def _sweep(value: Any) -> Any:
    """Axes of a sweep."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a table of keys and lists")
    problems = axis_problems(value)
    if problems:
        raise _Problems(problems)
    return value


def _workload(value: Any) -> Any:
    """Requests: a trace and how to read it, or a generator."""
    if not isinstance(value, dict) or not value:
        return value
    problems = []
    table = dict(value)
    oversize, asked = table.pop("on_oversize", "refuse"), table.pop("max_new_tokens", 1)
    if oversize not in ("refuse", "clip", "drop"):
        problems.append(Problem("workload.on_oversize", one_of(oversize, ("refuse", "clip", "drop"))))
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        problems.append(Problem("workload.max_new_tokens", f"{asked!r} is not an integer >= 1"))
    if "trace" not in table:
        problems += generate_problems(table)
    elif "kind" in table:
        problems.append(Problem("workload.kind", "stated beside workload.trace; keep one of the two"))
    else:
        trace = table.pop("trace")
        if not isinstance(trace, str):
            problems.append(Problem("workload.trace", f"{trace!r} is not the name of a file"))
        problems += option_problems(table, "workload")
    if problems:
        raise _Problems(problems)
    return value


Bytes = Annotated[int, BeforeValidator(_bytes), AfterValidator(_no_debt)]
# A budget is a difference: where it is negative the engine does not start, which is an answer.
Budget = Annotated[int, BeforeValidator(_bytes)]
Count = Annotated[int, Field(ge=1, le=MOST, strict=True)]
Number = Annotated[int, Field(ge=0, le=MOST, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Config = Annotated[str | dict[str, Any], BeforeValidator(_config)]
Algorithm = Annotated[str, _one_of("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH", "DSPARK", "NGRAM")]


# ------------------------------------------------------------------------------------------------- sections
class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(_Section):
    """Which model is served, and how its KV is stored."""

    config: Config = Field(description="built-in name, path of an HF config.json, or an inline table")
    kv_cache_dtype: Annotated[str, _one_of(*DTYPE_BYTES)] = Field("auto", description="--kv-cache-dtype")
    tp_size: Count = Field(1, description="--tp-size, ranks the attention heads are split over")
    hybrid_swa: Flag | Literal["engine"] = Field(
        "engine", description="engine: its own allow-list decides; true opts in; false: --disable-hybrid-swa-memory"
    )
    cache_window: Number | None = Field(
        None, description="earlier tokens the SWA cache keeps, where the rule of the model class is not wanted"
    )
    context_length: Count | None = Field(None, description="--context-length; default: the model's")


class DraftSection(_Section):
    """Speculative decoding; leave the section out for none."""

    algorithm: Algorithm = Field(description="--speculative-algorithm")
    config: Config | None = Field(
        None, description="a separate draft model; without it the target's own MTP heads draft"
    )
    num_steps: Count | None = Field(None, description="--speculative-num-steps")
    eagle_topk: Count | None = Field(None, description="--speculative-eagle-topk")
    num_draft_tokens: Count | None = Field(None, description="--speculative-num-draft-tokens, verify width")
    enable_multi_layer_eagle: Flag | None = Field(None, description="--enable-multi-layer-eagle: one runner a step")
    num_layers: Number | None = Field(None, description="layers the budget counts, where the config is not to be asked")
    num_swa_layers: Number | None = Field(None, description="of those, layers charged at the SWA share")
    swa_attention_layer_ids: list[Number] | None = Field(None, description="sliding layer ids of the draft-mode config")
    full_attention_layer_ids: list[Number] | None = Field(None, description="full layer ids of the draft-mode config")
    mtp_layer_id_is_depth: Flag | None = Field(None, description="class flag: an MTP head's layer id is its depth")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        problems = []
        if self.algorithm == "STANDALONE" and self.config is None and self.num_layers is None:
            problems.append(Problem("draft.config", "STANDALONE drafts with a model of its own: name its config"))
        if self.enable_multi_layer_eagle and (self.eagle_topk or 1) != 1:
            message = f"{self.eagle_topk} with multi-layer EAGLE, which drafts a chain (1)"
            problems.append(Problem("draft.eagle_topk", message))
        if problems:
            raise _Problems(problems)
        return self


class MemorySection(_Section):
    """GPU, budget and the server's memory settings."""

    gpu: Annotated[str, BeforeValidator(_gpu_name)] | None = Field(None, description=f"one of {', '.join(GPUS)}")
    hbm: Bytes | None = Field(None, description="free memory of one GPU before weights are loaded, instead of gpu")
    weights: Bytes | None = Field(None, description="target weights on one rank")
    draft_weights: Bytes = Field(0, description="draft weights on one rank")
    overhead: Bytes = Field(0, description="what the runtime takes besides (context, NCCL buffers), one rank")
    state_bytes: Bytes | None = Field(
        None, description="fixed state of all request slots, one rank (short convolutions)"
    )
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = Field(
        None, description="--mem-fraction-static"
    )
    kv_bytes: Budget | None = Field(None, description="KV budget of one rank, stated outright")
    page_size: Count = Field(1, description="--page-size")
    swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1, strict=True)] | None = Field(
        None, description="--swa-full-tokens-ratio; default 0.8, 0.1 for Inkling"
    )
    max_total_tokens: Count | None = Field(None, description="--max-total-tokens")
    max_running_requests: Count | Literal["pool"] | None = Field(
        None,
        description="--max-running-requests; default 48 with speculation, else from the pool's size; "
        "'pool' takes it from the pool's size in any case",
    )
    chunked_prefill_size: Annotated[int, Field(le=MOST, strict=True)] | None = Field(
        None, description="--chunked-prefill-size; -1 switches chunking off; default by GPU memory"
    )
    max_prefill_tokens: Count = Field(16384, description="--max-prefill-tokens")
    prefill_max_requests: Count | None = Field(None, description="--prefill-max-requests")
    swa_eviction_interval: Number = Field(128, description="SGLANG_SWA_EVICTION_INTERVAL")
    disable_radix_cache: Flag = Field(False, description="--disable-radix-cache")
    disable_overlap_schedule: Flag = Field(False, description="--disable-overlap-schedule")
    enable_mixed_chunk: Flag = Field(False, description="--enable-mixed-chunk")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        problems = []
        chunk = self.chunked_prefill_size
        if chunk is not None and chunk != -1 and chunk < 1:
            problems.append(Problem("memory.chunked_prefill_size", f"{chunk} is not -1 (off) or an integer >= 1"))
        elif chunk is not None and chunk > 0 and chunk % self.page_size:
            message = f"{chunk} is not a multiple of memory.page_size {self.page_size}"
            problems.append(Problem("memory.chunked_prefill_size", message))
        if self.gpu is not None and self.hbm is not None:
            problems.append(Problem("memory.hbm", "stated beside memory.gpu; keep one of the two"))
        elif self.hbm is not None and self.hbm < 1 << 20:
            problems.append(Problem("memory.hbm", f"{self.hbm} B is no GPU's memory; state at least 1MiB"))
        if self.kv_bytes is None and self.gpu is None and self.hbm is None:
            problems.append(Problem("memory", "states no budget: give kv_bytes, or gpu (or hbm) with weights"))
        if problems:
            raise _Problems(problems)
        return self


class PoliciesSection(_Section):
    """Rules that can be swapped."""

    routing: Annotated[str, _one_of(*ROUTING_RULES)] = Field("generalized", description="draft pool routing rule")
    faults: list[Annotated[str, _one_of(*FAULTS)]] = Field(
        default_factory=list, description=f"known engine faults to switch on, of {', '.join(FAULTS)}"
    )
    retraction: Annotated[str, _one_of("default")] = Field("default", description="which request is retracted first")
    engine_faults: Annotated[str, _one_of("reproduce", "repair")] = Field(
        "reproduce",
        description="where the engine itself would break: reproduce (the run ends as the engine's would) or repair "
        "(it goes on with sound accounting)",
    )
    schedule_conservativeness: Annotated[float, Field(ge=0, strict=True)] = Field(
        1.0, description="--schedule-conservativeness"
    )


class Document(_Section):
    """A whole scenario file."""

    schema_: Literal[1] = Field(1, alias="schema", description="version of this format")
    name: Annotated[str, BeforeValidator(_title)] = Field("scenario", description="shown in reports and titles")
    description: str = Field("", description="what the scenario teaches")
    seed: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="seed of every random stream")
    engine: Annotated[str, _one_of(*ENGINES)] = Field("sglang", description="engine, or engine@version")
    model: ModelSection
    draft: DraftSection | None = None
    # A table that is left out is looked at like an empty one, beside everything else that is wrong.
    memory: MemorySection = Field(default={}, validate_default=True)
    policies: PoliciesSection = Field(default_factory=PoliciesSection)
    acceptance: Annotated[dict[str, Any], _family(ACCEPTANCE, acceptance_problems)] = Field(
        default_factory=lambda: {"kind": "none"},
        description=f"how many draft tokens a step accepts: kind, one of {', '.join(ACCEPTANCE)}, and its parameters",
    )
    steptime: Annotated[dict[str, Any], _family(STEPTIME, steptime_problems)] = Field(
        default_factory=lambda: {"kind": "constant", "ms": 20.0},
        description=f"how long a step takes: kind, one of {', '.join(STEPTIME)}, and its parameters",
    )
    workload: Annotated[dict[str, Any], BeforeValidator(_workload)] | None = Field(
        None,
        description="trace = file and how to read it (turns = what a session's prompts are), or kind = arrivals with "
        "lengths, shared prefixes (shared_prefix_tokens) and sessions (turns)",
    )
    checks: dict[str, Annotated[str, BeforeValidator(_condition)]] = Field(
        default_factory=dict, description='figure of the summary = comparison, "requests.retracted" = "== 0"'
    )
    sweep: Annotated[dict[str, list[Any]], BeforeValidator(_sweep)] | None = Field(
        None,
        description='what simkv sweep varies, "dotted.key" = [values]; keys joined by commas change together; '
        "a run of the scenario itself does without",
    )


def schema() -> dict[str, Any]:
    """JSON Schema of a scenario, for editors."""
    return Document.model_json_schema(by_alias=True)


# ------------------------------------------------------------------------------------------------- problems
_SECTIONS: dict[str, type[BaseModel]] = {
    "": Document,
    "model": ModelSection,
    "draft": DraftSection,
    "memory": MemorySection,
    "policies": PoliciesSection,
}
_INTERVALS = {"memory.mem_fraction_static": "in (0, 1)", "memory.swa_full_tokens_ratio": "in (0, 1]"}
_SIGNS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}
# Members of a union name their branch in the location; the user's path ends before it.
_BRANCH = re.compile(r"(constrained-.*|literal\[.*|bool|str|int|function-.*|dict\[.*)")
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
}


def _place(parts: list[str]) -> str:
    """A dotted key as TOML writes it: quoted where a part holds more than a bare key may."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in parts)


def _allowed(error: Any, place: str) -> str | None:
    """What would have been right, as the end of ``X is not ...``; None where pydantic's own words are needed."""
    kind, context = error["type"], error.get("ctx") or {}
    if place in _INTERVALS and (kind in _SIGNS or kind == "finite_number"):
        return _INTERVALS[place]
    if kind in _SIGNS:
        sign, limit = _SIGNS[kind]
        return f"{sign} {context[limit]}"
    if kind == "literal_error":
        return str(context["expected"])
    return _TYPES.get(kind.split("_")[0])


def _problems_of(error: ValidationError) -> list[Problem]:
    """Pydantic's errors in our words, one a place: branches of a union complain together."""
    problems: list[Problem] = []
    allowed: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for one in error.errors():
        parts = [str(part) for part in one["loc"]]
        parts = [part for n, part in enumerate(parts) if n == 0 or not _BRANCH.fullmatch(part)]
        place, value = _place(parts), one.get("input")
        cause = (one.get("ctx") or {}).get("error")
        if isinstance(cause, _Problems):
            problems += cause.problems
        elif one["type"] == "extra_forbidden":
            keys = _keys(parts[0] if len(parts) > 1 else "")
            hint = nearest(parts[-1], keys)
            problems.append(Problem(place, f"unknown key{hint or '; allowed are ' + ', '.join(keys)}"))
        elif one["type"] == "missing":
            problems.append(Problem(place, "is missing"))
        elif one["type"] == "value_error":
            problems.append(Problem(place, str(cause)))
        elif (right := _allowed(one, place)) is not None:
            values[place] = value
            if right not in allowed.setdefault(place, []):
                allowed[place].append(right)
        else:
            problems.append(Problem(place, f"{value!r}: {one['msg']}"))
    told = {problem.place for problem in problems}
    problems += [
        Problem(place, f"{values[place]!r} is not {' or '.join(right)}")
        for place, right in allowed.items()
        if place not in told
    ]
    return sorted(set(problems))


def _keys(section: str) -> list[str]:
    fields = _SECTIONS[section].model_fields if section in _SECTIONS else {}
    return [field.alias or name for name, field in fields.items()]


def validate(data: Mapping[str, Any], source: str) -> Document:
    """A document, or every problem it has.

    Raises
    ------
    ScenarioError
        All problems at once, with dotted keys.
    """
    try:
        return Document.model_validate(dict(data))
    except ValidationError as error:
        raise ScenarioError(source, _problems_of(error)) from None
