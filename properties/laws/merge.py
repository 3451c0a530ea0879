"""One spec that stands for all layers of a group (FACTS section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvconform.properties import drawn, drawn_changes
from kvconform.properties.comparison import differences
from kvconform.properties.given import Given
from kvconform.properties.law import Violation, ensure, ensure_equal, law
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.merging import RECONCILED
from kvconform.reference.specs import ATTENTION_KINDS, FULL_KINDS, WINDOW_KINDS, Spec, field_names

MERGED = (*ATTENTION_KINDS, "mamba")
NEEDS = ("merge", "construct")
HOLDING = tuple(kind for kind in ATTENTION_KINDS if kind != "encoder_only_attention")
KEPT = ("sliding_window", "extra_retained_tokens", "attention_chunk_size")
"""Fields that say which tokens are kept."""


def layer(given: Given, name: str = "spec") -> Spec:
    """A spec of the kind under test with any one field set beside the ones always drawn."""
    spec: Spec = drawn_changes.changed(given, f"{name}.then", drawn.spec(given, name))
    return spec


def pair(given: Given) -> list[Spec]:
    """Two layers of one kind that differ in at most one field."""
    first = layer(given)
    return [first, drawn_changes.changed(given, "other", first)]


def focus(given: Given, fields: Sequence[str]) -> tuple[str, ...]:
    """One of the fields, for the others to differ in; or none, so that they may differ in any.

    Most fields are only ever compared: those named here are worth meeting more often.
    """
    has = [field for field in fields if field in given.implementation.fields(given.kind)]
    chosen = given.choice("focus", ("any", *has))
    return () if chosen == "any" else (chosen,)


def merged_or_none(implementation: Implementation, specs: Sequence[Spec]) -> Spec | None:
    """The merge of the specs, or None when it is refused."""
    try:
        return implementation.merge(specs)
    except Refused:
        return None


@law("merge/idempotent", severity="safety", kinds=MERGED, needs=NEEDS, proved=True)
def idempotent(implementation: Implementation, given: Given) -> None:
    """Merging copies of a spec returns that spec, every field.

    A field that a merge drops is a field that the whole group loses. With every optional field set
    at once, all that are dropped are told together.
    """
    spec = layer(given) if given.flag("one_field") else drawn_changes.every_field(given, drawn.spec(given))
    copies = given.choice("copies", (1, 2, 3))
    changes = differences(implementation.merge([spec] * copies), implementation.construct(spec))
    ensure(not changes, f"merge of {copies} equal layers: {changes}")


def ensure_same_answer(got: Spec | None, wanted: Spec | None, got_by: str, wanted_by: str) -> None:
    """Ensure that two ways of merging refuse alike and answer alike."""
    if got is None or wanted is None:
        ensure(
            (got is None) == (wanted is None),
            f"merge: {got_by} is {'refused' if got is None else 'answered'}, "
            f"{wanted_by} is {'refused' if wanted is None else 'answered'}",
        )
        return
    changes = differences(got, wanted)
    ensure(not changes, f"merge: {got_by} against {wanted_by}: {changes}")


@law("merge/commutative", severity="safety", kinds=MERGED, needs=("merge",), proved=True)
def commutative(implementation: Implementation, given: Given) -> None:
    """The order of the layers does not matter, nor does it decide refusal."""
    first, second = pair(given)
    forward = merged_or_none(implementation, [first, second])
    backward = merged_or_none(implementation, [second, first])
    ensure_same_answer(backward, forward, "second layer first", "first layer first")


@law("merge/associative", severity="agreement", kinds=MERGED, needs=("merge",), proved=True)
def associative(implementation: Implementation, given: Given) -> None:
    """Merging in steps equals merging at once."""
    first = layer(given)
    fields = focus(given, RECONCILED.get(given.kind, ()))
    second = drawn_changes.changed(given, "other", first, fields)
    third = drawn_changes.changed(given, "third", first, fields)
    at_once = merged_or_none(implementation, [first, second, third])
    partial = merged_or_none(implementation, [first, second])
    in_steps = None if partial is None else merged_or_none(implementation, [partial, third])
    ensure_same_answer(in_steps, at_once, "two layers and then the third", "all three at once")


@law(
    "merge/keeps-every-field",
    severity="safety",
    kinds=MERGED,
    needs=NEEDS,
    proved=True,
    reports=("vllm#51756",),
)
def keeps_every_field(implementation: Implementation, given: Given) -> None:
    """Where members differ, the merge refuses or the field is one that the kind may reconcile.

    Else one layer of the group is read by another's format, window or sinks. A merge that compares
    no field of the page is told so at once.
    """
    first, second = pair(given)
    reconciled = RECONCILED.get(given.kind, ())
    for members in ((first, drawn_changes.otherwise_stored(given, first)), (first, second)):
        merged = merged_or_none(implementation, members)
        if merged is None:
            continue
        for index, member in enumerate(members):
            changes = differences(merged, implementation.construct(member), but=reconciled)
            ensure(not changes, f"merge answers although it does not keep layer {index}: {changes}")


@law(
    "merge/keeps-page",
    severity="safety",
    kinds=MERGED,
    needs=("merge", "page_size_bytes"),
    proved=True,
    reports=("vllm-ascend#11065",),
)
def keeps_page(implementation: Implementation, given: Given) -> None:
    """The merged page is every member's page, or the merge is refused."""
    members = pair(given)
    merged = merged_or_none(implementation, members)
    if merged is None:
        return
    page = implementation.page_size_bytes(merged)
    for index, member in enumerate(members):
        ensure_equal(
            page, implementation.page_size_bytes(member), "merged page bytes", f"page of layer {index}"
        )


