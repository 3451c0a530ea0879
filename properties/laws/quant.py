"""Quantisation modes and the bytes they store (FACTS section 10)."""

from __future__ import annotations

from itertools import combinations

from kvconform.properties import drawn
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.reference import modes
from kvconform.reference.interface import Implementation, Refused
from kvconform.reference.revisions import describe, following
from kvconform.reference.specs import ATTENTION_KINDS, DTYPE_BYTES, LATENT_KINDS, make

MODEL_DTYPE_BYTES = 2
"""Bytes of an element of a 16-bit model."""

LATENT_MODES = ("NONE", "FP8_PER_TENSOR", "INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD", "INT4_PER_TOKEN_HEAD")


@law("quant/modes-distinct", severity="safety", needs=("quant_modes",))
def modes_distinct(implementation: Implementation, given: Given) -> None:
    """Every named mode has a value of its own.

    Two names of one value are one mode: code that asks for either gets both, and a cache written
    by one format is read by the other.
    """
    values = implementation.quant_modes()
    for first, second in combinations(values, 2):
        ensure(
            values[first] != values[second],
            f"modes {first} and {second} share the value {values[first]}, wanted one value each",
        )


@law("quant/families-disjoint", severity="safety", needs=("quant_modes", "quant_families"))
def families_disjoint(implementation: Implementation, given: Given) -> None:
    """A mode is in at most one family, and unquantised only if it is NONE."""
    values = implementation.quant_modes()
    for mode in values:
        families = implementation.quant_families(mode)
        ensure(len(families) <= 1, f"mode {mode} is in families {', '.join(families)}, wanted at most one")
        if mode == "NONE":
            ensure(not families, f"mode NONE is in family {', '.join(families)}, wanted none")
        else:
            ensure(values[mode] != values["NONE"], f"mode {mode} has the value of NONE, wanted its own")


@law("quant/names-total", severity="hygiene", needs=("quant_modes", "cache_dtypes", "get_kv_quant_mode"))
def names_total(implementation: Implementation, given: Given) -> None:
    """Every accepted cache dtype string means exactly one mode; an unknown string is refused.

    A misspelt string that is taken as unquantised doubles the cache and reads it wrongly.
    """
    accepted = implementation.cache_dtypes()
    named = implementation.quant_modes()
    for cache_dtype in accepted:
        mode = implementation.get_kv_quant_mode(cache_dtype)
        ensure(mode in named, f"cache dtype {cache_dtype!r} means {mode!r}, which is no mode")
    misspelt = given.choice("misspelt", ("", "fp4", "float8", "int8", "FP8", "nvfp", "turboquant", "none"))
    given.assume(misspelt not in accepted)
    try:
        mode = implementation.get_kv_quant_mode(misspelt)
    except Refused:
        return
    ensure(False, f"unknown cache dtype {misspelt!r}: got mode {mode}, wanted a refusal")


@law(
    "quant/quantised-means-quantised",
    severity="safety",
    needs=("cache_dtypes", "get_kv_quant_mode", "cache_element_dtype"),
)
def quantised_means_quantised(implementation: Implementation, given: Given) -> None:
    """Every cache dtype that stores fewer than the model's bits maps to a mode other than NONE."""
    for cache_dtype in implementation.cache_dtypes():
        element = implementation.cache_element_dtype(cache_dtype)
        if element is not None and DTYPE_BYTES[element] < MODEL_DTYPE_BYTES:
            mode = implementation.get_kv_quant_mode(cache_dtype)
            ensure(mode != "NONE", f"cache dtype {cache_dtype!r} stores {element} but its mode is NONE")


@law(
    "quant/formats-injective",
    severity="safety",
    kinds=ATTENTION_KINDS,
    needs=("cache_dtypes", "get_kv_quant_mode", "cache_element_dtype"),
)
def formats_injective(implementation: Implementation, given: Given) -> None:
    """Cache dtypes whose stored bytes decode differently map to different modes.

    Or they carry the difference elsewhere in the spec: in its element type, or in a field that
    keeps the cache dtype string. Else two layers of different formats look alike and share a group.
    """
    carries_string = "cache_dtype_str" in implementation.fields(given.kind)
    known = [name for name in implementation.cache_dtypes() if name in modes.CACHE_DTYPES]
    if given.kind not in LATENT_KINDS:
        known = [name for name in known if modes.CACHE_DTYPES[name].decoding != "ds_mla"]
    for first, second in combinations(known, 2):
        if modes.CACHE_DTYPES[first] == modes.CACHE_DTYPES[second] or carries_string:
            continue
        described = [
            (implementation.get_kv_quant_mode(name), implementation.cache_element_dtype(name))
            for name in (first, second)
        ]
        ensure(
            described[0] != described[1],
            f"cache dtypes {first!r} and {second!r} decode differently but both give a {given.kind} spec "
            f"mode {described[0][0]} and element type {described[0][1]}",
        )


