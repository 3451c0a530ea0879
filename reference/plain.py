"""The reference as an `Implementation`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from kvconform.reference import (
    allocation,
    blocks,
    grouping,
    merging,
    modes,
    pages,
    planning,
    specs,
    uniform,
    zeroing,
)
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import OPERATIONS, Implementation, Refused
from kvconform.reference.planning import KVCacheConfig
from kvconform.reference.schedules import Schedule, Trace
from kvconform.reference.specs import AttentionSpec, Spec


class Plain(Implementation):
    """The base revision, corrected where the base spec breaks a law."""

    name = "reference"
    version = "base"

    def __init__(self) -> None:
        self.registry = uniform.Registry()

    def kinds(self) -> tuple[str, ...]:
        return tuple(specs.KINDS)

    def fields(self, kind: str) -> frozenset[str]:
        return frozenset(specs.field_names(kind))

    def operations(self) -> frozenset[str]:
        return frozenset(
            name for name in OPERATIONS if getattr(type(self), name) is not getattr(Implementation, name)
        )

    def location(self, operation: str, kind: str) -> str:
        for module in (pages, blocks, merging, modes, uniform, grouping, planning, zeroing, allocation):
            function = getattr(module, operation, None)
            if function is not None and callable(function):
                line = inspect.getsourcelines(function)[1]
                return f"reference/{module.__name__.rpartition('.')[2]}.py:{line}"
        return ""

    def quant_modes(self) -> Mapping[str, int]:
        return modes.MODES

    def quant_families(self, mode: str) -> tuple[str, ...]:
        return modes.families(mode)

    def cache_dtypes(self) -> tuple[str, ...]:
        return tuple(modes.CACHE_DTYPES)

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        return modes.quant_mode(cache_dtype)

    def cache_element_dtype(self, cache_dtype: str) -> str | None:
        modes.quant_mode(cache_dtype)
        return modes.CACHE_DTYPES[cache_dtype].dtype

    def stored_bytes(self, spec: Spec) -> int:
        return modes.stored_bytes(_attention(spec))

    def construct(self, spec: Spec) -> Spec:
        return pages.construct(spec)

    def page_size_bytes(self, spec: Spec) -> int:
        return pages.page_size_bytes(spec)

    def unpadded_page_size_bytes(self, spec: Spec) -> int:
        return pages.unpadded_page_size_bytes(spec)

    def real_page_size_bytes(self, spec: Spec) -> int:
        return self.unpadded_page_size_bytes(spec)

    def state_content_size_bytes(self, spec: Spec) -> int:
        return pages.state_content_size_bytes(_attention(spec))

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        return pages.copy_with_new_block_size(spec, block_size)

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return blocks.max_blocks_per_request(spec, deployment.counting_lookahead())

    def max_memory_usage_bytes(self, spec: Spec, deployment: Deployment) -> int:
        # Of its own answers: who overrides one of them has the memory that follows from it.
        return self.max_blocks_per_request(spec, deployment) * self.page_size_bytes(spec)

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        return blocks.max_num_blocks_per_req(spec, deployment, max_len)

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        return merging.merge([pages.construct(spec) for spec in specs])

    def merge_without_asserts(self, specs: Sequence[Spec]) -> Spec:
        return self.merge(specs)

    def merge_side_effects(self, specs: Sequence[Spec]) -> tuple[str, ...]:
        before = [replace(spec) for spec in specs]
        merged = self.merge(specs)
        changed = [index for index, spec in enumerate(specs) if spec != before[index]]
        shared = [index for index, spec in enumerate(specs) if merged is spec]
        return (
            *(f"member {index} was changed" for index in changed),
            *(f"the result is member {index} itself" for index in shared),
        )

    def register_kv_cache_spec(self, kind: str, base: str) -> None:
        self.registry.register_kv_cache_spec(kind, base)

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        return uniform.is_uniform_type(specs, self.registry)

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        return grouping.get_kv_cache_groups(layers, deployment, self.registry)

    def get_kv_cache_configs(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        return planning.get_kv_cache_configs(ranks, deployment, available_memory, self.registry)

    def generate_scheduler_kv_cache_config(self, configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
        return planning.generate_scheduler_kv_cache_config(configs)

    def resolve_kv_cache_block_sizes(self, config: KVCacheConfig, deployment: Deployment) -> tuple[int, int]:
        return planning.resolve_kv_cache_block_sizes(config, deployment)

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> Fraction | float:
        return planning.get_max_concurrency(config, deployment)

    def estimate_max_model_len(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> int:
        return planning.estimate_max_model_len(ranks, deployment, available_memory, self.registry)

    def max_admission_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return self.max_blocks_per_request(spec, deployment)

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        return zeroing.needs_kv_cache_zeroing(config)

    def records_new_block_ids(self, config: KVCacheConfig) -> tuple[bool, ...]:
        return zeroing.records_new_block_ids(config)

    def follow_schedule(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> Trace:
        return allocation.follow_schedule(config, deployment, schedule)


def _attention(spec: Spec) -> AttentionSpec:
    if not isinstance(spec, AttentionSpec):
        raise Refused(f"{spec.kind} is not an attention kind")
    return spec
