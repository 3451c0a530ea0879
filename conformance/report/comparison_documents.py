"""A comparison of two implementations as JSON and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from kvconform.conformance.comparison import Comparison
from kvconform.conformance.effects import Effect, Effects
from kvconform.conformance.report.comparison import (
    FORMULA_WORDS,
    about,
    cells,
    covered,
    effect_title,
    planned_title,
    question,
    question_line,
    safety_lines,
    towards,
)

if TYPE_CHECKING:
    from kvconform.conformance.sides import Side


def as_json(
    sides: tuple[Side, Side], engines: tuple[str, ...], found: Comparison, changes: Effects | None
) -> str:
    """The comparison for other programs; ``complete`` says whether it is all."""
    left, right = sides
    document = {
        "format": 1,
        "left": left.label,
        "right": right.label,
        "engines": engines,
        "different": [
            {
                "operation": difference.operation,
                "kind": difference.kind,
                "aspect": difference.aspect,
                "arguments": question(difference),
                "case": difference.case,
                "left": difference.left,
                "right": difference.right,
                "direction": difference.direction,
                "safety": [
                    {"law": law, "left": before, "right": after} for law, before, after in difference.safety
                ],
                "ask": [question_line(side, difference) for side in sides],
            }
            for difference in found.different
        ],
        "same": [
            {
                "operation": same.operation,
                "kind": same.kind,
                "aspect": same.aspect,
                "verdict": same.verdict,
                "examples": same.examples,
                "formula": same.formula,
                "domain": same.domain,
                "not_proved": same.why,
            }
            for same in found.same
        ],
        "not_compared": [
            {
                "operation": unasked.operation,
                "kind": unasked.kind,
                "verdict": unasked.verdict,
                "why": unasked.why,
            }
            for unasked in found.not_asked
        ],
        "only_left": found.only_left,
        "only_right": found.only_right,
        "effects": None if changes is None else msgspec.to_builtins(changes),
        "complete": found.complete and changes is not None,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def as_markdown(sides: tuple[Side, Side], found: Comparison, changes: Effects | None) -> str:
    """The comparison for a pull request or a job summary."""
    left, right = (side.label for side in sides)
    lines = [f"# {left} against {right}", ""]
    if found.different:
        lines += _different(sides, found)
    else:
        lines.append("No difference found.")
    for title, names in ((f"Only in {left}", found.only_left), (f"Only in {right}", found.only_right)):
        if names:
            lines += ["", f"{title}: {', '.join(names)}."]
    if changes is not None:
        lines += _effects(f"The {effect_title(changes)}.", changes.changed, left, right)
        lines += _effects(f"The {planned_title(changes)}.", changes.planned, left, right)
    lines += _same(found)
    for unasked in found.not_asked:
        lines += [
            "",
            f"Not compared: {unasked.operation} of {unasked.kind}: {unasked.verdict}: {_cell(unasked.why)}",
        ]
    if not found.complete or changes is None:
        lines += ["", "**Incomplete**: not every question was asked."]
    return "\n".join(lines) + "\n"


def _different(sides: tuple[Side, Side], found: Comparison) -> list[str]:
    left, right = (side.label for side in sides)
    lines = [f"| operation | kind | {left} | {right} | | laws of safety |", "|---|---|---|---|---|---|"]
    for one in found.different:
        laws = "; ".join(safety_lines(one, left, right))
        words = (one.operation, about(one), _cell(one.left), _cell(one.right), towards(one), laws)
        lines.append(f"| {' | '.join(words)} |")
    lines += ["", "Ask both:", "", "```sh"]
    lines += [question_line(side, one) for one in found.different for side in sides]
    return [*lines, "```"]


def _same(found: Comparison) -> list[str]:
    proved = [same for same in found.same if same.verdict == "proved"]
    held = [same for same in found.same if same.verdict != "proved"]
    examples = sum(same.examples for same in held)
    lines = [
        "",
        f"The same on {len(found.same)} pairs of operation and kind: {len(proved)} proved, "
        f"{len(held)} held on {examples} examples.",
    ]
    if proved:
        lines += ["", "<details><summary>What each proof covers</summary>", ""]
        formulas = {(same.kind, same.domain): same.formula for same in proved}
        for (kind, domain), operations in covered(found).items():
            words = FORMULA_WORDS[formulas[kind, domain]]
            lines.append(f"- {', '.join(operations)} of {kind}, both equal to {words}: {_cell(domain)}")
        lines += ["", "</details>"]
    return lines


def _effects(title: str, entries: tuple[Effect, ...], left: str, right: str) -> list[str]:
    lines = ["", title]
    if entries:
        lines += [
            "",
            "| model | | bytes per block | blocks per request | requests |",
            "|---|---|---|---|---|",
        ]
    return [*lines, *(_effect_row(effect, left, right) for effect in entries)]


def _effect_row(effect: Effect, left: str, right: str) -> str:
    rows = []
    for model, address, sizes in ((effect.model, left, effect.left), ("", right, effect.right)):
        rows.append(f"| {model} | {address} | {' | '.join(map(_cell, cells(sizes)))} |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
