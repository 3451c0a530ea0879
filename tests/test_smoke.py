"""The smoke check tells a broken adapter from a wrong implementation, and which step failed."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import TESTS, kvconform
from kvconform.conformance.process import BrokenExchange
from kvconform.conformance.report.smoke import show_findings
from kvconform.conformance.smoke import Findings
from kvconform.reference.specs import KINDS
from rich.console import Console

SCRIPT = TESTS / "misbehaving.py"


def smoke(mode: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return kvconform("smoke", f"process:{shlex.join([sys.executable, str(SCRIPT), mode])}", cwd=cwd)


def test_what_answers_everything_works(tmp_path: Path) -> None:
    ended = smoke("right", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line.split()[:2] for line in ended.stdout.splitlines()[:4]] == [
        ["ok", "start:"],
        ["ok", "ask:"],
        ["ok", "batch:"],
        ["ok", "stop"],
    ]
    assert ended.stdout.endswith("the adapter works; whether misbehaving is right, kvconform run says\n")


@pytest.mark.parametrize(
    ("mode", "answered", "said"),
    [
        ("start_version", 0, "BROKEN  start: it speaks protocol 2, and kvconform 1"),
        ("start_dies", 0, "BROKEN  start: the process ended with exit status 3"),
        ("dies", 1, "BROKEN  ask 5 (real_page_size_bytes): the process ended with exit status 3"),
        ("rubbish", 1, "BROKEN  ask 5 (real_page_size_bytes): no JSON"),
        ("out_of_order", 1, "BROKEN  ask 5 (real_page_size_bytes): an answer to ask 6"),
        ("batch_reversed", 2, "BROKEN  batch, ask 7 (page_size_bytes): an answer to ask 12"),
        ("stays", 3, "BROKEN  stop: no answer within 10 s"),
    ],
)
def test_the_exchange_that_failed_is_printed(mode: str, answered: int, said: str, tmp_path: Path) -> None:
    ended = smoke(mode, tmp_path)
    assert ended.returncode == 4
    assert ended.stdout.count("ok      ") == answered
    assert said in ended.stdout
    assert '  sent: {"command":"' in ended.stdout
    assert ended.stdout.endswith(": the adapter is broken\n")
    if mode == "dies":
        assert "  got:  nothing\n  standard error:\n    last words\n" in ended.stdout
    if mode == "rubbish":
        assert "  got:  rubbish\n" in ended.stdout


@pytest.mark.parametrize(
    ("mode", "said", "code"),
    [
        ("refuses", "real_page_size_bytes full_attention, sliding_window: refused: not today", 0),
        ("lacks", "real_page_size_bytes full_attention, sliding_window: unsupported: mode NONE", 0),
        (
            "error",
            "real_page_size_bytes full_attention, sliding_window: error: ZeroDivisionError: by zero",
            4,
        ),
        ("null", "error: real_page_size_bytes: wanted an integer, got None", 4),
    ],
)
def test_what_is_no_result_is_told(mode: str, said: str, code: int, tmp_path: Path) -> None:
    ended = smoke(mode, tmp_path)
    assert ended.returncode == code
    assert said in " ".join(ended.stdout.split())


@pytest.mark.parametrize("address", ["reference", "python:faulty:Smaller"])
def test_a_wrong_implementation_is_no_broken_adapter(address: str, tmp_path: Path) -> None:
    ended = kvconform("smoke", address, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout


def test_an_implementation_that_falls_over_is_told_from_its_adapter(tmp_path: Path) -> None:
    ended = kvconform("smoke", "python:faulty:Leaving", cwd=tmp_path)
    assert ended.returncode == 4
    assert "(real_page_size_bytes)" in ended.stdout
    ended = kvconform("smoke", "python:test_smoke:falling", cwd=tmp_path)
    assert ended.returncode == 4
    assert "error: KeyError: 'page'" in ended.stdout
    assert "falls over what is named above" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("process:no-such-program",), "process:no-such-program: no program 'no-such-program' can be run"),
        (("nothing",), "unknown implementation 'nothing'"),
        (("reference", "--python", "python3"), "--python is for vllm"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    ended = kvconform("smoke", *arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_what_an_adapter_is_asked_is_listed(tmp_path: Path) -> None:
    ended = kvconform("protocol", cwd=tmp_path)
    assert "copy_with_new_block_size(spec: Spec, block_size: int) -> Spec" in ended.stdout
    _, kinds, deployment = re.split(r"\n\n.*\n", ended.stdout)
    listed = " ".join(kinds.split())
    for kind in KINDS:
        assert f"{kind}: " in listed
    assert "sliding_window: block_size, num_kv_heads, head_size, dtype, [head_size_v]," in listed
    assert "max_model_len, max_num_batched_tokens," in " ".join(deployment.split())
    assert "in_flight_tokens" in deployment
    assert ended.returncode == 0


def test_an_answer_that_does_not_arrive_may_not_have_been_flushed() -> None:
    silent = BrokenExchange("start", "no answer within 120 s", '{"command":"start"}', "", "")
    hint = "An answer that is written but not flushed does not arrive."
    assert hint in shown(Findings(broken=silent))
    heard = BrokenExchange("start", "no answer within 120 s", '{"command":"start"}', "half a li", "")
    assert hint not in shown(Findings(broken=heard))


def shown(found: Findings) -> str:
    console = Console(file=io.StringIO(), width=100)
    show_findings(console, "process:x", found)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def falling() -> object:
    """An implementation that looks up what is not there."""
    from faulty import Raising

    class Falling(Raising):
        def page_size_bytes(self, spec: object) -> int:
            return {}["page"]  # type: ignore[no-any-return]

    return Falling()
