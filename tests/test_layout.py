"""Byte ranges of pages for both shapes of tensor, by hand (FACTS section 9.4)."""

from __future__ import annotations

from typing import Any

import pytest
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Refused
from kvconform.reference.layout import allocated_bytes, by_allocation, overlap, page_range, placements
from kvconform.reference.planning import KVCacheConfig, KVCacheTensor, StridedKVCacheTensor
from kvconform.reference.specs import FullAttention, SlidingWindow, UniformType

FULL = FullAttention(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16")
WINDOW = SlidingWindow(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", sliding_window=9)
HALF = FullAttention(block_size=16, num_kv_heads=1, head_size=8, dtype="uint8")
PAGE = 512

GROUPS = (
    KVCacheGroupSpec(layer_names=("f.0", "f.1"), kv_cache_spec=FULL),
    KVCacheGroupSpec(layer_names=("w.0",), kv_cache_spec=WINDOW),
)


def ranges(config: KVCacheConfig, block: int) -> dict[str, tuple[int, int, int]]:
    """Allocation, first byte and end of each layer's page of a block."""
    return {place.layer: (place.allocation, *page_range(place, block)) for place in placements(config)}


def test_tensors_of_their_own() -> None:
    config = KVCacheConfig(
        num_blocks=3,
        kv_cache_tensors=(
            KVCacheTensor(size=3 * PAGE, shared_by=("f.0", "w.0")),
            KVCacheTensor(size=3 * PAGE, shared_by=("f.1",)),
        ),
        kv_cache_groups=GROUPS,
    )
    assert ranges(config, 2) == {"f.0": (1, 1024, 1536), "w.0": (1, 1024, 1536), "f.1": (2, 1024, 1536)}
    assert allocated_bytes(config) == 6 * PAGE
    assert [len(places) for places in by_allocation(placements(config)).values()] == [2, 1]


def test_packed_slab() -> None:
    slab: dict[str, Any] = {"size": 3 * 2 * PAGE, "block_stride": 2 * PAGE}
    config = KVCacheConfig(
        num_blocks=3,
        kv_cache_tensors=(
            KVCacheTensor(shared_by=("f.0", "w.0"), **slab),
            KVCacheTensor(shared_by=("f.1",), offset=PAGE, **slab),
        ),
        kv_cache_groups=GROUPS,
    )
    assert ranges(config, 0) == {"f.0": (0, 0, 512), "w.0": (0, 0, 512), "f.1": (0, 512, 1024)}
    assert ranges(config, 2) == {"f.0": (0, 2048, 2560), "w.0": (0, 2048, 2560), "f.1": (0, 2560, 3072)}
    assert allocated_bytes(config) == 6 * PAGE


@pytest.mark.parametrize(
    ("layer_stride", "block_stride", "second", "last"),
    [
        (PAGE, 2 * PAGE, (512, 1024), (2560, 3072)),  # blocks outermost
        (3 * PAGE, PAGE, (1536, 2048), (2560, 3072)),  # layers outermost
    ],
)
def test_strided(
    layer_stride: int, block_stride: int, second: tuple[int, int], last: tuple[int, int]
) -> None:
    strides: dict[str, Any] = {"size": 6 * PAGE, "layer_stride": layer_stride, "block_stride": block_stride}
    config = KVCacheConfig(
        num_blocks=3,
        kv_cache_tensors=(
            StridedKVCacheTensor(layers=("f.0", "f.1"), **strides),
            StridedKVCacheTensor(layers=("w.0",), **strides, offset=8),
        ),
        kv_cache_groups=GROUPS,
    )
    assert ranges(config, 0)["f.1"] == (0, *second)
    assert ranges(config, 2)["f.1"] == (0, *last)
    assert ranges(config, 0)["w.0"] == (0, 8, 520)
    assert allocated_bytes(config) == 6 * PAGE


def test_pages_of_a_uniform_type_are_its_layers_own() -> None:
    spec = UniformType(block_size=16, kv_cache_specs=(("a", FULL), ("b", HALF)))
    config = KVCacheConfig(
        num_blocks=2,
        kv_cache_tensors=(
            KVCacheTensor(size=2 * PAGE, shared_by=("a",)),
            KVCacheTensor(size=PAGE, shared_by=("b",)),
        ),
        kv_cache_groups=(KVCacheGroupSpec(layer_names=("a", "b"), kv_cache_spec=spec),),
    )
    assert ranges(config, 1) == {"a": (1, 512, 1024), "b": (2, 256, 512)}


def test_layer_of_no_group_is_refused() -> None:
    config = KVCacheConfig(
        num_blocks=1,
        kv_cache_tensors=(KVCacheTensor(size=PAGE, shared_by=("stranger",)),),
        kv_cache_groups=GROUPS,
    )
    with pytest.raises(Refused, match="tensor 0 names layer stranger, which is in no group"):
        placements(config)


def test_overlap_is_of_bytes_not_of_ends() -> None:
    assert overlap((0, 10), (9, 12))
    assert not overlap((0, 10), (10, 12))
    assert not overlap((10, 12), (0, 10))
    assert overlap((0, 10), (3, 4))
