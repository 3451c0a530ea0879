"""Layers from a config.json: the same as the collection's, or refused by the field."""

from __future__ import annotations

from typing import Any

import pytest
from kvconform.reference.huggingface import ARCHITECTURES, layers_of
from kvconform.reference.interface import Refused
from kvconform.reference.models import model
from kvconform.reference.models.fields import Fields
from kvconform.reference.models.omissions import DEFAULTS, DERIVES_HEAD_SIZE, DERIVES_KV_HEADS
from kvconform.reference.specs import AttentionSpec, SlidingWindow

Config = dict[str, Any]

BF16 = {"torch_dtype": "bfloat16"}


def dense(
    architecture: str, layers: int, width: int, heads: int, kv_heads: int | None, **more: Any
) -> Config:
    """The fields that most config.json files have."""
    return {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        **({} if kv_heads is None else {"num_key_value_heads": kv_heads}),
        **BF16,
        **more,
    }


def latent(architecture: str, layers: int, **more: Any) -> Config:
    """The fields that a config.json of latent attention has."""
    return {
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        **BF16,
        **more,
    }


ALTERNATING = ["sliding_attention", "full_attention"]
LLAMA4: Config = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_chunk_size": 8192,
        **BF16,
    },
    **BF16,
}
NEMOTRON = {"head_dim": 128, "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4}
DELTA_NET = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "decoder_layers": 32,
    "decoder_attention_heads": 20,
    "d_model": 1280,
    "torch_dtype": "float16",
}
MAMBA2 = {
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
}
HYBRID_LAYERS = (6, 12, 18, 24, 30, 36, 42, 47, 51)

