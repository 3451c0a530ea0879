"""Architectures that recur as well: one function per family, from a config.json to layers by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvconform.reference.interface import Refused
from kvconform.reference.models.fields import Fields
from kvconform.reference.models.reading import (
    Parts,
    Reading,
    attention_heads,
    chosen,
    every,
    known_dtype,
    kv_heads,
)
from kvconform.reference.specs import Spec


def jamba(reading: Reading) -> Parts:
    """Mamba 1, and attention at one place of every period."""
    fields = reading.fields
    period = fields.number("attn_layer_period")
    offset = fields.below("attn_layer_offset", period, "attn_layer_period")
    full = {"full": reading.attention("full_attention", *attention_heads(reading))}
    mamba = {
        "mamba": reading.state(
            "mamba1",
            intermediate_size=fields.number("mamba_expand") * fields.number("hidden_size"),
            state_size=fields.number("mamba_d_state"),
            conv_kernel=fields.number("mamba_d_conv"),
        )
    }
    return [
        full if index % period == offset else mamba for index in range(fields.number("num_hidden_layers"))
    ]


def bamba(reading: Reading) -> Parts:
    """Mamba 2, and attention on the layers listed."""
    fields = reading.fields
    count = fields.number("num_hidden_layers")
    attending = fields.sequence("attn_layer_indices")
    if attending is None:
        raise Refused("attn_layer_indices: missing")
    if len(set(attending)) != len(attending) or not set(attending) <= set(range(count)):
        raise Refused(f"attn_layer_indices: {list(attending)} are not different layers of {count}")
    return _recurrent(reading, ["attention" if index in attending else "mamba" for index in range(count)])


def granite(reading: Reading) -> Parts:
    """Mamba 2 or attention, as each layer's type says."""
    fields = reading.fields
    types = fields.sequence("layer_types", fields.number("num_hidden_layers"))
    if types is None:
        raise Refused("layer_types: missing")
    return _recurrent(reading, types)


