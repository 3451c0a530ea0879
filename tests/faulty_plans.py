"""Planners wrong on purpose: the reference with one fault each, and the law that must catch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from kvconform.reference import blocks, grouping, planning, zeroing
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Refused
from kvconform.reference.pages import construct, page_size_bytes
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig, KVCacheTensor
from kvconform.reference.specs import (
    AttentionSpec,
    ChunkedLocalAttention,
    FullAttention,
    Mamba,
    SlidingWindow,
    Spec,
    UniformType,
)
from kvconform.reference.uniform import BASES

Ranks = Sequence[Mapping[str, Spec]]
Configs = tuple[KVCacheConfig, ...]

FAULTS: dict[str, list[type[Plain]]] = {}
"""The faulty planners by the law that catches them."""


def breaks(law: str) -> Callable[[type[Plain]], type[Plain]]:
    """Enter a faulty planner under the law that it breaks."""

    def enter(fault: type[Plain]) -> type[Plain]:
        FAULTS.setdefault(law, []).append(fault)
        return fault

    return enter


class Altered(Plain):
    """Plans as the reference does and then alters each rank's configuration."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        raise NotImplementedError

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        configs = super().get_kv_cache_configs(ranks, deployment, available_memory)
        return tuple(self.alter(config) for config in configs)


class Recounted(Plain):
    """Plans as the reference does, with another number of blocks."""

    def count(self, num_blocks: int, ranks: Ranks) -> int:
        raise NotImplementedError

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        configs = super().get_kv_cache_configs(ranks, deployment, available_memory)
        if not configs[0].kv_cache_groups:
            return configs
        wanted = max(self.count(configs[0].num_blocks, ranks), 1)
        plan = planning._config
        return tuple(plan(config.kv_cache_groups, wanted, deployment) for config in configs)


class Regrouped(Plain):
    """Groups layers in its own way and plans the rest as the reference does."""

    def groups(
        self, layers: Mapping[str, Spec], wanted: tuple[KVCacheGroupSpec, ...]
    ) -> tuple[KVCacheGroupSpec, ...]:
        raise NotImplementedError

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        return self.groups(layers, super().get_kv_cache_groups(layers, deployment))


def tensors(config: KVCacheConfig) -> tuple[KVCacheTensor, ...]:
    return tuple(tensor for tensor in config.kv_cache_tensors if isinstance(tensor, KVCacheTensor))


# uniform


@breaks("uniform/reflexive")
class ComparesIdentities(Plain):
    """Asks whether layers are the same object's neighbours: three equal layers are not."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return len(specs) < 3 and super().is_uniform_type(specs)


@breaks("uniform/symmetric")
class AsksTheFirstLayer(Plain):
    """Asks the first layer whether the others are instances of its class."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return all(isinstance(spec, type(specs[0])) for spec in specs)


@breaks("uniform/same-tokens")
class IgnoresWindows(Plain):
    """Takes all sliding windows for one type."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return super().is_uniform_type(
            [replace(spec, sliding_window=1) if isinstance(spec, SlidingWindow) else spec for spec in specs]
        )


@breaks("uniform/same-blocks-kept")
class TakesRswaForFull(Plain):
    """Groups every kind with its base alone, and R-SWA layers so with full ones."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        if any(spec.kind == "rswa" for spec in specs):
            return {BASES.get(spec.kind) for spec in specs} == {"full_attention"} and (
                len({spec.block_size for spec in specs}) == 1
            )
        return super().is_uniform_type(specs)


@breaks("uniform/total")
class NeedsALayer(Plain):
    """Looks at the first layer without asking whether there is one."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        next(iter(specs))
        return super().is_uniform_type(specs)


@breaks("uniform/unregistered-refused")
class PlansStrangers(Plain):
    """Takes a kind that nobody registered for full attention."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        known = [
            {name: spec if self.registry.base_of(spec.kind) else as_full(spec) for name, spec in rank.items()}
            for rank in ranks
        ]
        return super().get_kv_cache_configs(known, deployment, available_memory)


def as_full(spec: Spec) -> Spec:
    return FullAttention(block_size=spec.block_size, num_kv_heads=1, head_size=64, dtype="bfloat16")


@breaks("uniform/registered-base")
class ForgetsRegistrations(Plain):
    """Compares kinds and not the bases that they were registered with."""

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return len({spec.kind for spec in specs}) < 2 and super().is_uniform_type(specs)


