"""Well-formed specs, layers and deployments, built from the primitives of `Given`.

Fields that the implementation under test does not have keep their default. Fields whose meaning
moved between releases (quantised modes without a content override, opaque cache layouts) are only
drawn where a law asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvconform.properties.given import TYPICAL_TOKENS, Given
from kvconform.reference.deployment import Deployment
from kvconform.reference.modes import MODES
from kvconform.reference.pages import unpadded_page_size_bytes
from kvconform.reference.specs import (
    FULL_KINDS,
    LATENT_KINDS,
    WINDOW_KINDS,
    Mamba,
    UniformType,
    defaults,
    field_names,
    make,
)

HEADS = (16, 32)
HEAD_SIZES = (16, 64, 80, 96, 128, 192, 256, 512, 576)
CONTENTS = (388, 520, 584, 656)
ALIGNMENTS = (64, 512, 576)
RATIOS = (1, 2, 4, 128)
FLOAT_DTYPES = ("bfloat16", "float32", "uint8")
WINDOWS = (128, 512, 1024, 4096)

STORAGE_DTYPE = {
    "INT8_PER_TOKEN_HEAD": "int8",
    "NONE": "bfloat16",
}
"""Element type of a cache in each mode; packed modes count bytes (uint8)."""


def spec(
    given: Given,
    name: str = "spec",
    kind: str | None = None,
    *,
    padding: Sequence[str] = ("none", "hand", "aligned"),
    packed: bool = True,
    narrowest: int = 1,
    **fixed: Any,
) -> Any:
    """A well-formed spec of the kind under test, or of another named kind.

    ``padding`` lists which paddings may be met: none, one asked for by hand (at least the
    contents), or one that an alignment derives. ``packed`` lets overrides of head slots and
    content be met. Heads are at least ``narrowest`` elements wide. ``fixed`` fields are not drawn.
    """
    kind = given.kind if kind is None else kind
    if kind == "mamba":
        return mamba(given, name, padding=padding, **fixed)
    if kind == "uniform_type":
        return uniform_type(given, name, padding=padding, packed=packed, **fixed)
    has = given.implementation.fields(kind)
    values: dict[str, Any] = {}
    ratio = fixed.get("compress_ratio", 1)
    if kind in LATENT_KINDS and "compress_ratio" in has and "compress_ratio" not in fixed:
        ratio = values["compress_ratio"] = given.choice(f"{name}.compress_ratio", RATIOS)
    if "block_size" not in fixed:
        values["block_size"] = given.block_size(f"{name}.block_size", multiple_of=ratio)
    if "num_kv_heads" not in fixed:
        values["num_kv_heads"] = given.integer(
            f"{name}.num_kv_heads", at_least=1, at_most=1 << 16, typical=HEADS
        )
    if "head_size" not in fixed:
        values["head_size"] = given.integer(
            f"{name}.head_size", at_least=narrowest, at_most=1 << 16, typical=HEAD_SIZES
        )
    if "dtype" not in fixed:
        values["dtype"] = given.choice(f"{name}.dtype", FLOAT_DTYPES)
    if "head_size_v" in has and kind not in LATENT_KINDS and "head_size_v" not in fixed:
        values["head_size_v"] = given.optional(
            f"{name}.head_size_v", at_least=narrowest, at_most=1 << 16, typical=HEAD_SIZES
        )
    if packed and "num_head_slots" in has and "state_content_bytes" in has:
        if "num_head_slots" not in fixed:
            values["num_head_slots"] = given.optional(
                f"{name}.num_head_slots", at_least=1, at_most=1 << 17, typical=HEADS
            )
        if "state_content_bytes" not in fixed:
            values["state_content_bytes"] = given.optional(
                f"{name}.state_content_bytes", at_least=1, at_most=1 << 20, typical=CONTENTS
            )
    block = fixed.get("block_size", values.get("block_size"))
    values.update(_own_fields(given, name, kind, has, fixed, block))
    values.update(fixed)
    if "page_size_padded" not in fixed:
        values.update(_padding(given, name, kind, has, padding, values))
    return make(kind, **values)


def _own_fields(
    given: Given, name: str, kind: str, has: frozenset[str], fixed: dict[str, Any], block: Any
) -> dict[str, Any]:
    values: dict[str, Any] = {}

    def window(field: str, *typical: int) -> None:
        if field not in fixed:
            values[field] = given.integer(
                f"{name}.{field}", at_least=1, at_most=1 << 32, typical=(*WINDOWS, *typical)
            )

    if kind in WINDOW_KINDS:
        window("sliding_window")
        if "extra_retained_tokens" in has and "extra_retained_tokens" not in fixed:
            values["extra_retained_tokens"] = given.tokens(f"{name}.extra_retained_tokens", at_most=1 << 20)
    if kind == "chunked_local_attention":
        # Whole blocks are what most laws of chunks are about.
        window("attention_chunk_size", *(block * blocks for blocks in range(1, 9)))
    if kind == "rswa":
        window("rswa_window")
    if kind == "sink_full_attention" and "sink_len" not in fixed:
        values["sink_len"] = given.optional(f"{name}.sink_len", at_least=1, at_most=1 << 20)
    if kind in FULL_KINDS:
        recorded = given.choice(f"{name}.records", ("nothing", "sliding_window", "attention_chunk_size"))
        if recorded != "nothing" and recorded not in fixed:
            window(recorded)
        for flag in ("non_causal", "non_causal_multi_token_decode"):
            if flag in has and flag not in fixed:
                values[flag] = given.flag(f"{name}.{flag}")
    if "indexes_kv_by_block_stride" in has and "indexes_kv_by_block_stride" not in fixed:
        values["indexes_kv_by_block_stride"] = given.flag(f"{name}.indexes_kv_by_block_stride")
    return values


def _padding(
    given: Given,
    name: str,
    kind: str,
    has: frozenset[str],
    allowed: Sequence[str],
    values: dict[str, Any],
) -> dict[str, Any]:
    options = [
        option
        for option in ("none", "hand", "aligned")
        if option in allowed
        and (option != "hand" or "page_size_padded" in has)
        and (option != "aligned" or "alignment" in has)
    ]
    if not options:
        given.reject()
    chosen = given.choice(f"{name}.padding", options)
    if chosen == "hand":
        contents = unpadded_page_size_bytes(make(kind, **values))
        padded = given.integer(f"{name}.page_size_padded", at_least=contents, at_most=contents + (1 << 40))
        return {"page_size_padded": padded}
    if chosen == "aligned":
        return {
            "alignment": given.integer(f"{name}.alignment", at_least=1, at_most=1 << 20, typical=ALIGNMENTS)
        }
    return {}


def mamba(
    given: Given,
    name: str = "spec",
    *,
    padding: Sequence[str] = ("none", "hand"),
    modes: Sequence[str] = ("none", "align", "all"),
    **fixed: Any,
) -> Mamba:
    """A mamba spec of one to three arrays of one to three dimensions each."""
    arrays = given.choice(f"{name}.arrays", (1, 2, 3))
    shapes = []
    dtypes = []
    for index in range(arrays):
        dimensions = given.choice(f"{name}.{index}.dimensions", (1, 2, 3))
        shapes.append(
            tuple(
                given.integer(f"{name}.{index}.{axis}", at_least=1, at_most=1 << 16, typical=HEAD_SIZES)
                for axis in range(dimensions)
            )
        )
        dtypes.append(given.choice(f"{name}.{index}.dtype", ("bfloat16", "float32")))
    values: dict[str, Any] = {"shapes": tuple(shapes), "dtypes": tuple(dtypes)}
    if "block_size" not in fixed:
        values["block_size"] = given.block_size(f"{name}.block_size")
    if "mamba_cache_mode" not in fixed:
        values["mamba_cache_mode"] = given.choice(f"{name}.mamba_cache_mode", modes)
    if "num_speculative_blocks" not in fixed:
        values["num_speculative_blocks"] = given.integer(f"{name}.num_speculative_blocks", at_most=1 << 10)
    values.update(fixed)
    made = Mamba(**values)
    by_hand = tuple(padding) == ("hand",) or ("hand" in padding and given.flag(f"{name}.padded"))
    if by_hand and "page_size_padded" not in fixed:
        contents = unpadded_page_size_bytes(made)
        made = replace(
            made,
            page_size_padded=given.integer(
                f"{name}.page_size_padded", at_least=contents, at_most=contents + (1 << 40)
            ),
        )
    return made


def uniform_type(
    given: Given,
    name: str = "spec",
    *,
    padding: Sequence[str] = ("none", "hand", "aligned"),
    packed: bool = True,
    kinds: Sequence[str] = ("full_attention", "sliding_window", "mla_attention", "mamba"),
) -> UniformType:
    """A uniform_type of one to three layers of one kind, of one block size, window and mode."""
    kind = given.choice(f"{name}.kind", [known for known in kinds if known in given.implementation.kinds()])
    first = spec(given, f"{name}.0", kind, padding=padding, packed=packed)
    layers = [first]
    shared = {
        field: getattr(first, field)
        for field in (
            "block_size",
            "sliding_window",
            "extra_retained_tokens",
            "attention_chunk_size",
            "compress_ratio",
            "mamba_cache_mode",
            "num_speculative_blocks",
        )
        if hasattr(first, field)
    }
    for index in range(1, given.choice(f"{name}.layers", (1, 2, 3))):
        layers.append(spec(given, f"{name}.{index}", kind, padding=padding, packed=packed, **shared))
    named = tuple((f"layer.{index}", layer) for index, layer in enumerate(layers))
    return UniformType(block_size=first.block_size, kv_cache_specs=named)


def deployment(
    given: Given,
    name: str = "deployment",
    *,
    concurrent: Sequence[int] = (1,),
    ranks: Sequence[int] = (1,),
    encoder: bool = False,
    max_model_len: int | None = None,
    lengths: Sequence[int] = (),
) -> Deployment:
    """A deployment: one batch in flight and one rank unless more are listed.

    ``lengths`` are values of ``max_model_len`` worth meeting more often.
    """
    length = max_model_len
    if length is None:
        length = given.integer(f"{name}.max_model_len", at_least=1, typical=(*TYPICAL_TOKENS, *lengths))
    return Deployment(
        max_model_len=length,
        max_num_batched_tokens=given.integer(
            f"{name}.max_num_batched_tokens", at_least=1, at_most=1 << 32, typical=TYPICAL_TOKENS
        ),
        max_concurrent_batches=given.choice(f"{name}.max_concurrent_batches", concurrent),
        max_encoder_tokens=given.tokens(f"{name}.max_encoder_tokens") if encoder else 0,
        decode_context_parallel=given.choice(f"{name}.decode_context_parallel", ranks),
    )


def quantised(
    given: Given,
    name: str = "spec",
    kind: str | None = None,
    *,
    modes: Sequence[str] = (),
    narrowest: int = 1,
    **fixed: Any,
) -> Any:
    """An attention spec in a drawn mode, with the element type that the mode stores.

    ``modes`` lists which may be met, of those that the implementation has; by default every mode
    that the reference names. Heads are at least ``narrowest`` elements wide.
    """
    known = [mode for mode in modes or MODES if mode in given.implementation.quant_modes()]
    if not known:
        given.reject()
    mode = given.choice(f"{name}.kv_quant_mode", known)
    return spec(
        given,
        name,
        kind,
        padding=("none",),
        packed=False,
        narrowest=narrowest,
        **{"kv_quant_mode": mode, "dtype": STORAGE_DTYPE.get(mode, "uint8"), **fixed},
    )


def needed(kind: str) -> dict[str, int]:
    """The smallest values of a kind's own fields that have no default."""
    names = ("sliding_window", "attention_chunk_size", "rswa_window")
    return {name: 1 for name in names if name in field_names(kind) and name not in defaults(kind)}