@law(
    "quant/content-holds-payload",
    severity="safety",
    kinds=ATTENTION_KINDS,
    needs=("stored_bytes", "quant_modes"),
    proved=True,
    reports=("vllm#40388", "TensorRT-LLM#15088"),
)
def content_holds_payload(implementation: Implementation, given: Given) -> None:
    """Stored bytes hold every element's bits and all scales and zero points, or are refused.

    At any head size: an odd one packed two to a byte loses an element if it is rounded down. Latents
    only in the modes that describe how a latent is packed.
    """
    spec = drawn.quantised(given, modes=LATENT_MODES if given.kind in LATENT_KINDS else ())
    try:
        stored = implementation.stored_bytes(spec)
    except Refused:
        return
    needed = modes.payload_bits(spec)
    ensure(
        stored * 8 >= needed,
        f"stored bytes: got {stored} for K {spec.head_size} and V {spec.value_head_size} in mode "
        f"{spec.kv_quant_mode}, wanted at least {needed} bits = elements and scales",
    )


@law(
    "quant/content-formula",
    severity="formula",
    kinds=ATTENTION_KINDS,
    needs=("stored_bytes", "quant_modes"),
    proved=True,
)
def content_formula(implementation: Implementation, given: Given) -> None:
    """Stored bytes equal the reference table.

    The table of the revision that the implementation declares.
    """
    declared = implementation.revisions()
    spec = drawn.quantised(given)
    try:
        wanted = following(declared).stored_bytes(spec)
    except Refused:
        given.reject()
    ensure_equal(
        implementation.stored_bytes(spec),
        wanted,
        f"stored bytes for K {spec.head_size} and V {spec.value_head_size}",
        f"the table's entry for {spec.kv_quant_mode} ({describe(declared)})",
    )


@law(
    "quant/never-larger",
    severity="economy",
    kinds=ATTENTION_KINDS,
    needs=("stored_bytes", "quant_modes"),
    proved=True,
    reports=("vllm#55196",),
)
def never_larger(implementation: Implementation, given: Given) -> None:
    """A quantised page is no larger than the 16-bit page of the same shape once heads are >= 16 wide."""
    spec = drawn.quantised(given, modes=[mode for mode in modes.MODES if mode != "NONE"], narrowest=16)
    try:
        stored = implementation.stored_bytes(spec)
    except Refused:
        given.reject()
    plain = 2 * (spec.head_size + spec.value_head_size)
    ensure(
        stored <= plain,
        f"stored bytes: got {stored} for K {spec.head_size} and V {spec.value_head_size} in mode "
        f"{spec.kv_quant_mode}, wanted at most {plain} = 16 bits an element",
    )


@law(
    "quant/scale-share",
    severity="economy",
    kinds=ATTENTION_KINDS,
    needs=("stored_bytes", "quant_modes"),
    proved=True,
    reports=("vllm#40388",),
)
def scale_share(implementation: Implementation, given: Given) -> None:
    """Scale bytes shrink, or at least do not grow, as a share of the page as heads grow."""
    mode = given.choice("mode", [mode for mode in modes.MODES if mode in implementation.quant_modes()])
    size = given.integer("head_size", at_least=16, at_most=1 << 16, multiple_of=16, typical=drawn.HEAD_SIZES)
    wider = given.integer("wider_head_size", at_least=size, at_most=1 << 17, multiple_of=16)
    narrow, wide = (
        make(
            given.kind,
            **drawn.needed(given.kind),
            block_size=1,
            num_kv_heads=1,
            head_size=width,
            dtype=drawn.STORAGE_DTYPE.get(mode, "uint8"),
            kv_quant_mode=mode,
        )
        for width in (size, wider)
    )
    try:
        stored = implementation.stored_bytes(narrow), implementation.stored_bytes(wide)
    except Refused:
        given.reject()
    scales = stored[0] * 8 - modes.element_bits(narrow), stored[1] * 8 - modes.element_bits(wide)
    ensure(
        scales[1] * stored[0] <= scales[0] * stored[1],
        f"scale share in mode {mode}: got {scales[1]} bits of {stored[1]} bytes at head size {wider}, "
        f"wanted no larger a share than {scales[0]} bits of {stored[0]} bytes at {size}",
    )


@law(
    "quant/mla-single-latent",
    severity="safety",
    kinds=LATENT_KINDS,
    needs=("stored_bytes", "quant_modes"),
    proved=True,
    reports=("vllm#46985",),
)
def mla_single_latent(implementation: Implementation, given: Given) -> None:
    """A latent is stored and scaled once: no V part.

    So it takes what K and V of that head size take together, less the elements of V.
    """
    spec = drawn.quantised(given, modes=LATENT_MODES)
    shared = {
        name: getattr(spec, name)
        for name in ("block_size", "num_kv_heads", "head_size", "dtype", "kv_quant_mode")
    }
    both = make("full_attention", **shared, head_size_v=spec.head_size)
    try:
        latent, dense = implementation.stored_bytes(spec), implementation.stored_bytes(both)
    except Refused:
        given.reject()
    # In whole bytes: what an odd size loses in nibbles is content-holds-payload's matter.
    one_side = modes.element_bits(spec) // 8
    ensure(
        latent <= dense - one_side,
        f"stored bytes of a latent of {spec.head_size} in mode {spec.kv_quant_mode}: got {latent}, "
        f"wanted at most {dense} - {one_side} = K and V together, less V",
    )
