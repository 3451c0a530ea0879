"""Where the page of (layer, block) lies: its byte range, for both shapes of tensor (FACTS section 9.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvconform.reference.arithmetic import total
from kvconform.reference.interface import Refused
from kvconform.reference.pages import page_size_bytes
from kvconform.reference.planning import KVCacheConfig, StridedKVCacheTensor
from kvconform.reference.specs import Spec

SLAB = 0
"""The allocation that strided and packed tensors share; others are counted from 1."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one layer's pages lie, in bytes.

    Block b's page is ``page`` bytes from ``offset`` + b x ``stride`` of allocation ``allocation``,
    which is ``size`` bytes long. ``group`` is the layer's group, ``tensor`` the entry naming it.
    """

    layer: str
    group: int
    tensor: int
    allocation: int
    size: int
    offset: int
    stride: int
    page: int


def page_range(placement: Placement, block: int) -> tuple[int, int]:
    """First byte of the layer's page of a block in its allocation, and the byte after the last."""
    start = placement.offset + block * placement.stride
    return start, start + placement.page


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two ranges of the same allocation have a byte in common."""
    return one[0] < other[1] and other[0] < one[1]


def placements(
    config: KVCacheConfig, page_of: Callable[[Spec], int] = page_size_bytes
) -> tuple[Placement, ...]:
    """Where every layer that a tensor names lies, in the order of the tensors.

    ``page_of`` gives the page of a planned spec in bytes. Raises `Refused` for a tensor that
    names a layer of no group.
    """
    group_of: dict[str, int] = {}
    pages: dict[str, int] = {}
    known: dict[Spec, int] = {}
    for index, group in enumerate(config.kv_cache_groups):
        for name, spec in group.layer_specs().items():
            if spec not in known:
                known[spec] = page_of(spec)
            group_of[name] = index
            pages[name] = known[spec]
    found: list[Placement] = []
    for index, tensor in enumerate(config.kv_cache_tensors):
        if isinstance(tensor, StridedKVCacheTensor):
            starts = [
                (name, tensor.offset + position * tensor.layer_stride)
                for position, name in enumerate(tensor.layers)
            ]
            allocation, stride = SLAB, tensor.block_stride
        else:
            starts = [(name, tensor.offset) for name in tensor.shared_by]
            stride = tensor.block_stride
            allocation = index + 1 if stride == 0 else SLAB
        for name, offset in starts:
            if name not in pages:
                raise Refused(f"tensor {index} names layer {name}, which is in no group")
            found.append(
                Placement(
                    layer=name,
                    group=group_of[name],
                    tensor=index,
                    allocation=allocation,
                    size=tensor.size,
                    offset=offset,
                    stride=pages[name] if stride == 0 else stride,
                    page=pages[name],
                )
            )
    return tuple(found)


def allocated_bytes(config: KVCacheConfig) -> int:
    """Bytes of all allocations together: the slab once, and every tensor of its own."""
    slabs = [0]
    own = []
    for tensor in config.kv_cache_tensors:
        if isinstance(tensor, StridedKVCacheTensor) or tensor.block_stride != 0:
            slabs.append(tensor.size)
        else:
            own.append(tensor.size)
    return max(slabs) + total(own)


def by_allocation(places: Sequence[Placement]) -> dict[int, list[Placement]]:
    """The placements of each allocation."""
    result: dict[int, list[Placement]] = {}
    for place in places:
        result.setdefault(place.allocation, []).append(place)
    return result
