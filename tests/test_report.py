"""Reports: whole files or none, a document for programs and a text for people."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path

import msgspec
import pytest
from kvconform.conformance.report.document import (
    Asked,
    Destination,
    Known,
    Report,
    Result,
    Subject,
    encode,
    exit_code,
)
from kvconform.conformance.report.terminal import show_report, show_result
from kvconform.conformance.selection import find_laws
from rich.console import Console

GATING = ("safety", "agreement", "formula")


def result(verdict: str, *, severity: str = "safety", law: str = "page/aligned", **more: object) -> Result:
    kind = str(more.pop("kind", "mla_attention"))
    return Result(law=law, kind=kind, severity=severity, verdict=verdict, **more)  # type: ignore[arg-type]


def report(*results: Result, complete: bool = True, fail_on: tuple[str, ...] = GATING) -> Report:
    return Report(
        kvconform="1",
        implementation=Subject("vllm==0.28.0", "vllm==0.28.0", "0.28.0"),
        seed=7,
        profile="quick",
        examples=12,
        fail_on=fail_on,
        selected=len(results) + (not complete),
        results=results,
        complete=complete,
        exit=exit_code(results, fail_on=fail_on, complete=complete),
    )


@pytest.mark.parametrize(
    ("verdicts", "complete", "code"),
    [
        ([], True, 0),
        (["held:safety", "proved:safety", "unsupported:safety"], True, 0),
        (["violated:economy", "violated:hygiene", "inconclusive:economy"], True, 0),
        (["held:safety"], False, 3),
        (["inconclusive:formula", "violated:economy"], True, 3),
        (["violated:agreement", "inconclusive:safety"], False, 1),
        (["violated:safety", "broken:economy"], True, 4),
    ],
)
def test_exit_codes(verdicts: list[str], complete: bool, code: int) -> None:
    results = tuple(
        result(verdict, severity=severity)
        for verdict, _, severity in (text.partition(":") for text in verdicts)
    )
    assert exit_code(results, fail_on=GATING, complete=complete) == code


def test_what_fails_a_run_can_be_chosen() -> None:
    results = (result("violated", severity="economy"),)
    assert exit_code(results, fail_on=("economy",), complete=True) == 1


def test_the_document_has_the_fields_of_its_format() -> None:
    written = json.loads(encode(report(result("violated", case={"spec.block_size": 1 << 70, "x": None}))))
    assert written["format"] == 1
    assert written["implementation"] == {
        "address": "vllm==0.28.0",
        "name": "vllm==0.28.0",
        "version": "0.28.0",
        "options": [],
        "revisions": [],
    }
    assert (written["complete"], written["exit"], written["seed"]) == (True, 1, 7)
    (only,) = written["results"]
    assert list(only) == [
        *("law", "kind", "severity", "verdict", "engines", "examples"),
        *("domain", "message", "case", "reproduce", "asked", "script", "known", "crashed"),
    ]
    assert only["case"] == {"spec.block_size": 1 << 70, "x": None}


def test_a_file_is_written_whole_with_the_rights_of_any_new_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    destination = Destination(path)
    assert not path.exists()
    destination.write(b"new")
    mask = os.umask(0)
    os.umask(mask)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    assert os.listdir(tmp_path) == ["report.json"]


def test_an_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    Destination(path).release()
    assert path.read_bytes() == b"old"
    destination = Destination(path)
    assert path.read_bytes() == b"old"
    destination.write(b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_bytes(b"old")
    link = tmp_path / "link.json"
    link.symlink_to(target)
    Destination(link).write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    Destination(pipe).write(b"new")
    assert os.read(reader, 100) == b"new"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("path", ["no/such/report.json", ".", "file/report.json"])
def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"No such|Is a|Not a"):
        Destination(tmp_path / path)
    assert os.listdir(tmp_path) == ["file"]


CASE = {
    "spec.block_size": 64,
    "spec.num_kv_heads": 1,
    "spec.head_size": 576,
    "spec.head_size_v": None,
    "spec.non_causal": False,
    "spec.records": "nothing",
    "spec.padding": "none",
    "spec.alignment": 512,
    "spec.model": None,
    "spec.flag": False,
    "deployment.max_model_len": 4096,
    "by": 3,
}

VIOLATED = result(
    "violated",
    message="page: got 1, wanted a multiple: least multiple of 512 that covers 576 " + "and so on " * 9,
    case=CASE,
    asked=(Asked("page_size_bytes", "vllm/v1/kv_cache_interface.py:123", "1"),),
    reproduce="kvconform replay vllm==0.28.0 '" + "x" * 150 + "'",
    script="import vllm\n\nprint(" + "x" * 150 + ")\n",
)


def shown(report: Report, width: int = 80, *, terminal: bool = False, seconds: float = 0.0) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, force_terminal=terminal)
    show_report(console, report, seconds)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_violation_is_shown_whole() -> None:
    (law,) = find_laws("page/aligned")
    text = shown(report(VIOLATED))
    for part in (
        "VIOLATED  page/aligned  (safety)  mla_attention",
        law.sentence,
        "page: got 1, wanted a multiple",
        "spec: block_size=64 num_kv_heads=1 head_size=576 alignment=512",
        "deployment: max_model_len=4096",
        "by=3",
        "page_size_bytes  vllm/v1/kv_cache_interface.py:123  -> 1",
        f"\n{VIOLATED.reproduce}\n",
        f"\n{VIOLATED.script}",
        "vllm==0.28.0: does not conform\n1 of 1 pairs",
    ):
        assert part in text


@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit_unless_they_are_to_be_pasted(width: int) -> None:
    text = shown(
        report(VIOLATED, result("held", examples=3), result("unsupported", message="field a.b")), width
    )
    too_long = [line for line in text.splitlines() if len(line.rstrip()) > width]
    assert too_long == [VIOLATED.reproduce, VIOLATED.script.splitlines()[2]]


def test_a_short_case_is_shown_with_all_it_has() -> None:
    console = Console(file=io.StringIO(), width=80)
    show_result(console, result("violated", case={"spec.block_size": 1, "spec.head_size_v": None}))
    assert isinstance(console.file, io.StringIO)
    assert "spec: block_size=1 head_size_v=None" in console.file.getvalue()


def test_one_law_on_several_kinds_is_told_once() -> None:
    other = result("violated", kind="sliding_window_mla", message="another page")
    text = shown(report(VIOLATED, other))
    assert text.count("VIOLATED") == 1
    assert "violated on 1 more" in text
    assert "sliding_window_mla  another page" in text
    selected = "--laws page/aligned --kinds sliding_window_mla"
    amount = "--seed 7 --profile quick --examples 12"
    assert f"\nkvconform run vllm==0.28.0 {selected} {amount}\n" in text


def test_what_held_is_listed_with_its_examples_and_what_lacks_by_what_it_lacks() -> None:
    (law,) = find_laws("page/aligned")
    held = [result("held", kind=kind, examples=25) for kind in law.kinds]
    lacking = [
        result("unsupported", kind=kind, law="merge/idempotent", message="operation merge") for kind in "ab"
    ]
    lines = [line.split() for line in shown(report(*held, *lacking)).splitlines()]
    assert ["page/aligned", "all", "3", "75"] in lines
    assert ["operation", "merge", "2", "merge/idempotent"] in lines
    assert ["held", "3", "3"] in lines
    assert ["unsupported", "2", "2"] in lines


def test_severities_that_do_not_fail_the_run_are_marked() -> None:
    text = shown(report(result("violated", severity="economy")))
    assert "economy*" in text
    assert "* reported only" in text
    assert "conforms" in text
    assert "*" not in shown(report(result("violated", severity="economy"), fail_on=("economy",)))


def test_of_many_questions_the_last_are_shown() -> None:
    asked = tuple(Asked("merge", "file.py:1", str(number), f"number={number}") for number in range(10))
    text = shown(report(result("violated", asked=asked)))
    assert "... 4 before" in text
    assert "merge(number=3)" not in text
    assert "merge(number=4)  file.py:1  -> 4" in text
    assert "merge(number=9)  file.py:1  -> 9" in text


def test_an_empty_string_can_be_seen() -> None:
    assert "misspelt=''" in shown(report(result("violated", case={"misspelt": ""})))


def test_the_worst_comes_first() -> None:
    minor = result("violated", law="merge/idempotent", severity="economy")
    text = shown(report(minor, VIOLATED, result("broken", law="page/positive", kind="mamba")))
    assert text.index("BROKEN") < text.index("VIOLATED  page/aligned") < text.index("VIOLATED  merge")


def test_what_was_printed_is_shown_with_what_broke() -> None:
    broken = result("broken", law="page/positive", kind="mamba")
    whole = report(broken)
    text = shown(msgspec.structs.replace(whole, stderr={"page/positive mamba": "Fatal: [bold]no[/bold]\n"}))
    assert "standard error:\n    Fatal: [bold]no[/bold]" in "\n".join(
        line.rstrip() for line in text.splitlines()
    )


def test_questions_are_counted_and_their_pace_is_for_terminals_only() -> None:
    asked = msgspec.structs.replace(report(result("held")), questions=12_345)
    pace = "12,345 questions in 2.0 s: 6,172 a second"
    assert "; 12,345 questions asked; exit 0" in " ".join(shown(asked, seconds=2.0).split())
    assert "a second" not in shown(asked, seconds=2.0)
    assert pace in shown(asked, seconds=2.0, terminal=True)
    # One that was read from a file took no time, and where the code runs here nobody is asked.
    assert "a second" not in shown(asked, terminal=True)
    assert "question" not in shown(report(result("held")), seconds=2.0, terminal=True)


def test_a_known_crash_is_told_as_one() -> None:
    known = Known(issue="#7")
    crash = result("expected", message="KeyError: 'page'", crashed=True, known=known)
    text = shown(report(crash))
    assert "expected: violated or crashing, and known to be" in text
    assert "crashes: KeyError: 'page'; #7" in " ".join(text.split())
    assert "crash" not in shown(report(result("expected", known=known)))


def test_an_incomplete_run_says_so() -> None:
    assert "vllm==0.28.0: incomplete\n1 of 2 pairs" in shown(report(result("held"), complete=False))