@law(
    "merge/covers-bound",
    severity="safety",
    kinds=HOLDING,
    needs=("merge", "max_blocks_per_request"),
    proved=True,
)
def covers_bound(implementation: Implementation, given: Given) -> None:
    """The merged bound is at least every member's."""
    first = layer(given)
    members = [first, drawn_changes.changed(given, "other", first, focus(given, KEPT))]
    # A request shorter than both windows does not tell them apart.
    windows = [getattr(member, "sliding_window", None) for member in members]
    both = sum(0 if window is None else window for window in windows)
    long = [both + first.block_size * blocks for blocks in range(1, 25)]
    deployment = drawn.deployment(given, encoder=True, lengths=long)
    merged = merged_or_none(implementation, members)
    if merged is None:
        return
    try:
        bound = implementation.max_blocks_per_request(merged, deployment)
        wanted = [implementation.max_blocks_per_request(member, deployment) for member in members]
    except Refused:
        given.reject()
    for index, needed in enumerate(wanted):
        ensure(
            bound >= needed,
            f"merged bound: got {bound} blocks, wanted at least {needed} = bound of layer {index}",
        )


CONFLICTS = {
    **dict.fromkeys(FULL_KINDS, ("sliding_window", "attention_chunk_size", "both", "kind")),
    "rswa": ("rswa_window", "sliding_window", "attention_chunk_size", "both", "kind"),
    **dict.fromkeys(WINDOW_KINDS, ("sliding_window", "kind")),
    "chunked_local_attention": ("attention_chunk_size", "kind"),
    "cross_attention": ("kind",),
    "mamba": ("kind",),
}


def conflicting(given: Given) -> list[Spec]:
    """Two layers that no group may hold together."""
    conflict = given.choice("conflict", CONFLICTS[given.kind])
    if given.kind == "mamba":
        first: Any = drawn.mamba(given)
    else:
        first = drawn.spec(given)
    if conflict == "kind":
        others = [kind for kind in given.implementation.kinds() if kind not in (given.kind, "uniform_type")]
        kind = given.choice("other_kind", others)
        if kind == "mamba":
            return [first, drawn.mamba(given, "other", block_size=first.block_size)]
        shared: dict[str, Any] = {
            name: getattr(first, name)
            for name in (
                "block_size",
                "num_kv_heads",
                "head_size",
                "head_size_v",
                "dtype",
                "page_size_padded",
            )
            if hasattr(first, name) and name in field_names(kind)
        }
        return [first, drawn.spec(given, "other", kind, padding=("none",), packed=False, **shared)]
    if conflict == "both":
        window = given.integer("window", at_least=1, at_most=1 << 32)
        chunk = given.integer("chunk", at_least=1, at_most=1 << 32)
        return [
            replace(first, sliding_window=window, attention_chunk_size=None),
            replace(first, sliding_window=None, attention_chunk_size=chunk),
        ]
    if getattr(first, conflict) is None:
        cleared = {"sliding_window": None, "attention_chunk_size": None}
        size = given.integer("size", at_least=1, at_most=1 << 32)
        first = replace(first, **{**cleared, conflict: size})
    return [first, drawn_changes.change(given, "other", first, conflict)]


