"""The reference as an `Implementation`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from kvconform.reference import blocks, merging, modes, pages, specs
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import OPERATIONS, Implementation, Refused
from kvconform.reference.specs import AttentionSpec, Spec


class Plain(Implementation):
    """The base revision, corrected where the base spec breaks a law."""

    name = "reference"
    version = "base"

    def kinds(self) -> tuple[str, ...]:
        return tuple(specs.KINDS)

    def fields(self, kind: str) -> frozenset[str]:
        return frozenset(specs.field_names(kind))

    def operations(self) -> frozenset[str]:
        return frozenset(
            name for name in OPERATIONS if getattr(type(self), name) is not getattr(Implementation, name)
        )

    def location(self, operation: str, kind: str) -> str:
        for module in (pages, blocks, merging, modes):
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
        return blocks.max_blocks_per_request(spec, deployment)

    def max_memory_usage_bytes(self, spec: Spec, deployment: Deployment) -> int:
        return blocks.max_memory_usage_bytes(spec, deployment)

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        return blocks.max_num_blocks_per_req(spec, deployment, max_len)

    def merge(self, specs: Sequence[Spec]) -> Spec:
        return merging.merge(specs)


def _attention(spec: Spec) -> AttentionSpec:
    if not isinstance(spec, AttentionSpec):
        raise Refused(f"{spec.kind} is not an attention kind")
    return spec
