"""Rewriting a list of expectations after a run: what people wrote of an entry stays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import tomlkit
from kvconform.conformance.expectations import Expectations, Judgement, is_listable
from kvconform.conformance.report.document import Result

UNEXPLAINED = "not explained yet"
"""The reason of an entry that no person has looked at."""

HEADING = """\
# Known violations. kvconform run IMPLEMENTATION --expect FILE fails on whatever differs from them;
# with --update it rewrites them, and keeps the issue, owner, reason and until of those that stay.
"""

SHORTEST_PART = 8
"""Characters of a message below which a part of it would match too much."""


class Update(msgspec.Struct, frozen=True):
    """The new text of a list, and how many entries were added, changed and removed."""

    text: str
    added: int
    changed: int
    removed: int

    def describe(self) -> str:
        """What was done, in a few words."""
        return f"entries added {self.added}, changed {self.changed}, removed {self.removed}"


class _Written(msgspec.Struct):
    """An entry as it is written: the comments above it, its heading and the lines below that."""

    above: str
    heading: str
    body: str


def update(text: str, listed: Expectations, judgement: Judgement) -> Update:
    """The list that the judged results agree with.

    `text` is the list as it was, `listed` what it says and `judgement` what the run makes of it.
    Entries that still match stay as they are, comments too, and one whose message changed keeps
    what people wrote of it. Expired entries stay and go on failing: only a person can prolong
    them. The entries must be written as tables of their own (`is_updatable`).
    """
    head, written = _split(text, listed.lines)
    pieces = [head if text.strip() else HEADING]
    added = changed = removed = 0
    changes = _changes(listed, judgement)
    for index, (known, standing) in enumerate(zip(listed.entries, judgement.standing, strict=True)):
        staying = tuple(kind for kind, how in standing.items() if how in ("met", "unasked", "other"))
        now = [(staying, known.message, known.crash)] if staying else []
        now += [(tuple(kinds), says, crash) for (of, says, crash), kinds in changes.items() if of == index]
        removed += not now
        for number, (kinds, message, crash) in enumerate(now):
            body = written[index].body
            if (kinds, message, crash) != (known.patterns(), known.message, known.crash):
                body = _rewrite(body, kinds, message, crash)
                changed += number == 0
            added += number > 0
            above = "\n" if number else written[index].above
            pieces.append(f"{above}{written[index].heading}{body}")
    for (law, message, crash), named in _unlisted(judgement).items():
        body = _rewrite(f'law = "{law}"\nkind = ""\n', tuple(named), message, crash)
        pieces.append(f'\n[[expected]]\n{body}reason = "{UNEXPLAINED}"\n')
        added += 1
    return Update("".join(pieces), added, changed, removed)


def is_updatable(listed: Expectations) -> bool:
    """Whether each entry stands below a heading of its own, ``[[expected]]``."""
    return len(listed.lines) == len(listed.entries)


def stable_part(message: str) -> str:
    """The longest part of a message that holds no number: numbers change with the seed."""
    parts = (part.strip(" ,;:()'\"") for part in re.split(r"\S*\d\S*", message))
    longest = max((line for part in parts for line in part.splitlines() or [""]), key=len)
    return longest if len(longest) >= SHORTEST_PART else message


def _split(text: str, headings: Sequence[int]) -> tuple[str, list[_Written]]:
    """What stands above all entries, and each entry; `headings` are their lines, from 1."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    starts = [number - 1 for number in headings] + [len(lines)]
    above = _above(lines, 0, starts[0])
    head = "".join(lines[: starts[0] - len(above)])
    if not head.strip():
        # A comment that begins the file is about the file.
        head, above = head + "".join(above), []
    written = []
    for start, end in pairwise(starts):
        following = _above(lines, start + 1, end) if end < len(lines) else []
        body = lines[start + 1 : end - len(following)]
        written.append(_Written("".join(above), lines[start], "".join(body)))
        above = following
    return head, written


def _above(lines: Sequence[str], start: int, end: int) -> list[str]:
    """The comments directly above a line, and the blank lines above those."""
    first = end
    while first > start and lines[first - 1].startswith("#"):
        first -= 1
    while first > start and not lines[first - 1].strip():
        first -= 1
    return list(lines[first:end])


def _rewrite(body: str, kinds: tuple[str, ...], message: str, crash: bool) -> str:
    fields = tomlkit.parse(body)
    fields["message"] = message
    if crash:
        fields["crash"] = True
    elif fields.get("crash"):
        del fields["crash"]
    if kinds == ("*",):
        fields.pop("kind", None)
    elif len(kinds) == 1:
        fields["kind"] = kinds[0]
    else:
        named = tomlkit.array()
        named.extend(kinds)
        fields["kind"] = named.multiline(len(kinds) > 3)
    return tomlkit.dumps(fields)


def _changes(listed: Expectations, judgement: Judgement) -> dict[tuple[int, str, bool], list[str]]:
    """The kinds whose message changed, by the entry that goes on with them and what they say now."""
    found: dict[tuple[int, str, bool], list[str]] = {}
    for result in _told(judgement, "changed"):
        for index, standing in enumerate(judgement.standing):
            if listed.entries[index].covers(result.law, result.kind) and "other" not in standing.values():
                found.setdefault((index, *_said(result)), []).append(result.kind)
                break
    return found


def _unlisted(judgement: Judgement) -> dict[tuple[str, str, bool], list[str]]:
    found: dict[tuple[str, str, bool], list[str]] = {}
    for result in _told(judgement, "unlisted", "crash"):
        found.setdefault((result.law, *_said(result)), []).append(result.kind)
    return found


def _said(result: Result) -> tuple[str, bool]:
    return stable_part(result.message), result.crashed


def _told(judgement: Judgement, *faults: str) -> Iterator[Result]:
    """Each violation or crash that was found at one of these faults."""
    faulty = {(found.law, found.kind) for found in judgement.findings if found.fault in faults}
    for result in judgement.results:
        if is_listable(result) and (result.law, result.kind) in faulty:
            yield result
