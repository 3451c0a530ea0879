"""Planning without the hybrid manager: local layers are kept whole (FACTS section 9.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kvconform.reference.interface import Refused
from kvconform.reference.pages import copy_with_new_block_size
from kvconform.reference.specs import (
    ChunkedLocalAttention,
    FullAttention,
    MLAAttention,
    SlidingWindow,
    SlidingWindowMLA,
    Spec,
)


def promote_local(layers: Mapping[str, Spec]) -> dict[str, Spec]:
    """The layers with each local one planned as its full kind, where full layers stand beside.

    The window or chunk is recorded, every storage field is kept, and the block size is the full
    layers' (tokens); padding follows the block size. Layers without a full one beside them are
    left as they are. Raises `Refused` when the full layers themselves have different block sizes.
    """
    promoted = dict(layers)
    if not any(isinstance(spec, SlidingWindow | ChunkedLocalAttention) for spec in layers.values()):
        return promoted
    block_sizes = {spec.block_size for spec in layers.values() if isinstance(spec, FullAttention)}
    if not block_sizes:
        return promoted
    if len(block_sizes) > 1:
        raise Refused(f"full layers have different block sizes {sorted(block_sizes)}: no one to promote to")
    block_size = block_sizes.pop()
    for name, spec in layers.items():
        full = full_kind(spec)
        promoted[name] = full if full is spec else copy_with_new_block_size(full, block_size)
    return promoted


def full_kind(spec: Spec) -> Spec:
    """A local spec as the full kind of the same storage, its window or chunk recorded.

    Retained tokens are dropped: a full kind frees nothing. Any other spec is returned as it is.
    """
    if isinstance(spec, SlidingWindowMLA):
        return MLAAttention(**_shared_fields(spec, MLAAttention))
    if isinstance(spec, SlidingWindow | ChunkedLocalAttention):
        return FullAttention(**_shared_fields(spec, FullAttention))
    return spec


def _shared_fields(spec: Spec, target: type[Spec]) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in fields(target) if hasattr(spec, field.name)}
