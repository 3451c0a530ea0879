"""A comparison of two implementations: on the terminal, as JSON and as Markdown."""

from __future__ import annotations

import shlex
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
from kvconform.conformance.compare import Comparison, Difference
from kvconform.conformance.effects import Effect, Effects, Sizes
from kvconform.conformance.values import to_wire
from kvconform.reference.specs import Spec, defaults
from kvconform.reference.wire import spec_to_wire

if TYPE_CHECKING:
    from rich.console import Console

ARROWS = {"more": "more memory", "less": "less memory", "refused": "now refused", "answered": "now answered"}


def question_line(address: str, difference: Difference) -> str:
    """One line to paste that asks an implementation the question of a difference."""
    arguments = msgspec.json.encode(_plain(difference)).decode()
    return f"kvconform ask {shlex.quote(address)} {difference.operation} {shlex.quote(arguments)}"


def _plain(difference: Difference) -> dict[str, Any]:
    wire: dict[str, Any] = to_wire(difference.arguments, _without_defaults)
    return wire


def _without_defaults(spec: Spec) -> dict[str, Any]:
    usual = defaults(spec.kind)
    wire = spec_to_wire(spec)
    if "kv_cache_specs" in wire:
        layers = [(name, _without_defaults(layer)) for name, layer in spec.kv_cache_specs]  # type: ignore[attr-defined]
        return {**wire, "kv_cache_specs": layers}
    return {name: value for name, value in wire.items() if name not in usual or value != usual[name]}


def show(console: Console, left: str, right: str, found: Comparison, changes: Effects | None) -> None:
    """Print differences first, with witness and both answers, then effects, then what agrees."""
    for difference in found.different:
        console.rule(f"{difference.operation}  {difference.kind}", align="left", characters="-")
        width = max(len(left), len(right))
        arrow = ARROWS.get(difference.direction, "")
        console.print(f"  {left:<{width}}  {difference.left}")
        console.print(f"  {right:<{width}}  {difference.right}" + (f"   ({arrow})" if arrow else ""))
        console.print("  smallest input found:")
        for name, value in difference.case.items():
            if value not in (None, False, "nothing"):
                console.print(f"    {name} = {value}")
        for law, before, after in difference.safety:
            if "violated" in (before, after):
                console.print(f"  {law}: {left} {before}, {right} {after}")
        console.print("  ask both:")
        for address in (left, right):
            console.print(question_line(address, difference), soft_wrap=True)
        console.print()
    for title, names in ((f"only in {left}", found.only_left), (f"only in {right}", found.only_right)):
        if names:
            console.print(f"{title}: {', '.join(names)}\n")
    if changes is not None:
        _show_effects(console, left, right, changes)
    by_operation: dict[str, list[str]] = defaultdict(list)
    for operation, kind, _ in found.same:
        by_operation[operation].append(kind)
    examples = sum(count for _, _, count in found.same)
    console.print(f"the same on {len(found.same)} pairs of operation and kind ({examples} examples):")
    for operation, kinds in by_operation.items():
        console.print(f"  {operation}: {', '.join(kinds)}")
    for operation, kind, why in found.not_asked:
        console.print(f"not compared: {operation} of {kind}: {why}")
    if not found.complete:
        console.print("INCOMPLETE: not every question was asked")
    verdict = f"{len(found.different)} differences" if found.different else "no difference"
    console.print(f"\n{left} against {right}: {verdict}")


def _show_effects(console: Console, left: str, right: str, changes: Effects) -> None:
    from rich.table import Table

    gib = changes.budget_bytes / (1 << 30)
    total = len(changes.changed) + len(changes.unchanged)
    console.print(
        f"effect on {len(changes.changed)} of {total} models, requests of "
        f"{changes.length} tokens or the model's longest, {gib:g} GiB, two batches of 8192 in flight:"
    )
    if changes.changed:
        table = Table("model", "", "bytes per block", "blocks per request", "requests", box=None)
        for effect in changes.changed:
            for address, sizes in ((left, effect.left), (right, effect.right)):
                first = effect.model if address == left else ""
                table.add_row(first, address, *_cells(sizes))
        console.print(table)
    console.print()


def _cells(sizes: Sizes) -> tuple[str, str, str]:
    if sizes.trouble:
        return sizes.trouble, "", ""
    return f"{sizes.block_bytes:,}", f"{sizes.request_blocks:,}", f"{sizes.requests:,}"


def as_json(left: str, right: str, found: Comparison, changes: Effects | None) -> str:
    """The comparison for other programs; ``complete`` says whether it is all."""
    document = {
        "format": 1,
        "left": left,
        "right": right,
        "different": [
            {
                "operation": difference.operation,
                "kind": difference.kind,
                "arguments": _plain(difference),
                "case": difference.case,
                "left": difference.left,
                "right": difference.right,
                "direction": difference.direction,
                "safety": [
                    {"law": law, "left": before, "right": after} for law, before, after in difference.safety
                ],
            }
            for difference in found.different
        ],
        "same": [
            {"operation": operation, "kind": kind, "examples": examples}
            for operation, kind, examples in found.same
        ],
        "not_compared": [
            {"operation": operation, "kind": kind, "why": why} for operation, kind, why in found.not_asked
        ],
        "only_left": found.only_left,
        "only_right": found.only_right,
        "effects": None if changes is None else msgspec.to_builtins(changes),
        "complete": found.complete and changes is not None,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def as_markdown(left: str, right: str, found: Comparison, changes: Effects | None) -> str:
    """The comparison for a pull request or a job summary."""
    lines = [f"# {left} against {right}", ""]
    if found.different:
        lines += [f"| operation | kind | {left} | {right} | |", "|---|---|---|---|---|"]
        lines += [
            f"| {d.operation} | {d.kind} | {_cell(d.left)} | {_cell(d.right)} "
            f"| {ARROWS.get(d.direction, '')} |"
            for d in found.different
        ]
        lines += ["", "Ask both:", "", "```sh"]
        lines += [question_line(address, d) for d in found.different for address in (left, right)]
        lines += ["```"]
    else:
        lines.append("No difference found.")
    for title, names in ((f"Only in {left}", found.only_left), (f"Only in {right}", found.only_right)):
        if names:
            lines += ["", f"{title}: {', '.join(names)}."]
    if changes is not None and changes.changed:
        lines += [
            "",
            "| model | | bytes per block | blocks per request | requests |",
            "|---|---|---|---|---|",
        ]
        lines += [_effect_row(effect, left, right) for effect in changes.changed]
    if not found.complete or changes is None:
        lines += ["", "**Incomplete**: not every question was asked."]
    return "\n".join(lines) + "\n"


def _effect_row(effect: Effect, left: str, right: str) -> str:
    rows = []
    for address, sizes in ((left, effect.left), (right, effect.right)):
        name = effect.model if address == left else ""
        rows.append(f"| {name} | {address} | {' | '.join(_cells(sizes))} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
