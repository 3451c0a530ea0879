"""A vLLM plugin with a spec kind of its own, as an out-of-tree platform ships one.

It knows nothing of kvconform: `ring_kvconform.py` beside it has the suite ask this kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vllm.platforms.interface import Platform
from vllm.v1.kv_cache_interface import SlidingWindowSpec


@dataclass(frozen=True, kw_only=True)
class RingWindowSpec(SlidingWindowSpec):
    """A sliding window in a ring of blocks, whose padding follows the block size."""

    def copy_with_new_block_size(self, block_size: int) -> RingWindowSpec:
        """The same spec with another block size, in tokens, and the same share of padding."""
        padded = self.page_size_padded
        if padded is not None:
            padded = padded * block_size // self.block_size
        return replace(self, block_size=block_size, page_size_padded=padded)

    def max_admission_blocks_per_request(self, max_in_flight_tokens: int, max_model_len: int) -> int:
        """Blocks that one request may hold: never more than those of its whole length."""
        window = super().max_admission_blocks_per_request(max_in_flight_tokens, max_model_len)
        return min(window, -(-max_model_len // self.block_size))


def register(_platform: type[Platform], _vllm_config: Any) -> None:
    """What vLLM calls once it has registered its own kinds."""
    from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

    KVCacheSpecRegistry.register(RingWindowSpec, manager_class=SlidingWindowManager)


Platform.register_custom_kv_cache_specs = classmethod(register)
