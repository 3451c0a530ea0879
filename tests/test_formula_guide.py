"""The guide to changing a formula shows what the program prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from commands import kvconform
from releases import root_of

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "changing-a-formula.md").read_text(encoding="utf-8")
FORMULAS = ROOT / "examples" / "formulas"

SHOWN = [
    (part.partition("\n")[0], part.partition("\n")[2].rstrip("\n").split("\n"))
    for block in re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
]


@pytest.mark.release
@pytest.mark.parametrize(("command", "lines"), SHOWN, ids=[command[:40] for command, _ in SHOWN])
def test_the_guide_shows_what_is_printed(command: str, lines: list[str]) -> None:
    for version in re.findall(r"vllm==([\d.]+)", command):
        root_of(version)
    program, *arguments = shlex.split(command)
    assert program == "kvconform"
    printed = kvconform(*arguments, cwd=FORMULAS).stdout.splitlines()
    rest = iter(printed)
    for line in lines:
        assert any(line.strip() == there.strip() for there in rest), f"{line!r} is not in\n" + "\n".join(
            printed
        )


def test_the_guide_shows_commands() -> None:
    assert len(SHOWN) >= 6


def test_the_formula_of_the_guide_is_the_one_that_runs() -> None:
    code = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert code is not None
    source = " ".join((FORMULAS / "tighter.py").read_text(encoding="utf-8").split())
    for line in code[1].splitlines()[2:]:
        assert " ".join(line.split()) in source, line
