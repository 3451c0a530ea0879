"""Lists of known violations: what is expected, what differs, and how a list is rewritten."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path

import pytest
from commands import kvconform
from kvconform.conformance.expectations import (
    BadExpectations,
    Judgement,
    judge,
    parse_expectations,
    read_expectations,
)
from kvconform.conformance.report.document import Finding, Known, Result
from kvconform.conformance.updating import UNEXPLAINED, stable_part, update
from reports import GATING, make_result

TODAY = date(2026, 6, 30)

LATENT = ("mla_attention", "sliding_window_mla", "hidden_state_cache")
"""The kinds of page/aligned."""


def entry(**fields: object) -> str:
    """The text of one entry, about page/aligned unless told otherwise."""
    values = {"law": "page/aligned", "message": "wanted a multiple", **fields}
    lines = (
        f"{name} = {value.isoformat() if isinstance(value, date) else json.dumps(value)}"
        for name, value in values.items()
    )
    return "\n".join(("[[expected]]", *lines, ""))


def aligned(verdict: str = "violated", kind: str = "mla_attention", **more: object) -> Result:
    return make_result("page/aligned", kind, verdict, **more)


def judged(text: str, *results: Result, version: str = "0.28.0") -> Judgement:
    listed = parse_expectations(text, "known.toml")
    return judge(listed, results, version=version, today=TODAY, fail_on=GATING)


def faults(judgement: Judgement) -> list[str]:
    return [finding.fault for finding in judgement.findings]


def test_a_listed_violation_is_expected_and_says_what_is_known() -> None:
    text = entry(kind="mla_attention", issue="#1", owner="@me", until=TODAY, reason="because")
    judgement = judged(text, aligned())
    assert [result.verdict for result in judgement.results] == ["expected"]
    assert judgement.results[0].known == Known("#1", "@me", "2026-06-30", "because")
    assert judgement.results[0].message == aligned().message
    assert judgement.findings == ()


def test_what_another_list_expected_is_violated_again() -> None:
    once = judged(entry(), aligned()).results
    again = judged("", *once)
    assert [result.verdict for result in again.results] == ["violated"]
    assert again.results[0].known is None


@pytest.mark.parametrize(
    ("text", "result", "fault", "says"),
    [
        ("", aligned(), "unlisted", "page: got 1, wanted a multiple of 512"),
        (entry(message="no such words"), aligned(), "changed", "wanted 'no such words' in 'page: got 1"),
        (entry(kind="mla_attention"), aligned("held", examples=7), "holds", "holds on 7 examples"),
        (entry(kind="mla_attention"), aligned("proved"), "holds", "is proved"),
        (entry(until=date(2026, 6, 29)), aligned(), "expired", "was excused until 2026-06-29"),
        (
            entry(kind="mla_attention"),
            aligned("unsupported", message="field x"),
            "unmatched",
            "unsupported: field x",
        ),
        (entry(law="page/alinged"), aligned("held"), "unknown", "no such law (did you mean page/aligned or "),
        (entry(kind="mamba"), aligned("held"), "unknown", "the law is not about it, but about "),
    ],
)
def test_each_difference_has_its_own_name_and_line(text: str, result: Result, fault: str, says: str) -> None:
    judgement = judged(text, result)
    assert judgement.results[0].verdict == result.verdict
    (finding,) = judgement.findings
    assert finding.fault == fault
    assert says in finding.message
    assert finding.entry == ("known.toml:1" if text else "")
    assert says in finding.describe()
    assert "\n" not in finding.describe()


def test_a_second_entry_that_matches_nothing_is_unmatched() -> None:
    text = entry(kind="mla_attention") + entry(kind="mla_attention", message="another")
    judgement = judged(text, aligned())
    assert [result.verdict for result in judgement.results] == ["expected"]
    assert faults(judgement) == ["unmatched"]
    assert judgement.findings[0].entry == "known.toml:5"


def test_one_live_entry_excuses_what_another_no_longer_does() -> None:
    text = entry(until=date(2020, 1, 1)) + entry(kind="mla_attention")
    judgement = judged(text, aligned())
    assert [result.verdict for result in judgement.results] == ["expected"]
    assert judgement.findings == ()


def test_violations_that_do_not_fail_need_no_entry() -> None:
    minor = make_result("resize/composes", "mla_attention", "violated", "economy")
    assert faults(judged("", minor)) == []
    assert judged(entry(law="resize/composes"), minor).results[0].verdict == "expected"


@pytest.mark.parametrize(
    ("release", "version", "verdict"),
    [
        (">=0.26,<0.29", "0.28.0", "expected"),
        (">=0.26,<0.29", "0.29.0", "violated"),
        (">=0.26", "0.30.0rc1", "expected"),
        ("==0.28.*", "0.28.3", "expected"),
    ],
)
def test_an_entry_is_about_the_releases_that_it_names(release: str, version: str, verdict: str) -> None:
    judgement = judged(entry(release=release), aligned(), version=version)
    assert judgement.results[0].verdict == verdict
    # About another release it says nothing; the violation is unlisted then.
    assert faults(judgement) == ([] if verdict == "expected" else ["unlisted"])


def test_a_version_that_is_none_cannot_be_compared() -> None:
    judgement = judged(entry(release=">=1"), aligned(), version="base")
    assert sorted(faults(judgement)) == ["unknown", "unlisted"]
    assert "release >=1 cannot be compared with version 'base'" in str(judgement.findings)


def test_a_glob_stands_for_those_kinds_on_which_the_law_is_violated() -> None:
    results = [aligned(), *(aligned("held", kind) for kind in LATENT[1:])]
    assert faults(judged(entry(kind="*"), *results)) == []
    assert faults(judged(entry(kind=[*LATENT]), *results)) == ["holds", "holds"]
    held = [aligned("held", kind) for kind in LATENT]
    assert faults(judged(entry(), *held)) == ["holds"]


def test_a_glob_is_not_judged_by_some_of_its_kinds() -> None:
    assert faults(judged(entry(), aligned("held"))) == []
    assert faults(judged(entry(), make_result("page/positive", "mamba", "held"))) == []


@pytest.mark.parametrize("verdict", ["broken", "inconclusive"])
def test_what_fell_over_says_nothing_of_the_list(verdict: str) -> None:
    judgement = judged(entry(kind="mla_attention"), aligned(verdict, message="x"))
    assert judgement.findings == ()
    assert judgement.standing == ({"mla_attention": "unasked"},)


def crash(kind: str = "mla_attention", **more: object) -> Result:
    return aligned("broken", kind, **{"message": "KeyError: 'page'", "crashed": True, **more})


def test_a_listed_crash_is_expected_and_keeps_its_message() -> None:
    judgement = judged(entry(kind="mla_attention", message="KeyError", crash=True), crash())
    assert [(one.verdict, one.message) for one in judgement.results] == [("expected", "KeyError: 'page'")]
    assert judgement.findings == ()
    # What another list once excused is broken again.
    assert judged("", *judgement.results).results[0].verdict == "broken"


@pytest.mark.parametrize(
    ("text", "result", "fault"),
    [
        ("", crash(), "crash"),
        ("", crash(severity="economy"), "crash"),
        (entry(kind="mla_attention", message="KeyError"), crash(), "changed"),
        (entry(kind="mla_attention", message="IndexError", crash=True), crash(), "changed"),
        (entry(kind="mla_attention", crash=True), aligned(), "changed"),
        (entry(kind="mla_attention", message="KeyError", crash=True), aligned("held"), "holds"),
    ],
)
def test_only_the_crash_that_is_listed_is_excused(text: str, result: Result, fault: str) -> None:
    judgement = judged(text, result)
    assert judgement.results[0].verdict == result.verdict
    assert faults(judgement) == [fault]


def test_what_broke_otherwise_cannot_be_listed() -> None:
    broken = crash(crashed=False)
    judgement = judged(entry(kind="mla_attention", message="KeyError", crash=True), broken)
    assert judgement.results == (broken,)
    assert judgement.standing == ({"mla_attention": "unasked"},)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "known.toml: "),
        ("[[expected]]\n", "missing required field `law`"),
        ('[[expected]]\nlaw = "page/aligned"\n', "missing required field `message`"),
        (entry(message=""), "$.expected[0].message"),
        (entry(kind=[]), "$.expected[0].kind"),
        (entry(kind=3), "$.expected[0].kind"),
        (entry(reasons="x"), "unknown field `reasons`"),
        ("[[excepted]]\n", "unknown field `excepted`"),
        (entry(until="soon"), "$.expected[0].until"),
        (entry(release="new"), "release 'new' is no version specifier"),
    ],
)
def test_a_list_that_cannot_be_read_says_where(text: str, why: str) -> None:
    with pytest.raises(BadExpectations) as raised:
        parse_expectations(text, "known.toml")
    assert str(raised.value).startswith("known.toml: ")
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_list_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(BadExpectations, match=r"cannot be read: No such file"):
        read_expectations(str(tmp_path / "none.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(BadExpectations, match="not UTF-8"):
        read_expectations(str(tmp_path / "bytes.toml"))


def test_entries_written_inline_are_numbered() -> None:
    text = 'expected = [{law = "page/nosuch", message = "x"}]'
    assert judged(text).findings[0].entry == "known.toml: entry 1"


# Rewriting

LIST = """\
# Known in our fork.

