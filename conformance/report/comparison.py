"""A comparison of two implementations on the terminal, and the words that its other forms share."""

from __future__ import annotations

import shlex
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
from kvconform.conformance.answers import BLOCKS, LESS_CAPACITY, MORE_CAPACITY
from kvconform.conformance.comparison import Comparison, Difference, Same
from kvconform.conformance.effects import Effects, Sizes
from kvconform.conformance.sameness import REFERENCE
from kvconform.conformance.values import to_wire
from kvconform.reference.deployment import Deployment
from kvconform.reference.specs import Spec, defaults
from kvconform.reference.wire import spec_to_wire

if TYPE_CHECKING:
    from kvconform.conformance.sides import Side
    from rich.console import Console

SERVES = {
    BLOCKS: ("more blocks from the same memory", "fewer blocks from the same memory"),
    "estimate_max_model_len": (
        "a longer request fits the same memory",
        "a shorter request fits the same memory",
    ),
    "get_max_concurrency": ("more requests at once", "fewer requests at once"),
}
"""What more and less capacity mean, by operation or aspect."""

FORMULA_WORDS = {REFERENCE: "the reference", "stated": "the formula as the specification states it"}


Safety = tuple[tuple[str, str, str], ...]
"""A verdict of each side for each law."""


def question_line(side: Side, difference: Difference) -> str:
    """One line to paste that asks an implementation the question of a difference."""
    arguments = msgspec.json.encode(question(difference)).decode()
    words = (side.address, *side.options, difference.operation, arguments)
    return f"kvconform ask {shlex.join(words)}"


def question(difference: Difference) -> dict[str, Any]:
    """The arguments of a difference as JSON values; what has its default is left out."""
    wire: dict[str, Any] = to_wire(difference.arguments, _without_defaults)
    if "deployment" in wire:
        known = to_wire(Deployment(max_model_len=0))
        wire["deployment"] = {
            name: value
            for name, value in wire["deployment"].items()
            if name != "in_flight_tokens" and (name == "max_model_len" or value != known[name])
        }
    return wire


def _without_defaults(spec: Spec) -> dict[str, Any]:
    usual = defaults(spec.kind)
    wire = spec_to_wire(spec)
    if "kv_cache_specs" in wire:
        layers = [(name, _without_defaults(layer)) for name, layer in spec.kv_cache_specs]  # type: ignore[attr-defined]
        return {**wire, "kv_cache_specs": layers}
    return {name: value for name, value in wire.items() if name not in usual or value != usual[name]}


def about(entry: Difference | Same) -> str:
    """The kind or, of a whole model, the aspect that an entry is about."""
    return entry.aspect or entry.kind


def towards(difference: Difference) -> str:
    """The direction in words that cannot be misread; empty where nothing grows or shrinks."""
    serves = SERVES.get(difference.aspect) or SERVES.get(difference.operation)
    if serves is None or difference.direction not in (MORE_CAPACITY, LESS_CAPACITY):
        return difference.direction
    return f"{difference.direction}: {serves[difference.direction == LESS_CAPACITY]}"


def safety_lines(difference: Difference, left: str, right: str) -> list[str]:
    """Which laws of safety each side keeps: those that only one keeps first."""
    lines = []
    alike: dict[str, list[str]] = defaultdict(list)
    for law, before, after in difference.safety:
        if before == after:
            alike[before].append(law)
        else:
            lines.append(f"{law}: {left} {before}, {right} {after}")
    if alike["violated"]:
        lines.append(f"violated by both: {', '.join(alike['violated'])}")
    if alike["held"]:
        lines.append(f"held by both: {', '.join(alike['held'])}")
    return lines or ["no law of safety asks this operation"]


def cells(sizes: Sizes) -> tuple[str, str, str]:
    """Bytes per block, blocks per request and requests, or why there are none."""
    if sizes.trouble:
        return sizes.trouble, "", ""
    requests = f"{sizes.requests:,.2f}" if isinstance(sizes.requests, float) else f"{sizes.requests:,}"
    return f"{sizes.block_bytes:,}", f"{sizes.request_blocks:,}", requests


def effect_title(changes: Effects) -> str:
    """What the figures of the effect on models are about."""
    total = len(changes.changed) + len(changes.unchanged) + len(changes.unsized)
    return (
        f"effect on {len(changes.changed)} of {total} models, requests of {changes.length} tokens or the "
        f"model's longest, {changes.budget_bytes / (1 << 30):g} GiB, two batches of 8192 in flight"
    )


def planned_title(changes: Effects) -> str:
    """What the figures of models as they are planned are about."""
    gib = changes.budget_bytes / (1 << 30)
    return f"models planned otherwise, on one device of {gib:g} GiB: {len(changes.planned)}"


