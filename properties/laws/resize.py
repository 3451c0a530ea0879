"""Changing the block size of a spec (FACTS section 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvconform.properties import drawn, drawn_changes
from kvconform.properties.comparison import differences
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.reference import pages
from kvconform.reference.interface import Implementation, Refused
from kvconform.reference.specs import ATTENTION_KINDS, Spec

RESIZED = (*ATTENTION_KINDS, "mamba")
DERIVED = ("none", "aligned")
NEEDS = ("copy_with_new_block_size", "page_size_bytes")


def new_block_size(given: Given, spec: Spec, name: str = "new_block_size") -> int:
    """Another block size for the spec, in tokens: a whole number of its states."""
    return given.block_size(name, multiple_of=getattr(spec, "compress_ratio", 1))


@law(
    "resize/same-is-identity",
    severity="agreement",
    kinds=RESIZED,
    needs=("copy_with_new_block_size", "construct"),
    proved=True,
)
def same_is_identity(implementation: Implementation, given: Given) -> None:
    """Resizing a spec to its own block size changes nothing."""
    spec = drawn.spec(given)
    resized = implementation.copy_with_new_block_size(spec, spec.block_size)
    changes = differences(resized, implementation.construct(spec))
    ensure(not changes, f"resized to its own block size {spec.block_size}: {changes}")


@law("resize/like-fresh", severity="agreement", kinds=RESIZED, needs=NEEDS, proved=True)
def like_fresh(implementation: Implementation, given: Given) -> None:
    """A resized spec, unpadded or aligned, has the page of a spec built afresh with that block size."""
    spec = drawn.spec(given, padding=DERIVED)
    block_size = new_block_size(given, spec)
    wanted = implementation.page_size_bytes(replace(spec, block_size=block_size))
    resized = implementation.copy_with_new_block_size(spec, block_size)
    try:
        got = implementation.page_size_bytes(resized)
    except Refused as refusal:
        ensure(
            False, f"page resized to {block_size} tokens: refused ({refusal}), wanted {wanted} = built afresh"
        )
    else:
        ensure_equal(got, wanted, f"page bytes resized to {block_size} tokens", "page of a spec built afresh")


@law("resize/still-covers", severity="safety", kinds=RESIZED, needs=NEEDS, proved=True)
def still_covers(implementation: Implementation, given: Given) -> None:
    """A resized page covers its unpadded size, and reading it does not fail."""
    spec = drawn.spec(given)
    block_size = new_block_size(given, spec)
    contents = pages.unpadded_page_size_bytes(replace(spec, block_size=block_size, page_size_padded=None))
    resized = implementation.copy_with_new_block_size(spec, block_size)
    try:
        page = implementation.page_size_bytes(resized)
    except Refused as refusal:
        ensure(
            False,
            f"page resized from {spec.block_size} to {block_size} tokens: reading it is refused ({refusal}), "
            f"wanted at least {contents} bytes = unpadded page",
        )
    else:
        ensure(
            page >= contents,
            f"page resized from {spec.block_size} to {block_size} tokens: got {page} bytes, "
            f"wanted at least {contents} = unpadded page",
        )


@law("resize/composes", severity="agreement", kinds=RESIZED, needs=NEEDS, proved=True)
def composes(implementation: Implementation, given: Given) -> None:
    """Resizing an unpadded or aligned spec twice equals resizing it once."""
    spec = drawn.spec(given, padding=DERIVED)
    first = new_block_size(given, spec, "first_block_size")
    second = new_block_size(given, spec, "second_block_size")
    once = implementation.copy_with_new_block_size(spec, second)
    between = implementation.copy_with_new_block_size(spec, first)
    twice = implementation.copy_with_new_block_size(between, second)
    changes = differences(twice, once)
    ensure(not changes, f"resized to {first} then {second} tokens, against {second} at once: {changes}")


@law(
    "resize/padding-share",
    severity="economy",
    kinds=ATTENTION_KINDS,
    needs=(*NEEDS, ".page_size_padded"),
    proved=True,
)
def padding_share(implementation: Implementation, given: Given) -> None:
    """Resizing a spec padded by hand does not raise the padding's share of the page beyond rounding."""
    spec = drawn.spec(given, padding=("hand",))
    block_size = new_block_size(given, spec)
    try:
        page = implementation.page_size_bytes(implementation.copy_with_new_block_size(spec, block_size))
    except Refused:
        # Whether the resized page can be read is the matter of resize/still-covers.
        given.reject()
    ensure(
        page * spec.block_size < (spec.page_size_padded * block_size) + spec.block_size,
        f"padded page resized from {spec.block_size} to {block_size} tokens: got {page} bytes, "
        f"wanted at most {spec.page_size_padded} x {block_size} / {spec.block_size}, rounded up",
    )


@law(
    "resize/keeps-the-rest",
    severity="safety",
    kinds=RESIZED,
    needs=("copy_with_new_block_size", "construct"),
    proved=True,
)
def keeps_the_rest(implementation: Implementation, given: Given) -> None:
    """Every field that does not derive from the block size is kept."""
    spec = drawn_changes.changed(given, "spec.then", drawn.spec(given))
    block_size = new_block_size(given, spec)
    resized = implementation.copy_with_new_block_size(spec, block_size)
    ensure_equal(resized.block_size, block_size, "block size", "the one asked for")
    changes = differences(resized, implementation.construct(spec), but=("block_size", "page_size_padded"))
    ensure(not changes, f"resized to {block_size} tokens: {changes}")


@law(
    "resize/reaches-inside",
    severity="safety",
    kinds=("uniform_type",),
    needs=NEEDS,
    proved=True,
)
def reaches_inside(implementation: Implementation, given: Given) -> None:
    """Resizing a uniform_type resizes every layer in it, or is refused.

    Else the group hands out blocks of one size and its layers store another.
    """
    spec = drawn.uniform_type(given, padding=("none",))
    ratio = getattr(spec.layers()[0], "compress_ratio", 1)
    block_size = given.block_size("new_block_size", multiple_of=ratio)
    try:
        resized: Any = implementation.copy_with_new_block_size(spec, block_size)
    except Refused:
        return
    for name, layer in resized.kv_cache_specs:
        ensure_equal(layer.block_size, block_size, f"block size of {name}", "the one asked for")
    wanted = sum(
        implementation.page_size_bytes(replace(layer, block_size=block_size)) for layer in spec.layers()
    )
    ensure_equal(
        implementation.page_size_bytes(resized), wanted, "page bytes", "sum of the layers' resized pages"
    )
