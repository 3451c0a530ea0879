"""What a request really holds, step by step (FACTS section 6).

Written from what an allocator does, not from the bounds it is used to check: it gives out whole
blocks for the tokens placed so far, and frees whole blocks below the first token still needed,
on the settled count, when the next step is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvconform.reference.arithmetic import cdiv
from kvconform.reference.interface import Refused
from kvconform.reference.specs import (
    ChunkedLocalAttention,
    CrossAttention,
    EncoderOnlyAttention,
    FullAttention,
    Mamba,
    ReferenceSlidingWindow,
    SlidingWindow,
    Spec,
)


def skipped_tokens(spec: Spec, settled: int) -> int:
    """Leading tokens that no later step reads, once ``settled`` tokens are computed."""
    if isinstance(spec, SlidingWindow):
        return max(0, settled - spec.sliding_window + 1 - spec.extra_retained_tokens)
    if isinstance(spec, ChunkedLocalAttention):
        return settled // spec.attention_chunk_size * spec.attention_chunk_size
    if isinstance(spec, FullAttention | CrossAttention):
        return 0
    raise Refused(f"no skip point is defined for kind {spec.kind!r}")


def freed_range(spec: Spec, settled: int, prompt: int = 0) -> tuple[int, int]:
    """First and last + 1 of a request's blocks that are given back once ``settled`` tokens are computed.

    ``prompt`` (tokens) counts for rswa only: its blocks stay, and the gap between the prompt and
    the window is freed.
    """
    if isinstance(spec, ReferenceSlidingWindow):
        first = cdiv(prompt, spec.block_size)
        window_start = max(prompt, settled - spec.rswa_window)
        return first, max(first, window_start // spec.block_size)
    return 0, skipped_tokens(spec, settled) // spec.block_size


def freed_blocks(spec: Spec, settled: int, prompt: int = 0) -> int:
    """Whole blocks given back once ``settled`` tokens are computed; ``prompt`` as in `freed_range`."""
    first, last = freed_range(spec, settled, prompt)
    return last - first


def held_blocks(
    spec: Spec, settled: int, in_flight: int, max_model_len: int, lookahead: int = 0, prompt: int = 0
) -> int:
    """Blocks one request holds with ``settled`` tokens computed and ``in_flight`` more scheduled.

    ``lookahead`` slots (tokens) are reserved past the scheduled ones; nothing reaches past
    ``max_model_len``.
    """
    if isinstance(spec, EncoderOnlyAttention):
        return 0
    placed = min(settled + in_flight + lookahead, max_model_len)
    if isinstance(spec, Mamba):
        if spec.mamba_cache_mode == "all":
            return cdiv(placed, spec.block_size) + spec.num_speculative_blocks
        if spec.mamba_cache_mode == "align":
            # The last finished state and the one being written; a short request has only one.
            return min(2, cdiv(placed, spec.block_size)) + spec.num_speculative_blocks
        return 1 + spec.num_speculative_blocks
    return cdiv(placed, spec.block_size) - freed_blocks(spec, settled, prompt)


def steps(spec: Spec, max_model_len: int, batch: int, concurrent: int = 1, prompt: int = 0) -> Iterator[int]:
    """Blocks held after each step of one request that always schedules all it may.

    Token by token bookkeeping over explicit block ids, for small numbers: the slow twin that the
    closed form of `held_blocks` is tested against. ``concurrent`` batches of ``batch`` tokens may
    be unsettled at once.
    """
    block = spec.block_size
    held: set[int] = set()
    unsettled: list[int] = []
    settled = placed = 0
    while settled < max_model_len:
        if len(unsettled) == concurrent or placed == max_model_len:
            settled += unsettled.pop(0)
        for index in sorted(held):
            last_token = index * block + block - 1
            if _is_dead(spec, last_token, index * block, settled, prompt):
                held.discard(index)
        scheduled = min(batch, max_model_len - placed)
        if scheduled:
            held.update(token // block for token in range(placed, placed + scheduled))
            placed += scheduled
            unsettled.append(scheduled)
        yield len(held)


def _is_dead(spec: Spec, last_token: int, first_token: int, settled: int, prompt: int) -> bool:
    if isinstance(spec, SlidingWindow):
        # The next token to compute sits at `settled` and reads window - 1 tokens before itself.
        return last_token < settled - (spec.sliding_window - 1) - spec.extra_retained_tokens
    if isinstance(spec, ChunkedLocalAttention):
        return last_token // spec.attention_chunk_size < settled // spec.attention_chunk_size and (
            last_token < settled
        )
    if isinstance(spec, ReferenceSlidingWindow):
        return first_token >= prompt and last_token < max(prompt, settled - spec.rswa_window)
    return False
