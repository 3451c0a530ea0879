"""What a config.json may leave out, and what it then means."""

from __future__ import annotations

from typing import Any

DEFAULTS: dict[str, dict[str, Any]] = {
    "BambaForCausalLM": {"mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_d_head": "auto"},
    "DeepseekV2ForCausalLM": {"num_nextn_predict_layers": 0},
    "DeepseekV3ForCausalLM": {"num_nextn_predict_layers": 0},
    "DeepseekV32ForCausalLM": {"num_nextn_predict_layers": 0},
    "Gemma2ForCausalLM": {"sliding_window": 4096},
    "Gemma3ForCausalLM": {"sliding_window_pattern": 6},
    "Gemma3ForConditionalGeneration": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window_pattern": 6,
    },
    "GlmMoeDsaForCausalLM": {"num_nextn_predict_layers": 0},
    "GptOssForCausalLM": {"sliding_window": 128},
    "GraniteMoeHybridForCausalLM": {"mamba_d_conv": 4, "mamba_expand": 2, "mamba_d_head": "auto"},
    "JambaForCausalLM": {"mamba_d_conv": 4, "mamba_expand": 2},
    "KimiK25ForConditionalGeneration": {"num_nextn_predict_layers": 0},
    "Llama4ForCausalLM": {"no_rope_layer_interval": 4},
    "Llama4ForConditionalGeneration": {"no_rope_layer_interval": 4},
    "MistralForCausalLM": {"sliding_window": 4096},
    "MixtralForCausalLM": {"sliding_window": None},
    "NemotronHForCausalLM": {"head_dim": 128, "mamba_ssm_cache_dtype": "float32"},
    "Phi3ForCausalLM": {"sliding_window": None},
    "Qwen2ForCausalLM": {"use_sliding_window": False},
    "Qwen2MoeForCausalLM": {"use_sliding_window": False},
    "Qwen3ForCausalLM": {"use_sliding_window": False},
    "Qwen3MoeForCausalLM": {"use_sliding_window": False},
    "Qwen3NextForCausalLM": {"full_attention_interval": 4},
    "Qwen3_5ForConditionalGeneration": {"full_attention_interval": 4},
    "Qwen3_5MoeForConditionalGeneration": {"full_attention_interval": 4},
    "Zamba2ForCausalLM": {"mamba_ngroups": 1, "mamba_d_conv": 4, "mamba_expand": 2},
}
"""What a config.json of the architecture may leave out, with the value its class then gives.

Source: the configuration classes of transformers 5.24 (``configuration_*.py`` of each model), which
also derive ``layer_types`` as `attention` and `hybrids` do. Their other defaults describe one
checkpoint, so leaving such a field out is refused. DeepSeek's own classes have no draft layer.
"""

DERIVES_KV_HEADS = (
    "BertForMaskedLM",
    "CohereForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "LlamaForCausalLM",
    "OPTForCausalLM",
    "Phi3ForCausalLM",
    "Zamba2ForCausalLM",
)
"""Whose classes take ``num_key_value_heads`` to be ``num_attention_heads`` where it is left out."""

DERIVES_HEAD_SIZE = (
    "BambaForCausalLM",
    "BertForMaskedLM",
    "CohereForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "JambaForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "OPTForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
)
"""Whose models take ``head_dim`` to be ``hidden_size / num_attention_heads`` where it is left out."""