# admission


@breaks("bound/lookahead-counts")
class ForgetsLookahead(Plain):
    """Counts scheduled tokens only."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return blocks.max_blocks_per_request(spec, deployment)


class AdmitsByLength(Plain):
    """Admission asks for the whole length where startup counts the window."""

    def max_admission_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, SlidingWindow | ChunkedLocalAttention):
            return cdiv(deployment.max_model_len, spec.block_size)
        return super().max_admission_blocks_per_request(spec, deployment)


breaks("bound/one-number")(AdmitsByLength)
breaks("plan/startup-implies-admission")(AdmitsByLength)


# zero


@breaks("zero/state-read-before-write")
class SeesNoWrappedMamba(Plain):
    """Looks for mamba layers among the groups, not inside a uniform_type."""

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        bare = any(isinstance(group.kv_cache_spec, Mamba) for group in config.kv_cache_groups)
        return bare or zeroing.has_mixed_precision_kv_cache(config)


breaks("plan/wrapping-free")(SeesNoWrappedMamba)


@breaks("zero/mixed-precision")
class SeesNoWrappedPrecision(Plain):
    """Compares the precisions of groups, not of the layers inside a uniform_type."""

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        bare = tuple(
            group for group in config.kv_cache_groups if not isinstance(group.kv_cache_spec, UniformType)
        )
        mixed = zeroing.has_mixed_precision_kv_cache(replace(config, kv_cache_groups=bare))
        return mixed or zeroing.has_mamba_layers(config)


@breaks("zero/only-when-needed")
class AlwaysZeroes(Plain):
    """Clears every block of every model."""

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        return True


class SeesItsOwnLayersOnly(Altered):
    """Projects a uniform_type to the layers that a rank owns."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        return replace(config, kv_cache_groups=tuple(own_layers(group) for group in config.kv_cache_groups))


breaks("zero/every-view-agrees")(SeesItsOwnLayersOnly)


def own_layers(group: KVCacheGroupSpec) -> KVCacheGroupSpec:
    if not isinstance(group.kv_cache_spec, UniformType) or not group.layer_names:
        return group
    own = tuple(pair for pair in group.kv_cache_spec.kv_cache_specs if pair[0] in group.layer_names)
    return replace(group, kv_cache_spec=replace(group.kv_cache_spec, kv_cache_specs=own))


@breaks("zero/new-blocks-reported")
class ReportsFirstGroup(Plain):
    """Reports the new blocks of the first group alone."""

    def records_new_block_ids(self, config: KVCacheConfig) -> tuple[bool, ...]:
        reported = super().records_new_block_ids(config)
        return tuple(records and index == 0 for index, records in enumerate(reported))


# plan: groups


@breaks("plan/every-layer-once")
class BacksALayerTwice(Altered):
    """Gives the first layer a second tensor."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        return replace(config, kv_cache_tensors=(*config.kv_cache_tensors, *config.kv_cache_tensors[:1]))


@breaks("plan/total")
class AssertsEqualPages(Plain):
    """Asserts where it should refuse."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        assert len({page_size_bytes(spec) for rank in ranks for spec in rank.values()}) == 1
        return super().get_kv_cache_configs(ranks, deployment, available_memory)