def _recurrent(reading: Reading, types: Sequence[str]) -> Parts:
    """Attention or Mamba 2 on each layer, in the field names that Bamba and Granite share."""
    fields = reading.fields
    heads = fields.number("mamba_n_heads")
    inner = fields.number("mamba_expand") * fields.number("hidden_size")
    if inner % heads != 0:
        raise Refused(f"mamba_n_heads: {heads} do not divide mamba_expand x hidden_size = {inner}")
    if fields.value("mamba_d_head") != "auto":
        fields.agree("mamba_d_head", inner // heads)
    full = {"full": reading.attention("full_attention", *attention_heads(reading))}
    mamba = {
        "mamba": reading.state(
            "mamba2",
            num_heads=heads,
            head_size=inner // heads,
            num_groups=fields.number("mamba_n_groups"),
            state_size=fields.number("mamba_d_state"),
            conv_kernel=fields.number("mamba_d_conv"),
        )
    }
    return chosen(
        "layer_types",
        types,
        {"attention": full, "full_attention": full, "mamba": mamba, "linear_attention": mamba},
    )


def zamba2(reading: Reading) -> Parts:
    """Mamba 2 everywhere; hybrid layers attend as well, with heads over twice the width."""
    fields = reading.fields
    count = fields.number("num_hidden_layers")
    types = fields.sequence("layers_block_type", count)
    if types is None:
        raise Refused("layers_block_type: missing")
    query_heads, width = fields.number("num_attention_heads"), 2 * fields.number("hidden_size")
    if width % query_heads != 0:
        raise Refused(
            f"attention_head_dim: 2 x hidden_size = {width} is not a multiple of {query_heads} heads"
        )
    size = fields.agree("attention_head_dim", width // query_heads)
    heads, inner = (
        fields.number("n_mamba_heads"),
        fields.number("mamba_expand") * fields.number("hidden_size"),
    )
    if inner % heads != 0:
        raise Refused(f"n_mamba_heads: {heads} do not divide mamba_expand x hidden_size = {inner}")
    state = reading.state(
        "mamba2",
        num_heads=heads,
        head_size=fields.agree("mamba_headdim", inner // heads),
        num_groups=fields.number("mamba_ngroups"),
        state_size=fields.number("mamba_d_state"),
        conv_kernel=fields.number("mamba_d_conv"),
    )
    full = reading.attention("full_attention", kv_heads(reading), size)
    mamba = {"mamba": state}
    hybrid = {"full": full, "mamba": state}
    return chosen("layers_block_type", types, {"mamba": mamba, "linear_attention": mamba, "hybrid": hybrid})


def nemotron_h(reading: Reading) -> Parts:
    """A letter or a word per layer: recurs, attends, or is feed-forward and caches nothing."""
    fields = reading.fields
    name, types = _nemotron_types(fields)
    state = reading.state(
        "mamba2",
        state_dtype=known_dtype("mamba_ssm_cache_dtype", fields.value("mamba_ssm_cache_dtype")),
        num_heads=fields.number("mamba_num_heads"),
        head_size=fields.number("mamba_head_dim"),
        num_groups=fields.number("n_groups"),
        state_size=fields.number("ssm_state_size"),
        conv_kernel=fields.number("conv_kernel"),
    )
    heads = attention_heads(reading)
    fields.agree("attention_head_dim", heads[1])
    full = reading.attention("full_attention", *heads)
    mamba, attention = {"mamba": state}, {"full": full}
    known: dict[str, dict[str, Spec]] = {
        "M": mamba,
        "mamba": mamba,
        "linear_attention": mamba,
        "*": attention,
        "attention": attention,
        "full_attention": attention,
        **{feed_forward: {} for feed_forward in ("-", "E", "mlp", "moe")},
    }
    return chosen(name, types, known)


def _nemotron_types(fields: Fields) -> tuple[str, tuple[Any, ...]]:
    """The field that says what each layer is, and what it says."""
    pattern, listed = fields.value("hybrid_override_pattern"), fields.sequence("layers_block_type")
    if pattern is None and listed is not None:
        # Files that list the layers may leave their number out, which the class then ignores.
        fields.agree("num_hidden_layers", len(listed))
        return "layers_block_type", listed
    if not isinstance(pattern, str):
        raise Refused("hybrid_override_pattern: missing, and so is layers_block_type")
    if len(pattern) != fields.number("num_hidden_layers"):
        raise Refused(
            f"hybrid_override_pattern: {len(pattern)} letters for {fields.number('num_hidden_layers')} layers"
        )
    return "hybrid_override_pattern", tuple(pattern)


def qwen3_next(reading: Reading) -> Parts:
    """A gated delta net, and attention on every so many layers."""
    fields = reading.fields
    count = fields.number("num_hidden_layers")
    derived = tuple(every(fields.number("full_attention_interval"), count, "linear_attention"))
    types = fields.sequence("layer_types", count) or derived
    if "full_attention_interval" in fields.values and types != derived:
        raise Refused("full_attention_interval: contradicts layer_types")
    keys, values = fields.number("linear_num_key_heads"), fields.number("linear_num_value_heads")
    if values % keys != 0:
        raise Refused(
            f"linear_num_value_heads: {values} is not a multiple of the {keys} linear_num_key_heads"
        )
    state = reading.state(
        "gdn_attention",
        num_key_heads=keys,
        num_value_heads=values,
        key_head_size=fields.number("linear_key_head_dim"),
        value_head_size=fields.number("linear_value_head_dim"),
        conv_kernel=fields.number("linear_conv_kernel_dim"),
        state_dtype=_stated_state_dtype(fields),
    )
    full = {"full": reading.attention("full_attention", *attention_heads(reading))}
    return chosen("layer_types", types, {"full_attention": full, "linear_attention": {"mamba": state}})


def _stated_state_dtype(fields: Fields) -> str | None:
    stated = fields.value("mamba_ssm_dtype")
    return None if stated is None else known_dtype("mamba_ssm_dtype", stated)
