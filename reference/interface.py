"""`Implementation`: the operations that a law may call, named as the spec names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

    from kvconform.reference.deployment import Deployment
    from kvconform.reference.grouping import KVCacheGroupSpec
    from kvconform.reference.planning import KVCacheConfig
    from kvconform.reference.schedules import Schedule, Trace
    from kvconform.reference.specs import Spec


class Refused(Exception):
    """The implementation declines the input and says why. An answer, not a fault."""


class Undocumented(Refused):
    """Declined by an exception from the depths of the implementation, not by a refusal of its own.

    A refusal for whoever asks for something else; laws about refusing tell them apart.
    """


class Unsupported(Exception):
    """The implementation has no such operation, kind, field or mode; names what is missing."""


class Implementation:
    """One KV-cache spec implementation under test.

    Sizes are bytes, lengths tokens. Each operation answers, raises `Refused` with a reason, or
    raises `Unsupported` naming what it lacks; anything else that it raises is its own fault.
    Operations left out of a subclass are unsupported.
    """

    name: str = "implementation"
    version: str = ""

    def kinds(self) -> tuple[str, ...]:
        """The spec kinds that can be asked."""
        raise NotImplementedError

    def fields(self, kind: str) -> frozenset[str]:
        """The fields of FACTS section 2 that this implementation's kind has."""
        raise NotImplementedError

    def operations(self) -> frozenset[str]:
        """The names of the operations below that can be asked at all."""
        raise NotImplementedError

    def revisions(self) -> tuple[str, ...]:
        """The revisions whose formulas it follows (`kvconform.reference.revisions`); none: the base's."""
        return ()

    def location(self, operation: str, kind: str) -> str:
        """Where the operation is defined for the kind, as ``file:line``; empty if unknown."""
        return ""

    # Quantisation modes (FACTS section 10)

    def quant_modes(self) -> Mapping[str, int]:
        """Every mode name with its value; an alias is listed under its own name."""
        raise Unsupported("quant_modes")

    def quant_families(self, mode: str) -> tuple[str, ...]:
        """The families whose predicate is true of the mode."""
        raise Unsupported("quant_families")

    def cache_dtypes(self) -> tuple[str, ...]:
        """Every cache dtype string that is accepted."""
        raise Unsupported("cache_dtypes")

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        """The mode that a cache dtype string means; `Refused` when it means none."""
        raise Unsupported("get_kv_quant_mode")

    def cache_element_dtype(self, cache_dtype: str) -> str | None:
        """Element type stored for a cache dtype string; None for the model's own."""
        raise Unsupported("cache_element_dtype")

    def stored_bytes(self, spec: Spec) -> int:
        """Bytes stored for one state of one KV head in the spec's mode, K and V together."""
        raise Unsupported("stored_bytes")

    # One spec (FACTS sections 3 and 4)

    def construct(self, spec: Spec) -> Spec:
        """The spec as the implementation holds it: derived fields filled in."""
        raise Unsupported("construct")

    def page_size_bytes(self, spec: Spec) -> int:
        """Bytes of one page, padding included."""
        raise Unsupported("page_size_bytes")

    def unpadded_page_size_bytes(self, spec: Spec) -> int:
        """Bytes of one page without padding."""
        raise Unsupported("unpadded_page_size_bytes")

    def real_page_size_bytes(self, spec: Spec) -> int:
        """The alias of the unpadded page."""
        raise Unsupported("real_page_size_bytes")

    def state_content_size_bytes(self, spec: Spec) -> int:
        """Bytes of one (head slot, state) cell."""
        raise Unsupported("state_content_size_bytes")

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        """The same spec with another block size, in tokens."""
        raise Unsupported("copy_with_new_block_size")

    # Blocks per request (FACTS section 5)

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        """Most blocks that one request may hold at once: the admission bound."""
        raise Unsupported("max_blocks_per_request")

    def max_memory_usage_bytes(self, spec: Spec, deployment: Deployment) -> int:
        """Most bytes that one request may hold at once."""
        raise Unsupported("max_memory_usage_bytes")

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        """Block table entries of one request of ``max_len`` tokens."""
        raise Unsupported("max_num_blocks_per_req")

    # Layers together (FACTS section 7)

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        """One spec that stands for all of the layers, by the rule of ``kind``.

        By default the first layer's kind, which also says whose rule it is to merge nothing.
        """
        raise Unsupported("merge")

    def merge_without_asserts(self, specs: Sequence[Spec]) -> Spec:
        """`merge` as it answers where assertions are off, as under ``python -O``."""
        raise Unsupported("merge_without_asserts")

    def merge_side_effects(self, specs: Sequence[Spec]) -> tuple[str, ...]:
        """What a merge did to its members: one sentence for each changed or shared one."""
        raise Unsupported("merge_side_effects")

    def register_kv_cache_spec(self, kind: str, base: str) -> None:
        """Register a third party's kind, uniform with a base kind of FACTS section 8.

        Its specs have the fields of the base and are told by their ``kind``. Registering a kind
        again alike changes nothing.
        """
        raise Unsupported("register_kv_cache_spec")

    def is_uniform_type(self, specs: Sequence[Spec]) -> bool:
        """Whether layers of these specs may share one block table as a uniform_type."""
        raise Unsupported("is_uniform_type")

    # Whole models (FACTS section 9)
    #
    # Layers are mappings from name to spec, one for each rank, and memory is bytes for each rank.
    # An implementation that converts a mapping puts back into it whatever it changed in its own
    # copy, so that plan/leaves-inputs can see it.

    def get_kv_cache_groups(
        self, layers: Mapping[str, Spec], deployment: Deployment
    ) -> tuple[KVCacheGroupSpec, ...]:
        """The groups of a whole model's layers."""
        raise Unsupported("get_kv_cache_groups")

    def get_kv_cache_configs(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> tuple[KVCacheConfig, ...]:
        """Each rank's configuration; `Refused` when the memory serves no request of max length."""
        raise Unsupported("get_kv_cache_configs")

    def generate_scheduler_kv_cache_config(self, configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
        """The scheduler's view of the ranks' configurations."""
        raise Unsupported("generate_scheduler_kv_cache_config")

    def resolve_kv_cache_block_sizes(self, config: KVCacheConfig, deployment: Deployment) -> tuple[int, int]:
        """Tokens per scheduler block, and tokens per prefix hash."""
        raise Unsupported("resolve_kv_cache_block_sizes")

    def get_max_concurrency(self, config: KVCacheConfig, deployment: Deployment) -> Fraction | float:
        """Requests of max length that the pool holds."""
        raise Unsupported("get_max_concurrency")

    def estimate_max_model_len(
        self, ranks: Sequence[Mapping[str, Spec]], deployment: Deployment, available_memory: Sequence[int]
    ) -> int:
        """The longest request, in tokens up to the max length, that the memory serves; 0 if none."""
        raise Unsupported("estimate_max_model_len")

    def max_admission_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        """Blocks that run-time admission asks for before it takes in a request of max length."""
        raise Unsupported("max_admission_blocks_per_request")

    def needs_kv_cache_zeroing(self, config: KVCacheConfig) -> bool:
        """Whether new blocks must be cleared before use."""
        raise Unsupported("needs_kv_cache_zeroing")

    def records_new_block_ids(self, config: KVCacheConfig) -> tuple[bool, ...]:
        """For each group of the scheduler's view, whether its new blocks are reported for zeroing."""
        raise Unsupported("records_new_block_ids")

    # A manager at work (FACTS section 6)

    def follow_schedule(self, config: KVCacheConfig, deployment: Deployment, schedule: Schedule) -> Trace:
        """What one block manager made for the configuration does at each event of a schedule.

        The pool has the configuration's blocks; its tensors say nothing here. Raises `Unsupported`
        where no manager can be made for a group.
        """
        raise Unsupported("follow_schedule")


OPERATIONS = tuple(
    name
    for name, member in vars(Implementation).items()
    if callable(member)
    and not name.startswith("_")
    and name not in ("kinds", "fields", "operations", "revisions", "location")
)
"""The names of all operations."""
