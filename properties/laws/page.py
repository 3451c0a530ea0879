"""Bytes of a page (FACTS section 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvconform.properties import drawn
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.reference import pages
from kvconform.reference.interface import Implementation, Refused
from kvconform.reference.modes import MODES
from kvconform.reference.specs import ATTENTION_KINDS, DTYPE_BYTES, LATENT_KINDS, field_names, make

PAGED = (*ATTENTION_KINDS, "mamba")
HAND = ("hand",)
NONE = ("none",)


@law(
    "page/padded-covers-unpadded",
    severity="safety",
    kinds=PAGED,
    needs=("page_size_bytes", ".page_size_padded"),
    proved=True,
    reports=("kvcached#399",),
)
def padded_covers_unpadded(implementation: Implementation, given: Given) -> None:
    """A page is never smaller than its unpadded size; a smaller padding is refused.

    A padding below the contents would let the last states of a block run into the next one.
    """
    spec = drawn.spec(given, padding=NONE)
    contents = pages.unpadded_page_size_bytes(spec)
    padded = given.integer("page_size_padded", at_least=0, at_most=1 << 60)
    try:
        page = implementation.page_size_bytes(replace(spec, page_size_padded=padded))
    except Refused:
        ensure(padded < contents, f"padding of {padded} bytes refused although it covers the {contents} used")
        return
    ensure(
        page >= contents,
        f"page: got {page} bytes, wanted at least {contents} = unpadded page, padding asked for {padded}",
    )


@law(
    "page/padding-is-exact",
    severity="agreement",
    kinds=PAGED,
    needs=("page_size_bytes", ".page_size_padded"),
    proved=True,
)
def padding_is_exact(implementation: Implementation, given: Given) -> None:
    """A padded page is exactly the padding asked for.

    Layers that share a tensor are padded to step through it alike; rounding further breaks that.
    """
    spec = drawn.spec(given, padding=HAND)
    ensure_equal(
        implementation.page_size_bytes(spec), spec.page_size_padded, "page bytes", "padding asked for"
    )


@law(
    "page/unpadded-formula",
    severity="formula",
    kinds=ATTENTION_KINDS,
    needs=("unpadded_page_size_bytes",),
    proved=True,
)
def unpadded_formula(implementation: Implementation, given: Given) -> None:
    """An unpadded page is head slots x states x content."""
    spec = drawn.spec(given)
    wanted = pages.unpadded_page_size_bytes(spec)
    ensure_equal(
        implementation.unpadded_page_size_bytes(spec),
        wanted,
        "unpadded page bytes",
        "head slots x states x content",
    )


@law(
    "page/content-formula",
    severity="formula",
    kinds=ATTENTION_KINDS,
    needs=("state_content_size_bytes",),
    proved=True,
)
def content_formula(implementation: Implementation, given: Given) -> None:
    """The content of a state is the override, else (K + V head size) x dtype bytes."""
    spec = drawn.spec(given, padding=NONE)
    wanted = pages.state_content_size_bytes(spec)
    ensure_equal(
        implementation.state_content_size_bytes(spec),
        wanted,
        "state content bytes",
        "state_content_bytes, else (head_size + head_size_v) x dtype bytes",
    )


DENSE_KINDS = tuple(kind for kind in ATTENTION_KINDS if kind not in LATENT_KINDS)


@law(
    "page/format-not-kind",
    severity="agreement",
    kinds=tuple(kind for kind in DENSE_KINDS if kind != "full_attention"),
    needs=("page_size_bytes",),
    proved=True,
)
def format_not_kind(implementation: Implementation, given: Given) -> None:
    """The same heads, head sizes, dtype and mode give the same unpadded page in every attention kind.

    Kinds differ in which blocks they keep, not in how a state is stored.
    """
    modes = [mode for mode in MODES if mode in implementation.quant_modes()]
    mode = given.choice("mode", modes if "kv_quant_mode" in implementation.fields(given.kind) else ("NONE",))
    if mode == "NONE":
        spec = drawn.spec(given, padding=NONE)
    else:
        # Equal heads of a multiple of 16: what every mode can store.
        size = given.integer("head_size", at_least=16, at_most=1 << 16, multiple_of=16)
        spec = drawn.quantised(given, modes=(mode,), head_size=size, head_size_v=None)
    if "head_size_v" not in implementation.fields(given.kind):
        spec = replace(spec, head_size_v=spec.head_size)
    shared = {
        field: getattr(spec, field)
        for field in field_names("full_attention")
        if field in field_names(given.kind)
    }
    full = make("full_attention", **shared)
    got = implementation.page_size_bytes(spec)
    ensure_equal(
        got, implementation.page_size_bytes(full), "page bytes", "page of full_attention, same format"
    )


@law("page/state-shapes-paired", severity="safety", kinds=("mamba",), needs=("page_size_bytes",))
def state_shapes_paired(implementation: Implementation, given: Given) -> None:
    """A mamba spec with more shapes than dtypes, or fewer, is refused.

    Pairing them up to the shorter list leaves an array without bytes of its own.
    """
    spec = drawn.mamba(given, padding=NONE)
    if given.flag("drop_shape"):
        wrong = replace(spec, shapes=spec.shapes[:-1])
    else:
        wrong = replace(spec, dtypes=spec.dtypes[:-1])
    try:
        page = implementation.page_size_bytes(wrong)
    except Refused:
        return
    ensure(
        False,
        f"page: got {page} bytes for {len(wrong.shapes)} shapes and {len(wrong.dtypes)} dtypes, "
        "wanted a refusal",
    )


@law(
    "page/aligned",
    severity="formula",
    kinds=LATENT_KINDS,
    needs=("page_size_bytes", ".alignment"),
    proved=True,
)
def aligned(implementation: Implementation, given: Given) -> None:
    """An aligned page is the least multiple of the alignment that covers it."""
    spec = drawn.spec(given, padding=("aligned",))
    contents = pages.unpadded_page_size_bytes(spec)
    page = implementation.page_size_bytes(spec)
    wanted = f"least multiple of {spec.alignment} that covers {contents}"
    ensure(page % spec.alignment == 0, f"page: got {page} bytes, wanted a multiple: {wanted}")
    ensure(page >= contents, f"page: got {page} bytes, less than its contents: wanted {wanted}")
    ensure(
        page - contents < spec.alignment,
        f"page: got {page} bytes, a whole alignment too many: wanted {wanted}",
    )


@law(
    "page/whole-states",
    severity="safety",
    kinds=LATENT_KINDS,
    needs=("page_size_bytes", ".compress_ratio"),
    proved=True,
)
def whole_states(implementation: Implementation, given: Given) -> None:
    """A block is a whole number of states, or the spec is refused.

    Rounding down leaves the last tokens of every block without a state to be stored in.
    """
    spec = drawn.spec(given, padding=NONE, compress_ratio=1)
    ratio = given.choice("compress_ratio", (2, 3, 4, 128))
    spec = replace(spec, compress_ratio=ratio)
    try:
        page = implementation.page_size_bytes(spec)
    except Refused:
        return
    state = pages.head_slots(spec) * pages.state_content_size_bytes(spec)
    ensure(
        page * ratio >= state * spec.block_size,
        f"page: got {page} bytes, room for {page // state} states of {state} bytes, "
        f"wanted room for {spec.block_size} tokens at {ratio} tokens a state",
    )


@law("page/additive", severity="agreement", kinds=ATTENTION_KINDS, needs=("page_size_bytes",), proved=True)
def additive(implementation: Implementation, given: Given) -> None:
    """Pages of n and m tokens together equal the page of n + m tokens.

    For whole states and without padding: a block may be cut or joined without gain or loss.
    """
    spec = drawn.spec(given, padding=NONE)
    more = given.block_size("more_tokens", multiple_of=getattr(spec, "compress_ratio", 1))
    first = implementation.page_size_bytes(spec)
    second = implementation.page_size_bytes(replace(spec, block_size=more))
    both = implementation.page_size_bytes(replace(spec, block_size=spec.block_size + more))
    ensure_equal(
        both,
        first + second,
        f"page of {spec.block_size + more} tokens",
        f"{first} + {second}, pages of {spec.block_size} and {more} tokens",
    )


@law("page/monotone", severity="agreement", kinds=ATTENTION_KINDS, needs=("page_size_bytes",), proved=True)
def monotone(implementation: Implementation, given: Given) -> None:
    """More heads, wider heads, a wider dtype or longer blocks never make a page smaller."""
    spec = drawn.spec(given, padding=NONE, num_head_slots=None, state_content_bytes=None, dtype="bfloat16")
    grown = given.choice("grown", ("num_kv_heads", "head_size", "dtype", "block_size"))
    if grown == "dtype":
        larger = replace(spec, dtype="float32")
    elif grown == "block_size":
        ratio = getattr(spec, "compress_ratio", 1)
        larger = replace(spec, block_size=spec.block_size + given.block_size("by", multiple_of=ratio))
    else:
        larger = replace(
            spec, **{grown: getattr(spec, grown) + given.integer("by", at_least=1, at_most=1 << 16)}
        )
    smaller_page = implementation.page_size_bytes(spec)
    larger_page = implementation.page_size_bytes(larger)
    ensure(
        larger_page >= smaller_page,
        f"page: got {larger_page} bytes with {grown} {getattr(larger, grown)}, "
        f"less than {smaller_page} with {getattr(spec, grown)}",
    )


@law(
    "page/real-is-unpadded",
    severity="agreement",
    kinds=ATTENTION_KINDS,
    needs=("real_page_size_bytes", "unpadded_page_size_bytes"),
    proved=True,
)
def real_is_unpadded(implementation: Implementation, given: Given) -> None:
    """The alias real_page_size_bytes and the unpadded page are the same number."""
    spec = drawn.spec(given)
    ensure_equal(
        implementation.real_page_size_bytes(spec),
        implementation.unpadded_page_size_bytes(spec),
        "real page bytes",
        "unpadded page bytes",
    )


@law(
    "page/v-head-defaults",
    severity="formula",
    kinds=ATTENTION_KINDS,
    needs=("page_size_bytes",),
    proved=True,
)
def v_head_defaults(implementation: Implementation, given: Given) -> None:
    """head_size_v absent means head_size; a latent has no V."""
    fixed: dict[str, Any] = {} if given.kind in LATENT_KINDS else {"head_size_v": None}
    spec = drawn.spec(given, padding=NONE, num_head_slots=None, state_content_bytes=None, **fixed)
    sides = 1 if given.kind in LATENT_KINDS else 2
    states = pages.states_per_block(spec)
    wanted = spec.num_kv_heads * states * sides * spec.head_size * DTYPE_BYTES[spec.dtype]
    ensure_equal(
        implementation.page_size_bytes(spec),
        wanted,
        "page bytes without head_size_v",
        f"heads x states x {sides} x head_size x dtype bytes",
    )


@law(
    "page/state-is-sum-of-parts",
    severity="safety",
    kinds=("mamba",),
    needs=("page_size_bytes",),
    proved=True,
    reports=("vllm-metal#579", "vllm#43626"),
)
def state_is_sum_of_parts(implementation: Implementation, given: Given) -> None:
    """A mamba page is the sum over its arrays, whatever the block size."""
    spec = drawn.mamba(given, padding=NONE)
    wanted = pages.unpadded_page_size_bytes(spec)
    formula = "sum over arrays of product(shape) x dtype bytes"
    ensure_equal(implementation.page_size_bytes(spec), wanted, "state page bytes", formula)
    other = given.block_size("other_block_size")
    got = implementation.page_size_bytes(replace(spec, block_size=other))
    ensure_equal(got, wanted, f"state page bytes at block size {other}", formula)


@law(
    "page/layers-add-up",
    severity="agreement",
    kinds=("uniform_type",),
    needs=("page_size_bytes",),
    proved=True,
    reports=("vllm.cpp#357",),
)
def layers_add_up(implementation: Implementation, given: Given) -> None:
    """A uniform_type page is the sum of its layers' pages."""
    spec = drawn.uniform_type(given)
    pages_of_layers = [implementation.page_size_bytes(layer) for layer in spec.layers()]
    ensure_equal(
        implementation.page_size_bytes(spec),
        sum(pages_of_layers),
        "uniform_type page bytes",
        f"sum of the layers' pages {pages_of_layers}",
    )


