"""Parts of a run, and their reports put together."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from commands import kvconform
from kvconform.conformance.merged import MergeError, merge
from kvconform.conformance.report.document import Report, Shard, Subject, encode
from kvconform.conformance.selection import SelectionError, find_pairs, find_shard, take_shard
from reports import make_report, make_result

LAWS = "page/padding-is-exact,page/positive"
SELECTED = ("--laws", LAWS, "--kinds", "mla_attention,mamba", "--examples", "10")
SMALLER = """\
[[expected]]
law = "page/padding-is-exact"
message = "= padding asked for"
"""


@pytest.mark.parametrize("of", [1, 2, 3, 7, 64])
def test_shards_are_alike_in_size_and_have_every_pair_once(of: int) -> None:
    pairs = find_pairs()
    shards = [take_shard(pairs, Shard(number, of)) for number in range(1, of + 1)]
    assert Counter(pair for shard in shards for pair in shard) == Counter(pairs)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/", "-1/2", "1/2/3", "1.0/2"])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(SelectionError, match="write i/n"):
        find_shard(text)


def test_there_are_no_more_shards_than_pairs() -> None:
    with pytest.raises(SelectionError, match="only 2 pairs"):
        take_shard(find_pairs("page/positive", "mamba,rswa"), Shard(1, 3))


def make_shard(number: int, of: int = 2, **changes: object) -> Report:
    """One shard of a run of two laws on two kinds."""
    pairs = take_shard(find_pairs(LAWS, "mla_attention,mamba"), Shard(number, of))
    results = (make_result(law.id, kind, "held", law.severity, examples=number) for law, kind in pairs)
    report = make_report(*results, laws=LAWS, kinds="mla_attention,mamba", shard=Shard(number, of))
    return msgspec.structs.replace(report, **changes)


def test_the_whole_has_the_results_of_its_shards_in_order() -> None:
    merged = merge([("b", make_shard(2)), ("a", make_shard(1))])
    whole = merged.report
    assert merged.missing == ()
    assert [(one.law, one.kind, one.examples) for one in whole.results] == [
        ("page/padding-is-exact", "mla_attention", 1),
        ("page/padding-is-exact", "mamba", 2),
        ("page/positive", "mla_attention", 1),
        ("page/positive", "mamba", 2),
    ]
    assert (whole.selected, whole.complete, whole.exit, whole.shard) == (4, True, 0, None)


def test_a_missing_shard_makes_the_whole_incomplete() -> None:
    merged = merge([("c", make_shard(3, of=3))])
    assert merged.missing == (1, 2)
    assert (merged.report.selected, merged.report.complete, merged.report.exit) == (4, False, 3)


def test_an_incomplete_shard_makes_the_whole_incomplete() -> None:
    short = make_shard(2)
    short = msgspec.structs.replace(short, results=short.results[:1], complete=False, exit=3)
    whole = merge([("a", make_shard(1)), ("b", short)]).report
    assert (len(whole.results), whole.selected, whole.complete, whole.exit) == (3, 4, False, 3)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": 8}, "b: seed 8, but 7 in a: not one run"),
        ({"profile": "deep"}, "b: profile deep, but quick in a"),
        ({"examples": 13}, "b: examples 13, but 12 in a"),
        ({"kvconform": "0.2"}, "b: kvconform 0.2, but 0.1 in a"),
        ({"laws": "page/*"}, "b: laws page/*, but "),
        ({"fail_on": ("safety",)}, "b: fail on safety, but safety, agreement, formula in a"),
        (
            {"implementation": Subject("vllm==1.2", "vllm", "1.3")},
            "b: implementation vllm==1.2 1.3, but vllm==1.2 1.2 in a",
        ),
        ({"shard": Shard(2, 3)}, "b: shard 2 of 3, but a is one of 2"),
        ({"shard": Shard(1, 2)}, "b: shard 1 of 2 is that of a, too"),
        ({"selected": 7}, "b: holds other laws and kinds than shard 2 of 2"),
        ({"results": make_shard(1).results}, "b: holds other laws and kinds than shard 2 of 2"),
    ],
)
def test_what_is_not_of_one_run_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(MergeError) as raised:
        merge([("a", make_shard(1)), ("b", make_shard(2, **changes))])
    assert why in str(raised.value)


def test_merged_shards_are_the_report_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(SMALLER)
    run = ("run", "python:faulty:Smaller", *SELECTED)
    assert kvconform(*run, "--json", "whole.json", cwd=tmp_path).returncode == 1
    for number in (1, 2):
        name = f"{number}.json"
        ended = kvconform(*run, "--shard", f"{number}/2", "--json", name, cwd=tmp_path)
        assert f"shard {number} of 2: 2 of 2 pairs accounted for" in ended.stdout
    merged = kvconform("merge-reports", "out.json", "1.json", "2.json", "--html", "out.html", cwd=tmp_path)
    assert merged.returncode == 1
    assert (tmp_path / "out.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert (tmp_path / "out.html").read_bytes().startswith(b"<!doctype html>")
    ended = kvconform("merge-reports", "out.json", "1.json", "2.json", "--expect", "known.toml", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    ended = kvconform("merge-reports", "out.json", "2.json", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (1, "kvconform: shard 1 of 2 is missing\n")
    assert json.loads((tmp_path / "out.json").read_text())["complete"] is False


def test_only_the_whole_tells_that_an_entry_with_a_glob_is_obsolete(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text('[[expected]]\nlaw = "page/aligned"\nmessage = "x"\n')
    reports = []
    for number in (1, 2, 3):
        reports.append(f"{number}.json")
        run = ("run", "reference", "--laws", "page/aligned", "--examples", "2", "--shard", f"{number}/3")
        ended = kvconform(*run, "--expect", "known.toml", "--json", reports[-1], cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout
    ended = kvconform("merge-reports", "out.json", *reports, "--expect", "known.toml", cwd=tmp_path)
    assert ended.returncode == 1
    assert "known.toml:1: listed law holds: page/aligned: holds on 6 examples" in ended.stdout


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["run", "reference", "--shard", "3/2"], "shard '3/2': write i/n"),
        (["run", "reference", "--laws", "page/aligned", "--shard", "1/9"], "shard 1/9: only 3 pairs"),
        (["merge-reports", "out.json", "none.json"], "none.json: cannot be read: No such file"),
        (["merge-reports", "out.json", "bad.json"], "bad.json: not a report of kvconform run: "),
        (["merge-reports", "out.json", "future.json"], "future.json: format 2, this version reads format 1"),
        (["merge-reports", "out.json", "1.json", "1.json"], "1.json: shard 1 of 2 is that of 1.json, too"),
        (["merge-reports", "no/out.json", "1.json"], "no/out.json: the report cannot be written there"),
        (["merge-reports", "out.json"], "Missing argument 'IN..'"),
    ],
)
def test_bad_shards_and_reports_are_one_line_and_2(tmp_path: Path, command: list[str], why: str) -> None:
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "1.json").write_bytes(encode(make_shard(1)))
    (tmp_path / "future.json").write_bytes(encode(make_shard(1, format=2)))
    ended = kvconform(*command, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert why in line
    assert not (tmp_path / "out.json").exists()
