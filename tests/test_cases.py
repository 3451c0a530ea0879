"""Recorded cases: what is replayed is what was drawn, and nothing else is taken for it."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest
from kvconform.conformance.cases import BadCase, ReplayGiven, read_case, reproduce_line
from kvconform.conformance.selection import find_laws
from kvconform.properties.given import Rejected
from kvconform.properties.law import Law
from kvconform.properties.sampling import sample
from kvconform.reference.plain import Plain

Draws = dict[str, int | str | bool | None]


def replaying(**case: int | str | bool | None) -> ReplayGiven:
    return ReplayGiven(Plain(), "full_attention", case)


def test_every_primitive_answers_from_the_case() -> None:
    given = replaying(tokens=96, absent=None, present=3, flag=True, mode="align")
    assert given.integer("tokens", at_least=1, at_most=96, multiple_of=32) == 96
    assert given.optional("absent", at_least=1) is None
    assert given.optional("present", at_least=1) == 3
    assert given.flag("flag") is True
    assert given.choice("mode", ("none", "align")) == "align"
    given.finish()


def test_no_limit_means_no_limit() -> None:
    assert replaying(tokens=1 << 90).integer("tokens") == 1 << 90


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (0, "at least 1"),
        (97, "at most 96"),
        (33, "multiple of 32"),
        ("96", "an integer"),
        (True, "an integer"),
        (None, "an integer"),
    ],
)
def test_a_value_out_of_bounds_is_refused(value: int | str | bool | None, why: str) -> None:
    given = replaying(tokens=value)
    with pytest.raises(BadCase, match=rf"^tokens: wanted .*{why}"):
        given.integer("tokens", at_least=1, at_most=96, multiple_of=32)


def test_an_option_is_met_by_its_own_type_only() -> None:
    assert replaying(arrays=1).choice("arrays", (1, 2)) == 1
    with pytest.raises(BadCase, match=r"^arrays: wanted one of 1, 2; the case has true"):
        replaying(arrays=True).choice("arrays", (1, 2))


def test_a_missing_draw_is_named() -> None:
    with pytest.raises(BadCase, match=r"^tokens: missing"):
        replaying(other=1).integer("tokens")


def test_draws_that_no_law_asks_for_are_named() -> None:
    given = replaying(tokens=1, more=2, less=3)
    given.integer("tokens")
    with pytest.raises(BadCase, match=r"^less, more: "):
        given.finish()


@pytest.mark.parametrize("id", ["page/positive", "resize/like-fresh", "page/layers-add-up"])
def test_what_was_sampled_can_be_replayed(id: str) -> None:
    (law,) = find_laws(id)
    for kind in law.kinds:
        drawn: list[Draws] = []
        found = sample(law, Plain(), kind, examples=30, seed_number=1, trace=drawn.append)
        # Runs that were given up on the way are no cases, and are not counted by sampling.
        replayed = [case for case in drawn if replays(law, kind, case)]
        assert len(replayed) == found.examples > 0


def replays(law: Law, kind: str, case: Draws) -> bool:
    given = ReplayGiven(Plain(), kind, json.loads(json.dumps(case)))
    try:
        law.check(Plain(), given)
    except (BadCase, Rejected):
        return False
    given.finish()
    return True


WRITTEN = '{"law":"page/positive","kind":"mamba","given":{"a.b":1180591620717411303424,"c":null}}'


def test_a_case_is_read_inline_from_a_file_and_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "case.json"
    file.write_text(WRITTEN, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(WRITTEN))
    inline = read_case(WRITTEN)
    assert inline.given == {"a.b": 1 << 70, "c": None}
    assert read_case(str(file)) == inline
    assert read_case("-") == inline


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        '{"law":"page/positive","kind":"mamba"}',
        '{"law":"page/positive","kind":"mamba","given":{"a":1.5}}',
        '{"law":"page/positive","kind":"mamba","given":{"a":[1]}}',
        '{"law":"page/positive","kind":"mamba","given":{},"gievn":{}}',
        '{"law":3,"kind":"mamba","given":{}}',
        "no/such/file.json",
        "\0",
        "/",
    ],
)
def test_what_is_no_case_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadCase) as refusal:
        read_case(text)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadCase, match="not a text file"):
        read_case(str(file))


def test_the_line_to_paste_survives_the_shell() -> None:
    given: Draws = {"it's": 1, "mode": 'a "b" $HOME `c`\\', "none": None}
    words = shlex.split(reproduce_line("vllm@/tmp/my engine", "page/positive", "mamba", given))
    assert words[:3] == ["kvconform", "replay", "vllm@/tmp/my engine"]
    case = read_case(words[3])
    assert (case.law, case.kind, case.given) == ("page/positive", "mamba", given)
