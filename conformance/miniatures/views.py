"""Faults in what ranks and the scheduler see of one plan (FACTS section 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kvconform.conformance.miniatures.engine import Engine, Groups, Layers
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Refused
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import UniformType
from kvconform.reference.zeroing import inner_specs

# Ranks


@breaks("plan/own-layers-only", "plan/every-layer-once")
class WholeModelOnEveryRank(Engine):
    """Every rank holds the tensors of the whole model."""

    def project(self, groups: Sequence[KVCacheGroupSpec], rank: Layers) -> Groups:
        return tuple(groups)


@breaks("plan/own-layers-only", "plan/every-layer-once")
class EmptyGroupBackedAllTheSame(Engine):
    """A rank that owns no layer of a group holds tensors for the layers of other ranks."""

    def project(self, groups: Sequence[KVCacheGroupSpec], rank: Layers) -> Groups:
        own = super().project(groups, rank)
        return tuple(mine if mine.layer_names else whole for mine, whole in zip(own, groups, strict=True))


@breaks("plan/ranks-agree", "plan/wrapping-free")
class RanksCountedApart(Engine):
    """Every rank keeps the blocks that fit its own memory, and the scheduler reads the first rank's."""

    def get_kv_cache_configs(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        configs = super().get_kv_cache_configs(ranks, deployment, available_memory)
        if deployment.num_gpu_blocks_override is not None:
            return configs
        return tuple(
            self.refitted(config, deployment, memory)
            for config, memory in zip(configs, available_memory, strict=True)
        )

    def refitted(self, config: KVCacheConfig, deployment: Deployment, memory: int) -> KVCacheConfig:
        """A rank's configuration with the blocks that its own memory gives."""
        taken = self.bytes_per_block(config.kv_cache_groups, deployment.packed_layout)
        if taken == 0:
            return config
        return self.config(config.kv_cache_groups, self.fitting_blocks(memory, taken), deployment)

    def generate_scheduler_kv_cache_config(self, configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
        return configs[0]


@breaks("plan/ranks-agree", "plan/total")
class EmptyGroupRefused(Engine):
    """A model is refused when a rank owns no layer of a group."""

    def project(self, groups: Sequence[KVCacheGroupSpec], rank: Layers) -> Groups:
        own = super().project(groups, rank)
        if not all(group.layer_names for group in own):
            raise Refused("a rank owns no layer of a group")
        return own


@breaks("plan/ranks-agree", "plan/wrapping-free")
class EmptyGroupsLast(Engine):
    """A rank lists the groups of which it owns no layer last, so that their numbers mean others there."""

    def project(self, groups: Sequence[KVCacheGroupSpec], rank: Layers) -> Groups:
        return tuple(sorted(super().project(groups, rank), key=lambda group: not group.layer_names))


@breaks("zero/every-view-agrees", "plan/wrapping-free")
class UniformTypeCutToTheRank(Engine):
    """A rank's uniform_type holds the rank's own layers alone, and no longer shows what the others need."""

    def project(self, groups: Sequence[KVCacheGroupSpec], rank: Layers) -> Groups:
        return tuple(own_layers(group) for group in super().project(groups, rank))


def own_layers(group: KVCacheGroupSpec) -> KVCacheGroupSpec:
    """The group with no layers in its uniform_type but those that it names."""
    if not isinstance(group.kv_cache_spec, UniformType) or not group.layer_names:
        return group
    own = tuple(pair for pair in group.kv_cache_spec.kv_cache_specs if pair[0] in group.layer_names)
    return replace(group, kv_cache_spec=replace(group.kv_cache_spec, kv_cache_specs=own))


@breaks("plan/wrapping-free")
class DraftFlagFollowsTheLayers(Engine):
    """A draft group is no longer flagged on ranks that own none of its layers."""

    def project(self, groups: Sequence[KVCacheGroupSpec], rank: Layers) -> Groups:
        return tuple(
            replace(group, is_eagle_group=group.is_eagle_group and bool(group.layer_names))
            for group in super().project(groups, rank)
        )


# The scheduler


@breaks("plan/wrapping-free", "zero/every-view-agrees")
class SchedulerSeesTheFirstLayer(Engine):
    """The scheduler takes a uniform_type for its first layer."""

    def generate_scheduler_kv_cache_config(self, configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
        view = super().generate_scheduler_kv_cache_config(configs)
        return replace(
            view,
            kv_cache_groups=tuple(
                replace(group, kv_cache_spec=inner_specs(group.kv_cache_spec)[0])
                for group in view.kv_cache_groups
            ),
        )


@breaks("plan/lengths-match")
class RanksNotInBlockSizes(Engine):
    """The scheduler's block does not count the ranks that a group's tokens are split over."""

    def resolve_kv_cache_block_sizes(self, config: KVCacheConfig, deployment: Deployment) -> tuple[int, int]:
        alone = replace(deployment, decode_context_parallel=1)
        return super().resolve_kv_cache_block_sizes(config, alone)


@breaks("plan/lengths-match")
class ShortestBlockForTheScheduler(Engine):
    """The scheduler's block is the shortest of the groups' blocks, which the others do not divide."""

    def resolve_kv_cache_block_sizes(self, config: KVCacheConfig, deployment: Deployment) -> tuple[int, int]:
        sizes = [
            super(ShortestBlockForTheScheduler, self).resolve_kv_cache_block_sizes(
                replace(config, kv_cache_groups=(group,)), deployment
            )[0]
            for group in config.kv_cache_groups
        ]
        return min(sizes), math.gcd(*sizes)