@law("merge/refuses-conflicts", severity="safety", kinds=tuple(CONFLICTS), needs=NEEDS, proved=True)
def refuses_conflicts(implementation: Implementation, given: Given) -> None:
    """Different windows, different chunks, a window with a chunk, and different kinds are refused.

    Whichever layer comes first: blocks kept for one would be freed for the other.
    """
    members = conflicting(given)
    if given.flag("reversed"):
        members.reverse()
    described = " and ".join(member.kind for member in members)
    try:
        merged = implementation.merge(members)
    except Refused:
        return
    forgotten = [differences(merged, implementation.construct(member)) for member in members]
    ensure(
        False, f"merge of {described} answers, wanted a refusal; it forgets {forgotten[0] or forgotten[1]}"
    )


@law(
    "merge/refuses-without-asserts", severity="hygiene", kinds=MERGED, needs=(*NEEDS, "merge_without_asserts")
)
def refuses_without_asserts(implementation: Implementation, given: Given) -> None:
    """What a merge refuses is refused under `python -O` too, where assertions are off."""
    members = pair(given)
    try:
        implementation.merge(members)
    except Refused as refusal:
        reason = str(refusal)
    else:
        given.reject()
    try:
        merged = implementation.merge_without_asserts(members)
    except Refused:
        return
    forgotten = [differences(merged, implementation.construct(member)) for member in members]
    ensure(
        False,
        f"merge refuses ({reason}), but without assertions it answers and forgets "
        f"{forgotten[0] or forgotten[1]}",
    )


@law(
    "merge/non-causal-spreads",
    severity="safety",
    kinds=FULL_KINDS,
    needs=("merge", ".non_causal"),
    proved=True,
)
def non_causal_spreads(implementation: Implementation, given: Given) -> None:
    """One non-causal member makes the group non-causal.

    Else the scheduler chunks or shares a prompt whose tokens all see one another.
    """
    spec = drawn.spec(given, non_causal=False)
    members = [spec, replace(spec, non_causal=True)]
    if given.flag("reversed"):
        members.reverse()
    merged: Any = implementation.merge(members)
    ensure_equal(merged.non_causal, True, "non_causal of the group", "any of its members'")


@law("merge/leaves-inputs", severity="agreement", kinds=MERGED, needs=("merge_side_effects",))
def leaves_inputs(implementation: Implementation, given: Given) -> None:
    """Members are unchanged by a merge and not shared with its result."""
    first = layer(given)
    members = [
        first,
        drawn_changes.changed(given, "other", first, RECONCILED.get(given.kind, ("block_size",))),
    ]
    try:
        effects = implementation.merge_side_effects(members)
    except Refused:
        given.reject()
    ensure(not effects, f"merge: {'; '.join(effects)}, wanted its members left alone")


@law("merge/empty-refused", severity="hygiene", kinds=MERGED, needs=("merge",))
def empty_refused(implementation: Implementation, given: Given) -> None:
    """Merging nothing is refused with a reason."""
    try:
        merged = implementation.merge([], given.kind)
    except Refused as refusal:
        ensure(bool(str(refusal)), "merge of nothing: refused without a reason")
        return
    except (Unsupported, Violation):
        raise
    except Exception as fall:
        # Falling over is this law's own finding: it is neither an answer nor a reason.
        raise Violation(
            f"merge of nothing: {type(fall).__name__}: {fall}, wanted a refusal with a reason"
        ) from fall
    ensure(False, f"merge of nothing: got {merged}, wanted a refusal with a reason")
