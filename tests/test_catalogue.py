"""The built-in models against numbers worked out apart from the reader."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from simkv import catalogue
from simkv.arch import Arch, CatalogueRow, describe_catalogue
from simkv.errors import ModelError

# Bytes one token takes in one layer (2-byte elements, one rank): full or latent layers, sliding or chunked layers.
BYTES = {
    "command-r7b": (4096, 4096),
    "deepseek-v3": (1152, None),
    "deepseek-v3.2": (1152, None),
    "deepseek-v4-flash": (None, None),
    "deepseek-v4-pro": (None, None),
    "dots.llm1": (16384, None),
    "draft-deepseek-v3-671b-eagle3": (4096, None),
    "draft-gemma3-1b-eagle3": (1024, None),
    "draft-gpt-oss-120b-eagle3": (2048, None),
    "draft-gpt-oss-20b-eagle3": (2048, None),
    "draft-inkling-dspark": (4096, None),
    "draft-llama3-70b-eagle3": (4096, None),
    "draft-llama3-8b-eagle3": (4096, None),
    "draft-llama4-scout-17b-16e-eagle3": (4096, None),
    "draft-qwen3-235b-a22b-eagle3": (2048, None),
    "draft-qwen3-30b-a3b-eagle3": (2048, None),
    "draft-qwen3-8b-dflash": (4096, None),
    "draft-qwen3-8b-dspark": (4096, None),
    "draft-qwen3-8b-eagle3": (4096, None),
    "draft-qwen3-next-80b-a3b-eagle3": (2048, None),
    "draft-qwen3.5-35b-a3b-dflash": (2048, None),
    "draft-qwen3.6-27b-dflash": (4096, 4096),
    "gemma-2-27b": (8192, 8192),
    "gemma-2-2b": (4096, 4096),
    "gemma-2-9b": (8192, 8192),
    "gemma-3-12b": (8192, 8192),
    "gemma-3-1b": (1024, 1024),
    "gemma-3-270m": (1024, 1024),
    "gemma-3-27b": (8192, 8192),
    "gemma-3-4b": (4096, 4096),
    "gemma-3n-e2b": (2048, 2048),
    "gemma-3n-e4b": (2048, 2048),
    "gemma-4-26b-a4b": (4096, 8192),
    "gemma-4-31b": (8192, 16384),
    "gemma-4-e2b": (2048, 1024),
    "gemma-4-e4b": (4096, 2048),
    "glm-4.5": (4096, None),
    "glm-4.5-air": (4096, None),
    "glm-5.2": (1152, None),
    "gpt-oss-120b": (2048, 2048),
    "gpt-oss-20b": (2048, 2048),
    "inkling": (4096, 8192),
    "inkling-2-small": (4096, 4096),
    "inkling-small": (4096, 4096),
    "laguna-xs-2.1": (None, None),
    "llama-3.1-70b": (4096, None),
    "llama-3.1-8b": (4096, None),
    "llama-4-maverick": (4096, 4096),
    "llama-4-scout": (4096, 4096),
    "mimo-v2-flash": (2560, 5120),
    "mimo-v2.5": (None, None),
    "minimax-m2.5": (4096, None),
    "ministral-3-8b": (4096, None),
    "mistral-7b-v0.1": (None, 4096),
    "olmo-3-32b": (4096, 4096),
    "olmo-3-7b": (16384, 16384),
    "qwen3-235b-a22b-fp8": (2048, None),
    "qwen3-32b": (4096, None),
    "qwen3-8b": (4096, None),
    "qwen3-next-80b-a3b": (2048, None),
    "qwen3.5-27b": (4096, None),
    "qwen3.5-35b-a3b": (2048, None),
    "qwen3.5-397b-a17b": (2048, None),
    "step-3.5-flash": (4096, 4096),
    "step-3.7-flash": (4096, 4096),
}

# Hybrids: full layers, sliding or chunked layers, window or chunk.
HYBRIDS = {
    "command-r7b": (8, 24, 4096),
    "draft-qwen3.6-27b-dflash": (1, 4, 2048),
    "gemma-2-27b": (23, 23, 4096),
    "gemma-2-2b": (13, 13, 4096),
    "gemma-2-9b": (21, 21, 4096),
    "gemma-3-12b": (8, 40, 1024),
    "gemma-3-1b": (4, 22, 512),
    "gemma-3-270m": (3, 15, 512),
    "gemma-3-27b": (10, 52, 1024),
    "gemma-3-4b": (5, 29, 1024),
    "gemma-3n-e2b": (6, 24, 512),
    "gemma-3n-e4b": (7, 28, 512),
    "gemma-4-26b-a4b": (5, 25, 1024),
    "gemma-4-31b": (10, 50, 1024),
    "gemma-4-e2b": (7, 28, 512),
    "gemma-4-e4b": (7, 35, 512),
    "gpt-oss-120b": (18, 18, 128),
    "gpt-oss-20b": (12, 12, 128),
    "inkling": (11, 55, 512),
    "inkling-2-small": (8, 40, 1024),
    "inkling-small": (7, 35, 512),
    "laguna-xs-2.1": (10, 30, 512),
    "llama-4-maverick": (12, 36, 8192),
    "llama-4-scout": (12, 36, 8192),
    "mimo-v2-flash": (9, 39, 128),
    "mimo-v2.5": (9, 39, 128),
    "mistral-7b-v0.1": (0, 32, 4096),
    "olmo-3-32b": (16, 48, 4096),
    "olmo-3-7b": (8, 24, 4096),
    "step-3.5-flash": (12, 33, 512),
    "step-3.7-flash": (12, 33, 512),
}

# Full layers and linear layers.
LINEAR = {
    "qwen3-next-80b-a3b": (12, 36),
    "qwen3.5-27b": (16, 48),
    "qwen3.5-35b-a3b": (10, 30),
    "qwen3.5-397b-a17b": (15, 45),
}

REFUSED = {
    "deepseek-v3.2": "index keys",
    "deepseek-v4-flash": "compressed KV (43 of 43 layers)",
    "deepseek-v4-pro": "compressed KV (61 of 61 layers)",
    "glm-5.2": "index keys",
    "laguna-xs-2.1": "KV heads",
    "mimo-v2.5": "KV heads",
    "qwen3-next-80b-a3b": "linear-attention state (36 of 48 layers)",
    "qwen3.5-27b": "linear-attention state (48 of 64 layers)",
    "qwen3.5-35b-a3b": "linear-attention state (30 of 40 layers)",
    "qwen3.5-397b-a17b": "linear-attention state (45 of 60 layers)",
}

MTP = {
    "deepseek-v3": 1,
    "deepseek-v3.2": 1,
    "deepseek-v4-flash": 1,
    "deepseek-v4-pro": 1,
    "glm-4.5": 1,
    "glm-4.5-air": 1,
    "glm-5.2": 1,
    "inkling": 8,
    "inkling-small": 8,
    "mimo-v2.5": 3,
    "qwen3-next-80b-a3b": 1,
    "qwen3.5-27b": 1,
    "qwen3.5-35b-a3b": 1,
    "qwen3.5-397b-a17b": 1,
    "step-3.5-flash": 3,
    "step-3.7-flash": 3,
}


def test_names() -> None:
    assert catalogue.names() == sorted(BYTES)
    assert len(BYTES) == 65


@pytest.mark.parametrize("name", BYTES)
def test_bytes_per_token(name: str) -> None:
    arch = Arch.from_config(name)
    full = arch.full if arch.count("full", "mla") else None
    sliding = arch.sliding if arch.count("sliding", "chunked") else None
    found = [2 * geometry.elements() if geometry else None for geometry in (full, sliding)]
    assert tuple(found) == BYTES[name]


@pytest.mark.parametrize("name", BYTES)
def test_layers(name: str) -> None:
    arch = Arch.from_config(name)
    hybrid = (arch.count("full"), arch.count("sliding", "chunked"), arch.chunk or arch.window)
    if name in HYBRIDS:
        assert hybrid == HYBRIDS[name]
    elif name in LINEAR:
        assert (arch.count("full"), arch.count("linear")) == LINEAR[name]
    else:
        assert len(set(arch.layers)) == 1
        assert arch.count("sliding", "chunked") == 0


@pytest.mark.parametrize("name", BYTES)
def test_mtp_and_refusals(name: str) -> None:
    arch = Arch.from_config(name)
    assert arch.num_nextn_predict_layers == MTP.get(name)
    assert bool(arch.unsupported) == (name in REFUSED)
    assert REFUSED.get(name, "") in " ".join(arch.unsupported)


def test_bytes_of_whole_models() -> None:
    gemma = Arch.from_config("gemma-3-27b")
    assert gemma.full is not None
    assert len(gemma.layers) * 2 * gemma.full.elements() == 507_904
    inkling = Arch.from_config("inkling-small")
    assert inkling.full is not None and inkling.sliding is not None
    assert 2 * (7 * inkling.full.elements() + 35 * inkling.sliding.elements()) == 172_032


def test_first_layers_where_the_order_matters() -> None:
    assert Arch.from_config("mimo-v2-flash").layers[:6] == ("full", *("sliding",) * 4, "full")
    assert Arch.from_config("gpt-oss-20b").layers[:2] == ("sliding", "full")
    assert Arch.from_config("step-3.5-flash").layers[::4] == ("full",) * 12
    assert Arch.from_config("llama-4-scout").layers[:4] == (*("chunked",) * 3, "full")


def test_mimo_has_blocks_but_no_key() -> None:
    assert "num_nextn_predict_layers" not in catalogue.config("mimo-v2-flash")
    mimo = Arch.from_config("mimo-v2-flash")
    assert (mimo.num_nextn_predict_layers, mimo.mtp_blocks_in_checkpoint) == (None, 3)
    assert (mimo.total_params, mimo.active_params, mimo.weight_bits) == (309e9, 15e9, 8.0)


@pytest.mark.parametrize("name", ["inkling", "inkling-small"])
def test_inkling_depths(name: str) -> None:
    arch = Arch.from_config(name)
    assert arch.mtp_local_layer_ids == (0, 2, 4, 5, 6, 7)
    assert arch.mtp_layer_id_is_depth
    assert arch.sconv_kernel_size == 4


def test_only_inkling_holds_state_and_depth_ids() -> None:
    archs = [Arch.from_config(name) for name in catalogue.names()]
    assert {arch.name for arch in archs if arch.state_bytes_per_request} == {
        "inkling",
        "inkling-small",
        "inkling-2-small",
    }
    assert {arch.name for arch in archs if arch.mtp_layer_id_is_depth} == {"inkling", "inkling-small"}


def test_parameters_known_from_the_checkpoints() -> None:
    assert Arch.from_config("llama-3.1-8b").total_params == 8_030_261_248
    assert Arch.from_config("llama-3.1-70b").total_params == 70_553_706_496
    # The estimate leaves out the two head norms of a layer: 64 x 2 x 128.
    assert Arch.from_config("qwen3-32b").total_params == 32_762_123_264 - 16_384


def test_keys_that_the_roofline_reads() -> None:
    assert catalogue.config("mimo-v2-flash")["num_experts_per_tok"] == 8
    assert catalogue.config("step-3.5-flash")["moe_top_k"] == 8
    assert catalogue.config("deepseek-v3")["qk_nope_head_dim"] == 128


def test_kv_sharing_and_block_size() -> None:
    assert [Arch.from_config(f"gemma-4-{size}").num_kv_shared_layers for size in ("e2b", "e4b", "31b")] == [20, 18, 0]
    assert Arch.from_config("draft-inkling-dspark").block_size == 7
    assert Arch.from_config("draft-qwen3-8b-dflash").block_size == 16


def test_configs_are_fresh_and_in_hugging_face_form() -> None:
    first = catalogue.config("gemma-3-27b")
    assert first["layer_types"][4:6] == ["sliding_attention", "full_attention"]
    first["layer_types"].clear()
    assert len(catalogue.config("gemma-3-27b")["layer_types"]) == 62


def test_each_file_names_its_source_and_no_path() -> None:
    for entry in (files("simkv") / "models").iterdir():
        text = entry.read_text(encoding="utf-8")
        facts = json.loads(text)
        assert facts["source"] == Arch.from_config(entry.name.removesuffix(".json")).source["*"]
        assert facts.get("unverified", ["-"]), entry.name
        assert not any(word in text for word in ("/work", "/opt", "/home", "/root", "site-packages")), entry.name


def test_unverified_facts_are_carried() -> None:
    assert any("order of the layers" in fact for fact in Arch.from_config("laguna-xs-2.1").unverified)
    assert Arch.from_config("qwen3-8b").unverified == ()


def test_unknown_model() -> None:
    with pytest.raises(ModelError, match=r"did you mean mimo-v2-flash\?"):
        catalogue.config("mimo-v2-flas")
    with pytest.raises(ModelError, match="neither a file nor a built-in model"):
        catalogue.config("../arch")


def test_describe_catalogue() -> None:
    rows = {row.name: row for row in describe_catalogue()}
    assert list(rows) == catalogue.names()
    assert rows["mimo-v2-flash"] == CatalogueRow(
        name="mimo-v2-flash",
        architecture="MiMoV2FlashForCausalLM",
        layers={"full": 9, "sliding": 39},
        window=128,
        bytes_per_token={"full": 2560, "sliding": 5120},
        mtp=3,
        unsupported=(),
    )
    assert rows["deepseek-v4-flash"].bytes_per_token == {}
    assert rows["llama-4-scout"].window == 8192
    assert rows["draft-gemma3-1b-eagle3"].window is None
    assert rows["qwen3.5-27b"].layers == {"linear": 48, "full": 16}
