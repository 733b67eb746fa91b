"""Reading of architectures: spellings, geometry, MTP facts, state, errors."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkv.arch import Arch, Geometry
from simkv.errors import ModelError

BASE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
LETTER = {"full": "F", "sliding": "S", "chunked": "C", "linear": "L", "mla": "M", "compressed": "X"}
HF = {"F": "full_attention", "S": "sliding_attention"}


def arch(without: str = "", **keys: Any) -> Arch:
    """Arch of the base config with some keys set and one left out."""
    return Arch.from_config({key: value for key, value in {**BASE, **keys}.items() if key != without})


def kinds(result: Arch) -> str:
    """One letter a layer."""
    return "".join(LETTER[kind] for kind in result.layers)


def problems(config: Any) -> dict[str, str]:
    """Place and message of every problem."""
    with pytest.raises(ModelError) as caught:
        Arch.from_config(config)
    return {problem.place: problem.message for problem in caught.value.problems}


# ---------------------------------------------------------------- kinds of the layers


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "FFFF"),
        ({"layer_types": ["full_attention", "sliding_attention", "chunked_attention", "linear_attention"]}, "FSCL"),
        ({"layer_types": ["hybrid", "hybrid_sliding", "attention", "mamba"]}, "FSFL"),
        ({"layer_types": ["full_attention"] * 4 + ["sliding_attention"] * 3}, "FFFF"),
        ({"layers_block_type": ["mamba", "attention", "mamba", "mamba"]}, "LFLL"),
        ({"hybrid_layer_pattern": [0, 1, 1, 0]}, "FSSF"),
        ({"hybrid_layer_pattern": [0, 1, 1, 0, 1]}, "FSSF"),
        ({"hybrid_layer_pattern": [0, 1, 1, 0], "attention_chunk_size": 128}, "FSSF"),
        ({"attn_type_list": [0, 0, 0, 1]}, "LLLF"),
        ({"local_layer_ids": [0, 1, 3]}, "SSFS"),
        ({"local_layer_ids": []}, "FFFF"),
        ({"full_attention_interval": 4}, "LLLF"),
        ({"full_attention_interval": 3}, "LLFL"),
        ({"sliding_window_pattern": 2}, "SFSF"),
        ({"sliding_window_pattern": 3}, "SSFS"),
        ({"sliding_window_pattern": 1}, "FFFF"),
        ({"sliding_window_pattern": 0}, "FFFF"),
        ({"sliding_window_pattern": "LLG"}, "SSFS"),
        ({"sliding_window_pattern": 2, "sliding_window": None}, "FFFF"),
        ({"global_attn_every_n_layers": 2}, "SFSF"),
        ({"interleaved_sliding_window": [None, 64, 64, 64]}, "FSSS"),
        ({"interleaved_sliding_window": [64, None]}, "SFSF"),
        ({"attention_chunk_size": 8192, "sliding_window": None}, "CCCF"),
        ({"attention_chunk_size": 8192, "sliding_window": None, "no_rope_layers": []}, "CCCF"),
        ({"attention_chunk_size": 8192, "sliding_window": None, "no_rope_layers": [0, 1, 0, 1]}, "FCFC"),
        ({"attention_chunk_size": 8192, "sliding_window": None, "no_rope_layer_interval": 2}, "CFCF"),
        ({"sliding_window": None}, "FFFF"),
        ({"sliding_window": 0}, "FFFF"),
        ({"sliding_window": 64}, "SSSS"),
        ({"model_type": "mistral"}, "SSSS"),
        ({"model_type": "gemma2"}, "SFSF"),
        ({"model_type": "cohere2"}, "SSSF"),
        ({"use_sliding_window": False}, "FFFF"),
        ({"use_sliding_window": False, "layer_types": ["sliding_attention"] * 4}, "FFFF"),
        ({"use_sliding_window": True, "max_window_layers": 3}, "FFFS"),
        ({"use_sliding_window": True, "max_window_layers": 4}, "FFFF"),
        ({"use_sliding_window": True, "max_window_layers": 0}, "SSSS"),
        ({"use_sliding_window": True}, "SSSS"),
        ({"compress_ratios": [0, 4, 128, 4, 0]}, "XXXX"),
    ],
)
def test_spelling_of_the_layers(keys: dict[str, Any], expected: str) -> None:
    window = {} if keys == {} else {"sliding_window": 64}
    assert kinds(arch(**{**window, **keys})) == expected


def test_window_and_chunk() -> None:
    assert arch(sliding_window=64).window == 64
    assert arch(sliding_window_size=64).window == 64
    assert arch(sliding_window=64, use_sliding_window=False).window == 64
    assert arch(interleaved_sliding_window=[None, 64]).window == 64
    chunked = arch(attention_chunk_size=32)
    assert (chunked.window, chunked.chunk) == (None, 32)
    assert arch(sliding_window=64, attention_chunk_size=32).chunk is None


@pytest.mark.parametrize("nesting", ["text_config", "language_config", "llm_config"])
def test_nested_text_config(nesting: str) -> None:
    config: dict[str, Any] = {
        "architectures": ["Outer"],
        "dtype": "float32",
        "hidden_size": 9,
        nesting: {**BASE, "architectures": ["Inner"], "is_hybrid_swa": True},
    }
    result = Arch.from_config(config)
    assert (result.architecture, result.dtype_bytes, result.is_hybrid_swa, result.hidden_size) == (
        "Outer",
        4,
        True,
        512,
    )
    assert result.config == config[nesting]
    del config[nesting]["num_hidden_layers"]
    assert set(problems(config)) == {f"{nesting}.num_hidden_layers"}


# ---------------------------------------------------------------- geometry


def test_plain_geometry_and_defaults() -> None:
    assert arch().full == Geometry(2, 64, 64)
    assert arch().sliding is None
    assert arch("num_key_value_heads").full == Geometry(8, 64, 64)
    assert arch("head_dim", hidden_size=1024).full == Geometry(2, 128, 128)
    assert arch(v_head_dim=32).full == Geometry(2, 64, 32)
    assert arch(sliding_window=8).sliding == Geometry(2, 64, 64)
    assert arch(sliding_window=8).full == Geometry(2, 64, 64)
    assert arch("num_key_value_heads", num_attention_groups=4).full == Geometry(4, 64, 64)


def test_sliding_geometry_of_its_own() -> None:
    pattern: dict[str, Any] = {"hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window": 8}
    assert arch(**pattern, swa_num_key_value_heads=4).sliding == Geometry(4, 64, 64)
    assert arch(**pattern, swa_head_dim=96).sliding == Geometry(2, 96, 96)
    assert arch(**pattern, swa_head_dim=96, swa_v_head_dim=48).sliding == Geometry(2, 96, 48)
    assert arch(**pattern, v_head_dim=32).sliding == Geometry(2, 64, 32)
    step = arch(**pattern, attention_other_setting={"num_attention_groups": 8, "head_dim": 32})
    assert (step.full, step.sliding) == (Geometry(2, 64, 64), Geometry(8, 32, 32))


def test_gemma4_states_its_full_layers_apart() -> None:
    pattern: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
    both = arch(**pattern, num_global_key_value_heads=1, global_head_dim=128)
    assert (both.full, both.sliding) == (Geometry(1, 128, 128), Geometry(2, 64, 64))
    width = arch(**pattern, global_head_dim=128)
    assert (width.full, width.sliding) == (Geometry(2, 128, 128), Geometry(2, 64, 64))


def test_latent_layers() -> None:
    result = arch(kv_lora_rank=512, qk_rope_head_dim=64)
    assert kinds(result) == "MMMM"
    assert result.full == Geometry(1, 576, 0, latent=True)
    assert [2 * result.full.elements(tp) for tp in (1, 8)] == [1152, 1152]
    assert result.unsupported == ()


@pytest.mark.parametrize(("tp_size", "elements"), [(1, 4 * 320), (2, 2 * 320), (4, 320), (8, 320)])
def test_elements_on_a_rank(tp_size: int, elements: int) -> None:
    assert Geometry(4, 192, 128).elements(tp_size) == elements


# ---------------------------------------------------------------- MTP


@pytest.mark.parametrize(
    ("keys", "ids", "depth"),
    [
        ({}, None, None),
        ({"mtp_local_layer_ids": None, "num_nextn_predict_layers": None}, None, None),
        ({"mtp_local_layer_ids": [], "num_nextn_predict_layers": 0}, (), 0),
        ({"mtp_local_layer_ids": [0, 2], "num_nextn_predict_layers": 3}, (0, 2), 3),
        ({"mtp_num_hidden_layers": 1}, None, 1),
        ({"mtp_config": {"n_layers": 8, "local_layer_ids": [0, 2]}}, (0, 2), 8),
        ({"mtp_config": {"local_layer_ids": []}}, (), None),
        ({"mtp_config": {"local_layer_ids": []}, "mtp_local_layer_ids": [1]}, (1,), None),
        ({"mtp_config": {"local_layer_ids": [0]}, "mtp_local_layer_ids": [1]}, (0,), None),
        ({"mtp_config": None}, None, None),
    ],
)
def test_mtp_facts(keys: dict[str, Any], ids: tuple[int, ...] | None, depth: int | None) -> None:
    for result in (arch(**keys), Arch.from_config({**keys, "text_config": BASE})):
        assert (result.mtp_local_layer_ids, result.num_nextn_predict_layers) == (ids, depth)


def test_mtp_extent_blocks_and_depth_ids() -> None:
    assert arch(mtp_config={"local_extent": 256}).mtp_local_extent == 256
    assert arch(mtp_local_extent=128).mtp_local_extent == 128
    assert arch(mtp_blocks_in_checkpoint=3).mtp_blocks_in_checkpoint == 3
    assert arch().mtp_layer_id_is_depth is False
    assert arch(mtp_layer_id_is_depth=True).mtp_layer_id_is_depth is True
    for name in ("InklingForConditionalGeneration", "InklingForConditionalGenerationMTP"):
        assert arch(architectures=[name]).mtp_layer_id_is_depth is True
        assert arch(architectures=[name], mtp_layer_id_is_depth=False).mtp_layer_id_is_depth is False


def test_an_mtp_layer_keeps_the_geometry_it_needs() -> None:
    assert arch(mtp_local_layer_ids=[0]).sliding == Geometry(2, 64, 64)
    assert arch(mtp_local_layer_ids=[]).sliding is None
    assert arch(sliding_window=8, num_nextn_predict_layers=1).full == Geometry(2, 64, 64)
    # Budgets price draft layers with it whatever the trunk holds.
    assert arch(sliding_window=8, num_nextn_predict_layers=0).full == Geometry(2, 64, 64)


# ---------------------------------------------------------------- dtype, weights, parameters


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ({}, 2),
        ({"torch_dtype": "bfloat16"}, 2),
        ({"dtype": "float16"}, 2),
        ({"dtype": "torch.float32"}, 4),
        ({"torch_dtype": "float32", "dtype": None}, 4),
    ],
)
def test_dtype(keys: dict[str, Any], size: int) -> None:
    assert arch(**keys).dtype_bytes == size


@pytest.mark.parametrize(
    ("quant", "bits"),
    [
        (None, 16.0),
        ({"quant_method": "fp8"}, 8.0),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8.0),
        ({"quant_method": "awq", "bits": 4}, 4.0),
        ({"quant_method": "gptq", "bits": 8}, 8.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.0),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, 4.0),
        ({"quant_method": "something-new"}, 16.0),
    ],
)
def test_weight_bits(quant: dict[str, Any] | None, bits: float) -> None:
    assert arch(quantization_config=quant).weight_bits == bits


def test_weight_bits_of_float32() -> None:
    assert arch(dtype="float32").weight_bits == 32.0


def test_stated_parameters() -> None:
    stated = arch(total_params_b=309, active_params_b=15)
    assert (stated.total_params, stated.active_params) == (309e9, 15e9)
    assert arch(total_params=199_997_706_240).total_params == 199_997_706_240


def test_estimate_of_a_dense_model() -> None:
    # Two layers of 8x8 heads: attention 512 * (512 + 512 + 128 + 128), MLP 3 * 512 * 1000, norms 1024.
    layer = 512 * 1280 + 3 * 512 * 1000 + 1024
    dense: dict[str, Any] = {"num_hidden_layers": 2, "intermediate_size": 1000, "vocab_size": 100}
    untied = arch(**dense)
    assert untied.total_params == untied.active_params == 2 * layer + 512 + 2 * 100 * 512
    assert arch(**dense, tie_word_embeddings=True).total_params == 2 * layer + 512 + 100 * 512
    assert arch(**dense, draft_vocab_size=10).total_params == 2 * layer + 512 + 110 * 512
    assert arch(**dense, num_experts=8).total_params is None
    assert arch(**{**dense, "intermediate_size": [1, 2]}).total_params is None
    assert arch(**dense, kv_lora_rank=64, qk_rope_head_dim=8).total_params is None


# ---------------------------------------------------------------- Inkling's state


def test_inkling_state() -> None:
    result = Arch.from_config("inkling")
    # 66 layers, 3 earlier inputs, bf16; full K and V 8 x 128, sliding K and V 16 x 128, twice the hidden 6144.
    assert result.state_bytes_per_request == 66 * 3 * 2 * (1024 + 1024 + 2048 + 2048 + 6144 + 6144) == 7_299_072
    assert result.state_bytes(8) == 66 * 3 * 2 * (128 + 128 + 256 + 256 + 6144 + 6144)
    assert result.state_bytes(8, scattered=True) == 66 * 3 * 2 * (128 + 128 + 256 + 256 + 768 + 768)
    # One KV head stays on each rank when there are more ranks than heads.
    assert result.state_bytes(32, scattered=True) == 66 * 3 * 2 * (128 + 128 + 128 + 128 + 192 + 192)


def test_state_follows_the_layers_and_the_kernel() -> None:
    small = arch(model_type="inkling_text", layer_types=["hybrid"] * 4)
    assert small.sconv_kernel_size == 4
    assert small.state_bytes_per_request == 4 * 3 * 2 * (4 * 128 + 2 * 512)
    assert small.with_layers("FF").state_bytes_per_request == small.state_bytes_per_request // 2
    assert arch(architectures=["InklingForConditionalGeneration"], conv_kernel_size=3).sconv_kernel_size == 3
    assert arch(conv_kernel_size=3).state_bytes() == 0
    assert arch().replace(state_bytes_per_request=7).state_bytes(4) == 7


# ---------------------------------------------------------------- what is not accounted for


@pytest.mark.parametrize(
    ("keys", "phrase"),
    [
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, "linear-attention state (3 of 4 layers)"),
        ({"compress_ratios": [0, 4, 4, 4, 0], "index_head_dim": 128}, "compressed KV (4 of 4 layers)"),
        (
            {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128},
            "sparse-attention index keys (index_head_dim 128)",
        ),
        ({"kv_lora_rank": 512}, "rotary width of the latent (qk_rope_head_dim is not stated)"),
        (
            {"num_key_value_heads": None, "num_attention_heads": None},
            "KV heads (num_key_value_heads is not stated)",
        ),
        ({"head_dim": None, "hidden_size": None}, "head width (head_dim is not stated)"),
        (
            {"layer_types": ["sliding_attention"] * 4},
            "window of the sliding layers (sliding_window is not stated)",
        ),
        (
            {"layer_types": ["chunked_attention"] * 4},
            "chunk of the chunked layers (attention_chunk_size is not stated)",
        ),
        ({"layer_types": ["hybrid"] * 4}, "recurrent state of the hybrid layers"),
        ({"mamba_d_state": 16}, "recurrent layers (mamba_d_state is stated, but no layer list)"),
    ],
)
def test_unsupported_is_named_and_not_raised(keys: dict[str, Any], phrase: str) -> None:
    assert arch(**keys).unsupported == (phrase,)


# ---------------------------------------------------------------- variants


def test_with_layers() -> None:
    mimo = Arch.from_config("mimo-v2-flash")
    variant = mimo.with_layers("fs" * 24, window=1024)
    assert (variant.count("full"), variant.count("sliding"), variant.window) == (24, 24, 1024)
    assert (variant.full, variant.sliding) == (mimo.full, mimo.sliding)
    assert (variant.mtp_blocks_in_checkpoint, variant.total_params) == (3, 309e9)
    assert mimo.with_layers("FS").total_params is None
    assert mimo.with_layers("S" * 48).window == 128


def test_with_layers_takes_the_other_geometry() -> None:
    mistral = Arch.from_config("mistral-7b-v0.1").with_layers("FS")
    assert mistral.full == mistral.sliding == Geometry(8, 128, 128)
    scout = Arch.from_config("llama-4-scout").with_layers("FS")
    assert (scout.window, scout.chunk, kinds(scout)) == (8192, None, "FS")
    latent = Arch.from_config("deepseek-v3").with_layers("FS", window=512)
    assert kinds(latent) == "MS"
    assert latent.full == latent.sliding == Geometry(1, 576, 0, latent=True)


def test_with_layers_clears_only_what_the_layers_caused() -> None:
    assert Arch.from_config("qwen3-next-80b-a3b").with_layers("F" * 48).unsupported == ()
    assert Arch.from_config("deepseek-v3.2").with_layers("F").unsupported
    assert Arch.from_config("laguna-xs-2.1").with_layers("FS").unsupported
    assert Arch.from_config("deepseek-v4-flash").with_layers("F").unsupported == (
        "KV geometry of the layers (not stated)",
    )
    assert arch(layer_types=["sliding_attention"] * 4).with_layers("FS", window=8).unsupported == ()


@pytest.mark.parametrize(
    ("pattern", "window", "places"),
    [("", 8, {"pattern"}), ("FXS2", None, {"pattern", "window"}), ("FS", None, {"window"}), ("F", 0, {"window"})],
)
def test_with_layers_refuses(pattern: str, window: int | None, places: set[str]) -> None:
    with pytest.raises(ModelError) as caught:
        arch().with_layers(pattern, window=window)
    assert {problem.place for problem in caught.value.problems} == places


@settings(max_examples=60, deadline=None)
@given(pattern=st.text(alphabet="FS", min_size=1, max_size=24), heads=st.sampled_from([1, 4, 8]))
def test_spellings_agree(pattern: str, heads: int) -> None:
    common = {
        **BASE,
        "num_hidden_layers": len(pattern),
        "swa_num_key_value_heads": heads,
        "swa_head_dim": 96,
        "sliding_window": 32,
        "mtp_local_layer_ids": [0],
        "num_nextn_predict_layers": 2,
    }
    listed = Arch.from_config({**common, "layer_types": [HF[letter] for letter in pattern]})
    flagged = Arch.from_config({**common, "hybrid_layer_pattern": [int(letter == "S") for letter in pattern]})
    by_ids = Arch.from_config({**common, "local_layer_ids": [i for i, letter in enumerate(pattern) if letter == "S"]})
    variant = listed.with_layers(pattern[::-1]).with_layers(pattern.lower())
    assert listed == flagged == by_ids == variant
    assert kinds(listed) == pattern
    assert listed.sliding == Geometry(heads, 96, 96)


# ---------------------------------------------------------------- files


def test_reads_a_file_a_folder_and_a_name(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BASE))
    for given_ in (path, str(path), tmp_path, str(tmp_path)):
        assert Arch.from_config(given_).name == tmp_path.name
    assert Arch.from_config(path, name="mine") == arch().replace(name="mine")
    assert arch().name == "<inline>"
    assert Arch.from_config({**BASE, "name": "mine"}) == arch().replace(name="mine")
    assert Arch.from_config({**BASE, "name": "mine"}, name="other").name == "other"
    for no_name in ("", None, 5, ["mine"]):
        assert Arch.from_config({**BASE, "name": no_name}).name == "<inline>"
    assert Arch.from_config("qwen3-8b").name == "qwen3-8b"


def test_bad_files(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    assert "not found" in problems(missing)[str(missing)]
    assert "not found" in problems(tmp_path)[str(tmp_path / "config.json")]
    broken = tmp_path / "broken.json"
    broken.write_text('{\n  "num_hidden_layers": 4,\n  oops\n}')
    assert "is not JSON" in problems(str(broken))[f"{broken}:3"]
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in problems(binary)[str(binary)]
    listed = tmp_path / "list.json"
    listed.write_text("[1]")
    assert "not a table" in problems(listed)["config"]


def test_unknown_name_offers_the_nearest() -> None:
    assert "did you mean gemma-3-27b?" in problems("gemma-3-27")["config"]
    assert "neither a file nor a built-in model" in problems("")["config"]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("config", [None, 3, ["a"]])
def test_not_a_table(config: Any) -> None:
    assert "not a table" in problems(config)["config"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", None, "missing"),
        ("num_hidden_layers", 0, "positive integer"),
        ("num_hidden_layers", 4.0, "4.0 is not a positive integer"),
        ("num_hidden_layers", True, "positive integer"),
        ("num_attention_heads", "8", "'8' is not a positive integer"),
        ("num_key_value_heads", [1, 2], "positive integer"),
        ("num_key_value_heads", -2, "-2 is not"),
        ("head_dim", 0, "0 is not"),
        ("sliding_window", -1, "-1 is not an integer of 0 or more"),
        ("num_nextn_predict_layers", -1, "0 or more"),
        ("layer_types", "full", "not a list"),
        ("layer_types", ["full_attention"] * 3, "has 3 entries for 4 layers"),
        ("layer_types", ["full_atention"] * 4, "(layer 0) is not one of"),
        ("layer_types", ["full_atention"] * 4, "did you mean full_attention?"),
        ("layer_types", [1, 2, 3, 4], "is not one of"),
        ("hybrid_layer_pattern", [0, 1, 2, 0], "2 (layer 2) is not one of 0, 1"),
        ("hybrid_layer_pattern", [0, 1, True, 0], "True (layer 2) is not one of 0, 1"),
        ("hybrid_layer_pattern", [0, 1], "has 2 entries for 4 layers"),
        ("local_layer_ids", [0, 4], "4 is beyond the last layer"),
        ("local_layer_ids", "all", "not a list of layer numbers"),
        ("mtp_local_layer_ids", [0, "1"], "not a list of layer numbers"),
        ("mtp_local_layer_ids", 3, "not a list of layer numbers"),
        ("mtp_local_layer_ids", [-1], "not a list of layer numbers"),
        ("mtp_local_layer_ids", [True], "not a list of layer numbers"),
        ("sliding_window_pattern", "LLX", "not a pattern of L"),
        ("interleaved_sliding_window", [None, 8, 16], "one window"),
        ("use_sliding_window", "no", "not true or false"),
        ("dtype", "bfloat17", "did you mean bfloat16?"),
        ("architectures", "Llama", "not a list of class names"),
        ("quantization_config", "fp8", "not a table"),
        ("text_config", 3, "not a table"),
        ("total_params_b", "70B", "not a positive number"),
        ("total_params_b", float("inf"), "not a positive number"),
        ("kv_lora_rank", "wide", "positive integer"),
    ],
)
def test_wrong_value(key: str, value: Any, words: str) -> None:
    found = problems({**BASE, key: value})
    assert set(found) == {key}
    assert words in found[key]


def test_every_problem_at_once() -> None:
    text = {**BASE, "num_attention_heads": 0, "hybrid_layer_pattern": [5], "mtp_config": {"local_layer_ids": 1}}
    assert set(problems({"text_config": text, "torch_dtype": "bf16"})) == {
        "text_config.num_attention_heads",
        "text_config.hybrid_layer_pattern",
        "text_config.mtp_config.local_layer_ids",
        "torch_dtype",
    }


KEYS = [
    *BASE,
    *("layer_types", "hybrid_layer_pattern", "local_layer_ids", "sliding_window_pattern", "interleaved_sliding_window"),
    *("no_rope_layers", "attention_chunk_size", "compress_ratios", "max_window_layers", "sliding_window"),
    *("use_sliding_window", "kv_lora_rank", "qk_rope_head_dim", "attention_other_setting", "global_head_dim"),
    *("mtp_local_layer_ids", "mtp_config", "num_nextn_predict_layers", "torch_dtype", "quantization_config"),
    *("total_params_b", "intermediate_size", "num_experts", "architectures", "model_type", "source", "unverified"),
]
SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 40) | st.floats() | st.sampled_from(["", "gemma2", "LG", *HF.values()])
)
VALUES = (
    SCALARS | st.lists(SCALARS, max_size=5) | st.dictionaries(st.sampled_from(["local_layer_ids", "bits"]), SCALARS)
)


@settings(max_examples=150, deadline=None)
@given(keys=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_any_json_is_read_or_refused(keys: dict[str, Any]) -> None:
    try:
        result = arch(**keys)
    except ModelError as error:
        assert error.problems
    else:
        assert len(result.layers) == result.config["num_hidden_layers"]
        assert result.unsupported or result.full or result.sliding


def test_a_problem_is_told_once() -> None:
    with pytest.raises(ModelError) as caught:
        Arch.from_config({**BASE, "hidden_size": -1, "sliding_window": -1})
    assert len(caught.value.problems) == 2


def test_unknown_keys_are_fine_and_an_arch_pickles() -> None:
    result = arch(rope_theta=1e4, vision_config={"hidden_size": 3})
    assert pickle.loads(pickle.dumps(result)) == result == arch()
