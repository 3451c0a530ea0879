"""The statements of the theorems, over the reference's own functions.

Each draws its inputs from ``given``, names its assumptions to ``suppose`` and ensures what it
states, like a law. Lengths are in tokens and sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.blocks import stated_blocks_per_request
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused
from kvconform.reference.layout import Placement, allocated_bytes, overlap, page_range
from kvconform.reference.merging import merge
from kvconform.reference.pages import (
    construct,
    copy_with_new_block_size,
    page_size_bytes,
    unpadded_page_size_bytes,
)
from kvconform.reference.planning import (
    bytes_per_block,
    get_kv_cache_configs,
    packed_offsets,
    withheld_blocks,
)
from kvconform.reference.quantise import dequantise, quantise
from kvconform.reference.residency import held_blocks
from kvconform.reference.specs import (
    ATTENTION_KINDS,
    FULL_KINDS,
    KINDS,
    LATENT_KINDS,
    ChunkedLocalAttention,
    FullAttention,
    MLAAttention,
    SlidingWindow,
    Spec,
)
from kvconform.reference.uniform import Registry

Suppose = Callable[[str, bool], None]

WIDE = 1 << 64
"""How far integers of either sign reach where a statement puts no bound on them."""


def _any_integer(given: Given, name: str) -> int:
    return given.integer(name, at_least=-WIDE, at_most=WIDE)


def _positive(given: Given, name: str) -> int:
    return given.integer(name, at_least=1)


def _attention(given: Given, kind: str, **fields: Any) -> Spec:
    """A spec of the kind with all its sizes unknown."""
    values: dict[str, Any] = {"dtype": "bfloat16"}
    for name in ("block_size", "num_kv_heads", "head_size"):
        if name not in fields:
            values[name] = _positive(given, name)
    for name in ("sliding_window", "attention_chunk_size", "rswa_window"):
        if name in KINDS[kind].__dataclass_fields__ and kind not in ("full_attention", *LATENT_KINDS):
            values[name] = 1
    if kind == "sliding_window_mla":
        values["sliding_window"] = 1
    return KINDS[kind](**{**values, **fields})


def padded_covers_unpadded(given: Given, suppose: Suppose) -> None:
    """T1."""
    kind = given.choice("kind", ("full_attention", "mla_attention"))
    spec = _attention(given, kind, page_size_padded=given.optional("page_size_padded"))
    if isinstance(spec, MLAAttention):
        alignment = _any_integer(given, "alignment")
        suppose("aligned", alignment > 0)
        spec = replace(spec, alignment=alignment, compress_ratio=_positive(given, "compress_ratio"))
    try:
        page = page_size_bytes(spec)
    except Refused:
        given.reject()
    contents = unpadded_page_size_bytes(spec)
    ensure(page >= contents, f"page of {page} bytes for {contents} bytes of contents")


def _window(given: Given) -> SlidingWindow:
    return SlidingWindow(
        block_size=_positive(given, "block_size"),
        num_kv_heads=1,
        head_size=1,
        dtype="bfloat16",
        sliding_window=_positive(given, "sliding_window"),
        extra_retained_tokens=given.integer("extra_retained_tokens"),
    )


def window_bound_suffices(given: Given, suppose: Suppose) -> None:
    """T2."""
    spec = _window(given)
    deployment = Deployment(
        max_model_len=_positive(given, "max_model_len"), max_num_batched_tokens=_positive(given, "budget")
    )
    settled = given.integer("settled")
    in_flight = given.integer("in_flight")
    missing = given.integer("missing", at_most=1)
    suppose("in_flight", in_flight <= deployment.in_flight_tokens)
    suppose("partial_block", missing == 0)
    held = held_blocks(spec, settled, in_flight, deployment.max_model_len)
    bound = stated_blocks_per_request(spec, deployment) - missing
    ensure(held <= bound, f"{held} blocks held with {settled} tokens settled, bound {bound}")


def window_bound_is_tight(given: Given, suppose: Suppose) -> None:
    """T3."""
    spec = _window(given)
    block = spec.block_size
    deployment = Deployment(
        max_model_len=_positive(given, "max_model_len"), max_num_batched_tokens=_positive(given, "in_flight")
    )
    in_flight = deployment.in_flight_tokens
    kept = spec.sliding_window - 1 + spec.extra_retained_tokens
    suppose("long_enough", kept + block - 1 + in_flight <= deployment.max_model_len)
    # The window then starts at the last token of a block: as many blocks as can be.
    held = held_blocks(spec, kept + block - 1, in_flight, deployment.max_model_len)
    bound = stated_blocks_per_request(spec, deployment)
    ensure(held >= bound - 1, f"{held} blocks held, bound {bound}")
    suppose("not_whole", (kept - 1 + in_flight) % block != 0)
    ensure(held == bound, f"{held} blocks held, bound {bound}")


def chunk_bound_suffices(given: Given, suppose: Suppose) -> None:
    """T4."""
    spec = ChunkedLocalAttention(
        block_size=_positive(given, "block_size"),
        num_kv_heads=1,
        head_size=1,
        dtype="bfloat16",
        attention_chunk_size=_positive(given, "attention_chunk_size"),
    )
    deployment = Deployment(
        max_model_len=_positive(given, "max_model_len"), max_num_batched_tokens=_positive(given, "budget")
    )
    settled = given.integer("settled")
    in_flight = given.integer("in_flight")
    suppose("whole_blocks", spec.attention_chunk_size % spec.block_size == 0)
    suppose("in_flight", in_flight <= deployment.in_flight_tokens)
    held = held_blocks(spec, settled, in_flight, deployment.max_model_len)
    bound = stated_blocks_per_request(spec, deployment)
    ensure(held <= bound, f"{held} blocks held with {settled} tokens settled, bound {bound}")


def _layer(given: Given, kind: str, name: str) -> Spec:
    """A layer whose integers and flags are all unknown."""
    values: dict[str, Any] = {"dtype": "bfloat16"}
    if kind == "mamba":
        values = {"dtypes": ("bfloat16",), "shapes": ((_positive(given, f"{name}.shape"),),)}
    for field in ("block_size", "num_kv_heads", "head_size", "rswa_window", "compress_ratio", "alignment"):
        if field in KINDS[kind].__dataclass_fields__:
            values[field] = _positive(given, f"{name}.{field}")
    if kind in FULL_KINDS:
        for field in ("sliding_window", "attention_chunk_size"):
            values[field] = given.optional(f"{name}.{field}", at_least=1)
        values["non_causal"] = given.flag(f"{name}.non_causal")
    elif kind != "cross_attention":
        for field in ("sliding_window", "attention_chunk_size"):
            if field in KINDS[kind].__dataclass_fields__:
                values[field] = _positive(given, f"{name}.{field}")
    return KINDS[kind](**values)


def _merged(*specs: Spec | None) -> Spec | None:
    known = [spec for spec in specs if spec is not None]
    if len(known) < len(specs):
        return None
    try:
        return merge(known)
    except Refused:
        return None


def merge_is_a_semilattice(given: Given, suppose: Suppose) -> None:
    """T5."""
    kind = given.choice("kind", (*ATTENTION_KINDS, "mamba"))
    law = given.choice("law", ("idempotent", "commutative", "associative"))
    layers = []
    for name in {"idempotent": ("first",), "commutative": ("first", "second")}.get(
        law, ("first", "second", "third")
    ):
        layer = _layer(given, kind, name)
        if isinstance(layer, FullAttention):
            suppose("one_record", layer.sliding_window is None or layer.attention_chunk_size is None)
        layers.append(layer)
    if law == "idempotent":
        (first,) = layers
        ensure(_merged(first, first, first) == first, "merging a layer with itself changes it or is refused")
    elif law == "commutative":
        first, second = layers
        ensure(_merged(first, second) == _merged(second, first), "the order of the layers matters")
    else:
        first, second, third = layers
        ensure(
            _merged(_merged(first, second), third) == _merged(first, _merged(second, third)),
            "merging in steps depends on the steps",
        )


def alignment_is_least(given: Given, suppose: Suppose) -> None:
    """T6."""
    alignment = _any_integer(given, "alignment")
    suppose("aligned", alignment > 0)
    spec = _attention(given, "mla_attention", alignment=alignment)
    contents = unpadded_page_size_bytes(spec)
    page = page_size_bytes(spec)
    ensure(page % alignment == 0, f"page of {page} bytes is no multiple of {alignment}")
    ensure(page >= contents, f"page of {page} bytes for {contents} bytes of contents")
    ensure(page - contents < alignment, f"page of {page} bytes is a multiple too many over {contents}")


def rounding_up_nests(given: Given, suppose: Suppose) -> None:
    """T7."""
    n, d, b = (_any_integer(given, name) for name in ("n", "d", "b"))
    suppose("divisible", d != 0)
    suppose("positive", b > 0)
    ensure_equal(cdiv(cdiv(n, d), b), cdiv(n, d * b), "rounded up twice", "rounded up once")


def _model(given: Given) -> dict[str, Spec]:
    """Up to three layers: one merged group, one uniform group, or two groups that share tensors."""
    shared: dict[str, Any] = {
        "block_size": _positive(given, "block_size"),
        "head_size": _positive(given, "head_size"),
        "dtype": "uint8",
    }
    heads = _positive(given, "heads.0")
    layers: list[Spec] = [FullAttention(num_kv_heads=heads, **shared)]
    if given.choice("groups", (1, 2)) == 2:
        window = _positive(given, "sliding_window")
        retained = given.integer("extra_retained_tokens")
        layers.append(
            SlidingWindow(num_kv_heads=heads, sliding_window=window, extra_retained_tokens=retained, **shared)
        )
    else:
        for index in range(1, given.choice("layers", (1, 2, 3))):
            layers.append(FullAttention(num_kv_heads=_positive(given, f"heads.{index}"), **shared))
    return {f"layer.{index}": layer for index, layer in enumerate(layers)}


def plan_fits_and_is_maximal(given: Given, suppose: Suppose) -> None:
    """T8."""
    layers = _model(given)
    override = given.optional("override", at_least=1)
    suppose("not_overridden", override is None)
    deployment = Deployment(
        max_model_len=_positive(given, "max_model_len"),
        packed_layout=given.choice("layout", ("separate", "packed")) == "packed",
        num_gpu_blocks_override=override,
    )
    memory = [_positive(given, f"memory.{rank}") for rank in range(given.choice("ranks", (1, 2)))]
    try:
        configs = get_kv_cache_configs([layers] * len(memory), deployment, memory, Registry())
    except Refused:
        given.reject()
    per_block = bytes_per_block(configs[0].kv_cache_groups, deployment.packed_layout)
    for config, available in zip(configs, memory, strict=True):
        taken = allocated_bytes(config)
        ensure(taken <= available, f"tensors of {taken} bytes in {available} bytes of memory")
    taken = allocated_bytes(configs[0]) + per_block
    ensure(taken > min(memory), f"one more block of {per_block} bytes fits: {taken} of {min(memory)}")


def packed_layers_are_disjoint(given: Given, suppose: Suppose) -> None:
    """T9."""
    count = given.choice("layers", (1, 2, 3))
    pages = [_any_integer(given, f"page.{index}") for index in range(count)]
    alignments = [_any_integer(given, f"alignment.{index}") for index in range(count)]
    for page, alignment in zip(pages, alignments, strict=True):
        suppose("pages", page >= 0)
        suppose("aligned", alignment > 0)
    offsets, end = packed_offsets(pages, alignments)
    stride = given.integer("stride")
    suppose("stride", stride >= end)
    places = [
        Placement(layer="", group=0, tensor=0, allocation=0, size=0, offset=offset, stride=stride, page=page)
        for offset, page in zip(offsets, pages, strict=True)
    ]
    block = given.integer("block")
    later = block + given.integer("blocks_later", at_least=1)
    for index, place in enumerate(places):
        start, stop = page_range(place, 0)
        ensure(start >= 0 and stop <= stride, f"page {index} spans {start} to {stop} of a stride of {stride}")
        for other in places[:index]:
            ensure(not overlap(page_range(place, block), page_range(other, block)), "two layers share a byte")
        for other in places:
            ensure(not overlap(page_range(place, block), page_range(other, later)), "two blocks share a byte")


def quantisation_error(given: Given, suppose: Suppose) -> None:
    """T10."""
    value, low, step = (_any_integer(given, name) for name in ("value", "low", "step"))
    levels = _positive(given, "levels")
    suppose("step", step > 0)
    suppose("above", value >= low)
    suppose("below", value <= dequantise(levels - 1, low, step))
    code = quantise(value, low, step, levels)
    ensure(0 <= code < levels, f"code {code} of {levels} levels")
    error = abs(value - dequantise(code, low, step))
    ensure(2 * error <= step, f"{value} becomes {dequantise(code, low, step)}, steps of {step} apart")


def resizing_composes(given: Given, suppose: Suppose) -> None:
    """T11."""
    kind = given.choice("kind", ("full_attention", "sliding_window", "mla_attention", "sliding_window_mla"))
    padded = given.optional("page_size_padded", at_least=1)
    suppose("not_by_hand", padded is None)
    fields: dict[str, Any] = {"page_size_padded": padded}
    ratio = 1
    if kind in LATENT_KINDS:
        fields["alignment"] = given.optional("alignment", at_least=1)
        fields["compress_ratio"] = ratio = _positive(given, "compress_ratio")
    sizes = ("block_size", "first", "second")
    block, first, second = (given.integer(size, at_least=ratio, multiple_of=ratio) for size in sizes)
    try:
        spec = construct(_attention(given, kind, block_size=block, **fields))
        twice = copy_with_new_block_size(copy_with_new_block_size(spec, first), second)
        once = copy_with_new_block_size(spec, second)
    except Refused:
        given.reject()
    ensure(twice == once, f"resized to {first} then {second}: got {twice}, wanted {once}")


def startup_implies_admission(given: Given, suppose: Suppose) -> None:
    """T12."""
    layers = _model(given)
    deployment = Deployment(
        max_model_len=_positive(given, "max_model_len"), max_num_batched_tokens=_positive(given, "budget")
    )
    memory = _positive(given, "memory")
    try:
        (config,) = get_kv_cache_configs([layers], deployment, [memory], Registry())
    except Refused:
        given.reject()
    settled, in_flight = given.integer("settled"), given.integer("in_flight")
    length = _positive(given, "length")
    withheld = given.integer("withheld")
    suppose("in_flight", in_flight <= deployment.in_flight_tokens)
    suppose("length", length <= deployment.max_model_len)
    suppose("withheld", withheld <= withheld_blocks(config.kv_cache_groups))
    held = 0
    for group in config.kv_cache_groups:
        for spec in group.layer_specs().values():
            held += held_blocks(spec, settled, in_flight, length)
            break
    usable = config.num_blocks - withheld
    ensure(held <= usable, f"{held} blocks held, {usable} of {config.num_blocks} to hand out")
