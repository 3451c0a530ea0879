"""When new blocks are cleared, by hand (FACTS section 9)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import FullAttention, Mamba, SlidingWindow, Spec, UniformType
from kvconform.reference.zeroing import needs_kv_cache_zeroing, records_new_block_ids

FULL = FullAttention(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16")
WINDOW = SlidingWindow(block_size=16, num_kv_heads=1, head_size=8, dtype="bfloat16", sliding_window=9)
BYTES = replace(FULL, dtype="uint8", kv_quant_mode="FP8_PER_TENSOR")
STATE = Mamba(block_size=16, shapes=((8,),), dtypes=("float32",))


def wrapped(*specs: Spec) -> UniformType:
    return UniformType(block_size=16, kv_cache_specs=tuple((str(i), spec) for i, spec in enumerate(specs)))


def config(*specs: Spec) -> KVCacheConfig:
    groups = tuple(KVCacheGroupSpec(layer_names=(str(i),), kv_cache_spec=s) for i, s in enumerate(specs))
    return KVCacheConfig(num_blocks=2, kv_cache_tensors=(), kv_cache_groups=groups)


@pytest.mark.parametrize(
    ("specs", "needed"),
    [
        ((), False),
        ((FULL,), False),
        ((FULL, WINDOW), False),
        ((wrapped(FULL, replace(FULL, num_kv_heads=2)),), False),
        ((STATE,), True),
        ((FULL, STATE), True),
        ((wrapped(STATE, STATE),), True),
        ((FULL, BYTES), True),
        ((wrapped(FULL, BYTES),), True),
        ((wrapped(FULL, FULL), BYTES), True),
        ((BYTES, replace(BYTES, kv_quant_mode="NONE")), True),
    ],
)
def test_needs_zeroing(specs: tuple[Spec, ...], needed: bool) -> None:
    assert needs_kv_cache_zeroing(config(*specs)) is needed


def test_attention_groups_report_their_new_blocks() -> None:
    assert records_new_block_ids(config(FULL, STATE, wrapped(FULL, FULL))) == (True, False, True)
    assert records_new_block_ids(config(FULL, WINDOW)) == (False, False)