@breaks("plan/total")
class RefusesMamba(Plain):
    """Refuses what it could plan."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        if any(isinstance(spec, Mamba) for rank in ranks for spec in rank.values()):
            raise Refused("no state layers here")
        return super().get_kv_cache_configs(ranks, deployment, available_memory)


@breaks("plan/promotion-keeps-storage")
class PromotesWithoutMode(Regrouped):
    """Forgets how promoted layers are quantised."""

    def groups(
        self, layers: Mapping[str, Spec], wanted: tuple[KVCacheGroupSpec, ...]
    ) -> tuple[KVCacheGroupSpec, ...]:
        return tuple(with_specs(group, without_mode) for group in wanted)


@breaks("plan/promotion-keeps-storage")
class PromotesWithoutV(Regrouped):
    """Takes V heads to be as wide as K heads."""

    def groups(
        self, layers: Mapping[str, Spec], wanted: tuple[KVCacheGroupSpec, ...]
    ) -> tuple[KVCacheGroupSpec, ...]:
        return tuple(with_specs(group, without_v) for group in wanted)


def with_specs(group: KVCacheGroupSpec, change: Callable[[Spec], Spec]) -> KVCacheGroupSpec:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformType):
        inside = tuple((name, change(layer)) for name, layer in spec.kv_cache_specs)
        return replace(group, kv_cache_spec=replace(spec, kv_cache_specs=inside))
    return replace(group, kv_cache_spec=change(spec))


def without_mode(spec: Spec) -> Spec:
    return replace(spec, kv_quant_mode="NONE") if isinstance(spec, AttentionSpec) else spec


def without_v(spec: Spec) -> Spec:
    if isinstance(spec, FullAttention) and spec.kind == "full_attention":
        return replace(spec, head_size_v=spec.head_size)
    return spec


@breaks("plan/promotion-total")
class PromotesNoChunks(Plain):
    """Knows no full kind for chunked layers."""

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        chunked = any(isinstance(spec, ChunkedLocalAttention) for spec in layers.values())
        if chunked and not deployment.hybrid_kv_cache_manager:
            raise Refused("chunked layers cannot be converted")
        return super().get_kv_cache_groups(layers, deployment)


@breaks("plan/unify-waste")
class PadsWithoutGrowing(Plain):
    """Pads a page that does not divide the largest, however often it would fit."""

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        groups = super().get_kv_cache_groups(layers, deployment)
        return tuple(with_specs(group, lambda spec: ungrown(spec, layers)) for group in groups)


def ungrown(spec: Spec, layers: Mapping[str, Spec]) -> Spec:
    if isinstance(spec, AttentionSpec) and spec.page_size_padded is not None:
        return replace(spec, block_size=next(iter(layers.values())).block_size)
    return spec


@breaks("plan/pages-unified")
class GrowsHeads(Regrouped):
    """Makes pages equal by adding heads instead of tokens."""

    def groups(
        self, layers: Mapping[str, Spec], wanted: tuple[KVCacheGroupSpec, ...]
    ) -> tuple[KVCacheGroupSpec, ...]:
        block_size = next(iter(layers.values())).block_size
        return tuple(with_specs(group, lambda spec: with_heads(spec, block_size)) for group in wanted)


def with_heads(spec: Spec, block_size: int) -> Spec:
    if isinstance(spec, AttentionSpec) and spec.block_size > block_size:
        times = spec.block_size // block_size
        return replace(spec, block_size=block_size, num_kv_heads=spec.num_kv_heads * times)
    return spec


@breaks("plan/pages-unified")
class LeavesPagesUnequal(Plain):
    """Shares tensors among pages of any size."""

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        return unequal_groups(self, layers, deployment)


def unequal_groups(
    planner: Plain, layers: Mapping[str, Spec], deployment: Deployment
) -> tuple[KVCacheGroupSpec, ...]:
    """The groups of a model whose layers keep the pages that they have."""
    groups = Plain.get_kv_cache_groups(planner, layers, deployment)
    if len(groups) == 1:
        return groups
    return tuple(grouping._split({name: construct(spec) for name, spec in layers.items()}))


@breaks("plan/order-free")
class CountsFromTheFirstLayer(Recounted):
    """Keeps a block back when the first layer listed has a window."""

    def count(self, num_blocks: int, ranks: Ranks) -> int:
        first = next(iter(ranks[0].values()))
        return num_blocks - 1 if isinstance(first, SlidingWindow) else num_blocks


@breaks("plan/filler-bounded")
class FillsUpToTheLargest(Regrouped):
    """Makes groups as large as the largest bucket, whatever it wastes."""

    def groups(
        self, layers: Mapping[str, Spec], wanted: tuple[KVCacheGroupSpec, ...]
    ) -> tuple[KVCacheGroupSpec, ...]:
        if len(wanted) == 1:
            return wanted
        planned = {name: spec for group in wanted for name, spec in group.layer_specs().items()}
        return tuple(
            KVCacheGroupSpec(layer_names=tuple(names), kv_cache_spec=planned[names[0]])
            for names in grouping.buckets(planned)
        )


# plan: memory


@breaks("plan/within-budget")
class OneByteOver(Altered):
    """Takes one byte more than fits."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        grown = tuple(replace(tensor, size=tensor.size + 1) for tensor in tensors(config))
        return replace(config, kv_cache_tensors=grown)


