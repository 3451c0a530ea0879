"""docs/protocol.md is run: its files are written, its commands typed, what they print compared."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import environment
from kvconform.conformance.adapters import serve
from kvconform.conformance.values import read_result
from kvconform.reference.plain import Plain

PAGE = Path(__file__).parent.parent / "docs" / "protocol.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """What follows the language, and the text, of each fenced block."""
    for rest, body in re.findall(rf"^```{language}( [^\n]*)?\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        yield rest.strip(), body


def console() -> list[tuple[list[str], str]]:
    """The commands of each block, with what the last of them prints; a line of dots is anything."""
    found = []
    for _, body in blocks("console"):
        commands: list[str] = []
        printed = ""
        for line in body.splitlines(keepends=True):
            if line.startswith("$ "):
                if printed:
                    found.append((commands, printed))
                    commands, printed = [], ""
                commands.append(line[2:].rstrip("\n"))
            else:
                printed += line
        found.append((commands, printed))
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the files that the page has the reader write."""
    for name, body in blocks("python"):
        (tmp_path / name).write_text(body, encoding="utf-8")
    return tmp_path


def test_the_first_adapter_is_as_short_as_it_says(directory: Path) -> None:
    lines = [line for line in (directory / "adapter.py").read_text().splitlines() if line]
    assert len(lines) <= 30


@pytest.mark.parametrize(("commands", "printed"), console(), ids=lambda value: str(value)[:40])
def test_what_the_page_shows_is_what_is_printed(commands: list[str], printed: str, directory: Path) -> None:
    made = [command for others, _ in console() for command in others if command.startswith("sed")]
    for command in [*made, *commands[:-1]]:
        subprocess.run(command, shell=True, cwd=directory, check=True)
    ended = subprocess.run(
        commands[-1],
        shell=True,
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    pattern = "".join(
        r"(?:.*\n)*" if line == "...\n" else re.escape(line) for line in printed.splitlines(keepends=True)
    )
    assert re.fullmatch(pattern, ended.stdout), ended.stdout


def test_the_trace_shown_is_that_of_the_schedule_shown() -> None:
    shown = dict(blocks("json"))
    question = json.dumps(json.loads(shown["asked"])).encode()
    answers = io.BytesIO()
    serve.serve(Plain(), io.BytesIO(question), answers)
    got, wanted = json.loads(answers.getvalue()), json.loads(shown["answered"])
    assert got["id"] == wanted["id"]
    # What is at its default is not shown.
    assert read_result("follow_schedule", got["result"]) == read_result("follow_schedule", wanted["result"])
