"""Blocks that one request may hold (FACTS sections 5 and 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvconform.properties import drawn
from kvconform.properties.given import TYPICAL_TOKENS, Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.reference import blocks
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Implementation, Refused
from kvconform.reference.residency import held_blocks
from kvconform.reference.revisions import Formulas, describe, following
from kvconform.reference.specs import (
    ATTENTION_KINDS,
    FULL_KINDS,
    WINDOW_KINDS,
    ChunkedLocalAttention,
    SlidingWindow,
    Spec,
    make,
)

BOUNDED = (*ATTENTION_KINDS, "mamba")
CHUNKED = ("chunked_local_attention",)
ALL_TOKENS = tuple(kind for kind in FULL_KINDS if kind != "rswa")
NEEDS = ("max_blocks_per_request",)
PLAIN: dict[str, Any] = {"padding": ("none",), "packed": False}
"""Bounds count blocks, so pages are drawn as simply as they come."""


def covers(bound: int, held: int, circumstances: str) -> None:
    """Ensure that a bound reaches what the residency model says is held."""
    ensure(bound >= held, f"bound: got {bound} blocks, wanted at least {held} = blocks held {circumstances}")


def step(given: Given, spec: Spec, lookahead: int = 0) -> tuple[Deployment, int, int]:
    """A deployment and one step of a request in it: tokens settled, and tokens in flight.

    The whole budget is in flight, since a request holds no less with more in flight; `lookahead`
    slots are reserved past it.
    """
    settled = given.integer("settled", typical=(*edges(spec), *TYPICAL_TOKENS[::3]))
    in_flight = given.tokens("in_flight", at_least=1)
    reached = tuple((in_flight + lookahead) * steps for steps in range(1, 9))
    beyond = given.integer("length_beyond_settled", at_least=1, typical=(*reached, *TYPICAL_TOKENS[::3]))
    deployment = Deployment(
        max_model_len=settled + beyond, max_num_batched_tokens=in_flight, num_lookahead_tokens=lookahead
    )
    return deployment, settled, in_flight


def edges(spec: Spec) -> tuple[int, ...]:
    """Settled tokens at which what may be freed is about to change: worth meeting more often."""
    if isinstance(spec, ChunkedLocalAttention):
        ends = [spec.attention_chunk_size * chunks for chunks in range(1, 24)]
        return (*ends[:4], *(end - 1 for end in ends))
    if isinstance(spec, SlidingWindow):
        start = spec.sliding_window - 1 + spec.extra_retained_tokens
        return tuple(start + spec.block_size * blocks - 1 for blocks in range(1, 24))
    return ()


@law(
    "bound/window-suffices",
    severity="safety",
    kinds=WINDOW_KINDS,
    needs=NEEDS,
    proved=True,
    reports=("vllm#39734",),
)
def window_suffices(implementation: Implementation, given: Given) -> None:
    """A windowed request never holds more blocks than the bound.

    Held beyond the bound means that a request which was admitted cannot get its next block.
    """
    spec = drawn.spec(given, **PLAIN)
    deployment, settled, in_flight = step(given, spec)
    held = held_blocks(spec, settled, in_flight, deployment.max_model_len)
    bound = implementation.max_blocks_per_request(spec, deployment)
    covers(bound, held, f"with {settled} tokens settled and {in_flight} in flight")


def long_enough(given: Given, settled: int, in_flight: int) -> Deployment:
    """A deployment in which a request reaches the step given, with all its batch in flight."""
    extra = given.tokens("length_beyond")
    return Deployment(max_model_len=settled + in_flight + extra, max_num_batched_tokens=in_flight)


@law("bound/window-is-tight", severity="economy", kinds=WINDOW_KINDS, needs=NEEDS, proved=True)
def window_is_tight(implementation: Implementation, given: Given) -> None:
    """For every window and block some request comes within one block of the bound."""
    spec = drawn.spec(given, **PLAIN)
    in_flight = given.tokens("in_flight", at_least=1)
    # The window starts on the last token of a block: the worst place for it.
    settled = spec.sliding_window - 1 + spec.extra_retained_tokens + spec.block_size - 1
    deployment = long_enough(given, settled, in_flight)
    held = held_blocks(spec, settled, in_flight, deployment.max_model_len)
    bound = implementation.max_blocks_per_request(spec, deployment)
    ensure(
        bound <= held + 1,
        f"bound: got {bound} blocks, wanted at most {held} + 1 = what a request holds with its window "
        f"at the end of a block ({settled} tokens settled, {in_flight} in flight)",
    )


@law(
    "bound/window-within-length",
    severity="economy",
    kinds=WINDOW_KINDS,
    needs=NEEDS,
    proved=True,
    reports=("tt-xla#5860", "vllm#55800"),
)
def window_within_length(implementation: Implementation, given: Given) -> None:
    """The bound never exceeds the blocks of a full-length request by more than one."""
    spec = drawn.spec(given, **PLAIN)
    deployment = drawn.deployment(given)
    bound = implementation.max_blocks_per_request(spec, deployment)
    full = cdiv(deployment.max_model_len, spec.block_size)
    ensure(
        bound <= full + 1,
        f"bound: got {bound} blocks, wanted at most {full} + 1 = blocks of a full-length request",
    )


@law("bound/chunk-suffices", severity="safety", kinds=CHUNKED, needs=NEEDS, proved=True)
def chunk_suffices(implementation: Implementation, given: Given) -> None:
    """A chunked-local request never holds more blocks than the bound.

    At any chunk size, or the chunk size is refused: a chunk that is not a whole number of blocks
    starts inside one.
    """
    spec = drawn.spec(given, **PLAIN)
    deployment, settled, in_flight = step(given, spec)
    held = held_blocks(spec, settled, in_flight, deployment.max_model_len)
    try:
        bound = implementation.max_blocks_per_request(spec, deployment)
    except Refused:
        # Chunks of whole blocks must be answered; bound/formula holds it to that.
        return
    covers(bound, held, f"with {settled} tokens settled and {in_flight} in flight")


@law("bound/chunk-is-tight", severity="economy", kinds=CHUNKED, needs=NEEDS, proved=True)
def chunk_is_tight(implementation: Implementation, given: Given) -> None:
    """A chunked-local request comes within one block of the bound."""
    spec = drawn.spec(given, **PLAIN)
    in_flight = given.tokens("in_flight", at_least=1)
    settled = spec.attention_chunk_size - 1
    deployment = long_enough(given, settled, in_flight)
    held = held_blocks(spec, settled, in_flight, deployment.max_model_len)
    try:
        bound = implementation.max_blocks_per_request(spec, deployment)
    except Refused:
        given.reject()
    ensure(
        bound <= held + 1,
        f"bound: got {bound} blocks, wanted at most {held} + 1 = what a request holds at the end of its "
        f"first chunk ({settled} tokens settled, {in_flight} in flight)",
    )


@law("bound/rswa-suffices", severity="safety", kinds=("rswa",), needs=NEEDS, proved=True)
def rswa_suffices(implementation: Implementation, given: Given) -> None:
    """Prompt, gap and window of a reference sliding request stay within its bound."""
    spec = drawn.spec(given, **PLAIN)
    deployment, settled, in_flight = step(given, spec)
    prompt = given.tokens("prompt", at_most=deployment.max_model_len)
    held = held_blocks(spec, settled, in_flight, deployment.max_model_len, prompt=prompt)
    bound = implementation.max_blocks_per_request(spec, deployment)
    covers(bound, held, f"with a prompt of {prompt}, {settled} tokens settled and {in_flight} in flight")


@law("bound/full-is-exact", severity="formula", kinds=ALL_TOKENS, needs=NEEDS, proved=True)
def full_is_exact(implementation: Implementation, given: Given) -> None:
    """A full request of max length holds exactly its bound."""
    spec = drawn.spec(given, **PLAIN)
    deployment = drawn.deployment(given)
    length = deployment.max_model_len
    held = held_blocks(spec, length, 0, length)
    bound = implementation.max_blocks_per_request(spec, deployment)
    ensure_equal(bound, held, "bound in blocks", f"blocks held by {length} tokens")


@law(
    "bound/retained-counts",
    severity="safety",
    kinds=WINDOW_KINDS,
    needs=(*NEEDS, ".extra_retained_tokens"),
    proved=True,
    reports=("vllm#55818",),
)
def retained_counts(implementation: Implementation, given: Given) -> None:
    """Each extra retained token is covered by the bound."""
    retained = given.tokens("retained", at_least=1, at_most=1 << 20)
    spec = drawn.spec(given, **PLAIN, extra_retained_tokens=retained)
    in_flight = given.tokens("in_flight", at_least=1)
    settled = spec.sliding_window - 1 + retained + spec.block_size - 1
    deployment = long_enough(given, settled, in_flight)
    held = held_blocks(spec, settled, in_flight, deployment.max_model_len)
    bound = implementation.max_blocks_per_request(spec, deployment)
    covers(bound, held, f"with {retained} extra tokens retained, {settled} settled and {in_flight} in flight")


@law(
    "bound/in-flight-counts",
    severity="safety",
    kinds=(*WINDOW_KINDS, *CHUNKED),
    needs=NEEDS,
    proved=True,
    reports=("tt-xla#5908",),
)
def in_flight_counts(implementation: Implementation, given: Given) -> None:
    """Each in-flight token is covered; they are counted over all concurrent batches.

    Frees happen on the settled count, so the batches behind the one being scheduled still hold
    what they read.
    """
    if given.kind in WINDOW_KINDS:
        spec = drawn.spec(given, **PLAIN)
        settled = spec.sliding_window - 1 + getattr(spec, "extra_retained_tokens", 0) + spec.block_size - 1
    else:
        # Whole blocks: what an implementation refuses or gets wrong otherwise is chunk-suffices.
        block = given.block_size("spec.block_size")
        chunk = block * given.integer("chunk_in_blocks", at_least=1, at_most=1 << 20)
        spec = drawn.spec(given, **PLAIN, block_size=block, attention_chunk_size=chunk)
        settled = chunk - 1
    batch = given.tokens("batch", at_least=1, at_most=1 << 32)
    batches = given.choice("concurrent_batches", (1, 2, 3))
    extra = given.tokens("length_beyond")
    deployment = Deployment(
        max_model_len=settled + batch * batches + extra,
        max_num_batched_tokens=batch,
        max_concurrent_batches=batches,
    )
    held = held_blocks(spec, settled, batch * batches, deployment.max_model_len)
    bound = implementation.max_blocks_per_request(spec, deployment)
    covers(bound, held, f"with {settled} tokens settled and {batches} batches of {batch} in flight")


@law(
    "bound/not-above-full",
    severity="economy",
    kinds=tuple(kind for kind in ATTENTION_KINDS if kind not in ("full_attention", "cross_attention")),
    needs=NEEDS,
    proved=True,
    reports=("tt-xla#5860",),
)
def not_above_full(implementation: Implementation, given: Given) -> None:
    """No attention kind is charged more blocks than full attention over the same length."""
    spec = drawn.spec(given, **PLAIN)
    deployment = drawn.deployment(given)
    full = make("full_attention", block_size=spec.block_size, num_kv_heads=1, head_size=1, dtype="bfloat16")
    limit = implementation.max_blocks_per_request(full, deployment)
    try:
        bound = implementation.max_blocks_per_request(spec, deployment)
    except Refused:
        given.reject()
    ensure(
        bound <= limit,
        f"bound: got {bound} blocks, wanted at most {limit} = full attention over the same length",
    )


GROWN = {
    "chunked_local_attention": (
        "attention_chunk_size",
        "max_num_batched_tokens",
        "max_model_len",
        "block_size",
    ),
    **dict.fromkeys(
        WINDOW_KINDS,
        ("sliding_window", "extra_retained_tokens", "max_num_batched_tokens", "max_model_len", "block_size"),
    ),
    **dict.fromkeys(FULL_KINDS, ("max_model_len", "block_size")),
}


@law("bound/monotone", severity="agreement", kinds=tuple(GROWN), needs=NEEDS, proved=True)
def monotone(implementation: Implementation, given: Given) -> None:
    """A larger window, chunk, in-flight, retained or length never lowers a bound.

    And a larger block never raises it. A chunk grows by whole blocks, and the block of a chunked
    kind by whole factors: a chunk that no longer ends where a block does may truly need one more.
    """
    spec = drawn.spec(given, **PLAIN)
    deployment = drawn.deployment(given)
    has = implementation.fields(given.kind)
    grown = given.choice(
        "grown", [name for name in GROWN[given.kind] if name.startswith("max_") or name in has]
    )
    larger_spec: Spec = spec
    larger = deployment
    if grown.startswith("max_"):
        by = given.tokens("by", at_least=1)
        larger = replace(deployment, **{grown: getattr(deployment, grown) + by})
    elif given.kind in CHUNKED:
        factor = given.choice("factor", (2, 3, 4))
        by = spec.block_size * (factor - 1)
        larger_spec = replace(spec, **{grown: getattr(spec, grown) + by})
    else:
        ratio = getattr(spec, "compress_ratio", 1) if grown == "block_size" else 1
        by = given.integer("by", at_least=ratio, multiple_of=ratio)
        larger_spec = replace(spec, **{grown: getattr(spec, grown) + by})
    try:
        bound = implementation.max_blocks_per_request(spec, deployment)
        after = implementation.max_blocks_per_request(larger_spec, larger)
    except Refused:
        given.reject()
    if grown == "block_size":
        ensure(
            after <= bound, f"bound: got {after} blocks with {by} more tokens a block, wanted at most {bound}"
        )
    else:
        ensure(after >= bound, f"bound: got {after} blocks with {by} more {grown}, wanted at least {bound}")


@law(
    "bound/memory-is-blocks-times-page",
    severity="agreement",
    kinds=(*BOUNDED, "uniform_type"),
    needs=("max_blocks_per_request", "max_memory_usage_bytes", "page_size_bytes"),
    proved=True,
)
def memory_is_blocks_times_page(implementation: Implementation, given: Given) -> None:
    """Max memory is blocks x page."""
    spec = drawn.spec(given)
    deployment = drawn.deployment(given, encoder=True)
    try:
        bound = implementation.max_blocks_per_request(spec, deployment)
    except Refused:
        given.reject()
    page = implementation.page_size_bytes(spec)
    memory = implementation.max_memory_usage_bytes(spec, deployment)
    ensure_equal(memory, bound * page, "max memory bytes", f"{bound} blocks x {page} bytes")


@law(
    "bound/table-covers",
    severity="safety",
    kinds=(*(kind for kind in ATTENTION_KINDS if kind != "encoder_only_attention"), "mamba"),
    needs=("max_num_blocks_per_req",),
    proved=True,
)
def table_covers(implementation: Implementation, given: Given) -> None:
    """The table reaches the last token's block and as many blocks as the kind can hold at once."""
    spec = drawn.spec(given, **({"padding": ("none",)} if given.kind == "mamba" else PLAIN))
    deployment, settled, in_flight = step(given, spec)
    length = deployment.max_model_len
    width = implementation.max_num_blocks_per_req(spec, deployment, length)
    held = held_blocks(spec, settled, in_flight, length)
    ensure(width >= held, f"table: got {width} entries, wanted at least {held} = blocks held at once")
    if given.kind != "mamba" or spec.mamba_cache_mode != "none":
        positions = cdiv(length, spec.block_size)
        ensure(
            width >= positions,
            f"table: got {width} entries, wanted at least {positions} = blocks of {length} tokens",
        )


