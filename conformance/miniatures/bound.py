"""Faults in the blocks that a request may hold (FACTS sections 5 and 6)."""

from __future__ import annotations

import math
from dataclasses import replace

from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference import blocks
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.specs import (
    ChunkedLocalAttention,
    CrossAttention,
    EncoderOnlyAttention,
    FullAttention,
    Mamba,
    ReferenceSlidingWindow,
    SlidingWindow,
    Spec,
    UniformType,
)


def window_tokens(spec: SlidingWindow, deployment: Deployment) -> int:
    """Tokens that a windowed request keeps or has in flight, whatever its length."""
    ahead = deployment.in_flight_tokens + deployment.num_lookahead_tokens
    return spec.sliding_window - 1 + spec.extra_retained_tokens + ahead


@breaks(
    "bound/window-suffices",
    "bound/retained-counts",
    "bound/in-flight-counts",
    "bound/lookahead-counts",
    "bound/formula",
    "plan/startup-implies-admission",
    "hold/within-bound",
)
class WindowWithoutPlusOne(Engine):
    """A window is charged the blocks of its tokens, as if it always started where a block does."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if not isinstance(spec, SlidingWindow):
            return super().max_blocks_per_request(spec, deployment)
        return cdiv(min(window_tokens(spec, deployment), deployment.max_model_len), spec.block_size)


@breaks("bound/window-is-tight", "bound/formula")
class WindowWithPlusTwo(Engine):
    """A window is charged a spare block at either end."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if not isinstance(spec, SlidingWindow):
            return super().max_blocks_per_request(spec, deployment)
        spared = cdiv(window_tokens(spec, deployment), spec.block_size) + 2
        return min(spared, cdiv(deployment.max_model_len, spec.block_size))


@breaks("bound/window-within-length", "bound/not-above-full", "bound/formula")
class WindowBeyondLength(Engine):
    """A window is charged in full even where no request is as long."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if not isinstance(spec, SlidingWindow):
            return super().max_blocks_per_request(spec, deployment)
        return cdiv(window_tokens(spec, deployment), spec.block_size) + 1


@breaks("bound/not-above-full")
class PlusOneBeyondLength(Engine):
    """A window as long as the request is charged a block that the request never reaches."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, SlidingWindow):
            return blocks.stated_blocks_per_request(spec, deployment.counting_lookahead())
        return super().max_blocks_per_request(spec, deployment)


@breaks(
    "bound/window-suffices",
    "bound/retained-counts",
    "bound/in-flight-counts",
    "bound/lookahead-counts",
    "bound/formula",
    "hold/within-bound",
)
class RetainedTokensForgotten(Engine):
    """Tokens retained below the window are not counted."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        bare = replace(spec, extra_retained_tokens=0) if isinstance(spec, SlidingWindow) else spec
        return super().max_blocks_per_request(bare, deployment)


@breaks("bound/in-flight-counts", "bound/formula", "plan/startup-implies-admission", "hold/within-bound")
class OneBatchInFlight(Engine):
    """Tokens in flight are one batch's, however many run at once."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return super().max_blocks_per_request(spec, replace(deployment, max_concurrent_batches=1))


@breaks("bound/lookahead-counts")
class LookaheadForgotten(Engine):
    """Slots reserved for draft tokens are not counted."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return super().max_blocks_per_request(spec, replace(deployment, num_lookahead_tokens=0))


@breaks("bound/chunk-suffices", "bound/lookahead-counts")
class ChunkOfPartBlocksAnswered(Engine):
    """A chunk that is not whole blocks is charged as if it started where a block does."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, ChunkedLocalAttention):
            return blocks.stated_blocks_per_request(spec, deployment.counting_lookahead())
        return super().max_blocks_per_request(spec, deployment)


