"""Miniatures by name."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

from kvconform.conformance.miniatures.engine import Engine
from kvconform.reference.interface import Implementation


@dataclass(frozen=True)
class Miniature:
    """An implementation wrong on purpose.

    ``fault`` says in one sentence what it gets wrong, ``breaks`` names every law that it breaks
    and ``make`` makes one.
    """

    name: str
    fault: str
    breaks: frozenset[str]
    make: Callable[[], Implementation]


MINIATURES: dict[str, Miniature] = {}
"""Every miniature by its name."""


def miniature(name: str) -> Implementation:
    """The miniature of that name. Raises ValueError, naming the nearest ones, when there is none."""
    if name not in MINIATURES:
        near = difflib.get_close_matches(name, MINIATURES, n=3)
        known = f"did you mean {' or '.join(near)}?" if near else f"there are {len(MINIATURES)} others"
        raise ValueError(f"no miniature is called {name!r}; {known}")
    return MINIATURES[name].make()


def breaks(*laws: str) -> Callable[[type[Engine]], type[Engine]]:
    """Register an engine as the miniature that breaks these laws.

    Its name is the class name in dashes, its fault the docstring. Raises ValueError for a second
    miniature of one name.
    """

    def register(engine: type[Engine]) -> type[Engine]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", engine.__name__).lower()
        if name in MINIATURES:
            raise ValueError(f"{name}: declared twice")
        engine.name = f"miniature:{name}"
        fault = (inspect.getdoc(engine) or "").replace("\n", " ")
        MINIATURES[name] = Miniature(name, fault, frozenset(laws), engine)
        return engine

    return register