@law(
    "bound/dcp-agrees",
    severity="agreement",
    kinds=FULL_KINDS,
    needs=("max_blocks_per_request", "max_memory_usage_bytes", "max_num_blocks_per_req", "page_size_bytes"),
    proved=True,
)
def dcp_agrees(implementation: Implementation, given: Given) -> None:
    """Memory, blocks and table width divide by DCP alike; each rank's share covers its tokens."""
    spec = drawn.spec(given, **PLAIN)
    deployment = drawn.deployment(given, ranks=(2, 3, 4, 8))
    ranks = deployment.decode_context_parallel
    bound = implementation.max_blocks_per_request(spec, deployment)
    width = implementation.max_num_blocks_per_req(spec, deployment, deployment.max_model_len)
    memory = implementation.max_memory_usage_bytes(spec, deployment)
    page = implementation.page_size_bytes(spec)
    share = cdiv(deployment.max_model_len, ranks)
    ensure(
        bound * spec.block_size >= share,
        f"bound over {ranks} ranks: got {bound} blocks, wanted room for a rank's share of {share} tokens",
    )
    ensure_equal(width, bound, f"table entries over {ranks} ranks", "blocks a rank may hold")
    ensure_equal(memory, bound * page, f"max memory bytes over {ranks} ranks", "blocks x page")


