"""JUnit XML: what a CI system counts and shows."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from commands import kvconform
from kvconform.conformance.report.document import Report, Shard
from kvconform.conformance.report.junit import encode_junit
from kvconform.conformance.selection import find_laws
from reports import make_full_report, make_report, make_result


def read(report: Report) -> ElementTree.Element:
    return ElementTree.fromstring(encode_junit(report))


def case(root: ElementTree.Element, name: str) -> ElementTree.Element:
    (found,) = (one for one in root.iter("testcase") if one.get("name") == name)
    return found


def outcome(root: ElementTree.Element, name: str) -> tuple[str, str]:
    (child,) = (one for one in case(root, name) if one.tag != "system-err")
    return child.tag, child.get("message", "")


def test_every_pair_is_a_test_case_with_its_outcome() -> None:
    root = read(make_full_report())
    assert list(case(root, "page/positive[mla_attention]")) == []
    assert list(case(root, "page/positive[mamba]")) == []
    assert outcome(root, "page/aligned[sliding_window_mla]") == (
        "failure",
        "page: got 1, wanted a multiple of 512",
    )
    assert outcome(root, "page/aligned[hidden_state_cache]") == ("error", "KeyError: 'page'")
    assert outcome(root, "merge/idempotent[mamba]") == ("skipped", "unsupported: operation merge")
    tag, why = outcome(root, "resize/still-covers[mamba]")
    assert (tag, why.startswith("expected: the kernel <pads>; https://")) == ("skipped", True)
    assert outcome(root, "quant/never-larger") == ("failure", "no input met the assumptions")
    assert list(case(root, "complete")) == []


def test_what_does_not_fail_the_run_is_no_failure() -> None:
    tag, why = outcome(read(make_full_report()), "resize/composes[mla_attention]")
    assert (tag, why.startswith("violated, reported only (economy): page: got 1")) == ("skipped", True)


def test_a_failure_tells_the_law_the_case_and_the_line() -> None:
    report = make_full_report()
    failure = case(read(report), "page/aligned[sliding_window_mla]").find("failure")
    assert failure is not None
    (law,) = find_laws("page/aligned")
    text = failure.text or ""
    for part in (law.sentence, "spec: block_size=64 head_size=576", report.results[3].reproduce):
        assert part in text


def test_what_differs_from_the_list_fails_by_name() -> None:
    root = read(make_full_report())
    tag, why = outcome(root, "holds page/positive[mamba] known.toml:4")
    assert tag == "failure"
    assert why == "known.toml:4: listed law holds: page/positive mamba: holds on 12 examples"


def test_what_did_not_run_is_an_error() -> None:
    root = read(make_report(make_result("page/positive", "mamba", "held"), complete=False))
    assert outcome(root, "complete") == ("error", "1 of 2 pairs of law and kind did not run")


def test_the_counts_are_those_of_the_cases() -> None:
    root = read(make_full_report())
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "11",
        "failures": "4",
        "errors": "1",
        "skipped": "3",
    }
    for name in ("tests", "failures", "errors", "skipped"):
        assert sum(int(suite.get(name, "")) for suite in root) == int(root.get(name, ""))


def test_what_xml_cannot_hold_is_replaced() -> None:
    root = read(make_full_report())
    _, message = outcome(root, "page/aligned[mla_attention]")
    assert '<script>alert("1")</script> & `3`' in message
    assert "\N{REPLACEMENT CHARACTER}[31m \N{REPLACEMENT CHARACTER} " in message
    assert "Traceback <here>" in (case(root, "page/aligned[hidden_state_cache]").findtext("system-err") or "")


def test_the_run_is_described() -> None:
    root = read(make_report(make_result("page/positive", "mamba", "held"), shard=Shard(1, 2)))
    properties = {one.get("name"): one.get("value") for one in root.iter("property")}
    assert properties["implementation"] == "vllm==1.2"
    assert properties["seed"] == "7"


def test_the_command_writes_it(tmp_path: Path) -> None:
    run = ("run", "python:faulty:Smaller", "--laws", "page/padding-is-exact", "--kinds", "mamba")
    ended = kvconform(*run, "--examples", "10", "--junit", "junit.xml", cwd=tmp_path)
    assert ended.returncode == 1
    root = ElementTree.fromstring((tmp_path / "junit.xml").read_bytes())
    assert outcome(root, "page/padding-is-exact[mamba]")[0] == "failure"