@breaks(
    "bound/chunk-suffices",
    "bound/in-flight-counts",
    "bound/lookahead-counts",
    "bound/formula",
    "hold/within-bound",
)
class ChunkAlone(Engine):
    """A chunked request is charged its chunk and nothing in flight beyond it."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        bound = super().max_blocks_per_request(spec, deployment)
        if not isinstance(spec, ChunkedLocalAttention):
            return bound
        return min(bound, spec.attention_chunk_size // spec.block_size)


@breaks("bound/chunk-is-tight", "bound/exact-at-scale", "bound/formula")
class ChunkBesideItsPredecessor(Engine):
    """A chunked request is charged its last chunk as well, which is freed by then."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        bound = super().max_blocks_per_request(spec, deployment)
        if not isinstance(spec, ChunkedLocalAttention):
            return bound
        length = cdiv(deployment.max_model_len, spec.block_size)
        return min(bound + spec.attention_chunk_size // spec.block_size, length)


@breaks("bound/not-above-full", "bound/formula")
class ChunkBeyondLength(Engine):
    """A chunk is charged in full even where no request is as long."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if not isinstance(spec, ChunkedLocalAttention):
            return super().max_blocks_per_request(spec, deployment)
        longer = deployment.max_model_len + spec.attention_chunk_size + deployment.in_flight_tokens
        return super().max_blocks_per_request(spec, replace(deployment, max_model_len=longer))


@breaks("bound/rswa-suffices", "bound/dcp-agrees", "bound/formula", "hold/within-bound")
class PromptForgotten(Engine):
    """A reference sliding request is charged its window and what is in flight, not its prompt."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        bound = super().max_blocks_per_request(spec, deployment)
        if not isinstance(spec, ReferenceSlidingWindow):
            return bound
        tokens = spec.rswa_window - 1 + deployment.in_flight_tokens
        return min(bound, cdiv(tokens, spec.block_size) + 1)


@breaks("bound/full-is-exact", "bound/dcp-agrees", "bound/formula")
class NullBlockInEveryBound(Engine):
    """The null block, one for the whole pool, is charged to every full request."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return super().max_blocks_per_request(spec, deployment) + isinstance(spec, FullAttention)


@breaks(
    "bound/full-is-exact",
    "bound/rswa-suffices",
    "bound/lookahead-counts",
    "bound/not-above-full",
    "bound/dcp-agrees",
    "bound/formula",
    "plan/cheaper-is-not-worse",
    "plan/concurrency",
    "plan/wrapping-free",
    "plan/startup-implies-admission",
    "hold/within-bound",
)
class LengthRoundedDown(Engine):
    """The last block of a full request is not counted unless it is full."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if not isinstance(spec, FullAttention):
            return super().max_blocks_per_request(spec, deployment)
        return deployment.max_model_len // deployment.decode_context_parallel // spec.block_size


@breaks("bound/full-is-exact", "bound/dcp-agrees", "bound/monotone", "bound/formula")
class LeftOverTokensAsBlocks(Engine):
    """Where a block is no power of two long, tokens left over after whole blocks are added as they are."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if not isinstance(spec, FullAttention) or spec.block_size & (spec.block_size - 1) == 0:
            return super().max_blocks_per_request(spec, deployment)
        share = cdiv(deployment.max_model_len, deployment.decode_context_parallel)
        return share // spec.block_size + share % spec.block_size


@breaks("bound/one-number", "plan/startup-implies-admission")
class AdmissionWithNullBlock(Engine):
    """Admission asks for one block more than startup promised to find."""

    def max_admission_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return super().max_admission_blocks_per_request(spec, deployment) + 1


@breaks("bound/one-number", "plan/startup-implies-admission")
class AdmissionByLength(Engine):
    """Admission asks for the blocks of the whole length, where startup counted the window."""

    def max_admission_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return cdiv(deployment.max_model_len, spec.block_size)


@breaks("bound/memory-is-blocks-times-page")
class MemoryWithoutPadding(Engine):
    """Memory is counted in unpadded pages."""

    def max_memory_usage_bytes(self, spec: Spec, deployment: Deployment) -> int:
        return self.max_blocks_per_request(spec, deployment) * self.unpadded_page_size_bytes(spec)


@breaks("bound/memory-is-blocks-times-page")
class MemoryOfFirstLayer(Engine):
    """The memory of a uniform_type is its first layer's."""

    def max_memory_usage_bytes(self, spec: Spec, deployment: Deployment) -> int:
        first = spec.layers()[0] if isinstance(spec, UniformType) else spec
        return super().max_memory_usage_bytes(first, deployment)


@breaks("bound/table-covers")
class TableOfHeldBlocks(Engine):
    """A window's table has an entry for each block held, though it is indexed by position."""

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        if isinstance(spec, SlidingWindow):
            return self.max_blocks_per_request(spec, deployment)
        return super().max_num_blocks_per_req(spec, deployment, max_len)


@breaks("bound/table-covers", "bound/dcp-agrees", "plan/wrapping-free")
class TableRoundedDown(Engine):
    """A table has no entry for a last block that is not full."""

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        if isinstance(spec, Mamba):
            return super().max_num_blocks_per_req(spec, deployment, max_len)
        return max_len // deployment.decode_context_parallel // spec.block_size


@breaks("bound/table-covers", "plan/wrapping-free")
class TableWithoutSpeculation(Engine):
    """The table of a state has no entries for speculative blocks."""

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        bare = replace(spec, num_speculative_blocks=0) if isinstance(spec, Mamba) else spec
        return super().max_num_blocks_per_req(bare, deployment, max_len)


@breaks("bound/dcp-agrees")
class BlocksNotSplitOverRanks(Engine):
    """Blocks are counted as if one rank held all of a request's tokens, unlike the table."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return super().max_blocks_per_request(spec, replace(deployment, decode_context_parallel=1))


@breaks("bound/dcp-agrees")
class ShareRoundedDown(Engine):
    """A rank's share of the tokens is rounded down, in blocks and table alike."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return super().max_blocks_per_request(spec, _whole_shares(deployment))

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        whole = max_len - max_len % deployment.decode_context_parallel
        return super().max_num_blocks_per_req(spec, deployment, whole)


@breaks("bound/encoder-length", "bound/formula", "plan/startup-implies-admission", "hold/within-bound")
class CrossAttentionByDecoderLength(Engine):
    """Cross-attention is charged the decoder's length, not the encoder's."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, CrossAttention):
            return cdiv(deployment.max_model_len, spec.block_size)
        return super().max_blocks_per_request(spec, deployment)


@breaks("bound/encoder-length", "bound/exact-at-scale", "bound/formula")
class EncoderOnlyCharged(Engine):
    """Encoder-only attention, which caches nothing, is charged like full attention."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, EncoderOnlyAttention):
            return cdiv(deployment.max_model_len, spec.block_size)
        return super().max_blocks_per_request(spec, deployment)


@breaks("bound/state-ignores-length", "bound/formula")
class AlignedStateForEveryBlock(Engine):
    """A state of mode align is charged like one of mode all."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, Mamba) and spec.mamba_cache_mode == "align":
            spec = replace(spec, mamba_cache_mode="all")
        return super().max_blocks_per_request(spec, deployment)


@breaks("bound/formula", "plan/startup-implies-admission", "hold/within-bound")
class AlignedStateOnce(Engine):
    """A state of mode align is charged once, without the one being written."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, Mamba) and spec.mamba_cache_mode == "align":
            spec = replace(spec, mamba_cache_mode="none")
        return super().max_blocks_per_request(spec, deployment)


@breaks("bound/exact-at-scale")
class CeilingOfAFloat(Engine):
    """Blocks of a full request are the ceiling of a floating-point quotient."""

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, FullAttention) and deployment.decode_context_parallel == 1:
            return math.ceil(deployment.max_model_len / spec.block_size)
        return super().max_blocks_per_request(spec, deployment)


def _whole_shares(deployment: Deployment) -> Deployment:
    rest = deployment.max_model_len % deployment.decode_context_parallel
    return replace(deployment, max_model_len=deployment.max_model_len - rest)
