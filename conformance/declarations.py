"""What an implementation says that it has, held against what there is to have.

A misspelt name would never be asked, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from kvconform.reference.interface import OPERATIONS
from kvconform.reference.revisions import REVISIONS
from kvconform.reference.specs import KINDS, defaults, field_names


class BadDeclaration(Exception):
    """A name that there is not, or a field left out that every spec of its kind has; one line."""


def check_declarations(
    kinds: Mapping[str, Iterable[str]], operations: Iterable[str], revisions: Iterable[str] = ()
) -> None:
    """Raise BadDeclaration unless all names are known; `kinds` are the fields of each kind."""
    for operation in operations:
        if operation not in OPERATIONS:
            raise BadDeclaration(f"unknown operation {operation!r}{_meant(operation, OPERATIONS)}")
    for revision in revisions:
        if revision not in REVISIONS:
            raise BadDeclaration(f"unknown revision {revision!r}: there are {', '.join(REVISIONS)}")
    for kind, had in kinds.items():
        if kind not in KINDS:
            raise BadDeclaration(f"unknown kind {kind!r}{_meant(kind, KINDS)}")
        known = field_names(kind)
        for name in had:
            if name not in known:
                raise BadDeclaration(f"{kind} has no field {name!r}{_meant(name, known)}")
        for name in known:
            if name not in had and name not in defaults(kind):
                raise BadDeclaration(f"{kind} lacks the field {name!r}, which every one has")


def _meant(name: str, known: Iterable[str]) -> str:
    alike = get_close_matches(name, known, n=1)
    return f" (did you mean {alike[0]}?)" if alike else ""