MARKERS = {
    "hidden_state_cache": "mla_attention",
    "rswa": "full_attention",
    "sink_full_attention": "full_attention",
}


@law(
    "page/marker-is-free",
    severity="agreement",
    kinds=tuple(MARKERS),
    needs=("page_size_bytes",),
    proved=True,
)
def marker_is_free(implementation: Implementation, given: Given) -> None:
    """hidden_state_cache, rswa and sink_full_attention have the page of their base kind."""
    spec = drawn.spec(given)
    base = MARKERS[given.kind]
    plain = make(base, **{field: getattr(spec, field) for field in field_names(base)})
    ensure_equal(
        implementation.page_size_bytes(spec),
        implementation.page_size_bytes(plain),
        "page bytes",
        f"page of {base}",
    )


@law("page/positive", severity="agreement", kinds=PAGED, needs=("page_size_bytes",), proved=True)
def positive(implementation: Implementation, given: Given) -> None:
    """Positive dimensions give a positive page."""
    page = implementation.page_size_bytes(drawn.spec(given))
    ensure(page > 0, f"page: got {page} bytes, wanted more than 0 for positive dimensions")


@law(
    "page/exact-at-scale",
    severity="safety",
    kinds=(*ATTENTION_KINDS, "mamba"),
    needs=("page_size_bytes",),
    proved=True,
    reports=("vllm-xpu-kernels#445",),
)
def exact_at_scale(implementation: Implementation, given: Given) -> None:
    """Pages, totals and offsets stay exact past 2^31 and 2^53 bytes.

    32-bit integers wrap at the first; doubles lose the last byte at the second.
    """
    scale = given.choice("past", (1 << 31, 1 << 53))
    if given.kind == "mamba":
        extra = given.integer("extra", at_most=1 << 20)
        spec = make("mamba", block_size=1, shapes=((scale + extra,),), dtypes=("uint8",))
        wanted = scale + extra
    else:
        odd = given.integer("odd", at_least=0, at_most=1 << 20) * 2 + 1
        spec = make(
            given.kind,
            **drawn.needed(given.kind),
            block_size=1,
            num_kv_heads=scale + odd,
            head_size=1,
            dtype="uint8",
        )
        wanted = (scale + odd) * (1 if given.kind in LATENT_KINDS else 2)
    ensure_equal(implementation.page_size_bytes(spec), wanted, "page bytes", "exact integer arithmetic")
