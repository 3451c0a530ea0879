"""Several implementations side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import kvconform
from kvconform.conformance.matrix import exit_code_of, name_columns, tabulate
from kvconform.conformance.report.document import encode
from msgspec import structs
from reports import make_full_report, make_report, make_result

FEW = (
    "--laws",
    "page/padding-is-exact,page/positive",
    "--kinds",
    "mla_attention,mamba",
    "--profile",
    "quick",
)


def test_a_cell_is_the_worst_verdict_and_on_how_many_kinds() -> None:
    other = make_report(make_result("page/positive", "mamba", "held"), address="other")
    rows = {row.law: row for row in tabulate([make_full_report(), other])}
    assert [cell.describe() for cell in rows["page/aligned"].cells] == ["broken 1 of 3", "not run"]
    assert [cell.describe() for cell in rows["page/positive"].cells] == ["held 1 of 2", "held"]
    assert rows["page/positive"].differs
    assert rows["page/positive"].holds
    assert not rows["page/aligned"].differs
    assert not rows["page/aligned"].holds
    assert rows["merge/idempotent"].holds


def test_columns_of_one_name_are_numbered() -> None:
    reports = [make_report(address=address) for address in ("a", "a", "b", "a")]
    assert name_columns(reports) == ["a", "a #2", "b", "a #3"]
    subject = structs.replace(reports[0].implementation, options=("--import", "x"))
    patched = structs.replace(reports[0], implementation=subject)
    assert name_columns([*reports, patched])[-1] == "a --import x"


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["held", "held"], 0),
        (["held", "inconclusive"], 3),
        (["inconclusive", "violated"], 1),
        (["broken", "violated"], 4),
    ],
)
def test_the_exit_code_is_the_worst(verdicts: list[str], code: int) -> None:
    reports = [make_report(make_result("page/positive", "mamba", verdict)) for verdict in verdicts]
    assert exit_code_of(reports) == code


def test_implementations_and_reports_side_by_side(tmp_path: Path) -> None:
    run = ("run", "python:faulty:Smaller", *FEW, "--json", "old.json")
    assert kvconform(*run, cwd=tmp_path).returncode == 1
    ended = kvconform("matrix", "reference", "old.json", *FEW, "--html", "m.html", cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert lines[:2] == ["law reference python:faulty:Smaller", "page/padding-is-exact held violated"]
    assert "1 of 2 laws hold wherever they could be asked" in lines
    assert any(line.startswith("reference: conforms; 4 of 4 pairs") for line in lines)
    assert (tmp_path / "m.html").read_text().count('href="#2.page/padding-is-exact.violated"') == 1


def test_what_falls_over_when_it_is_opened_does_not_cost_the_others(tmp_path: Path) -> None:
    ended = kvconform("matrix", "python:faulty:fallen", "reference", *FEW, cwd=tmp_path)
    assert ended.returncode == 4
    assert "python:faulty:fallen: fell over while it was opened" in ended.stderr
    assert "reference: conforms" in ended.stdout


def test_a_plugin_is_imported_before_each_that_is_run(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(
        "from kvconform.reference.plain import Plain\nPlain.page_size_bytes = lambda self, spec: 0\n"
    )
    (tmp_path / "r.json").write_bytes(encode(make_report()))
    ended = kvconform("matrix", "reference", "r.json", *FEW, "--import", "plugin", cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert "reference --import plugin: does not conform" in ended.stdout
    assert "\nvllm==1.2: conforms" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["reference", "--python", "python3"], "reference: --python is for vllm, vllm==VERSION and vllm@DIR"),
        (["reference", "--import", "a-b"], "--import a-b: not the name of a module"),
        (["r.json", "--import", "plugin"], "--import and --python go with implementations that are run"),
        (["nosuch"], "unknown implementation 'nosuch'"),
        (["reference", "none.json"], "none.json: cannot be read"),
        (["reference", "--laws", "x"], "no law matches 'x'"),
        (["reference", "--profile", "x"], "unknown profile 'x'"),
        (["r.json", "--html", "no/m.html"], "no/m.html: the report cannot be written there"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_2(tmp_path: Path, arguments: list[str], why: str) -> None:
    (tmp_path / "r.json").write_bytes(encode(make_report()))
    ended = kvconform("matrix", *arguments, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert why in line
