"""What miniatures are built on: the reference with its answers made from one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import FunctionType, SimpleNamespace
from typing import Any

from kvconform.reference import grouping, planning, promotion, uniform, zeroing
from kvconform.reference.arithmetic import total
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.specs import Spec, UniformType
from kvconform.reference.uniform import Registry

Layers = Mapping[str, Spec]
Groups = tuple[KVCacheGroupSpec, ...]

PLANNER = (uniform, promotion, grouping, planning, zeroing)
"""The modules that plan a whole model."""

ASKED = (
    "construct",
    "page_size_bytes",
    "copy_with_new_block_size",
    "merge",
    "is_uniform_type",
    "promote_local",
    "unify_page_sizes",
    "group_size",
    "get_kv_cache_groups",
    "fitting_blocks",
    "bytes_per_block",
    "blocks_per_request",
    "withheld_blocks",
    "project",
    "_sized",
    "_refuse_unservable",
    "_config",
    "_alignment",
    "has_mamba_layers",
    "has_mixed_precision_kv_cache",
    "needs_kv_cache_zeroing",
)
"""What the planner asks an engine instead of the reference; there it has no leading underscore."""


class Engine(Plain):
    """The reference with its answers made from one another, so that a fault spreads as in an engine.

    A whole model is planned by the reference's own code, in which every page, bound, merge and step
    is asked of the engine: who overrides one of them has the plan that follows from it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reference = asking(self)

    # One spec

    def page_size_bytes(self, spec: Spec) -> int:
        if isinstance(spec, UniformType):
            return total(self.page_size_bytes(layer) for layer in spec.layers())
        return super().page_size_bytes(spec)

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, UniformType):
            return max(self.max_blocks_per_request(layer, deployment) for layer in spec.layers())
        return super().max_blocks_per_request(spec, deployment)

    # Groups

    def get_kv_cache_groups(self, layers: Layers, deployment: Deployment) -> Groups:
        groups: Groups = self.reference.get_kv_cache_groups(layers, deployment, self.registry)
        return groups

    def promote_local(self, layers: Layers) -> dict[str, Spec]:
        """The layers as they are planned without the hybrid manager."""
        promoted: dict[str, Spec] = self.reference.promote_local(layers)
        return promoted

    def unify_page_sizes(self, layers: Layers) -> dict[str, Spec]:
        """The layers with pages as large as the largest one."""
        unified: dict[str, Spec] = self.reference.unify_page_sizes(layers)
        return unified

    def group_size(self, counts: Sequence[int]) -> int:
        """Layers per group for buckets of so many layers each."""
        return grouping.group_size(counts)

    # Blocks and tensors

    def get_kv_cache_configs(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        plan = self.reference.get_kv_cache_configs
        configs: tuple[KVCacheConfig, ...] = plan(ranks, deployment, available_memory, self.registry)
        return configs

    def sized(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[Groups, int]:
        """The groups of the whole model, and the blocks that every rank takes."""
        groups, num_blocks = self.reference._sized(ranks, deployment, available_memory, self.registry)
        return groups, num_blocks

    def fitting_blocks(self, available_memory: int, bytes_per_block: int) -> int:
        """Blocks that fit a rank's memory."""
        return planning.fitting_blocks(available_memory, bytes_per_block)

    def bytes_per_block(self, groups: Sequence[KVCacheGroupSpec], packed_layout: bool = False) -> int:
        """Bytes that one block takes on a rank that owns these groups' layers."""
        taken: int = self.reference.bytes_per_block(groups, packed_layout)
        return taken

    def withheld_blocks(self, groups: Sequence[KVCacheGroupSpec]) -> int:
        """Blocks of the pool that no request is given."""
        return planning.withheld_blocks(groups)

    def blocks_per_request(self, groups: Sequence[KVCacheGroupSpec], deployment: Deployment) -> int:
        """Most blocks that one request holds at once, over all groups of the pool."""
        return total(self.max_blocks_per_request(group.kv_cache_spec, deployment) for group in groups)

    def refuse_unservable(
        self, groups: Sequence[KVCacheGroupSpec], deployment: Deployment, num_blocks: int
    ) -> None:
        """Raise `Refused` unless the blocks serve one request of max length."""
        self.reference._refuse_unservable(groups, deployment, num_blocks)

    def project(self, groups: Sequence[KVCacheGroupSpec], rank: Layers) -> Groups:
        """The groups as one rank sees them."""
        return planning.project(groups, rank)

    def config(self, groups: Groups, num_blocks: int, deployment: Deployment) -> KVCacheConfig:
        """The groups with the tensors of so many blocks."""
        made: KVCacheConfig = self.reference._config(groups, num_blocks, deployment)
        return made

    def alignment(self, spec: Spec) -> int:
        """What a layer's pages are aligned to in a packed block, in bytes."""
        alignment: int = self.reference._alignment(spec)
        return alignment

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> Fraction | float:
        requests: Fraction = self.reference.get_max_concurrency(config, deployment)
        return requests

    def estimate_max_model_len(
        self, ranks: Sequence[Layers], deployment: Deployment, available_memory: Sequence[int]
    ) -> int:
        estimate = self.reference.estimate_max_model_len
        longest: int = estimate(ranks, deployment, available_memory, self.registry)
        return longest

    # Zeroing

    def has_mamba_layers(self, config: KVCacheConfig) -> bool:
        """Whether any layer is a mamba layer."""
        return zeroing.has_mamba_layers(config)

    def has_mixed_precision_kv_cache(self, config: KVCacheConfig) -> bool:
        """Whether attention layers have more than one precision."""
        return zeroing.has_mixed_precision_kv_cache(config)

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        needed: bool = self.reference.needs_kv_cache_zeroing(config)
        return needed

    def records_new_block_ids(self, config: KVCacheConfig) -> tuple[bool, ...]:
        recorded: tuple[bool, ...] = self.reference.records_new_block_ids(config)
        return recorded


def asking(engine: Engine) -> SimpleNamespace:
    """The functions of the reference's planner, which ask the engine for all that is `ASKED`.

    The same code over names of its own: the reference stays as it is for everybody else.
    """
    names: dict[str, Any] = {}
    for module in PLANNER:
        names |= vars(module)
    planner = {module.__name__ for module in PLANNER}
    own = {
        name: FunctionType(value.__code__, names, name, value.__defaults__, value.__closure__)
        for name, value in names.items()
        if isinstance(value, FunctionType) and value.__module__ in planner
    }
    names |= own
    names |= {name: question(engine, name.removeprefix("_")) for name in ASKED}
    return SimpleNamespace(**own)


def question(engine: Engine, name: str) -> Callable[..., Any]:
    """Asks the engine by that name. It has a registry of its own, so none is handed to it."""

    def ask(*values: object, **named: object) -> Any:
        return getattr(engine, name)(*(each for each in values if not isinstance(each, Registry)), **named)

    return ask
