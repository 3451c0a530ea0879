"""docs/ci.md and action.yml: what they tell people to write exists, and works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
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
    assert set(tomllib.loads(block)["expected"][0]) == set(entry.__struct_fields__)


def test_every_difference_is_explained() -> None:
    for words in FAULTS.values():
        assert f"\n| {words} |" in DOCS


def workflows() -> list[dict[str, Any]]:
    """The whole workflows of docs/ci.md: in one job, and in several."""
    found = [yaml.safe_load(block) for block in blocks("yaml")]
    return [one for one in found if isinstance(one, dict)]


def test_the_workflow_needs_one_address_only_and_says_what_stands_for_it() -> None:
    prose = re.sub(r"```.*?```", "", DOCS, flags=re.S)
    assert [set(one["env"]) for one in workflows()] == [{"KVCONFORM", "PIP_EXTRA_INDEX_URL"}] * 2
    assert "`KVCONFORM` is anything that `pip install` takes" in prose
    # The placeholder of the action stands in no workflow, and the text says that it is one.
    assert "OWNER" not in str(workflows())
    assert "`OWNER` and `COMMIT`\nstand for" in prose


def test_the_action_has_the_inputs_that_the_docs_use() -> None:
    action = yaml.safe_load(ACTION)
    (step,) = (one for block in blocks("yaml") if isinstance(one := yaml.safe_load(block), list))
    assert step[0]["uses"] == "OWNER/kvconform@COMMIT"
    assert {"implementation", "expect", "install"} <= set(step[0]["with"]) <= set(action["inputs"])
    required = {name for name, one in action["inputs"].items() if one.get("required")}
    assert required <= set(step[0]["with"])
    used = set(re.findall(r"inputs\.([a-z-]+)", ACTION))
    assert used == set(action["inputs"])


PLUGIN = """
from kvconform.reference.plain import Plain


class Specs(Plain):
    def page_size_bytes(self, spec):
        return super().page_size_bytes(spec) - (spec.page_size_padded is not None)
"""
KNOWN = '[[expected]]\nlaw = "page/padding-is-exact"\nmessage = "= padding asked for"\n'
FEW = "--laws page/padding-is-exact,page/positive --kinds mamba,mla_attention --profile quick"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The repository of a plugin, with stubs on the path: pip writes down what it is told, laws are few."""
    (tmp_path / "my_plugin").mkdir()
    (tmp_path / "my_plugin" / "kv_cache.py").write_text(PLUGIN)
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    real = shutil.which("kvconform", path=environment()["PATH"])
    scripts = {
        "pip": f'printf "%s\\n" "$@" >> {shlex.quote(str(tmp_path / "installed"))}',
        "python": f'[ "$1 $2" = "-m pip" ] && shift 2 && exec {stubs}/pip "$@"',
        "kvconform": f'[ "$1" = run ] && set -- "$@" {FEW}\nexec {real} "$@"',
    }
    for name, script in scripts.items():
        (stubs / name).write_text(f"#!/bin/sh\n{script}\n")
        (stubs / name).chmod(0o755)
    return tmp_path


def run_scripts(steps: list[dict[str, Any]], directory: Path, **more: str) -> int:
    """Run the scripts of a job's steps as GitHub does; the exit code of the first that fails."""
    more = {"GITHUB_STEP_SUMMARY": str(directory / "step_summary"), **more}
    stubs = next(parent for parent in (directory, directory.parent) if (parent / "stubs").is_dir()) / "stubs"
    ambient = environment(**more)
    ambient["PATH"] = f"{stubs}:{ambient['PATH']}"
    for step in steps:
        if "run" in step:
            script = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: more[found[1]], step["run"])
            ended = subprocess.run(
                ["bash", "-e", "-c", script], cwd=directory, env=ambient, capture_output=True, check=False
            )
            if ended.returncode:
                return ended.returncode
    return 0


@pytest.mark.parametrize(("known", "code"), [(KNOWN, 0), ("", 1), ("[[expected]]", 2)])
def test_the_workflow_in_one_job_does_what_it_says(checkout: Path, known: str, code: int) -> None:
    (checkout / "kvconform.toml").write_text(known)
    workflow, _ = workflows()
    (job,) = workflow["jobs"].values()
    assert run_scripts(job["steps"], checkout, **workflow["env"]) == code
    assert (checkout / "installed").read_text() == "install\nkvconform[vllm]\n.\n"
    written = {path.name for path in checkout.glob("*.*") if path.name != "kvconform.toml"}
    assert written == (set() if code == 2 else {"report.json", "report.html", "junit.xml", "summary.md"})
    if code != 2:
        assert (checkout / "step_summary").read_text() == (checkout / "summary.md").read_text()


@pytest.mark.parametrize(("known", "code"), [(KNOWN, 0), ("", 1)])
def test_the_workflow_in_several_jobs_puts_the_shards_together(checkout: Path, known: str, code: int) -> None:
    _, workflow = workflows()
    shard, laws = workflow["jobs"]["shard"], workflow["jobs"]["laws"]
    numbers = shard["strategy"]["matrix"]["shard"]
    upload = shard["steps"][-1]["with"]
    download = next(step["with"] for step in laws["steps"] if "download-artifact" in step.get("uses", ""))
    assert download["merge-multiple"]
    (checkout / "kvconform.toml").write_text(known)
    (checkout / download["path"]).mkdir()
    for number in numbers:
        directory = checkout / f"job-{number}"
        directory.mkdir()
        shutil.copytree(checkout / "my_plugin", directory / "my_plugin")
        shutil.copy(checkout / "kvconform.toml", directory)
        run_scripts(shard["steps"], directory, shard=str(number), **workflow["env"])
        for path in directory.glob(upload["path"]):
            shutil.copy(path, checkout / download["path"])
    assert run_scripts(laws["steps"], checkout, **workflow["env"]) == code
    report = json.loads((checkout / "report.json").read_text())
    assert (report["complete"], report["shard"], len(report["results"])) == (True, None, 4)


def run_step() -> str:
    """The script of the action's step that runs kvconform."""
    steps = yaml.safe_load(ACTION)["runs"]["steps"]
    (script,) = (step["run"] for step in steps if step.get("id") == "run")
    return str(script)


@pytest.mark.parametrize(("given", "installed"), [("", "/the action[vllm]"), ("kvconform", "kvconform")])
def test_the_action_installs_itself_unless_told_otherwise(checkout: Path, given: str, installed: str) -> None:
    steps = yaml.safe_load(ACTION)["runs"]["steps"]
    (step,) = (one for one in steps if one.get("name") == "Install")
    assert run_scripts([step], checkout, KVCONFORM=given, ACTION="/the action", INSTALL="one two") == 0
    assert (checkout / "installed").read_text().splitlines() == [
        "install",
        "--quiet",
        installed,
        "one",
        "two",
    ]


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
