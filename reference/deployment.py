"""What a deployment adds to a spec: lengths, budgets and ranks (FACTS sections 5, 6 and 9)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The configuration values that size formulas read.

    ``max_model_len`` is the longest request in tokens; ``max_num_batched_tokens`` the tokens one
    batch may schedule and ``max_concurrent_batches`` how many batches may be unsettled at once;
    ``max_encoder_tokens`` the longest encoder input in tokens; ``decode_context_parallel`` the
    ranks that a group's tokens are split over. ``num_lookahead_tokens`` are slots reserved past
    the scheduled tokens of a step, for speculation.

    What only a planner reads: ``num_gpu_blocks_override`` replaces the number of blocks that the
    memory gives; ``hybrid_kv_cache_manager`` off plans local layers as full ones; ``packed_layout``
    asks for one slab that holds all layers of a block side by side; ``draft_layers`` names the
    layers of a draft model; ``prefix_match_unit`` (tokens) is what prefixes are hashed at.
    """

    max_model_len: int
    max_num_batched_tokens: int = 1
    max_concurrent_batches: int = 1
    max_encoder_tokens: int = 0
    decode_context_parallel: int = 1
    num_lookahead_tokens: int = 0
    num_gpu_blocks_override: int | None = None
    hybrid_kv_cache_manager: bool = True
    packed_layout: bool = False
    draft_layers: tuple[str, ...] = ()
    prefix_match_unit: int | None = None

    @property
    def in_flight_tokens(self) -> int:
        """Most tokens scheduled and not yet settled, over all concurrent batches."""
        return self.max_num_batched_tokens * self.max_concurrent_batches

    def counting_lookahead(self) -> Deployment:
        """The same deployment with lookahead slots counted among the tokens in flight.

        A step reserves them past its last scheduled token, so a bound on what a request holds must
        count them too (bound/lookahead-counts); FACTS section 5 does not.
        """
        return replace(
            self,
            max_num_batched_tokens=self.in_flight_tokens + self.num_lookahead_tokens,
            max_concurrent_batches=1,
            num_lookahead_tokens=0,
        )
