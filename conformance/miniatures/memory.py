"""Faults in how many blocks are planned, and what they promise (FACTS section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from kvconform.conformance.miniatures.engine import Engine, Groups, Layers
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.arithmetic import round_up, total
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Refused
from kvconform.reference.planning import NULL_BLOCKS, KVCacheConfig
from kvconform.reference.specs import AttentionSpec

# Blocks that fit


@breaks("plan/within-budget", "plan/cheaper-is-not-worse")
class NullBlockBesideTheBudget(Engine):
    """The null block is allocated beside the blocks that fit."""

    def fitting_blocks(self, available_memory: int, bytes_per_block: int) -> int:
        return super().fitting_blocks(available_memory, bytes_per_block) + NULL_BLOCKS


@breaks("plan/within-budget", "plan/override-checked")
class TensorsRoundedUp(Engine):
    """Tensors are rounded up to 4096 bytes after the blocks that fit were counted."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        made = super().config(groups, num_blocks, deployment)
        rounded = tuple(replace(tensor, size=round_up(tensor.size, 4096)) for tensor in made.kv_cache_tensors)
        return replace(made, kv_cache_tensors=rounded)


@breaks("plan/within-budget")
class MostBlocksOfAnyRank(Engine):
    """Every rank takes the most blocks that fit on any rank, not the fewest."""

    def sized(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[Groups, int]:
        groups, num_blocks = super().sized(ranks, deployment, available_memory)
        if not groups or deployment.num_gpu_blocks_override is not None:
            return groups, num_blocks
        packed = deployment.packed_layout
        return groups, max(
            self.fitting_blocks(memory, self.bytes_per_block(self.project(groups, rank), packed))
            for rank, memory in zip(ranks, available_memory, strict=True)
            if rank
        )


@breaks("plan/maximal")
class BlocksInPairs(Engine):
    """Blocks are counted in pairs, so that an odd one lies idle."""

    def fitting_blocks(self, available_memory: int, bytes_per_block: int) -> int:
        fitting = super().fitting_blocks(available_memory, bytes_per_block)
        return fitting - fitting % 2


@breaks("plan/monotone")
class BlocksCountedIn32Bits(Engine):
    """Blocks are counted in 32 bits, one of them for the sign."""

    def fitting_blocks(self, available_memory: int, bytes_per_block: int) -> int:
        fitting = super().fitting_blocks(available_memory, bytes_per_block)
        return (fitting + (1 << 31)) % (1 << 32) - (1 << 31)


@breaks("plan/cheaper-is-not-worse", "plan/maximal")
class MemorySplitByElementType(Engine):
    """The memory is divided evenly among the element types of the cache, used or not."""

    def sized(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[Groups, int]:
        specs = [spec for rank in ranks for spec in rank.values()]
        types = {spec.dtype for spec in specs if isinstance(spec, AttentionSpec)}
        share = [bytes_ // max(len(types), 1) for bytes_ in available_memory]
        return super().sized(ranks, deployment, share)


@breaks("plan/no-layers")
class NoBlockWithoutLayers(Engine):
    """A model without cache has no block at all, not even the null block."""

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        return super().config(groups, num_blocks if groups else 0, deployment)


# The startup check


@breaks("plan/check-counts-all", "plan/startup-implies-admission")
class NullBlockPromised(Engine):
    """The null block is promised to requests."""

    def withheld_blocks(self, groups: Sequence[KVCacheGroupSpec]) -> int:
        return super().withheld_blocks(groups) - NULL_BLOCKS


@breaks("plan/check-counts-all", "plan/startup-implies-admission")
class SinksPromised(Engine):
    """Blocks that attention sinks hold outside any request are promised to requests."""

    def withheld_blocks(self, groups: Sequence[KVCacheGroupSpec]) -> int:
        return NULL_BLOCKS


@breaks(
    "plan/check-counts-all", "plan/startup-implies-admission", "plan/longest-fits", "plan/override-checked"
)
class LargestGroupChecked(Engine):
    """Startup checks the group that takes most blocks, not all groups together."""

    def refuse_unservable(
        self, groups: Sequence[KVCacheGroupSpec], deployment: Deployment, num_blocks: int
    ) -> None:
        withheld = self.withheld_blocks(groups)
        for group in groups:
            if self.blocks_per_request((group,), deployment) > num_blocks - withheld:
                raise Refused("a request does not fit")


@breaks(
    "plan/check-counts-all", "plan/startup-implies-admission", "plan/longest-fits", "plan/override-checked"
)
class FillerLayersNotChecked(Engine):
    """Startup compares bytes, and of what a request takes the filler layers are forgotten."""

    def refuse_unservable(
        self, groups: Sequence[KVCacheGroupSpec], deployment: Deployment, num_blocks: int
    ) -> None:
        usable = num_blocks - self.withheld_blocks(groups)
        taken = total(
            self.blocks_per_request((group,), deployment) * self.bytes_per_block((group,)) for group in groups
        )
        if taken > usable * self.bytes_per_block(groups):
            raise Refused("a request does not fit")


@breaks("plan/override-checked")
class OverrideNotChecked(Engine):
    """The override is allocated, and what the memory would have given is checked."""

    def get_kv_cache_configs(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        override = deployment.num_gpu_blocks_override
        measured = replace(deployment, num_gpu_blocks_override=None)
        configs = super().get_kv_cache_configs(ranks, measured, available_memory)
        if override is None:
            return configs
        return tuple(self.config(config.kv_cache_groups, override, deployment) for config in configs)


@breaks("plan/override-checked")
class OverrideCutToMemory(Engine):
    """An override of more blocks than were measured to fit is cut down to those."""

    def sized(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[Groups, int]:
        groups, num_blocks = super().sized(ranks, deployment, available_memory)
        measured = replace(deployment, num_gpu_blocks_override=None)
        return groups, min(num_blocks, super().sized(ranks, measured, available_memory)[1])


# What is told to operators


@breaks("plan/concurrency")
class DividedByTheLargestGroup(Engine):
    """Concurrency divides the blocks by those that the largest group takes, not by those of all."""

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> Fraction | float:
        needed = max(self.blocks_per_request((group,), deployment) for group in config.kv_cache_groups)
        return Fraction(config.num_blocks, needed)


@breaks("plan/concurrency")
class BlocksSharedOutEvenly(Engine):
    """Concurrency gives every group the same share of the pool, and counts the group that runs out first."""

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> Fraction | float:
        needed = max(self.blocks_per_request((group,), deployment) for group in config.kv_cache_groups)
        return Fraction(config.num_blocks, needed * len(config.kv_cache_groups))


@breaks("plan/longest-fits")
class NullBlockInTheEstimate(Engine):
    """The longest length is estimated as if the null block could be handed out."""

    def estimate_max_model_len(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> int:
        groups, num_blocks = self.sized(ranks, deployment, available_memory)
        if not groups:
            return deployment.max_model_len
        promised = replace(deployment, num_gpu_blocks_override=num_blocks + NULL_BLOCKS)
        return super().estimate_max_model_len(ranks, promised, available_memory)


@breaks("plan/longest-fits")
class EstimateInHundreds(Engine):
    """The longest length is estimated to the nearest hundred tokens below."""

    def estimate_max_model_len(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> int:
        longest = super().estimate_max_model_len(ranks, deployment, available_memory)
        return longest if longest == deployment.max_model_len else longest - longest % 100
