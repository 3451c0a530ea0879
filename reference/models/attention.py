"""Architectures that only attend: one function per family, from a config.json to layers by part."""

from __future__ import annotations

from collections.abc import Sequence

from kvconform.reference.interface import Refused
from kvconform.reference.models.reading import Parts, Reading, attention_heads, every, head_size, kv_heads
from kvconform.reference.models.storage import keep
from kvconform.reference.specs import MLAAttention, Spec

INDEX_BLOCK = 128
INDEX_SCALE_BYTES = 4
"""An index cache stores one float32 scale for so many fp8 elements (vLLM, DeepSeek V3.2)."""


def full(reading: Reading) -> Parts:
    """The same attention on every layer, all tokens kept."""
    count = reading.fields.number("num_hidden_layers")
    return [{"full": reading.attention("full_attention", *attention_heads(reading))}] * count


def one_window(reading: Reading) -> Parts:
    """A window on every layer, or none on any."""
    window = reading.fields.optional("sliding_window")
    if window is None:
        return full(reading)
    spec = reading.attention("sliding_window", *attention_heads(reading), sliding_window=window)
    return [{"sliding": spec}] * reading.fields.number("num_hidden_layers")


def qwen(reading: Reading) -> Parts:
    """Windows from ``max_window_layers`` up, where they are used at all."""
    fields = reading.fields
    if not fields.flag("use_sliding_window"):
        return full(reading)
    if reading.architecture.endswith("MoeForCausalLM"):
        raise Refused("use_sliding_window: true, which the file does not place on layers")
    count = fields.number("num_hidden_layers")
    first = fields.number("max_window_layers")
    derived = ["full_attention" if index < first else "sliding_attention" for index in range(count)]
    return _typed(reading, derived)


def alternating(reading: Reading) -> Parts:
    """Windows on every other layer, from the first."""
    count = reading.fields.number("num_hidden_layers")
    return _typed(reading, [("sliding_attention", "full_attention")[index % 2] for index in range(count)])


def gemma3(reading: Reading) -> Parts:
    """Windows but on every ``sliding_window_pattern``-th layer."""
    count = reading.fields.number("num_hidden_layers")
    return _typed(reading, every(reading.fields.number("sliding_window_pattern"), count, "sliding_attention"))


def llama4(reading: Reading) -> Parts:
    """Chunks where the rotary embedding is used, everything where it is not."""
    fields = reading.fields
    count = fields.number("num_hidden_layers")
    flags = fields.sequence("no_rope_layers", count if fields.value("no_rope_layers") else None)
    if not flags:
        return _typed(reading, every(fields.number("no_rope_layer_interval"), count, "chunked_attention"))
    if any(flag not in (0, 1) for flag in flags):
        raise Refused(f"no_rope_layers: {list(flags)} are not all 0 or 1")
    return _typed(reading, ["chunked_attention" if flag else "full_attention" for flag in flags])


def _typed(reading: Reading, derived: Sequence[str]) -> Parts:
    """Attention layers of several types, by ``layer_types`` or else as derived."""
    fields = reading.fields
    types = fields.sequence("layer_types", len(derived)) or tuple(derived)
    heads = attention_heads(reading)
    made: dict[str, dict[str, Spec]] = {}
    for name in dict.fromkeys(types):
        if name == "full_attention":
            made[name] = {"full": reading.attention("full_attention", *heads)}
        elif name == "sliding_attention":
            window = fields.number("sliding_window")
            made[name] = {"sliding": reading.attention("sliding_window", *heads, sliding_window=window)}
        elif name == "chunked_attention":
            chunk = fields.number("attention_chunk_size")
            spec = reading.attention("chunked_local_attention", *heads, attention_chunk_size=chunk)
            made[name] = {"chunked": spec}
        else:
            raise Refused(f"layer_types: {name!r} is unknown for {reading.architecture}")
    return [made[name] for name in types]


def latent(reading: Reading) -> Parts:
    """Multi-head latent attention on every layer."""
    return [_latent_layer(reading)] * reading.fields.number("num_hidden_layers")


def _latent_layer(reading: Reading) -> dict[str, Spec]:
    """One latent per token, and an index cache where attention is sparse."""
    fields = reading.fields
    size = fields.number("kv_lora_rank") + fields.number("qk_rope_head_dim")
    layer = {"latent": reading.attention("mla_attention", 1, size)}
    if reading.architecture in ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"):
        layer["index"] = _index(reading)
    return layer


def _index(reading: Reading) -> Spec:
    """fp8 elements and their scales, whatever the cache dtype."""
    elements = reading.fields.number("index_head_dim")
    if elements % INDEX_BLOCK != 0:
        raise Refused(f"index_head_dim: {elements} is not a multiple of {INDEX_BLOCK}")
    spec = MLAAttention(
        block_size=reading.block_size,
        num_kv_heads=1,
        head_size=elements + elements // INDEX_BLOCK * INDEX_SCALE_BYTES,
        dtype="uint8",
    )
    return keep(spec, reading.cache_dtype)


def draft(reading: Reading) -> Parts:
    """The layers of multi-token prediction, cached like the model's own."""
    if "kv_lora_rank" not in reading.fields.values:
        raise Refused(
            f"num_nextn_predict_layers: {reading.architecture} brings no layers of its own for a draft"
        )
    count = reading.fields.value("num_nextn_predict_layers")
    return [_latent_layer(reading)] * (0 if count == 0 else reading.fields.number("num_nextn_predict_layers"))


def sink(reading: Reading) -> Parts:
    """Sinks that are parameters, and keys wider than values (openPangu)."""
    fields = reading.fields
    spec = reading.attention(
        "sink_full_attention",
        kv_heads(reading),
        fields.number("qk_nope_dim") + fields.number("qk_rope_dim"),
        head_size_v=fields.number("v_channels"),
        sink_len=fields.number("param_sink_number"),
    )
    return [{"sink": spec}] * fields.number("num_hidden_layers")


def encoder_decoder(reading: Reading) -> Parts:
    """Decoder layers, each with a cache of the encoder's states. The encoder keeps nothing."""
    fields = reading.fields
    heads = fields.number("decoder_attention_heads")
    size = head_size(fields, "d_model", "decoder_attention_heads")
    layer = {
        "full": reading.attention("full_attention", heads, size),
        "cross": reading.attention("cross_attention", heads, size),
    }
    return [layer] * fields.number("decoder_layers")


def encoder(reading: Reading) -> Parts:
    """Encoder layers, which need no cache."""
    spec = reading.attention("encoder_only_attention", *attention_heads(reading))
    return [{"encoder": spec}] * reading.fields.number("num_hidden_layers")


def gpt2(reading: Reading) -> Parts:
    """`full` in the field names of GPT-2."""
    fields = reading.fields
    spec = reading.attention("full_attention", fields.number("n_head"), head_size(fields, "n_embd", "n_head"))
    return [{"full": spec}] * fields.number("n_layer")
