"""CrossHair as a second opinion: it finds no counterexample to what this project has proved.

CrossHair runs the same statements on symbolic numbers of its own making, with another path
explorer and another way of dividing. Where it runs out of time it has no opinion.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kvconform.properties.laws  # noqa: F401 (fills the catalogue)
import pytest
from kvconform.properties.given import Bounds, Given, Rejected
from kvconform.properties.law import CATALOGUE, NO_KIND, Law, Violation
from kvconform.reference.interface import Implementation, Refused
from kvconform.reference.plain import Plain
from kvconform.solver.theorems import THEOREMS

crosshair = pytest.importorskip("crosshair.core_and_libs", reason="crosshair-tool is not installed")
options = pytest.importorskip("crosshair.options")

SECONDS = 2.0
"""How long CrossHair may look for a counterexample where there should be none."""

PATIENCE = 15.0
"""How long it may look for one that is there."""

DRAWS = 14


class TakingGiven(Given):
    """Draws the numbers of a tuple, in order, and the simplest value once they are used up."""

    def __init__(self, implementation: Implementation, kind: str, numbers: Sequence[int]) -> None:
        super().__init__(implementation, kind)
        self._numbers: Iterator[int] = iter(numbers)

    def draw_integer(self, name: str, bounds: Bounds) -> int:
        at_least, at_most, multiple_of, _ = bounds
        value = next(self._numbers, 0) * multiple_of
        if value < at_least or (at_most is not None and value > at_most):
            raise Rejected
        return value

    def draw_optional(self, name: str, bounds: Bounds) -> int | None:
        if self.choice(name, (True, False)):
            return None
        return self.draw_integer(name, bounds)

    def choice(self, name: str, options: Sequence[Any]) -> Any:
        picked = next(self._numbers, 0)
        for index, option in enumerate(options):
            if picked == index:
                return option
        raise Rejected


def holds(law: Law, kind: str, numbers: Sequence[int]) -> bool:
    """Whether the law holds on the numbers, or does not apply to them."""
    plain = Plain()
    try:
        law.check(plain, TakingGiven(plain, kind, numbers))
    except Rejected:
        return True
    except (Violation, Refused):
        return False
    return True


def opinion(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, law: Law, kind: str = NO_KIND, seconds: float = SECONDS
) -> set[str]:
    """What CrossHair says of the law: the names of its message types."""
    numbers = ", ".join(f"n{index}" for index in range(DRAWS))
    name = f"opinion_{abs(hash((law.id, kind, str(tmp_path))))}"
    (tmp_path / f"{name}.py").write_text(
        "LAW = KIND = HOLDS = None\n"
        f"def statement({numbers.replace(',', ': int,')}: int) -> bool:\n"
        '    """\n    post: _\n    """\n'
        f"    return HOLDS(LAW, KIND, ({numbers}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(name)
    try:
        module.LAW, module.KIND, module.HOLDS = law, kind, holds  # type: ignore[attr-defined]
        wanted = options.AnalysisOptionSet(
            analysis_kind=[options.AnalysisKind.PEP316],
            per_condition_timeout=seconds,
            per_path_timeout=seconds / 2,
            report_all=True,
        )
        messages = crosshair.run_checkables(crosshair.analyze_function(module.statement, wanted))
    finally:
        del sys.modules[name]
    return {message.state.name for message in messages}


REFUTED = {"POST_FAIL", "EXEC_ERR", "POST_ERR"}


@pytest.mark.parametrize("id", THEOREMS)
def test_a_theorem_meets_no_disagreement(id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = opinion(monkeypatch, tmp_path, THEOREMS[id].as_law())
    assert said
    assert not said & REFUTED, said


REPRESENTATIVE = [
    ("page/padded-covers-unpadded", "sliding_window"),
    ("page/unpadded-formula", "full_attention"),
    ("page/aligned", "mla_attention"),
    ("page/additive", "cross_attention"),
    ("page/state-is-sum-of-parts", "mamba"),
    ("bound/window-suffices", "sliding_window"),
    ("bound/chunk-suffices", "chunked_local_attention"),
    ("bound/full-is-exact", "full_attention"),
    ("resize/composes", "sliding_window_mla"),
    ("merge/commutative", "full_attention"),
    ("quant/content-holds-payload", "full_attention"),
]


@pytest.mark.parametrize(("id", "kind"), REPRESENTATIVE)
def test_a_proved_law_meets_no_disagreement(
    id: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = opinion(monkeypatch, tmp_path, CATALOGUE[id], kind)
    assert said
    assert not said & REFUTED, said


@pytest.mark.parametrize(
    ("id", "assumption"),
    [("T1", "aligned"), ("T3", "not_whole"), ("T6", "aligned"), ("T7", "positive"), ("T10", "above")],
)
def test_crosshair_refutes_what_is_false(
    id: str, assumption: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = opinion(monkeypatch, tmp_path, THEOREMS[id].as_law(without=assumption), seconds=PATIENCE)
    assert said & REFUTED, said
