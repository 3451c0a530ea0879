"""Proving from the command line: theorems, and laws over the code under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import kvconform


def results(*words: str, cwd: Path) -> list[dict[str, Any]]:
    done = kvconform("run", *words, "--examples", "40", "--json", "-", cwd=cwd)
    found: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return found


def test_a_theorem_is_shown_in_full(tmp_path: Path) -> None:
    done = kvconform("prove", "T7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "proved over" in done.stdout
    assert "domain:" in done.stdout
    assert done.stdout.count("without it:") == 2


def test_a_proof_says_its_domain(tmp_path: Path) -> None:
    (found,) = results(
        *("reference", "--laws", "page/aligned", "--kinds", "mla_attention", "--engine", "prove"),
        cwd=tmp_path,
    )
    assert found["verdict"] == "proved"
    assert found["engines"] == ["sample", "prove"]
    assert "alignment" in found["domain"]


def test_a_law_that_is_only_sampled_is_not_called_proved(tmp_path: Path) -> None:
    (found,) = results("reference", "--laws", "quant/modes-distinct", "--engine", "prove", cwd=tmp_path)
    assert found["verdict"] == "held"
    assert found["engines"] == ["sample"]


def test_a_fault_is_refuted_and_replayed(tmp_path: Path) -> None:
    (found,) = results(
        *(
            "miniature:window-without-plus-one",
            "--laws",
            "bound/window-suffices",
            "--kinds",
            "sliding_window",
        ),
        *("--engine", "prove"),
        cwd=tmp_path,
    )
    assert found["verdict"] == "violated"
    assert found["engines"] == ["sample", "prove"]
    replayed = kvconform(
        "replay",
        "miniature:window-without-plus-one",
        json.dumps({"law": found["law"], "kind": found["kind"], "given": found["case"]}),
        cwd=tmp_path,
    )
    assert replayed.returncode == 1


RARE = """
from kvconform.reference.plain import Plain

class Rare(Plain):
    '''One byte short for one block size that no draw is likely to meet.'''
    def page_size_bytes(self, spec):
        return super().page_size_bytes(spec) - (spec.block_size == 987_654)

class Concrete(Plain):
    '''Needs the very number, which an unknown does not have.'''
    def page_size_bytes(self, spec):
        return super().page_size_bytes(spec) if int(spec.block_size) else 0
"""


@pytest.mark.parametrize(("name", "verdict"), [("Rare", "violated"), ("Concrete", "held")])
def test_what_sampling_cannot_tell(name: str, verdict: str, tmp_path: Path) -> None:
    (tmp_path / "rare.py").write_text(RARE)
    words = ("--laws", "page/unpadded-formula,page/padding-is-exact", "--kinds", "full_attention")
    found = results(f"python:rare:{name}", *words, "--engine", "prove", cwd=tmp_path)
    padded = next(result for result in found if result["law"] == "page/padding-is-exact")
    assert padded["verdict"] == verdict
    if verdict == "held":
        assert padded["message"].startswith("not proved: ")
    else:
        assert padded["case"]["spec.block_size"] == 987_654
