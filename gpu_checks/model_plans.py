"""The reference's plans of the model collection, with as few blocks as serve a request of one token."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from kvconform.reference.grouping import get_kv_cache_groups
from kvconform.reference.interface import Refused
from kvconform.reference.layout import allocated_bytes
from kvconform.reference.models import Model, model
from kvconform.reference.planning import (
    KVCacheConfig,
    blocks_per_request,
    get_kv_cache_configs,
    withheld_blocks,
)
from kvconform.reference.uniform import Registry

CACHE_DTYPES = ("auto", "fp8_ds_mla")
"""What a model is served with: the first whose layers the reference can plan together."""
TENSOR_PARALLEL = (1, 2, 4, 8)
"""Ranks that a large model is shared by; one rank's plan is laid out."""
ENOUGH_BYTES = 24 << 20
LEAST_BLOCKS = 3
"""The first block, one between and the last."""


@lru_cache(maxsize=128)
def model_plan(name: str, packed: bool) -> KVCacheConfig:
    """One rank's plan of a model of the collection, in shared or packed layout.

    On the fewest ranks that make it at most `ENOUGH_BYTES`, else the smallest that there is.
    Raises `Refused` for a model that the reference does not plan.
    """
    known = model(name)
    found: list[KVCacheConfig] = []
    refusals: list[Refused] = []
    for cache_dtype in CACHE_DTYPES:
        for ranks in TENSOR_PARALLEL:
            try:
                found.append(_planned(known, cache_dtype, ranks, packed))
            except Refused as refusal:
                refusals.append(refusal)
                continue
            if allocated_bytes(found[-1]) <= ENOUGH_BYTES:
                return found[-1]
        if found:
            return min(found, key=allocated_bytes)
    raise refusals[0]


def _planned(known: Model, cache_dtype: str, ranks: int, packed: bool) -> KVCacheConfig:
    layers = dict(known.layers(cache_dtype=cache_dtype, tensor_parallel=ranks))
    deployment = known.deployment(max_model_len=1, packed_layout=packed)
    groups = get_kv_cache_groups(layers, deployment, Registry())
    blocks = max(LEAST_BLOCKS, blocks_per_request(groups, deployment) + withheld_blocks(groups))
    sized = replace(deployment, num_gpu_blocks_override=blocks)
    return get_kv_cache_configs((layers,), sized, (1 << 60,), Registry())[0]