def covered(found: Comparison) -> dict[tuple[str, str], list[str]]:
    """What each proof covers: the operations by kind and domain."""
    proofs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for same in found.same:
        if same.verdict == "proved":
            proofs[same.kind, same.domain].append(same.operation)
    return proofs


def show(
    console: Console, sides: tuple[Side, Side], found: Comparison, changes: Effects | None, *, domains: bool
) -> None:
    """Print differences first, with witness and both answers, then effects, then what agrees."""
    left, right = (side.label for side in sides)
    told: dict[Safety, Difference] = {}
    for difference in found.different:
        _show_difference(console, sides, difference, told.get(difference.safety))
        told.setdefault(difference.safety, difference)
    for title, names in ((f"only in {left}", found.only_left), (f"only in {right}", found.only_right)):
        if names:
            console.print(f"{title}: {', '.join(names)}\n")
    if changes is not None:
        _show_effects(console, left, right, changes)
    _show_same(console, found)
    if domains:
        for (kind, domain), operations in covered(found).items():
            console.print(f"proved of {', '.join(operations)} for {kind}: {domain}\n")
    if not found.complete:
        console.print("INCOMPLETE: not every question was asked")
    count = len(found.different)
    verdict = "no difference" if not count else "1 difference" if count == 1 else f"{count} differences"
    so_far = "" if found.complete else " so far"
    console.print(f"\n{left} against {right}: {verdict}{so_far}")


def _show_difference(
    console: Console, sides: tuple[Side, Side], difference: Difference, like: Difference | None
) -> None:
    """One difference; where the laws of safety came out as for one before, they are those."""
    left, right = (side.label for side in sides)
    console.rule(f"{difference.operation}  {about(difference)}", align="left", characters="-")
    width = max(len(left), len(right))
    arrow = towards(difference)
    console.print(f"  {left:<{width}}  {difference.left}")
    console.print(f"  {right:<{width}}  {difference.right}" + (f"   ({arrow})" if arrow else ""))
    console.print("  smallest input found:")
    for draw, value in difference.case.items():
        if value not in (None, False, "nothing"):
            console.print(f"    {draw} = {value}")
    if like is not None and difference.safety:
        console.print(f"  laws of safety: as of {like.operation} {about(like)}")
    else:
        for line in safety_lines(difference, left, right):
            console.print(f"  {line}")
    console.print("  ask both:")
    for side in sides:
        console.print(question_line(side, difference), soft_wrap=True)
    console.print()


def _show_effects(console: Console, left: str, right: str, changes: Effects) -> None:
    from rich.table import Table

    for title, entries in (
        (effect_title(changes), changes.changed),
        (planned_title(changes), changes.planned),
    ):
        console.print(f"{title}:")
        if entries:
            table = Table("model", "", "bytes per block", "blocks per request", "requests", box=None)
            for effect in entries:
                table.add_row(effect.model, left, *cells(effect.left))
                table.add_row("", right, *cells(effect.right))
            console.print(table)
    for effect in changes.unsized:
        console.print(f"  {effect.model}: neither sizes it: {effect.left.trouble}; {effect.right.trouble}")
    console.print()


def _show_same(console: Console, found: Comparison) -> None:
    proved = [same for same in found.same if same.verdict == "proved"]
    held = [same for same in found.same if same.verdict != "proved"]
    for formula, words in FORMULA_WORDS.items():
        _list_same(
            console,
            f"proved the same, both equal to {words}",
            [same for same in proved if same.formula == formula],
        )
    if proved:
        console.print("  --domains, --json and --markdown show what each proof covers")
    examples = sum(same.examples for same in held)
    _list_same(console, f"held to be the same on {examples} examples", held)
    reasons: dict[str, list[str]] = defaultdict(list)
    for same in held:
        if same.why:
            reasons[same.why].append(f"{same.operation} of {same.kind}")
    for why, entries in reasons.items():
        which = ", ".join(entries) if proved or len(reasons) > 1 else "any of it"
        console.print(f"  not proved: {which}: {why}")
    for unasked in found.not_asked:
        console.print(
            f"not compared: {unasked.operation} of {unasked.kind}: {unasked.verdict}: {unasked.why}"
        )


def _list_same(console: Console, title: str, entries: list[Same]) -> None:
    by_operation: dict[str, list[str]] = defaultdict(list)
    for same in entries:
        by_operation[same.operation].append(about(same))
    if by_operation:
        console.print(f"{title} ({len(entries)} pairs of operation and kind):")
    for operation, names in by_operation.items():
        console.print(f"  {operation}: {', '.join(names)}")