@breaks("plan/within-budget")
class OneBlockOver(Recounted):
    """Plans one block more than fits."""

    def count(self, num_blocks: int, ranks: Ranks) -> int:
        return num_blocks + 1


@breaks("plan/maximal")
class OneBlockWasted(Recounted):
    """Plans one block less than fits."""

    def count(self, num_blocks: int, ranks: Ranks) -> int:
        return num_blocks - 1


@breaks("plan/monotone")
class CountsIn32Bits(Recounted):
    """Counts blocks in 32 bits, one of them for the sign."""

    def count(self, num_blocks: int, ranks: Ranks) -> int:
        return (num_blocks + (1 << 31)) % (1 << 32) - (1 << 31)


@breaks("plan/override-checked")
class ChecksTheMemory(Plain):
    """Allocates the override and checks what the memory would have given."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        configs = super().get_kv_cache_configs(
            ranks, replace(deployment, num_gpu_blocks_override=None), available_memory
        )
        override = deployment.num_gpu_blocks_override
        if override is None:
            return configs
        return tuple(planning._config(config.kv_cache_groups, override, deployment) for config in configs)


class ForgetsTheNullBlock(Plain):
    """Promises every block of the pool to requests."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        groups, num_blocks = planning._sized(ranks, deployment, available_memory, self.registry)
        if groups and planning.blocks_per_request(groups, deployment) > num_blocks:
            raise Refused("a request does not fit")
        return tuple(
            planning._config(planning.project(groups, rank), num_blocks, deployment) for rank in ranks
        )


breaks("plan/check-counts-all")(ForgetsTheNullBlock)
breaks("plan/startup-implies-admission")(ForgetsTheNullBlock)


@breaks("plan/cheaper-is-not-worse")
class HalvesMixedCaches(Recounted):
    """Keeps half of the memory back when layers have different element types."""

    def count(self, num_blocks: int, ranks: Ranks) -> int:
        types = {spec.dtype for rank in ranks for spec in rank.values() if isinstance(spec, AttentionSpec)}
        return num_blocks // 2 if "uint8" in types else num_blocks


@breaks("plan/concurrency")
class DividesByTheLargestGroup(Plain):
    """Divides by the blocks of the largest group instead of all of them."""

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> Fraction | float:
        groups = config.kv_cache_groups
        needed = [self.max_blocks_per_request(group.kv_cache_spec, deployment) for group in groups]
        return config.num_blocks / max(needed)


class EstimatesWithTheNullBlock(Plain):
    """Estimates the longest length as if the null block could be used."""

    def estimate_max_model_len(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> int:
        groups, num_blocks = planning._sized(ranks, deployment, available_memory, self.registry)
        if not groups:
            return deployment.max_model_len
        wanted = replace(deployment, num_gpu_blocks_override=num_blocks + 1)
        return super().estimate_max_model_len(ranks, wanted, available_memory)


breaks("plan/longest-fits")(EstimatesWithTheNullBlock)


@breaks("plan/no-layers")
class GivesNoBlocks(Altered):
    """Plans no block where there is no layer."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        return config if config.kv_cache_groups else replace(config, num_blocks=0)


# plan: layout


@breaks("plan/backs-every-block")
class PromisesABlockMore(Altered):
    """Hands out one block more than its tensors hold."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        return replace(config, num_blocks=config.num_blocks + 1)


@breaks("plan/blocks-apart")
class StridesByTheFirstGroup(Altered):
    """Steps through a packed slab by the bytes of the first group."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        stride = planning.bytes_per_block(config.kv_cache_groups[:1])
        return replace(
            config,
            kv_cache_tensors=tuple(
                replace(tensor, block_stride=stride) if tensor.block_stride and stride else tensor
                for tensor in tensors(config)
            ),
        )


@breaks("plan/disjoint")
class OverlapsByAByte(Altered):
    """Starts every page but the first a byte early."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        return replace(
            config,
            kv_cache_tensors=tuple(
                replace(tensor, offset=max(tensor.offset - 1, 0)) for tensor in tensors(config)
            ),
        )


