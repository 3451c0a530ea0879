"""What a model's layers take once they are planned together: one pool of blocks, and what it wastes.

Layers planned together share tables and tensors, so a block costs every layer slot of a group:
pages are made equal, and the last groups may have slots that no layer fills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.pages import page_size_bytes, unpadded_page_size_bytes
from kvconform.reference.planning import bytes_per_block
from kvconform.reference.specs import Spec, UniformType


@dataclass(frozen=True)
class Pool:
    """A model as an implementation plans it.

    ``groups`` describe the groups, each with how often it occurs. One block takes ``block_bytes``
    (bytes) in whichever group it is. ``slots`` are the layer slots of all groups, ``empty_slots``
    those that no layer fills. A request of max length takes ``request_blocks``. Where memory was
    given, ``longest`` (tokens) is the longest request that fits it and, if that is the length asked
    for, ``num_blocks`` and ``requests`` are what the pool holds.
    """

    groups: tuple[tuple[str, int], ...]
    block_bytes: int
    slots: int
    empty_slots: int
    request_blocks: int
    num_blocks: int | None = None
    requests: float | None = None
    longest: int | None = None

    @property
    def request_bytes(self) -> int:
        """Bytes of the blocks that a request of max length takes, empty slots and padding included."""
        return self.request_blocks * self.block_bytes


def plan(
    planner: Implementation, layers: Mapping[str, Spec], deployment: Deployment, memory: int | None
) -> Pool | str:
    """The layers as the implementation plans them, on one rank of ``memory`` bytes.

    In words why not, where it refuses them or cannot be asked.
    """
    try:
        groups = planner.get_kv_cache_groups(dict(layers), deployment)
        pool = _described(planner, groups, deployment)
        if memory is None or pool.request_blocks == 0:
            return pool
        longest = planner.estimate_max_model_len([dict(layers)], deployment, [memory])
        if longest < deployment.max_model_len:
            return replace(pool, longest=longest)
        (config,) = planner.get_kv_cache_configs([dict(layers)], deployment, [memory])
        requests = planner.get_max_concurrency(config, deployment)
        return replace(pool, longest=longest, num_blocks=config.num_blocks, requests=float(requests))
    except Refused as refusal:
        return f"refused: {refusal}"
    except Unsupported as lack:
        return f"unsupported: {lack}"


def _described(planner: Implementation, groups: tuple[KVCacheGroupSpec, ...], deployment: Deployment) -> Pool:
    wrapped = any(isinstance(group.kv_cache_spec, UniformType) for group in groups)
    widest = max((len(group.layer_names) for group in groups), default=0)
    # A uniform_type has a tensor for each layer; in the others a layer of every group shares one.
    slots = sum(len(group.layer_names) if wrapped else widest for group in groups)
    return Pool(
        groups=tuple(Counter(_words(group) for group in groups).items()),
        block_bytes=bytes_per_block(groups),
        slots=slots,
        empty_slots=slots - sum(len(group.layer_names) for group in groups),
        request_blocks=sum(
            planner.max_blocks_per_request(group.kv_cache_spec, deployment) for group in groups
        ),
    )


def _words(group: KVCacheGroupSpec) -> str:
    spec = group.kv_cache_spec
    inside = spec.layers() if isinstance(spec, UniformType) else (spec,)
    kinds = " and ".join(dict.fromkeys(layer.kind for layer in inside))
    count = len(group.layer_names)
    layers = "1 layer" if count == 1 else f"{count} layers"
    pages = " + ".join(dict.fromkeys(map(_page_words, inside)))
    return f"{kinds}, {layers}, blocks of {spec.block_size} tokens, pages of {pages} bytes"


def _page_words(spec: Spec) -> str:
    page = page_size_bytes(spec)
    padding = page - unpadded_page_size_bytes(spec)
    return f"{page:,} ({padding:,} of it padding)" if padding else f"{page:,}"