CONFIGS: dict[str, Config] = {
    "gpt2-xl": {
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": 48,
        "n_head": 25,
        "n_embd": 1600,
        "torch_dtype": "float32",
    },
    "opt-13b": dense("OPTForCausalLM", 40, 5120, 40, None, torch_dtype="float16"),
    "llama-2-7b": dense("LlamaForCausalLM", 32, 4096, 32, 32, torch_dtype="float16"),
    "command-r-v01": dense("CohereForCausalLM", 40, 8192, 64, None, torch_dtype="float16"),
    "llama-3.1-8b": dense("LlamaForCausalLM", 32, 4096, 32, 8),
    "llama-3.1-70b": dense("LlamaForCausalLM", 80, 8192, 64, 8),
    "llama-3.1-405b": dense("LlamaForCausalLM", 126, 16384, 128, 8),
    "qwen2.5-72b": dense(
        "Qwen2ForCausalLM", 80, 8192, 64, 8, use_sliding_window=False, sliding_window=131072
    ),
    "qwen3-32b": dense("Qwen3ForCausalLM", 64, 5120, 64, 8, head_dim=128, use_sliding_window=False),
    "qwen3-235b-a22b": dense("Qwen3MoeForCausalLM", 94, 4096, 64, 4, head_dim=128),
    "mixtral-8x7b": dense("MixtralForCausalLM", 32, 4096, 32, 8, sliding_window=None),
    "mistral-7b-v0.1": dense("MistralForCausalLM", 32, 4096, 32, 8, sliding_window=4096),
    "phi-3-mini-4k": dense("Phi3ForCausalLM", 32, 3072, 32, 32, sliding_window=2047),
    "gemma-2-9b": dense("Gemma2ForCausalLM", 42, 3584, 16, 8, head_dim=256, sliding_window=4096),
    "gemma-2-27b": dense("Gemma2ForCausalLM", 46, 4608, 32, 16, head_dim=128, sliding_window=4096),
    "gemma-3-27b": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "sliding_window": 1024,
        },
        **BF16,
    },
    "gpt-oss-20b": dense(
        "GptOssForCausalLM", 24, 2880, 64, 8, head_dim=64, sliding_window=128, layer_types=ALTERNATING * 12
    ),
    "gpt-oss-120b": dense(
        "GptOssForCausalLM", 36, 2880, 64, 8, head_dim=64, sliding_window=128, layer_types=ALTERNATING * 18
    ),
    "llama-4-scout": LLAMA4,
    "llama-4-maverick": LLAMA4,
    "deepseek-v2": latent("DeepseekV2ForCausalLM", 60),
    "deepseek-v2-lite": latent("DeepseekV2ForCausalLM", 27),
    "deepseek-v3": latent("DeepseekV3ForCausalLM", 61, num_nextn_predict_layers=1),
    "kimi-k2": latent("DeepseekV3ForCausalLM", 61, num_nextn_predict_layers=0),
    "deepseek-v3.2": latent("DeepseekV32ForCausalLM", 61, index_head_dim=128),
    "glm-5": latent("GlmMoeDsaForCausalLM", 78, index_head_dim=128, head_dim=64),
    "jamba-v0.1": dense(
        "JambaForCausalLM",
        32,
        4096,
        32,
        8,
        attn_layer_period=8,
        attn_layer_offset=4,
        mamba_expand=2,
        mamba_d_state=16,
        mamba_d_conv=4,
    ),
    "zamba2-2.7b": dense(
        "Zamba2ForCausalLM",
        54,
        2560,
        32,
        32,
        attention_head_dim=160,
        layers_block_type=["hybrid" if index in HYBRID_LAYERS else "mamba" for index in range(54)],
        n_mamba_heads=80,
        mamba_headdim=64,
        mamba_ngroups=1,
        mamba_d_state=64,
        mamba_d_conv=4,
        mamba_expand=2,
    ),
    "bamba-9b": dense("BambaForCausalLM", 32, 4096, 32, 8, attn_layer_indices=[9, 18, 27], **MAMBA2),
    "nemotron-h-56b": dense(
        "NemotronHForCausalLM",
        118,
        8192,
        64,
        8,
        attention_head_dim=128,
        hybrid_override_pattern="M-M-M-M*-" + 9 * "M-M-M-M-M*-" + "M-M-M-M-M-",
        mamba_num_heads=256,
        ssm_state_size=256,
        **{**NEMOTRON, "head_dim": 128},
    ),
    "nemotron-3-nano-30b": dense(
        "NemotronHForCausalLM",
        52,
        2688,
        32,
        2,
        hybrid_override_pattern=5 * "MEMEM*E" + "MEMEMEM*E" + "MEMEMEME",
        mamba_num_heads=64,
        ssm_state_size=128,
        mamba_ssm_cache_dtype="float32",
        **NEMOTRON,
    ),
    "qwen3-next-80b": {
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "linear_num_value_heads": 32,
        **DELTA_NET,
        **BF16,
    },
    "qwen3.5-397b": {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": {
            "num_hidden_layers": 60,
            "num_attention_heads": 32,
            "linear_num_value_heads": 64,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15,
            "mamba_ssm_dtype": "float32",
            "dtype": "bfloat16",
            **DELTA_NET,
        },
    },
    "whisper-large-v3": WHISPER,
    "bart-large": {
        "architectures": ["BartForConditionalGeneration"],
        "decoder_layers": 12,
        "decoder_attention_heads": 16,
        "d_model": 1024,
        "torch_dtype": "float32",
    },
    "bert-base": dense("BertForMaskedLM", 12, 768, 12, None, torch_dtype="float32"),
    "openpangu-r-72b": dense(
        "PanguProMoEV2ForCausalLM",
        50,
        4608,
        64,
        4,
        qk_nope_dim=128,
        qk_rope_dim=64,
        v_channels=128,
        param_sink_number=128,
    ),
}
"""What the models' config.json files say of their caches."""


