"""Blocks and bytes that one request may hold (FACTS section 5)."""

from __future__ import annotations

from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused
from kvconform.reference.pages import page_size_bytes
from kvconform.reference.specs import (
    AttentionSpec,
    ChunkedLocalAttention,
    CrossAttention,
    EncoderOnlyAttention,
    FullAttention,
    Mamba,
    SlidingWindow,
    Spec,
    UniformType,
)


def stated_blocks_per_request(spec: Spec, deployment: Deployment) -> int:
    """The bound as FACTS section 5 states it, in blocks, right or wrong.

    Raises `Refused` for a sliding window under decode context parallelism.
    """
    block = spec.block_size
    if isinstance(spec, UniformType):
        return max(stated_blocks_per_request(layer, deployment) for layer in spec.layers())
    if isinstance(spec, FullAttention):
        return cdiv(cdiv(deployment.max_model_len, deployment.decode_context_parallel), block)
    if isinstance(spec, SlidingWindow):
        if deployment.decode_context_parallel > 1:
            raise Refused("a sliding window cannot be split over decode context parallel ranks")
        tokens = spec.sliding_window - 1 + spec.extra_retained_tokens + deployment.in_flight_tokens
        return cdiv(min(tokens, deployment.max_model_len), block) + 1
    if isinstance(spec, ChunkedLocalAttention):
        tokens = spec.attention_chunk_size + deployment.in_flight_tokens
        return cdiv(min(tokens, deployment.max_model_len), block)
    if isinstance(spec, CrossAttention):
        return cdiv(deployment.max_encoder_tokens, block)
    if isinstance(spec, EncoderOnlyAttention):
        return 0
    if isinstance(spec, Mamba):
        if spec.mamba_cache_mode == "all":
            return cdiv(deployment.max_model_len, block) + spec.num_speculative_blocks
        resident = 2 if spec.mamba_cache_mode == "align" else 1
        return resident + spec.num_speculative_blocks
    raise Refused(f"no bound is defined for kind {spec.kind!r}")


def max_blocks_per_request(spec: Spec, deployment: Deployment) -> int:
    """Most blocks that one request may hold at once in a group of this spec.

    The stated bound, with two corrections where it breaks a law. A chunk that is not a whole
    number of blocks is `Refused`, since the stated bound is then too small (bound/chunk-suffices;
    FACTS section 6, finding). A window is never charged more than the blocks of its whole length
    (bound/not-above-full): where the length is the smaller, the stated + 1 covers nothing.
    """
    if isinstance(spec, UniformType):
        return max(max_blocks_per_request(layer, deployment) for layer in spec.layers())
    if isinstance(spec, ChunkedLocalAttention) and spec.attention_chunk_size % spec.block_size != 0:
        raise Refused(
            f"chunk {spec.attention_chunk_size} is not a whole number of blocks of {spec.block_size}"
        )
    stated = stated_blocks_per_request(spec, deployment)
    if isinstance(spec, SlidingWindow):
        return min(stated, cdiv(deployment.max_model_len, spec.block_size))
    return stated


def max_memory_usage_bytes(spec: Spec, deployment: Deployment) -> int:
    """Most bytes that one request may hold at once: blocks x page.

    For a uniform_type: the most blocks of any layer x the sum of the layers' pages.
    """
    return max_blocks_per_request(spec, deployment) * page_size_bytes(spec)


def max_num_blocks_per_req(spec: Spec, deployment: Deployment, max_len: int) -> int:
    """Block table entries of one request of ``max_len`` tokens.

    A table is indexed by position, so it reaches the last token even where few blocks are held.
    Raises `Refused` for an encoder_only kind, which has no table, and for a uniform_type whose
    layers disagree.
    """
    if isinstance(spec, UniformType):
        widths = [max_num_blocks_per_req(layer, deployment, max_len) for layer in spec.layers()]
        if any(width != widths[0] for width in widths):
            raise Refused(f"layers of one table need different widths: {widths}")
        return widths[0]
    if isinstance(spec, Mamba):
        if spec.mamba_cache_mode == "align":
            return cdiv(max_len, spec.block_size) + spec.num_speculative_blocks
        return max_blocks_per_request(spec, deployment)
    assert isinstance(spec, AttentionSpec)
    return cdiv(max_len, spec.block_size * deployment.decode_context_parallel)
