"""Implementations to be compared with the reference: each answers one thing otherwise, or in other words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from kvconform.conformance.sameness import Stated
from kvconform.reference.allocation import BlockManager, BlockPool, Table, follow_schedule
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Refused, Unsupported
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig, KVCacheTensor, StridedKVCacheTensor
from kvconform.reference.revisions import following
from kvconform.reference.schedules import Progress, Schedule, Trace
from kvconform.reference.specs import AttentionSpec, Spec

RARE = 1_000_003
"""A block size that sampling does not meet."""


class Fewer(Plain):
    """Lacks a kind, a field and an operation."""

    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in super().kinds() if kind != "rswa")

    def fields(self, kind: str) -> frozenset[str]:
        return super().fields(kind) - {"num_head_slots"}

    def operations(self) -> frozenset[str]:
        return super().operations() - {"real_page_size_bytes"}


class Reworded(Plain):
    """Adds where the reference multiplies, and says the same."""

    def page_size_bytes(self, spec: Spec) -> int:
        one = super().page_size_bytes(spec)
        return 2 * one - one


class Rare(Plain):
    """A page too large at one block size in a million."""

    def page_size_bytes(self, spec: Spec) -> int:
        page = super().page_size_bytes(spec)
        rare = isinstance(spec, AttentionSpec) and spec.block_size == RARE
        return page + 1 if rare else page


class Cautious(Plain):
    """Plans one block less than fits."""

    def get_kv_cache_configs(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        configs = super().get_kv_cache_configs(ranks, deployment, available_memory)
        return tuple(replace(config, num_blocks=max(config.num_blocks - 1, 1)) for config in configs)


class Wasteful(Plain):
    """Plans tensors that are a byte larger."""

    def get_kv_cache_configs(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        def larger(config: KVCacheConfig) -> KVCacheConfig:
            tensors = tuple(replace(tensor, size=tensor.size + 1) for tensor in config.kv_cache_tensors)
            return replace(config, kv_cache_tensors=tensors)

        return tuple(map(larger, super().get_kv_cache_configs(ranks, deployment, available_memory)))


class Spread(Plain):
    """Gives each layer a group of its own."""

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        return tuple(
            KVCacheGroupSpec(layer_names=(name,), kv_cache_spec=spec)
            for group in super().get_kv_cache_groups(layers, deployment)
            for name, spec in group.layer_specs().items()
        )


class Short(Plain):
    """Serves requests of half the length."""

    def estimate_max_model_len(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> int:
        return super().estimate_max_model_len(ranks, deployment, available_memory) // 2


class Careless(Plain):
    """Never clears a block."""

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        return False


class Hoarding(Plain):
    """Gives back what a window has passed only when the request ends."""

    class Manager(BlockManager):
        def skip(self, spec: Spec, table: Table, settled: int, progress: Progress) -> list[int]:
            return []

    def follow_schedule(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> Trace:
        return follow_schedule(config, deployment, schedule, self.Manager)


class OtherBlocks(Plain):
    """Takes the last free blocks where the reference takes the first."""

    class Manager(BlockManager):
        class pool_class(BlockPool):
            def __init__(self, num_blocks: int) -> None:
                super().__init__(num_blocks)
                self.free.reverse()

    def follow_schedule(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> Trace:
        return follow_schedule(config, deployment, schedule, self.Manager)


class Strict(Plain):
    """Refuses to plan a model on more than one rank."""

    def get_kv_cache_configs(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        if len(ranks) > 1:
            raise Refused("one rank only")
        return super().get_kv_cache_configs(ranks, deployment, available_memory)


class Falling(Plain):
    """Falls over merging, and cannot be asked for windows in block tables."""

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        raise KeyError("merge")

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        if spec.kind == "sliding_window":
            raise Unsupported("block tables of windows")
        return super().max_num_blocks_per_req(spec, deployment, max_len)


class Unsteady(Plain):
    """Answers otherwise every time."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def state_content_size_bytes(self, spec: Spec) -> int:
        self._asked += 1
        return self._asked


class Slow(Plain):
    """Counts one request less."""

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> Fraction | float:
        return super().get_max_concurrency(config, deployment) / 2


class Rounded(Plain):
    """Divides in doubles."""

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> Fraction | float:
        return float(super().get_max_concurrency(config, deployment))


class Strided(Plain):
    """Describes the tensors of a packed layout by strides: the same bytes at the same places."""

    def get_kv_cache_configs(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        def strided(tensor: KVCacheTensor | StridedKVCacheTensor) -> KVCacheTensor | StridedKVCacheTensor:
            if isinstance(tensor, StridedKVCacheTensor) or tensor.block_stride == 0:
                return tensor
            return StridedKVCacheTensor(
                size=tensor.size,
                layers=tensor.shared_by,
                layer_stride=0,
                block_stride=tensor.block_stride,
                offset=tensor.offset,
            )

        return tuple(
            replace(config, kv_cache_tensors=tuple(map(strided, config.kv_cache_tensors)))
            for config in super().get_kv_cache_configs(ranks, deployment, available_memory)
        )


class Pageless(Plain):
    """Cannot be asked for pages."""

    def page_size_bytes(self, spec: Spec) -> int:
        raise Unsupported("pages")


class Arbitrary(Plain):
    """Merges to the last layer where assertions are off."""

    def merge_without_asserts(self, specs: Sequence[Spec]) -> Spec:
        super().merge_without_asserts(specs)
        return specs[-1]


class AsStated(Stated):
    """Answers by the formulas as the specification states them."""

    def __init__(self) -> None:
        super().__init__(following(()))


class Planless(Plain):
    """Refuses every model."""

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        raise Refused("no plan")


class Groupless(Plain):
    """Cannot be asked to plan."""

    def operations(self) -> frozenset[str]:
        return super().operations() - {"get_kv_cache_groups"}
