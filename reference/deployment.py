"""What a deployment adds to a spec: lengths, budgets and ranks (FACTS sections 5, 6 and 9)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The configuration values that size formulas read.

    ``max_model_len`` is the longest request in tokens; ``max_num_batched_tokens`` the tokens one
    batch may schedule and ``max_concurrent_batches`` how many batches may be unsettled at once;
    ``max_encoder_tokens`` the longest encoder input in tokens; ``decode_context_parallel`` the
    ranks that a group's tokens are split over.
    """

    max_model_len: int
    max_num_batched_tokens: int = 1
    max_concurrent_batches: int = 1
    max_encoder_tokens: int = 0
    decode_context_parallel: int = 1

    @property
    def in_flight_tokens(self) -> int:
        """Most tokens scheduled and not yet settled, over all concurrent batches."""
        return self.max_num_batched_tokens * self.max_concurrent_batches