# Aligned by the kernel.
[[expected]]
law = "page/aligned"  # ours
kind = ["mla_attention", "sliding_window_mla"]
message = "wanted a multiple"
issue = "#1"

# Mended in May.
[[expected]]
law = "page/positive"
kind = "mamba"
message = "got 0"
reason = "old"

# Says something else now.
[[expected]]
law = "resize/still-covers"
kind = "mamba"
message = "old words"
owner = "@me"
until = 2020-01-01
# The end.
"""

AFTER = (
    aligned(),
    aligned("held", "sliding_window_mla"),
    make_result("page/positive", "mamba", "held"),
    make_result("resize/still-covers", "mamba", "violated", message="page of 12 bytes: got 3, wanted cover"),
    make_result("merge/idempotent", "mamba", "violated", message="merge of 1 layers: shapes: got other"),
    make_result("merge/idempotent", "rswa", "violated", message="merge of 3 layers: shapes: got other"),
    make_result("resize/composes", "mla_attention", "violated", "economy"),
)


def updated(text: str, *results: Result) -> str:
    listed = parse_expectations(text, "known.toml")
    return update(text, listed, judged(text, *results)).text


def test_an_update_keeps_what_people_wrote() -> None:
    assert (
        updated(LIST, *AFTER)
        == """\
