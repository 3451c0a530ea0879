"""How many blocks fit, and which tensors hold them (FACTS section 9.4 to 9.10)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from kvconform.reference.arithmetic import cdiv, round_up, total
from kvconform.reference.blocks import max_blocks_per_request
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec, get_kv_cache_groups
from kvconform.reference.interface import Refused
from kvconform.reference.pages import page_size_bytes
from kvconform.reference.specs import LATENT, AttentionSpec, SinkFullAttention, Spec, UniformType
from kvconform.reference.uniform import Registry

NULL_BLOCKS = 1
"""Blocks of a pool that stand for freed entries and are never handed out."""


@dataclass(frozen=True, kw_only=True)
class KVCacheTensor:
    """One raw allocation of ``size`` bytes, shared by layers of different groups.

    ``block_stride`` 0: each layer steps through it by its own page. Otherwise all tensors of a
    configuration are one slab of ``size`` bytes, a block is ``block_stride`` bytes of it, and the
    layers' page lies ``offset`` bytes into the block.
    """

    size: int
    shared_by: tuple[str, ...]
    offset: int = 0
    block_stride: int = 0

    def names(self) -> tuple[str, ...]:
        """The layers that lie in it."""
        return self.shared_by


@dataclass(frozen=True, kw_only=True)
class StridedKVCacheTensor:
    """Layers of one shape in one backing allocation of ``size`` bytes: the newer `KVCacheTensor`.

    The page of block b of the l-th layer starts at ``offset`` + l x ``layer_stride`` + b x
    ``block_stride``. All tensors of a configuration lie in the same allocation.
    """

    size: int
    layers: tuple[str, ...]
    layer_stride: int
    block_stride: int
    offset: int = 0

    def names(self) -> tuple[str, ...]:
        """The layers that lie in it."""
        return self.layers


@dataclass(frozen=True, kw_only=True)
class KVCacheConfig:
    """What one rank allocates, or what the scheduler sees of it."""

    num_blocks: int
    kv_cache_tensors: tuple[KVCacheTensor | StridedKVCacheTensor, ...]
    kv_cache_groups: tuple[KVCacheGroupSpec, ...]


Rank = Mapping[str, Spec]
"""The layers that one rank owns, by name."""


# Arithmetic of one rank


def fitting_blocks(available_memory: int, bytes_per_block: int) -> int:
    """Blocks that fit the memory: floor(available / bytes per block), both in bytes."""
    return available_memory // bytes_per_block


def packed_offsets(
    pages: Sequence[int], alignments: Sequence[int] | None = None
) -> tuple[tuple[int, ...], int]:
    """Where pages (bytes) lie side by side inside a block, and where the last one ends.

    Each starts at the first multiple of its alignment (bytes, by default 1) after the one before.
    """
    offsets = []
    end = 0
    for index, page in enumerate(pages):
        alignment = 1 if alignments is None else alignments[index]
        start = end if alignment == 1 else round_up(end, alignment)
        offsets.append(start)
        end = start + page
    return tuple(offsets), end


def bytes_per_block(groups: Sequence[KVCacheGroupSpec], packed_layout: bool = False) -> int:
    """Bytes that one block takes on a rank that owns these groups' layers.

    The most of any group: a block belongs to one group at a time. In the packed layout offsets and
    the stride are multiples of the layers' alignments.
    """
    if packed_layout:
        alignments = [_alignment(spec) for group in groups for spec in set(group.layer_specs().values())]
        widest = max((_packed(group)[1] for group in groups), default=0)
        return round_up(widest, math.lcm(*alignments))
    return max((total(_pages(group).values()) for group in groups), default=0)


def withheld_blocks(groups: Sequence[KVCacheGroupSpec]) -> int:
    """Blocks of a pool that no request is given: the null block and those of attention sinks."""
    return NULL_BLOCKS + total(_sink_blocks(group.kv_cache_spec) for group in groups)


def blocks_per_request(groups: Sequence[KVCacheGroupSpec], deployment: Deployment) -> int:
    """Most blocks that one request holds at once, over all groups of the pool."""
    counting = deployment.counting_lookahead()
    return total(max_blocks_per_request(group.kv_cache_spec, counting) for group in groups)


def max_memory_usage_bytes(groups: Sequence[KVCacheGroupSpec], deployment: Deployment) -> int:
    """Bytes of the blocks that one request of max length holds, filler layers included."""
    per_block = bytes_per_block(groups, deployment.packed_layout)
    return blocks_per_request(groups, deployment) * per_block


# The whole plan


def get_kv_cache_configs(
    ranks: Sequence[Rank], deployment: Deployment, available_memory: Sequence[int], registry: Registry
) -> tuple[KVCacheConfig, ...]:
    """The configuration of each rank: one grouping, one number of blocks.

    ``available_memory`` is bytes per rank. Every rank takes the smallest number of blocks that
    fits on any rank, or the override. A rank without layers holds no tensors; a model without
    layers is given one block.

    Raises `Refused` for what grouping refuses, for ranks that disagree about a layer, for memory
    that is no whole number of bytes or less than one, for an override of less than one, and when a
    request of max length would not fit the blocks that can be handed out.
    """
    groups, num_blocks = _sized(ranks, deployment, available_memory, registry)
    if groups:
        _refuse_unservable(groups, deployment, num_blocks)
    return tuple(_config(project(groups, rank), num_blocks, deployment) for rank in ranks)


def estimate_max_model_len(
    ranks: Sequence[Rank], deployment: Deployment, available_memory: Sequence[int], registry: Registry
) -> int:
    """The longest request, in tokens up to ``deployment.max_model_len``, that the memory serves.

    0 when not even one token fits. Raises `Refused` as `get_kv_cache_configs` does, but for lack
    of memory for the length.
    """
    groups, num_blocks = _sized(ranks, deployment, available_memory, registry)
    usable = num_blocks - withheld_blocks(groups)

    def fits(length: int) -> bool:
        return blocks_per_request(groups, replace(deployment, max_model_len=length)) <= usable

    if not groups or fits(deployment.max_model_len):
        return deployment.max_model_len
    # Blocks never fall as the length grows, so the longest fitting length can be halved down to.
    longest, too_long = 0, deployment.max_model_len
    while too_long - longest > 1:
        middle = (longest + too_long) // 2
        if fits(middle):
            longest = middle
        else:
            too_long = middle
    return longest


def project(groups: Sequence[KVCacheGroupSpec], rank: Rank) -> tuple[KVCacheGroupSpec, ...]:
    """The groups as one rank sees them: the same groups, naming only the rank's own layers.

    A group of which the rank owns nothing stays, since its requests take blocks all the same. The
    spec stays the whole group's: a rank that saw only its own layers of a uniform_type would
    answer differently from the others (zero/every-view-agrees).
    """
    return tuple(
        replace(group, layer_names=tuple(name for name in group.layer_names if name in rank))
        for group in groups
    )


def generate_scheduler_kv_cache_config(configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
    """The scheduler's view: the first rank's configuration.

    Ranks agree in everything but the layers that they name. Raises `Refused` for no ranks, and
    for ranks that were given different numbers of blocks.
    """
    if not configs:
        raise Refused("no rank to read the configuration from")
    if any(config.num_blocks != configs[0].num_blocks for config in configs):
        raise Refused(f"ranks have different numbers of blocks: {[config.num_blocks for config in configs]}")
    return configs[0]


def get_max_concurrency(config: KVCacheConfig, deployment: Deployment) -> Fraction:
    """Requests of max length that the pool holds: blocks / blocks per request, exactly.

    Raises `Refused` when a request takes no blocks at all.
    """
    needed = blocks_per_request(config.kv_cache_groups, deployment)
    if needed == 0:
        raise Refused("requests take no blocks, so their number is not bounded by the pool")
    return Fraction(config.num_blocks, needed)


def resolve_kv_cache_block_sizes(config: KVCacheConfig, deployment: Deployment) -> tuple[int, int]:
    """Tokens per scheduler block, and tokens per prefix hash.

    The least common multiple of the groups' block sizes, attention groups times DCP and mamba
    groups not; and their greatest common divisor, or the unit asked for when it divides all of
    them, else `Refused`. Also `Refused` without groups.
    """
    sizes = [_table_block_size(group.kv_cache_spec, deployment) for group in config.kv_cache_groups]
    if not sizes:
        raise Refused("no group, so no block size")
    unit = math.gcd(*sizes)
    if deployment.prefix_match_unit is not None:
        unit = deployment.prefix_match_unit
        if unit <= 0 or any(size % unit != 0 for size in sizes):
            raise Refused(f"prefix match unit {unit} does not divide all block sizes {sizes}")
    return math.lcm(*sizes), unit


# Steps of the plan


def _sized(
    ranks: Sequence[Rank], deployment: Deployment, available_memory: Sequence[int], registry: Registry
) -> tuple[tuple[KVCacheGroupSpec, ...], int]:
    _refuse_nonsense(ranks, deployment, available_memory)
    groups = get_kv_cache_groups(_whole_model(ranks), deployment, registry)
    if not groups:
        return groups, 1
    if deployment.num_gpu_blocks_override is not None:
        return groups, deployment.num_gpu_blocks_override
    packed = deployment.packed_layout
    fitting = [
        fitting_blocks(memory, bytes_per_block(project(groups, rank), packed))
        for rank, memory in zip(ranks, available_memory, strict=True)
        if rank
    ]
    return groups, min(fitting)


def _refuse_nonsense(ranks: Sequence[Rank], deployment: Deployment, available_memory: Sequence[int]) -> None:
    if not ranks:
        raise Refused("no rank to plan for")
    if len(ranks) != len(available_memory):
        raise Refused(f"{len(ranks)} ranks but memory given for {len(available_memory)}")
    for index, (rank, memory) in enumerate(zip(ranks, available_memory, strict=True)):
        if isinstance(memory, float):
            raise Refused(f"rank {index}: memory {memory} is not a whole number of bytes")
        if memory < 0 or (memory == 0 and rank):
            raise Refused(f"rank {index}: no memory for the cache ({memory} bytes)")
    override = deployment.num_gpu_blocks_override
    if override is not None and override < 1:
        raise Refused(f"an override of {override} blocks leaves none")
    if deployment.max_model_len < 1:
        raise Refused(f"a max length of {deployment.max_model_len} tokens serves no request")


def _whole_model(ranks: Sequence[Rank]) -> dict[str, Spec]:
    layers: dict[str, Spec] = {}
    for rank in ranks:
        for name, spec in rank.items():
            if layers.setdefault(name, spec) != spec:
                raise Refused(f"layer {name} differs between ranks")
    return layers


def _refuse_unservable(groups: Sequence[KVCacheGroupSpec], deployment: Deployment, num_blocks: int) -> None:
    needed = blocks_per_request(groups, deployment)
    usable = num_blocks - withheld_blocks(groups)
    if needed > usable:
        raise Refused(
            f"a request of {deployment.max_model_len} tokens takes {needed} blocks, and of {num_blocks} only "
            f"{max(usable, 0)} can be handed out"
        )


def _config(groups: tuple[KVCacheGroupSpec, ...], num_blocks: int, deployment: Deployment) -> KVCacheConfig:
    place = _packed_tensors if deployment.packed_layout else _shared_tensors
    return KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=place(groups, num_blocks), kv_cache_groups=groups
    )


def _shared_tensors(groups: Sequence[KVCacheGroupSpec], num_blocks: int) -> tuple[KVCacheTensor, ...]:
    """Tensor i is shared by the i-th layer of every group."""
    sharing: list[list[str]] = []
    pages: list[int] = []
    for group in groups:
        for index, (name, page) in enumerate(_pages(group).items()):
            if index == len(sharing):
                sharing.append([])
                pages.append(page)
            sharing[index].append(name)
    return tuple(
        KVCacheTensor(size=page * num_blocks, shared_by=tuple(names))
        for names, page in zip(sharing, pages, strict=True)
    )


def _packed_tensors(groups: Sequence[KVCacheGroupSpec], num_blocks: int) -> tuple[KVCacheTensor, ...]:
    """One slab; the layers at one offset, one of each group, are one entry."""
    stride = bytes_per_block(groups, packed_layout=True)
    names_at: dict[int, list[str]] = {}
    for group in groups:
        for name, offset in _packed(group)[0].items():
            names_at.setdefault(offset, []).append(name)
    return tuple(
        KVCacheTensor(
            size=stride * num_blocks, shared_by=tuple(names_at[offset]), offset=offset, block_stride=stride
        )
        for offset in sorted(names_at)
    )


def _packed(group: KVCacheGroupSpec) -> tuple[dict[str, int], int]:
    """Offset of each layer of a group inside a block, and where the last one ends (bytes)."""
    pages = _pages(group)
    alignments = {name: _alignment(spec) for name, spec in group.layer_specs().items()}
    # Widest alignment first leaves the fewest gaps, and the same ones in whichever order the
    # layers are listed (plan/order-free).
    order = sorted(pages, key=lambda name: (-alignments[name], -pages[name]))
    offsets, end = packed_offsets([pages[name] for name in order], [alignments[name] for name in order])
    return dict(zip(order, offsets, strict=True)), end


def _pages(group: KVCacheGroupSpec) -> dict[str, int]:
    """The page of each layer of the group, in bytes."""
    specs = group.layer_specs()
    page_of = {spec: page_size_bytes(spec) for spec in set(specs.values())}
    return {name: page_of[spec] for name, spec in specs.items()}


def _alignment(spec: Spec) -> int:
    return spec.alignment if isinstance(spec, LATENT) and spec.alignment is not None else 1


def _sink_blocks(spec: Spec) -> int:
    """Blocks that the sinks of one table take; layers of one table share them."""
    if isinstance(spec, UniformType):
        return max(_sink_blocks(layer) for layer in spec.layers())
    if isinstance(spec, SinkFullAttention) and spec.sink_len is not None:
        return cdiv(spec.sink_len, spec.block_size)
    return 0


def _table_block_size(spec: Spec, deployment: Deployment) -> int:
    """Tokens that one entry of a group's table stands for."""
    inside = spec.layers()[0] if isinstance(spec, UniformType) else spec
    ranks = deployment.decode_context_parallel if isinstance(inside, AttentionSpec) else 1
    return spec.block_size * ranks
