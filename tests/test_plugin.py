"""The pytest plugin, in pytest runs of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import environment
from kvconform.conformance.selection import find_laws, find_pairs

LAWS = "padding-is-exact or page/positive"
POSITIVE, PADDED = (len(find_laws(id)[0].kinds) for id in ("page/positive", "page/padding-is-exact"))
LISTED = '[[expected]]\nlaw = "page/padding-is-exact"\nmessage = "{}"\nreason = "ours"\n'


def run(
    *arguments: str, cwd: Path, implementation: str | None = "python:faulty:Smaller", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder of someone else, with the laws asked for."""
    chosen = () if implementation is None else ("--kv-implementation", implementation)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--rootdir", str(cwd), "--kv-profile", "quick"),
            *("--pyargs", "kvconform.conformance", *chosen, *arguments),
        ],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def counts(output: str) -> dict[str, int]:
    """The numbers in pytest's last line."""
    last = output.rstrip().splitlines()[-1]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}


def test_every_law_and_kind_is_a_test(tmp_path: Path) -> None:
    listed = run("--collect-only", "-q", cwd=tmp_path).stdout.splitlines()
    wanted = [
        f"kvconform::{law.id}" if kind == "-" else f"kvconform::{law.id}[{kind}]"
        for law, kind in find_pairs()
    ]
    assert [line for line in listed if line.startswith("kvconform::")] == wanted


def test_a_violation_fails_with_the_text_of_the_terminal_report(tmp_path: Path) -> None:
    ended = run("-k", f"({LAWS}) and mamba", "--junitxml", "junit.xml", cwd=tmp_path)
    assert ended.returncode == 1, ended.stdout
    assert counts(ended.stdout)["failed"] == 1
    assert counts(ended.stdout)["passed"] == 1
    (law,) = find_laws("page/padding-is-exact")
    for part in (
        "kvconform: python:faulty:Smaller, profile quick, 8 examples, seed 0",
        "VIOLATED  page/padding-is-exact  (agreement)  mamba",
        law.sentence,
        "\nkvconform replay python:faulty:Smaller '{",
        "FAILED kvconform::page/padding-is-exact[mamba] - page bytes: got",
    ):
        assert part in ended.stdout
    assert "Traceback" not in ended.stdout
    assert "checking.py" not in ended.stdout
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    cases = {one.get("name"): one for one in root.iter("testcase")}
    assert set(cases) == {"page/padding-is-exact[mamba]", "page/positive[mamba]"}
    failure = cases["page/padding-is-exact[mamba]"].find("failure")
    assert failure is not None
    assert failure.get("message", "").startswith("page bytes: got")


def test_the_last_failed_can_be_run_alone(tmp_path: Path) -> None:
    chosen = ("-k", f"({LAWS}) and mamba")
    assert run(*chosen, cwd=tmp_path).returncode == 1
    again = run("--last-failed", cwd=tmp_path)
    assert {name: counts(again.stdout).get(name) for name in ("failed", "passed")} == {
        "failed": 1,
        "passed": None,
    }