# Known in our fork.

# Aligned by the kernel.
[[expected]]
law = "page/aligned"  # ours
kind = "mla_attention"
message = "wanted a multiple"
issue = "#1"

# Says something else now.
[[expected]]
law = "resize/still-covers"
kind = "mamba"
message = "wanted cover"
owner = "@me"
until = 2020-01-01
# The end.

[[expected]]
law = "merge/idempotent"
kind = ["mamba", "rswa"]
message = "layers: shapes: got other"
reason = "not explained yet"
"""
    )


def test_after_an_update_only_what_expired_differs() -> None:
    text = updated(LIST, *AFTER)
    assert faults(judged(text, *AFTER)) == ["expired"]
    assert updated(text, *AFTER) == text


def test_a_list_that_is_right_stays_as_it_is() -> None:
    text = "[[ expected ]]\nlaw='page/aligned'\nmessage='''wanted a'''\n# no newline at the end"
    assert updated(text, aligned()) == f"{text}\n"


def test_an_update_counts_what_it_does() -> None:
    listed = parse_expectations(LIST, "known.toml")
    done = update(LIST, listed, judged(LIST, *AFTER))
    assert (done.added, done.changed, done.removed) == (1, 2, 1)


def test_a_glob_goes_on_beside_kinds_whose_message_changed() -> None:
    text = entry(issue="#1")
    results = [aligned(), aligned(kind="hidden_state_cache", message="refuses it")]
    new = parse_expectations(updated(text, *results), "known.toml").entries
    assert [(one.patterns(), one.message, one.issue) for one in new] == [
        (("*",), "wanted a multiple", "#1"),
        (("hidden_state_cache",), "refuses it", "#1"),
    ]
    assert faults(judged(updated(text, *results), *results)) == []


def test_the_entry_of_another_release_is_not_the_one_that_changes() -> None:
    other = entry(kind="mla_attention", release=">=9", message="others")
    text = other + entry(kind="mla_attention", message="old")
    result = aligned(message="refuses it")
    assert updated(text, result) == other + entry(kind="mla_attention", message="refuses it")


def test_crashes_are_added_and_an_entry_becomes_one_or_stops_being_one() -> None:
    assert updated("", crash()).endswith(
        '[[expected]]\nlaw = "page/aligned"\nkind = "mla_attention"\nmessage = "KeyError: \'page"\n'
        f'crash = true\nreason = "{UNEXPLAINED}"\n'
    )
    wrong = entry(kind="mla_attention", issue="#1")
    crashing = updated(wrong, crash())
    (new,) = parse_expectations(crashing, "known.toml").entries
    assert (new.crash, new.message, new.issue) == (True, "KeyError: 'page", "#1")
    (old,) = parse_expectations(updated(crashing, aligned()), "known.toml").entries
    assert (old.crash, old.message, old.issue) == (False, "wanted a multiple of", "#1")


def test_entries_about_what_was_not_judged_are_kept() -> None:
    text = entry(release=">=9") + entry(law="page/positive", kind="mamba")
    broken = make_result("page/positive", "mamba", "broken")
    assert updated(text, broken) == text


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ("page: got 1 bytes, wanted 2 = padding asked for", "= padding asked for"),
        (
            "refused (AssertionError at vllm/v1/interface.py:257: no), wanted more",
            "refused (AssertionError at",
        ),
        ("got 1, wanted 2", "got 1, wanted 2"),
        ('quoted "words" and 1 \\ backslash', 'quoted "words" and'),
    ],
)
def test_the_part_of_a_message_that_does_not_change_with_the_seed(message: str, part: str) -> None:
    assert stable_part(message) == part
    assert part in message


# The command

SELECTED = ("--laws", "page/padding-is-exact,page/positive", "--kinds", "mla_attention,mamba")
FEW = (*SELECTED, "--examples", "10")
SMALLER = entry(law="page/padding-is-exact", message="= padding asked for", reason="ours")


def test_a_run_against_its_list_conforms(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(SMALLER)
    run = ("run", "python:faulty:Smaller", *FEW, "--expect", "known.toml", "--json", "r.json")
    ended = kvconform(*run, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "expected: violated, and known to be" in ended.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["expectations"] == "known.toml"
    assert [one["verdict"] for one in report["results"]] == [
        "expected",
        "expected",
        "held",
        "held",
    ] or sorted(one["verdict"] for one in report["results"]) == ["expected", "expected", "held", "held"]
    assert {one["known"]["reason"] for one in report["results"] if one["known"]} == {"ours"}


def test_a_run_that_differs_says_so_line_by_line_and_ends_with_1(tmp_path: Path) -> None:
    wrong = entry(law="page/positive", kind="mamba") + entry(law="page/nosuch")
    (tmp_path / "known.toml").write_text(wrong)
    ended = kvconform("run", "python:faulty:Smaller", *FEW, "--expect", "known.toml", cwd=tmp_path)
    assert ended.returncode == 1
    for line in (
        "not as known.toml expects:",
        "unlisted violation: page/padding-is-exact mamba: page bytes: got ",
        "known.toml:1: listed law holds: page/positive mamba: holds on 10 examples; take the entry off",
        "known.toml:5: unknown entry: page/nosuch: no such law",
    ):
        assert f"\n{line}" in ended.stdout


SMALL = """
from kvconform.reference.plain import Plain