@breaks("plan/shares-across-groups-only")
class SharesInsideAGroup(Altered):
    """Puts all layers into the first tensor."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        if not config.kv_cache_tensors:
            return config
        first = tensors(config)[0]
        names = tuple(name for tensor in config.kv_cache_tensors for name in tensor.names())
        return replace(config, kv_cache_tensors=(replace(first, shared_by=names),))


@breaks("plan/one-stride")
class SharesUnequalPages(Plain):
    """Lets layers of different pages share a tensor as large as the largest needs."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        configs = super().get_kv_cache_configs(ranks, deployment, available_memory)
        layers = {name: spec for rank in ranks for name, spec in rank.items()}
        groups = unequal_groups(self, layers, deployment)
        return tuple(
            planning._config(planning.project(groups, rank), config.num_blocks, deployment)
            for rank, config in zip(ranks, configs, strict=True)
        )


@breaks("plan/blocks-aligned")
class PacksDensely(Altered):
    """Packs pages without regard to alignment."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        placed: dict[str, int] = {}
        stride = 0
        for group in config.kv_cache_groups:
            end = 0
            for name, spec in group.layer_specs().items():
                placed[name] = end
                end += page_size_bytes(spec)
            stride = max(stride, end)
        if not any(tensor.block_stride for tensor in tensors(config)):
            return config
        size = stride * config.num_blocks
        dense = tuple(
            KVCacheTensor(size=size, shared_by=(name,), offset=offset, block_stride=stride)
            for name, offset in placed.items()
        )
        return replace(config, kv_cache_tensors=dense)


# plan: views


@breaks("plan/own-layers-only")
class BacksTheWholeModel(Plain):
    """Gives every rank the tensors of the whole model."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        layers = {name: spec for rank in ranks for name, spec in rank.items()}
        return super().get_kv_cache_configs([layers] * len(ranks), deployment, available_memory)


@breaks("plan/ranks-agree")
class EachRankItsOwn(Plain):
    """Leaves every rank the blocks that fit its own memory."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        return tuple(
            super(EachRankItsOwn, self).get_kv_cache_configs([rank], deployment, [memory])[0]
            for rank, memory in zip(ranks, available_memory, strict=True)
        )


@breaks("plan/ranks-agree")
class NeedsALayerOfEveryGroup(Plain):
    """Falls over a rank that owns nothing of a group: refuses it."""

    def get_kv_cache_configs(
        self, ranks: Ranks, deployment: Deployment, available_memory: Sequence[int]
    ) -> Configs:
        configs = super().get_kv_cache_configs(ranks, deployment, available_memory)
        if any(not group.layer_names for config in configs for group in config.kv_cache_groups):
            raise Refused("a rank owns no layer of a group")
        return configs


@breaks("plan/leaves-inputs")
class PromotesInPlace(Plain):
    """Writes promoted layers into the mapping that it was given."""

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        groups = super().get_kv_cache_groups(layers, deployment)
        if not deployment.hybrid_kv_cache_manager:
            assert isinstance(layers, dict)
            layers.update({name: spec for group in groups for name, spec in group.layer_specs().items()})
        return groups


@breaks("plan/wrapping-free")
class SchedulerSeesOneLayer(Plain):
    """The scheduler takes a uniform_type for its first layer."""

    def generate_scheduler_kv_cache_config(self, configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
        view = super().generate_scheduler_kv_cache_config(configs)
        return replace(
            view,
            kv_cache_groups=tuple(
                replace(group, kv_cache_spec=zeroing.inner_specs(group.kv_cache_spec)[0])
                for group in view.kv_cache_groups
            ),
        )


@breaks("plan/wrapping-free")
class DropsDraftFlag(Altered):
    """Unflags a draft group on ranks that own none of its layers."""

    def alter(self, config: KVCacheConfig) -> KVCacheConfig:
        return replace(
            config,
            kv_cache_groups=tuple(
                replace(group, is_eagle_group=group.is_eagle_group and bool(group.layer_names))
                for group in config.kv_cache_groups
            ),
        )


@breaks("plan/lengths-match")
class ForgetsRanks(Plain):
    """Does not count the ranks that a group's tokens are split over."""

    def resolve_kv_cache_block_sizes(self, config: KVCacheConfig, deployment: Deployment) -> tuple[int, int]:
        return super().resolve_kv_cache_block_sizes(config, replace(deployment, decode_context_parallel=1))


def faulty_planners() -> list[Any]:
    """Each law with each planner that must break it."""
    return [(law, fault) for law, faults in FAULTS.items() for fault in faults]
