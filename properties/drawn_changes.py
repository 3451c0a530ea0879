"""Specs made of a drawn one by changing fields: how layers come to differ, and what a merge may drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvconform.properties.given import Given
from kvconform.reference.pages import unpadded_page_size_bytes
from kvconform.reference.specs import FULL_KINDS, LATENT_KINDS, Spec, defaults, field_names


def changed(given: Given, name: str, original: Spec, fields: Sequence[str] = ()) -> Spec:
    """The spec with exactly one field changed, or none: how members of a merge come to differ.

    ``fields`` limits which may change; by default every field that the implementation has.
    """
    options = ["nothing", *(fields or changeable(given, original))]
    field = given.choice(f"{name}.changed", options)
    return original if field == "nothing" else change(given, name, original, field)


def changeable(given: Given, original: Spec) -> list[str]:
    """The fields of a spec that `change` can change and the implementation has."""
    has = given.implementation.fields(original.kind)
    return [
        field
        for field in field_names(original.kind)
        if field in has and field in CHANGES and (field != "head_size_v" or original.kind not in LATENT_KINDS)
    ]


CHANGES: dict[str, Sequence[Any] | tuple[int, int]] = {
    "block_size": (1, 1 << 20),
    "num_kv_heads": (1, 1 << 16),
    "head_size": (1, 1 << 16),
    "head_size_v": (1, 1 << 16),
    "dtype": ["bfloat16", "float32", "uint8"],
    "kv_quant_mode": ["NONE", "FP8_PER_TENSOR"],
    "page_size_padded": (0, 1 << 40),
    "indexes_kv_by_block_stride": [False, True],
    "num_head_slots": (1, 1 << 17),
    "state_content_bytes": (1, 1 << 20),
    "sliding_window": (1, 1 << 32),
    "attention_chunk_size": (1, 1 << 32),
    "extra_retained_tokens": (0, 1 << 20),
    "non_causal": [False, True],
    "non_causal_multi_token_decode": [False, True],
    "cache_dtype_str": [None, "auto", "bfloat16"],
    "alignment": (1, 1 << 20),
    "compress_ratio": [1, 2, 4],
    "model_version": [None, "deepseek_v4"],
    "rswa_window": (1, 1 << 32),
    "sink_len": (1, 1 << 20),
    "mamba_cache_mode": ["none", "align"],
    "num_speculative_blocks": (0, 1 << 10),
}
"""What a changed field may become: a list of options, or the least and greatest integer."""


TOGETHER = (
    "kv_quant_mode",
    "sliding_window",
    "indexes_kv_by_block_stride",
    "extra_retained_tokens",
    "non_causal",
    "non_causal_multi_token_decode",
    "cache_dtype_str",
    "alignment",
    "model_version",
    "sink_len",
    "num_speculative_blocks",
)
"""Optional fields that say nothing of each other, so that all can be set at once."""


def every_field(given: Given, original: Any) -> Any:
    """The spec with every optional field set that the implementation has, to other than its default."""
    values: dict[str, Any] = {}
    for field in changeable(given, original):
        usual = defaults(original.kind).get(field)
        if field in TOGETHER and getattr(original, field) == usual:
            domain = CHANGES[field]
            options = domain if isinstance(domain, list) else (domain[0], domain[0] + 1)
            values[field] = next(option for option in options if option != usual and option is not None)
    if original.page_size_padded is not None:
        values.pop("alignment", None)
    if getattr(original, "attention_chunk_size", None) is not None:
        values.pop("sliding_window", None)
    return replace(original, **values)


STORED = ("kv_quant_mode", "dtype")


def otherwise_stored(given: Given, original: Any) -> Any:
    """The spec with every field changed that says how many bytes a page is, where both are well formed."""
    values: dict[str, Any] = {"page_size_padded": None, "block_size": 2 * original.block_size}
    for field in changeable(given, original):
        if field in ("num_kv_heads", "head_size"):
            values[field] = getattr(original, field) + 1
        elif field in STORED:
            values[field] = next(option for option in CHANGES[field] if option != getattr(original, field))
    return replace(original, **values)


def change(given: Given, name: str, original: Any, field: str) -> Any:
    """The spec with the field set to a drawn value that differs from its own.

    The result stays well formed: a padding covers its contents and a block is whole states.
    """
    domain = CHANGES[field]
    before = getattr(original, field)
    values: dict[str, Any]
    if isinstance(domain, list):
        values = {field: given.choice(f"{name}.{field}", [option for option in domain if option != before])}
    elif field == "page_size_padded":
        contents = unpadded_page_size_bytes(original)
        values = {field: given.integer(f"{name}.{field}", at_least=contents, at_most=contents + (1 << 40))}
    else:
        low, high = domain
        ratio = getattr(original, "compress_ratio", 1) if field == "block_size" else 1
        values = {
            field: given.integer(
                f"{name}.{field}", at_least=low * ratio, at_most=high * ratio, multiple_of=ratio
            )
        }
    given.assume(values[field] != before)
    if field == "compress_ratio":
        given.assume(original.block_size % values[field] == 0)
    if field == "sliding_window" and original.kind in FULL_KINDS:
        values["attention_chunk_size"] = None
    if field == "attention_chunk_size" and original.kind in FULL_KINDS:
        values["sliding_window"] = None
    if (
        field not in ("page_size_padded", "alignment")
        and getattr(original, "page_size_padded", None) is not None
    ):
        # A padding that still covers the changed contents keeps the spec well formed.
        contents = unpadded_page_size_bytes(replace(original, page_size_padded=None, **values))
        given.assume(original.page_size_padded >= contents)
    if field == "alignment":
        values["page_size_padded"] = None
    if field == "page_size_padded" and hasattr(original, "alignment"):
        values["alignment"] = None
    return replace(original, **values)