@pytest.mark.parametrize("cache_dtype", ["auto", "fp8", "int8_per_token_head"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_the_layers_of_the_collection(name: str, cache_dtype: str) -> None:
    for block_size in (16, 64):
        expected = model(name).layers(block_size, cache_dtype)
        assert layers_of(CONFIGS[name], block_size=block_size, cache_dtype=cache_dtype) == expected


def test_draft_layers_come_when_asked_for() -> None:
    config = CONFIGS["deepseek-v3"]
    assert layers_of(config, block_size=16, draft=True) == model("deepseek-v3-mtp").layers(16)
    assert layers_of(CONFIGS["kimi-k2"], block_size=16, draft=True) == model("kimi-k2").layers(16)
    with pytest.raises(Refused, match="num_nextn_predict_layers"):
        layers_of(CONFIGS["llama-3.1-8b"], block_size=16, draft=True)


def test_a_dtype_that_no_file_states_can_be_given() -> None:
    config = {key: value for key, value in CONFIGS["gpt-oss-20b"].items() if key != "torch_dtype"}
    assert layers_of(config, block_size=16, dtype="bfloat16") == model("gpt-oss-20b").layers(16)


def test_windows_of_qwen_start_where_the_file_says() -> None:
    config = dense(
        "Qwen2ForCausalLM", 4, 64, 4, 2, use_sliding_window=True, sliding_window=32, max_window_layers=3
    )
    kinds = [spec.kind for _, spec in layers_of(config, block_size=16)]
    assert kinds == ["full_attention"] * 3 + ["sliding_window"]


def test_layers_by_type() -> None:
    config = dense(
        "GraniteMoeHybridForCausalLM", 2, 4096, 32, 8, layer_types=["mamba", "attention"], **MAMBA2
    )
    assert [spec.kind for _, spec in layers_of(config, block_size=16)] == ["mamba", "full_attention"]
    llama4 = {
        **LLAMA4,
        "text_config": {**LLAMA4["text_config"], "num_hidden_layers": 2, "no_rope_layers": [0, 1]},
    }
    assert [name for name, _ in layers_of(llama4, block_size=16)] == ["layers.0.full", "layers.1.chunked"]


def test_listed_layers_are_read_like_the_pattern() -> None:
    words = {"M": "mamba", "*": "attention", "E": "moe"}
    config = without("nemotron-3-nano-30b", "hybrid_override_pattern")
    config["layers_block_type"] = [
        words[letter] for letter in CONFIGS["nemotron-3-nano-30b"]["hybrid_override_pattern"]
    ]
    assert layers_of(config, block_size=16) == model("nemotron-3-nano-30b").layers(16)
    with pytest.raises(Refused, match=r"^num_hidden_layers: "):
        layers_of({**config, "num_hidden_layers": 51}, block_size=16)
    with pytest.raises(Refused, match=r"^layers_block_type: "):
        layers_of({**config, "layers_block_type": ["snake"] * 52}, block_size=16)


def test_defaults_of_the_class_are_taken_and_no_others() -> None:
    window = layers_of(
        {key: value for key, value in CONFIGS["mistral-7b-v0.1"].items() if key != "sliding_window"},
        block_size=16,
    )
    assert {spec.sliding_window for _, spec in window if isinstance(spec, SlidingWindow)} == {4096}
    small: Config = {"architectures": ["Gemma3ForConditionalGeneration"], **BF16}
    small["text_config"] = {"num_hidden_layers": 34, "sliding_window": 1024}
    specs = [spec for _, spec in layers_of(small, block_size=16)]
    assert {(spec.num_kv_heads, spec.head_size) for spec in specs if isinstance(spec, AttentionSpec)} == {
        (4, 256)
    }
    assert set(DEFAULTS) | set(DERIVES_KV_HEADS) | set(DERIVES_HEAD_SIZE) <= set(ARCHITECTURES)


def without(name: str, field: str) -> Config:
    """A model's config.json that lacks a field."""
    return {key: value for key, value in CONFIGS[name].items() if key != field}


def changed(name: str, **fields: Any) -> Config:
    """A model's config.json with fields changed."""
    return {**CONFIGS[name], **fields}


def text(name: str, **fields: Any) -> Config:
    """A model's config.json with fields of its text_config changed; None removes one."""
    inside = {**CONFIGS[name]["text_config"], **fields}
    return changed(name, text_config={key: value for key, value in inside.items() if value is not None})


MISSING = [
    (name, field)
    for name, fields in {
        "gpt2-xl": ("n_layer", "n_head", "n_embd"),
        "llama-3.1-8b": ("num_hidden_layers", "num_attention_heads", "hidden_size", "torch_dtype"),
        "mistral-7b-v0.1": ("num_key_value_heads",),
        "qwen3-32b": ("head_dim", "num_key_value_heads"),
        "gemma-2-9b": ("head_dim",),
        "gpt-oss-20b": ("head_dim",),
        "deepseek-v3": ("kv_lora_rank", "qk_rope_head_dim"),
        "deepseek-v3.2": ("index_head_dim",),
        "jamba-v0.1": ("attn_layer_period", "attn_layer_offset", "mamba_d_state"),
        "bamba-9b": ("attn_layer_indices", "mamba_n_heads", "mamba_d_state"),
        "zamba2-2.7b": ("layers_block_type", "n_mamba_heads", "mamba_d_state"),
        "nemotron-h-56b": (
            "hybrid_override_pattern",
            "mamba_num_heads",
            "mamba_head_dim",
            "n_groups",
            "ssm_state_size",
            "conv_kernel",
        ),
        "qwen3-next-80b": ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"),
        "whisper-large-v3": ("decoder_layers", "decoder_attention_heads", "d_model"),
        "openpangu-r-72b": ("qk_nope_dim", "qk_rope_dim", "v_channels", "param_sink_number"),
        "llama-4-scout": ("text_config",),
        "bert-base": ("architectures",),
    }.items()
    for field in fields
]


@pytest.mark.parametrize(("name", "field"), MISSING)
def test_a_missing_field_is_refused_by_name(name: str, field: str) -> None:
    with pytest.raises(Refused, match=f"^{field}: missing"):
        layers_of(without(name, field), block_size=16)


@pytest.mark.parametrize(("name", "field"), [pair for pair in MISSING if pair[1] != "text_config"])
@pytest.mark.parametrize("value", [0, -1, "many", True, 2.5, None])
def test_nonsense_is_refused_by_name(name: str, field: str, value: Any) -> None:
    if (field, value) == ("attn_layer_offset", 0):
        value = 8
    with pytest.raises(Refused, match=f"^{field}: "):
        layers_of(changed(name, **{field: value}), block_size=16)


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("architectures", changed("bert-base", architectures=["NoSuchForCausalLM"])),
        ("architectures", changed("bert-base", architectures=["LlamaForCausalLM", "BertForMaskedLM"])),
        ("architectures", changed("bert-base", architectures="BertForMaskedLM")),
        ("torch_dtype", changed("llama-3.1-8b", torch_dtype="float11")),
        ("dtype", changed("llama-3.1-8b", dtype="float16")),
        ("num_key_value_heads", changed("llama-3.1-8b", num_key_value_heads=5)),
        ("num_key_value_heads", changed("openpangu-r-72b", num_key_value_heads=5)),
        ("head_dim", changed("llama-3.1-8b", hidden_size=4097)),
        ("head_dim", changed("whisper-large-v3", d_model=1281)),
        ("sliding_window", changed("mistral-7b-v0.1", sliding_window=0)),
        ("sliding_window", changed("mistral-7b-v0.1", sliding_window=-1)),
        ("sliding_window", changed("gemma-2-9b", sliding_window=None)),
        ("layer_types", changed("gpt-oss-20b", layer_types=ALTERNATING)),
        ("layer_types", changed("gpt-oss-20b", layer_types=["spiral_attention"] * 24)),
        ("layer_types", changed("gpt-oss-20b", layer_types="sliding_attention")),
        ("layer_types", changed("gpt-oss-20b", layer_types=[["sliding_attention"]] * 24)),
        ("attn_layer_indices", changed("bamba-9b", attn_layer_indices=[{}])),
        ("architectures", changed("bert-base", architectures=[{}])),
        ("use_sliding_window", changed("qwen3-235b-a22b", use_sliding_window=True)),
        ("use_sliding_window", changed("qwen3-32b", use_sliding_window=1)),
        ("max_window_layers", changed("qwen3-32b", use_sliding_window=True, sliding_window=64)),
        ("index_head_dim", changed("deepseek-v3.2", index_head_dim=100)),
        ("num_nextn_predict_layers", changed("deepseek-v3", num_nextn_predict_layers=-1)),
        ("attn_layer_offset", changed("jamba-v0.1", attn_layer_offset=8)),
        ("attn_layer_offset", changed("jamba-v0.1", attn_layer_offset=False)),
        ("attn_layer_indices", changed("bamba-9b", attn_layer_indices=[9, 18, 32])),
        ("attn_layer_indices", changed("bamba-9b", attn_layer_indices=[9, 9])),
        ("mamba_n_heads", changed("bamba-9b", mamba_n_heads=100)),
        ("mamba_d_head", changed("bamba-9b", mamba_d_head=32)),
        ("layers_block_type", changed("zamba2-2.7b", layers_block_type=["mamba"] * 3)),
        ("layers_block_type", changed("zamba2-2.7b", layers_block_type=["snake"] * 54)),
        ("attention_head_dim", changed("zamba2-2.7b", attention_head_dim=80)),
        ("mamba_headdim", changed("zamba2-2.7b", mamba_headdim=32)),
        ("n_mamba_heads", changed("zamba2-2.7b", n_mamba_heads=77)),
        ("hybrid_override_pattern", changed("nemotron-h-56b", hybrid_override_pattern="M*")),
        ("hybrid_override_pattern", changed("nemotron-h-56b", hybrid_override_pattern="X" * 118)),
        ("mamba_ssm_cache_dtype", changed("nemotron-3-nano-30b", mamba_ssm_cache_dtype="float11")),
        ("attention_head_dim", changed("nemotron-h-56b", attention_head_dim=64)),
        ("linear_num_value_heads", changed("qwen3-next-80b", linear_num_value_heads=24)),
        ("full_attention_interval", text("qwen3.5-397b", full_attention_interval=3)),
        ("mamba_ssm_dtype", text("qwen3.5-397b", mamba_ssm_dtype="float11")),
        ("attention_chunk_size", text("llama-4-scout", attention_chunk_size=0)),
        ("attention_chunk_size", text("llama-4-scout", attention_chunk_size=None)),
        ("no_rope_layers", text("llama-4-scout", no_rope_layers=[1])),
        ("no_rope_layers", text("llama-4-scout", no_rope_layers=[2] * 48)),
        ("text_config", changed("llama-4-scout", text_config=[])),
        ("config.json", []),
    ],
)
def test_contradictions_are_refused_by_name(field: str, config: Any) -> None:
    with pytest.raises(Refused, match=rf"^{field}: "):
        layers_of(config, block_size=16, draft=field == "num_nextn_predict_layers")


def test_a_cache_dtype_without_a_layout_is_refused() -> None:
    with pytest.raises(Refused, match="fp8_ds_mla"):
        layers_of(CONFIGS["llama-3.1-8b"], block_size=16, cache_dtype="fp8_ds_mla")
    with pytest.raises(Refused, match="576"):
        layers_of(changed("deepseek-v3", kv_lora_rank=256), block_size=16, cache_dtype="fp8_ds_mla")


def test_null_is_no_value() -> None:
    assert Fields({"window": None}, {"window": 4096}).optional("window") is None