@law(
    "bound/encoder-length",
    severity="formula",
    kinds=("cross_attention", "encoder_only_attention"),
    needs=("max_blocks_per_request", "max_memory_usage_bytes"),
    proved=True,
    reports=("vllm#30772",),
)
def encoder_length(implementation: Implementation, given: Given) -> None:
    """Cross-attention depends on the encoder length only; encoder-only needs nothing."""
    spec = drawn.spec(given, **PLAIN)
    deployment = drawn.deployment(given, encoder=True)
    if given.kind == "encoder_only_attention":
        ensure_equal(
            implementation.max_memory_usage_bytes(spec, deployment), 0, "max memory bytes", "no cache"
        )
        return
    tokens = deployment.max_encoder_tokens
    wanted = cdiv(tokens, spec.block_size)
    bound = implementation.max_blocks_per_request(spec, deployment)
    ensure_equal(bound, wanted, "bound in blocks", f"blocks of {tokens} encoder tokens")


@law(
    "bound/state-ignores-length",
    severity="formula",
    kinds=("mamba",),
    needs=NEEDS,
    proved=True,
    reports=("vllm-metal#579",),
)
def state_ignores_length(implementation: Implementation, given: Given) -> None:
    """Mamba in modes none and align holds a number of blocks independent of length."""
    spec = drawn.mamba(given, padding=("none",), modes=("none", "align"))
    deployment = drawn.deployment(given)
    longer = replace(deployment, max_model_len=deployment.max_model_len + given.tokens("by", at_least=1))
    ensure_equal(
        implementation.max_blocks_per_request(spec, longer),
        implementation.max_blocks_per_request(spec, deployment),
        f"bound in blocks at {longer.max_model_len} tokens",
        f"bound at {deployment.max_model_len} tokens",
    )


