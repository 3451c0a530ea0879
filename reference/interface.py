"""`Implementation`: the operations that a law may call, named as the spec names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvconform.reference.deployment import Deployment
    from kvconform.reference.specs import Spec


class Refused(Exception):
    """The implementation declines the input and says why. An answer, not a fault."""


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

    def merge(self, specs: Sequence[Spec]) -> Spec:
        """One spec that stands for all of the layers."""
        raise Unsupported("merge")


OPERATIONS = tuple(
    name
    for name, member in vars(Implementation).items()
    if callable(member)
    and not name.startswith("_")
    and name not in ("kinds", "fields", "operations", "location")
)
"""The names of all operations."""
