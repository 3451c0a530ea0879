"""docs/ci.md and action.yml: what they tell people to write exists, and works."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from commands import TESTS, environment
from kvconform.conformance import plugin
from kvconform.conformance.cli import app
from kvconform.conformance.expectations import parse_expectations
from kvconform.conformance.report.document import FAULTS

ROOT = TESTS.parent
DOCS = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
ACTION = (ROOT / "action.yml").read_text(encoding="utf-8")


def commands() -> dict[str, set[str]]:
    """Every command with its options."""
    group = typer.main.get_command(app)
    found = group.commands  # type: ignore[attr-defined]
    return {
        name: {option for one in command.params for option in one.opts} for name, command in found.items()
    }


def blocks(language: str) -> list[str]:
    """The code blocks of docs/ci.md in a language."""
    return re.findall(rf"```{language}\n(.*?)```", DOCS, re.S)


def lines(text: str) -> Iterator[list[str]]:
    """The command lines of kvconform in a text, each in words."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for found in re.findall(r"^\s*(?:- run: )?(kvconform .*)", joined, re.M):
        yield shlex.split(re.sub(r"\$\{\w+:\+([^}]*)\}|\|\| .*", r"\1", found))


@pytest.mark.parametrize("text", ["\n".join(blocks("sh") + blocks("yaml")), ACTION], ids=["docs", "action"])
def test_every_command_and_option_exists(text: str) -> None:
    known = commands()
    written = list(lines(text))
    assert len(written) >= (4 if text != ACTION else 1)
    for _, command, *words in written:
        for word in words:
            if word.startswith("-"):
                assert word in known[command], f"kvconform {command} has no {word}"


def test_options_named_in_the_text_exist() -> None:
    known = set().union(*commands().values())
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    known |= {name for group in parser._groups for option in group.options for name in option.names()}
    prose = re.sub(r"```.*?```", "", DOCS, flags=re.S)
    pytests_own = {"--last-failed"}
    named = set(re.findall(r"`(?:arguments: )?(--[a-z-]+)", prose)) - pytests_own
    assert len(named) > 8
    assert named <= known


def test_pytest_is_called_with_options_that_exist(tmp_path: Path) -> None:
    (line,) = (line for block in blocks("sh") for line in block.splitlines() if line.startswith("pytest "))
    (tmp_path / "kvconform.toml").touch()
    called = line.replace("--kv-implementation vllm", "--kv-implementation reference")
    ended = subprocess.run(
        f"{called} -k page/aligned --kv-profile quick",
        shell=True,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "junit.xml").exists()


def test_the_list_in_the_docs_is_one() -> None:
    (block,) = blocks("toml")
    (entry,) = parse_expectations(block, "kvconform.toml").entries
    assert entry.law == "page/aligned"
    assert all(getattr(entry, name) for name in entry.__struct_fields__)


def test_every_difference_is_explained() -> None:
    for words in FAULTS.values():
        assert f"\n| {words} |" in DOCS


def test_the_workflows_use_inputs_that_the_action_has() -> None:
    inputs = set(re.findall(r"^  ([a-z-]+):\n    description", ACTION.partition("outputs:")[0], re.M))
    assert "implementation" in inputs
    used = [
        name
        for block in blocks("yaml")
        for step in re.findall(r"uses: OWNER/kvconform@main\n\s+with:\n((?: {10}.*\n)+)", block)
        for name in re.findall(r"^ {10}([a-z-]+):", step, re.M)
    ]
    assert {"implementation", "expect", "install", "shard", "report"} <= set(used) <= inputs


def run_step() -> str:
    """The script of the action's step that runs kvconform."""
    _, _, after = ACTION.partition("id: run\n")
    _, _, script = after.partition("run: |\n")
    return "\n".join(line[8:] for line in re.match(r"(?: {8}.*\n| *\n)+", script)[0].splitlines())  # type: ignore[index]


@pytest.mark.parametrize(
    ("implementation", "code"), [("reference", 0), ("python:faulty:Smaller", 1), ("nosuch", 2)]
)
def test_the_actions_script_reports_and_ends_as_the_run_does(
    tmp_path: Path, implementation: str, code: int
) -> None:
    (tmp_path / "known file.toml").touch()
    ended = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", run_step()],
        cwd=tmp_path,
        env=environment(
            IMPLEMENTATION=implementation,
            EXPECT="known file.toml",
            PROFILE="quick",
            SHARD="1/2",
            ARGUMENTS="--laws page/padding-is-exact --kinds mamba,mla_attention",
            GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
            GITHUB_OUTPUT=str(tmp_path / "output"),
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert (tmp_path / "output").read_text() == f"exit={code}\n"
    written = sorted(path.name for path in (tmp_path / "kvconform-report").iterdir())
    if code == 2:
        assert written == []
        return
    assert written == ["junit.xml", "report.html", "report.json", "summary.md"]
    assert (tmp_path / "summary").read_text().startswith(f"# {implementation}".split(" (")[0])
    report = json.loads((tmp_path / "kvconform-report" / "report.json").read_text())
    assert report["shard"] == {"number": 1, "of": 2}
    assert report["expectations"] == "known file.toml"
