"""Page bytes and resizing (FACTS sections 3 and 4)."""

from __future__ import annotations

from dataclasses import replace

from kvconform.reference.arithmetic import product, round_up, total
from kvconform.reference.interface import Refused
from kvconform.reference.specs import DTYPE_BYTES, LATENT, AttentionSpec, Mamba, Spec, UniformType


def states_per_block(spec: AttentionSpec) -> int:
    """Stored entries in one page: one per token, or one per ``compress_ratio`` tokens.

    Raises `Refused` when the block is not a whole number of states: the tail tokens of the block
    would have nowhere to go.
    """
    ratio = spec.compress_ratio if isinstance(spec, LATENT) else 1
    if spec.block_size <= 0:
        raise Refused(f"block size {spec.block_size} is not positive")
    if ratio <= 0 or spec.block_size % ratio != 0:
        raise Refused(f"block size {spec.block_size} is not a multiple of compress ratio {ratio}")
    return spec.block_size // ratio


def head_slots(spec: AttentionSpec) -> int:
    """Rows of a page per state: the override, else one per KV head."""
    return spec.num_kv_heads if spec.num_head_slots is None else spec.num_head_slots


def state_content_size_bytes(spec: AttentionSpec) -> int:
    """Bytes of one (head slot, state) cell: the override, else dense K and V."""
    if spec.state_content_bytes is not None:
        return spec.state_content_bytes
    return (spec.head_size + spec.value_head_size) * DTYPE_BYTES[spec.dtype]


def unpadded_page_size_bytes(spec: Spec) -> int:
    """Bytes that a page's contents need.

    Attention: head slots x states x content. Mamba: the sum of its arrays, whatever the block
    size; as many shapes as dtypes, else `Refused`. uniform_type: its layers' pages together.
    """
    if isinstance(spec, UniformType):
        return page_size_bytes(spec)
    if isinstance(spec, Mamba):
        if len(spec.shapes) != len(spec.dtypes):
            raise Refused(f"{len(spec.shapes)} shapes but {len(spec.dtypes)} dtypes")
        return total(
            product(shape) * DTYPE_BYTES[dtype] for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
        )
    assert isinstance(spec, AttentionSpec)
    return head_slots(spec) * states_per_block(spec) * state_content_size_bytes(spec)


def page_size_bytes(spec: Spec) -> int:
    """Bytes of one page, padding included.

    The padding asked for wins; it must cover the contents, else `Refused`. Otherwise an alignment
    rounds the contents up to its least multiple.
    """
    if isinstance(spec, UniformType):
        return total(page_size_bytes(layer) for layer in spec.layers())
    assert isinstance(spec, AttentionSpec | Mamba)
    unpadded = unpadded_page_size_bytes(spec)
    if spec.page_size_padded is not None:
        if spec.page_size_padded < unpadded:
            raise Refused(f"padded page {spec.page_size_padded} is less than the {unpadded} bytes in it")
        return spec.page_size_padded
    if isinstance(spec, LATENT) and spec.alignment is not None:
        return round_up(unpadded, spec.alignment)
    return unpadded


def construct(spec: Spec) -> Spec:
    """The spec with its derived fields filled in: V head size and aligned padding.

    An aligned spec records its padded page only where that differs from the contents. Raises
    `Refused` for a model version other than None and "deepseek_v4" in a sliding_window_mla, for
    an alignment that is not positive, and for whatever reading its page refuses.
    """
    if isinstance(spec, UniformType):
        layers = tuple((name, construct(layer)) for name, layer in spec.kv_cache_specs)
        return replace(spec, kv_cache_specs=layers)
    if isinstance(spec, LATENT):
        if spec.kind == "sliding_window_mla" and spec.model_version not in (None, "deepseek_v4"):
            raise Refused(f"unsupported model version {spec.model_version!r}")
        if spec.alignment is not None and spec.alignment <= 0:
            raise Refused(f"alignment {spec.alignment} is not positive")
    page = page_size_bytes(spec)
    if isinstance(spec, LATENT) and spec.page_size_padded is None and page != unpadded_page_size_bytes(spec):
        spec = replace(spec, page_size_padded=page)
    if isinstance(spec, AttentionSpec) and spec.head_size_v is None:
        return replace(spec, head_size_v=spec.head_size)
    return spec


def copy_with_new_block_size(spec: Spec, block_size: int) -> Spec:
    """The same spec with block size ``block_size`` (tokens).

    Where shipped releases carry ``page_size_padded`` across unchanged (FACTS section 4, finding),
    this follows the laws resize/like-fresh, still-covers and padding-share: an alignment derives
    its padding anew, and a padding asked for by hand is scaled with the states in the page,
    rounded down, so it still covers them and its share does not rise. A mamba page does not
    depend on the block size, so its padding stays. A uniform_type resizes every layer.
    """
    if block_size <= 0:
        raise Refused(f"block size {block_size} is not positive")
    if isinstance(spec, UniformType):
        layers = tuple(
            (name, copy_with_new_block_size(layer, block_size)) for name, layer in spec.kv_cache_specs
        )
        return replace(spec, block_size=block_size, kv_cache_specs=layers)
    if isinstance(spec, LATENT) and spec.alignment is not None:
        return construct(replace(spec, block_size=block_size, page_size_padded=None))
    if isinstance(spec, AttentionSpec) and spec.page_size_padded is not None:
        states = states_per_block(spec)
        resized = replace(spec, block_size=block_size, page_size_padded=None)
        padded = spec.page_size_padded * states_per_block(resized) // states
        return construct(replace(resized, page_size_padded=padded))
    return construct(replace(spec, block_size=block_size))