class Small(Plain):
    def kinds(self):
        return ("full_attention",)

    def operations(self):
        return frozenset({"page_size_bytes", "unpadded_page_size_bytes", "real_page_size_bytes"})

    def page_size_bytes(self, spec):
        return super().page_size_bytes(spec) - (spec.page_size_padded is not None)

    def real_page_size_bytes(self, spec):
        return {}["real"]
"""


def test_a_list_is_begun_and_then_conformed_to(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(SMALL)
    run = ("run", "python:small:Small", "--expect", "known.toml")
    begun = kvconform(*run, "--update", cwd=tmp_path)
    assert begun.returncode == 0, begun.stdout
    assert "kvconform: known.toml: entries added" in begun.stderr
    entries = tomllib.loads((tmp_path / "known.toml").read_text())["expected"]
    assert {(one["law"], one.get("crash", False)) for one in entries} >= {
        ("page/padding-is-exact", False),
        ("page/real-is-unpadded", True),
    }
    assert {one["reason"] for one in entries} == {UNEXPLAINED}
    again = kvconform(*run, cwd=tmp_path)
    assert again.returncode == 0, again.stdout
    assert "crashes: KeyError: 'real'" in again.stdout
    (tmp_path / "none.toml").touch()
    unlisted = kvconform("run", "python:small:Small", "--expect", "none.toml", cwd=tmp_path)
    assert unlisted.returncode == 4
    assert "\nunlisted crash: page/real-is-unpadded full_attention: KeyError: 'real'" in unlisted.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--update"], "--update rewrites the list that --expect names"),
        (["--expect", "none.toml"], "none.toml: the expectations cannot be read: No such file"),
        (["--expect", "bad.toml"], "bad.toml: Object missing required field `message`"),
        (
            ["--expect", "no/such.toml", "--update"],
            "no/such.toml: the list of expectations cannot",
        ),
        (["--expect", "inline.toml", "--update"], "inline.toml: cannot be updated: write each entry below"),
        (["--expect", "good.toml", "--update", "--laws", "page/*"], "--update wants a whole run"),
        (["--expect", "good.toml", "--update", "--kinds", "mamba"], "--update wants a whole run"),
        (["--expect", "good.toml", "--update", "--shard", "1/2"], "--update wants a whole run"),
        (["--expect", "good.toml", "--update", "--profile", "quick"], "8 examples are fewer than the 120"),
        (["--expect", "good.toml", "--update", "--examples", "119"], "119 examples are fewer than the 120"),
    ],
)
def test_bad_lists_and_partial_updates_are_one_line_and_2(
    tmp_path: Path, arguments: list[str], why: str
) -> None:
    (tmp_path / "bad.toml").write_text('[[expected]]\nlaw = "page/aligned"\n')
    (tmp_path / "good.toml").write_text(SMALLER)
    (tmp_path / "inline.toml").write_text('expected = [{law = "page/positive", message = "x"}]')
    ended = kvconform("run", "reference", *arguments, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert why in line
    assert (tmp_path / "good.toml").read_text() == SMALLER
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.toml", "good.toml", "inline.toml"]


def test_the_projects_own_lists_can_be_read_and_are_explained() -> None:
    lists = sorted((Path(__file__).parent.parent / "expectations").glob("*.toml"))
    assert lists
    for path in lists:
        for one in read_expectations(str(path)).entries:
            assert one.reason not in ("", UNEXPLAINED), f"{path.name}: {one.law} has no reason"


def test_a_finding_about_no_kind_names_none() -> None:
    finding = Finding("unknown", "page/x", "-", "no such law", "known.toml:3")
    assert finding.describe() == "known.toml:3: unknown entry: page/x: no such law"
