"""Comparing implementations: what is found, with a witness that both reproduce, and what it costs."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import environment, kvconform
from kvconform.conformance.compare import Both, Comparison, compare, questions
from kvconform.conformance.effects import effects
from kvconform.conformance.miniatures import miniature
from kvconform.conformance.report.comparison import as_markdown, question_line
from kvconform.reference.interface import Implementation
from kvconform.reference.plain import Plain
from releases import root_of


def compared(left: Implementation, right: Implementation, examples: int = 60) -> Comparison:
    *_, last = compare(left, right, examples=examples)
    return last


def test_an_implementation_is_like_itself() -> None:
    found = compared(Plain(), Plain(), examples=10)
    assert found.complete
    assert not found.different
    assert not found.only_left
    assert not found.only_right
    assert {(operation, kind) for operation, kind, _ in found.same} >= set(questions(Both(Plain(), Plain())))
    assert all(examples > 0 for _, _, examples in found.same)


@pytest.mark.parametrize(
    ("name", "operation", "direction"),
    [
        ("window-without-plus-one", "max_blocks_per_request", "less"),
        ("window-with-plus-two", "max_blocks_per_request", "more"),
        ("memory-without-padding", "max_memory_usage_bytes", "less"),
    ],
)
def test_a_fault_is_found_with_its_direction(name: str, operation: str, direction: str) -> None:
    faulty = miniature(name)
    found = compared(Plain(), faulty, examples=120)
    differing = [difference for difference in found.different if difference.operation == operation]
    assert differing
    for difference in differing:
        assert difference.direction == direction
        answers = [str(getattr(side, operation)(**difference.arguments)) for side in (Plain(), faulty)]
        assert answers == [difference.left, difference.right]


def test_a_difference_says_which_side_keeps_the_safety_laws() -> None:
    found = compared(Plain(), miniature("window-without-plus-one"), examples=120)
    difference = next(each for each in found.different if each.operation == "max_blocks_per_request")
    assert ("bound/window-suffices", "held", "violated") in difference.safety


class Fewer(Plain):
    """Lacks a kind, a field and an operation."""

    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in super().kinds() if kind != "rswa")

    def fields(self, kind: str) -> frozenset[str]:
        return super().fields(kind) - {"num_head_slots"}

    def operations(self) -> frozenset[str]:
        return super().operations() - {"real_page_size_bytes"}


def test_what_one_side_lacks_is_listed() -> None:
    found = compared(Plain(), Fewer(), examples=5)
    assert "kind rswa" in found.only_left
    assert "operation real_page_size_bytes" in found.only_left
    assert "field full_attention.num_head_slots" in found.only_left
    assert not found.only_right
    assert not found.different


def test_the_effect_on_models() -> None:
    same = effects(Plain(), Plain(), length=4096, budget_bytes=1 << 34)
    assert not same.changed
    assert len(same.unchanged) >= 25
    worse = effects(Plain(), miniature("window-with-plus-two"), length=1 << 20, budget_bytes=1 << 34)
    changed = {effect.model: effect for effect in worse.changed}
    assert "mistral-7b-v0.1" in changed
    assert "llama-2-7b" not in changed, "it has no window"
    for effect in worse.changed:
        assert effect.right.request_blocks > effect.left.request_blocks
        assert effect.right.requests <= effect.left.requests


def test_markdown_and_lines_to_paste(tmp_path: Path) -> None:
    faulty = miniature("window-without-plus-one")
    found = compared(Plain(), faulty, examples=120)
    text = as_markdown("reference", "miniature:window-without-plus-one", found, None)
    assert "| max_blocks_per_request | sliding_window |" in text
    assert "Incomplete" in text, "there are no effects in it"
    difference = found.different[0]
    for address, answer in (("reference", difference.left), (faulty.name, difference.right)):
        line = question_line(address, difference)
        asked = subprocess.run(
            shlex.split(line), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        assert asked.stdout.strip() == answer, line


BAD: dict[str, list[str]] = {
    "unknown operation": ["ask", "reference", "page_bytes", "{}"],
    "the arguments of": ["ask", "reference", "page_size_bytes", '{"spec": 3}'],
    "no field": ["ask", "reference", "page_size_bytes", '{"spec": {"kind": "mamba", "heads": 3}}'],
    "unknown implementation": ["diff", "reference", "nonsense"],
    "choose one": ["diff", "reference", "reference", "--json", "--markdown"],
    "unknown theorem": ["prove", "T13"],
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words: str, tmp_path: Path) -> None:
    done = kvconform(*BAD[words], cwd=tmp_path)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    if words != "no field":
        assert words in done.stderr


@pytest.mark.release
def test_two_releases(tmp_path: Path) -> None:
    for version in ("0.25.1", "0.26.0"):
        root_of(version)
    done = kvconform("diff", "vllm==0.25.1", "vllm==0.26.0", "--json", "--examples", "60", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["complete"]
    window = next(
        each
        for each in found["different"]
        if each["operation"] == "max_blocks_per_request" and each["kind"] == "sliding_window"
    )
    assert window["direction"] == "more"
    assert {"law": "bound/in-flight-counts", "left": "violated", "right": "held"} in window["safety"]
    for version, answer in (("0.25.1", window["left"]), ("0.26.0", window["right"])):
        arguments = json.dumps(window["arguments"])
        asked = kvconform("ask", f"vllm=={version}", "max_blocks_per_request", arguments, cwd=tmp_path)
        assert asked.stdout.strip() == answer
    assert "mistral-7b-v0.1" in {effect["model"] for effect in found["effects"]["changed"]}