def formula_of(formulas: Formulas, spec: Spec, deployment: Deployment) -> tuple[int, int | None]:
    """The stated bound in blocks, and the corrected one where a law overrules it (None: refused)."""
    try:
        corrected: int | None = blocks.max_blocks_per_request(spec, deployment)
    except Refused:
        corrected = None
    return formulas.stated_blocks_per_request(spec, deployment), corrected


@law("bound/exact-at-scale", severity="safety", kinds=ATTENTION_KINDS, needs=NEEDS, proved=True)
def exact_at_scale(implementation: Implementation, given: Given) -> None:
    """Bounds stay exact for token counts past 2^31.

    With blocks of one token, one token more is one block more. A bound that wraps is far below its
    tokens; one that is computed in doubles loses the step past 2^53.
    """
    tokens = given.choice("past", (1 << 31, 1 << 53)) + given.integer("extra", at_most=1 << 20)
    bounds = []
    for scale in (tokens, tokens + 1):
        fields = dict.fromkeys(drawn.needed(given.kind), scale)
        spec = make(given.kind, **fields, block_size=1, num_kv_heads=1, head_size=1, dtype="uint8")
        length = 4 * scale if fields and given.kind != "rswa" else scale
        deployment = Deployment(max_model_len=length, max_num_batched_tokens=1, max_encoder_tokens=scale)
        bounds.append(implementation.max_blocks_per_request(spec, deployment))
    bound, after = bounds
    if given.kind == "encoder_only_attention":
        ensure_equal(bound, 0, "bound in blocks", "no cache")
        return
    ensure(
        tokens - 1 <= bound <= 4 * tokens,
        f"bound: got {bound} blocks of one token, wanted about {tokens} = tokens to hold",
    )
    ensure_equal(after, bound + 1, "bound in blocks with one token more", "one block of one token more")


@law("bound/formula", severity="formula", kinds=(*BOUNDED, "uniform_type"), needs=NEEDS, proved=True)
def formula(implementation: Implementation, given: Given) -> None:
    """Blocks equal the reference formula.

    The one that the spec states in the revision that the implementation declares or, where that
    breaks another law, the one that keeps it.
    """
    declared = implementation.revisions()
    spec = (
        drawn.spec(given, **PLAIN) if given.kind in ATTENTION_KINDS else drawn.spec(given, padding=("none",))
    )
    deployment = drawn.deployment(given, concurrent=(1, 2), encoder=True)
    stated, corrected = formula_of(following(declared), spec, deployment)
    try:
        bound = implementation.max_blocks_per_request(spec, deployment)
    except Refused:
        if corrected is not None:
            raise
        return
    ensure(
        bound in (stated, corrected),
        f"bound: got {bound} blocks, wanted {stated} = the stated formula ({describe(declared)})",
    )