def test_what_is_listed_is_an_expected_failure(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(LISTED.format("= padding asked for"))
    chosen = ("-k", LAWS, "-rx", "--kv-expect", "known.toml")
    ended = run(*chosen, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    found = {name: counts(ended.stdout).get(name) for name in ("passed", "failed", "xfailed")}
    assert found == {"passed": POSITIVE, "failed": None, "xfailed": PADDED}
    assert "expected: ours" in ended.stdout


def test_workers_of_xdist_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(
        LISTED.format("= padding asked for") + '[[expected]]\nlaw = "page/nosuch"\nmessage = "x"\n'
    )
    ended = run("-k", LAWS, "-n", "2", "--kv-expect", "known.toml", cwd=tmp_path)
    assert ended.returncode == 1, ended.stdout
    assert {name: counts(ended.stdout).get(name) for name in ("passed", "xfailed")} == {
        "passed": POSITIVE,
        "xfailed": PADDED,
    }
    assert "known.toml:5: unknown entry: page/nosuch: no such law" in ended.stdout


def test_a_listed_law_that_holds_fails(tmp_path: Path) -> None:
    named = '[[expected]]\nlaw = "page/positive"\nkind = "mamba"\nmessage = "x"\n'
    (tmp_path / "known.toml").write_text(named + '[[expected]]\nlaw = "page/aligned"\nmessage = "x"\n')
    chosen = ("-k", "page/positive or page/aligned", "--kv-expect", "known.toml")
    ended = run(*chosen, cwd=tmp_path, implementation="reference")
    assert ended.returncode == 1
    assert counts(ended.stdout)["failed"] == 1
    assert "known.toml:1: listed law holds: page/positive mamba: holds on 8 examples" in ended.stdout
    # No single test can tell that an entry with a glob is obsolete.
    _, _, after = ended.stdout.partition("not as known.toml expects")
    # pytest's own summary of failed tests comes next; where CI is set it quotes their messages whole.
    section, _, _ = after.partition("short test summary info")
    assert "known.toml:5: listed law holds: page/aligned: holds on 24 examples" in section
    assert "page/positive mamba: holds" not in section


def test_only_an_obsolete_glob_fails_the_session_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text('[[expected]]\nlaw = "page/aligned"\nmessage = "x"\n')
    chosen = ("-k", "page/aligned", "--kv-expect", "known.toml")
    ended = run(*chosen, cwd=tmp_path, implementation="reference")
    assert (ended.returncode, counts(ended.stdout)["passed"]) == (1, 3)


def test_a_changed_message_fails(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(LISTED.format("other words"))
    ended = run("-k", "padding-is-exact and mamba", "--kv-expect", "known.toml", cwd=tmp_path)
    assert ended.returncode == 1
    assert "known.toml:1: changed message: page/padding-is-exact mamba: wanted 'other words'" in ended.stdout


def test_what_cannot_be_asked_is_skipped_and_what_breaks_is_an_error(tmp_path: Path) -> None:
    ended = run("-rs", "-k", "page/aligned and mla", cwd=tmp_path, implementation="python:faulty:Poor")
    assert ended.returncode == 0
    assert "unsupported: field mla_attention.alignment" in ended.stdout
    chosen = ("-k", "(real-is-unpadded or page/positive) and rswa")
    ended = run(*chosen, cwd=tmp_path, implementation="python:faulty:Exiting")
    assert ended.returncode == 1
    found = counts(ended.stdout)
    assert {name: found.get(name) for name in ("passed", "errors", "error", "failed")} == {
        "passed": 1,
        "errors": None,
        "error": 1,
        "failed": None,
    }
    assert "the process ended with exit status 3" in ended.stdout
    assert "last words" in ended.stdout
    assert "checking.py" not in ended.stdout


def test_a_listed_crash_is_an_expected_failure_and_another_an_error(tmp_path: Path) -> None:
    listed = '[[expected]]\nlaw = "page/real-is-unpadded"\ncrash = true\nmessage = "{}"\n'
    chosen = ("-k", "real-is-unpadded and rswa", "-rx", "--kv-expect", "known.toml")
    (tmp_path / "known.toml").write_text(listed.format("KeyError"))
    ended = run(*chosen, cwd=tmp_path, implementation="python:faulty:Raising")
    assert ended.returncode == 0, ended.stdout
    assert counts(ended.stdout)["xfailed"] == 1
    assert "expected: crashes: KeyError: 'page'" in ended.stdout
    (tmp_path / "known.toml").write_text(listed.format("IndexError"))
    ended = run(*chosen, cwd=tmp_path, implementation="python:faulty:Raising")
    assert ended.returncode == 1
    assert counts(ended.stdout)["error"] == 1
    assert "changed message: page/real-is-unpadded rswa: wanted a crash with 'IndexError'" in ended.stdout


def test_severities_that_do_not_count_are_reported_only(tmp_path: Path) -> None:
    ended = run("-k", "padding-is-exact and mamba", "-rx", "--kv-fail-on", "safety", cwd=tmp_path)
    assert ended.returncode == 0
    assert counts(ended.stdout)["xfailed"] == 1
    assert "violated, reported only (agreement): page bytes: got" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--kv-profile", "slow"], "--kv-profile: 'slow' is none of quick, gate, deep"),
        (["--kv-fail-on", "fatal"], "unknown severity 'fatal'"),
        (["--kv-expect", "none.toml"], "none.toml: the expectations cannot be read"),
        (["--kv-implementation", "nosuch"], "unknown implementation 'nosuch'"),
        (["--kv-implementation", "python:nosuchmodule:x"], "No module named 'nosuchmodule'"),
        (["--kv-implementation", "python:faulty:fallen"], "fell over while it was opened"),
    ],
)
def test_options_that_mean_nothing_are_one_line(tmp_path: Path, arguments: list[str], why: str) -> None:
    ended = run("-k", "page/positive", *arguments, cwd=tmp_path)
    assert ended.returncode == 4
    assert why in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_nothing_happens_without_an_implementation(tmp_path: Path) -> None:
    ended = run(cwd=tmp_path, implementation=None)
    assert ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "kvconform:" not in ended.stdout


def test_who_merely_has_it_installed_pays_for_one_small_module(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\n"
        "def test_own():\n"
        "    loaded = [name for name in sys.modules if name.startswith('kvconform.conformance')]\n"
        "    assert loaded == ['kvconform.conformance', 'kvconform.conformance.plugin'], loaded\n"
        "    heavy = {'hypothesis.core', 'msgspec', 'rich', 'typer', 'z3', 'torch', 'jinja2'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "-p", "no:benchmark"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


def test_an_implementation_is_imported_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish(session):\n"
        "    print('LOADED', session.testscollected, 'faulty' in sys.modules)\n"
    )
    ended = run("-k", "page/positive and rswa", "-s", ".", cwd=tmp_path)
    assert "LOADED 1 False" in ended.stdout, ended.stdout
