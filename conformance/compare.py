"""Where two implementations answer differently, with the smallest input that shows it.

Both are asked the same questions, drawn and made smaller as for a law: that the two agree is the
law. Fields, kinds and modes that only one of them has are listed, and kept at their defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import kvconform.properties.laws  # noqa: F401 (fills the catalogue)
from kvconform.properties import drawn
from kvconform.properties.comparison import differences
from kvconform.properties.given import Given
from kvconform.properties.law import CATALOGUE, NO_KIND, Law, Violation
from kvconform.properties.sampling import sample
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.specs import FULL_KINDS, Spec, field_names

Arguments = dict[str, Any]

LONG = 1 << 30
"""Tokens of a request that no window, chunk or batch is likely to exceed."""


@dataclass(frozen=True)
class Refusal:
    """Stands for a refused question; one reason is as good as another."""

    reason: str

    def __str__(self) -> str:
        return f"refused: {self.reason}"


@dataclass(frozen=True)
class Difference:
    """One operation and kind on which the two differ.

    ``case`` holds the draws of the smallest input found, ``arguments`` the question itself;
    ``left`` and ``right`` are the answers in words. ``direction`` says which way memory goes from
    left to right: more, less, refused, answered, or empty where the answers are not numbers.
    ``safety`` holds a verdict of each side for each safety law that asks this operation.
    """

    operation: str
    kind: str
    case: dict[str, Any]
    arguments: Arguments
    left: str
    right: str
    direction: str
    safety: tuple[tuple[str, str, str], ...] = ()


@dataclass
class Comparison:
    """What came of comparing: see `compare`."""

    same: list[tuple[str, str, int]] = field(default_factory=list)
    different: list[Difference] = field(default_factory=list)
    not_asked: list[tuple[str, str, str]] = field(default_factory=list)
    only_left: list[str] = field(default_factory=list)
    only_right: list[str] = field(default_factory=list)
    complete: bool = False


class Both(Implementation):
    """What two implementations have in common: kinds, fields, operations and modes."""

    def __init__(self, left: Implementation, right: Implementation) -> None:
        self.left = left
        self.right = right
        self._operations = left.operations() & right.operations()
        self._kinds = tuple(kind for kind in left.kinds() if kind in right.kinds())
        self._fields = {kind: left.fields(kind) & right.fields(kind) for kind in self._kinds}
        self._modes = self._shared_modes()

    def kinds(self) -> tuple[str, ...]:
        return self._kinds

    def fields(self, kind: str) -> frozenset[str]:
        return self._fields[kind]

    def operations(self) -> frozenset[str]:
        return self._operations

    def quant_modes(self) -> Mapping[str, int]:
        return self._modes

    def _shared_modes(self) -> dict[str, int]:
        if "quant_modes" not in self._operations:
            return {}
        right = self.right.quant_modes()
        return {mode: value for mode, value in self.left.quant_modes().items() if mode in right}


def _spec(given: Given) -> Arguments:
    spec = drawn.spec(given)
    return {"spec": drawn.changed(given, "spec.then", spec) if given.kind != "uniform_type" else spec}


def _quantised(given: Given) -> Arguments:
    return {"spec": drawn.quantised(given)}


def _resized(given: Given) -> Arguments:
    spec = drawn.spec(given)
    inner = spec.layers()[0] if given.kind == "uniform_type" else spec
    ratio = getattr(inner, "compress_ratio", 1)
    return {"spec": spec, "block_size": given.block_size("new_block_size", multiple_of=ratio)}


def _deployed(given: Given) -> Arguments:
    ranks = (1, 2) if given.kind in FULL_KINDS else (1,)
    # A short request hides what a window or the tokens in flight would ask for.
    length = LONG if given.flag("long") else given.tokens("max_model_len", at_least=1)
    deployment = drawn.deployment(
        given, concurrent=(1, 2, 3), ranks=ranks, encoder=True, max_model_len=length
    )
    return {"spec": drawn.spec(given), "deployment": deployment}


def _tabled(given: Given) -> Arguments:
    arguments = _deployed(given)
    return {**arguments, "max_len": arguments["deployment"].max_model_len}


def _pair(given: Given) -> Arguments:
    first = drawn.changed(given, "spec.then", drawn.spec(given))
    return {"specs": [first, drawn.changed(given, "other", first)]}


QUESTIONS: dict[str, Callable[[Given], Arguments]] = {
    "page_size_bytes": _spec,
    "unpadded_page_size_bytes": _spec,
    "real_page_size_bytes": _spec,
    "state_content_size_bytes": _spec,
    "stored_bytes": _quantised,
    "construct": _spec,
    "copy_with_new_block_size": _resized,
    "max_blocks_per_request": _deployed,
    "max_memory_usage_bytes": _deployed,
    "max_num_blocks_per_req": _tabled,
    "merge": _pair,
}
"""How to draw a question for each operation that is compared on specs."""

NOT_ABOUT = {
    "state_content_size_bytes": ("mamba", "uniform_type"),
    "unpadded_page_size_bytes": ("mamba", "uniform_type"),
    "real_page_size_bytes": ("mamba", "uniform_type"),
    "stored_bytes": ("mamba", "uniform_type"),
    "merge": ("uniform_type",),
    "max_num_blocks_per_req": ("encoder_only_attention",),
}
"""Kinds of which an operation says nothing."""

NAMED = ("quant_families", "get_kv_quant_mode", "cache_element_dtype")
"""Operations on the names of modes and cache dtypes: asked of every name that both know."""


def compare(
    left: Implementation,
    right: Implementation,
    *,
    examples: int = 150,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Iterator[Comparison]:
    """Compare two implementations, operation by operation and kind by kind.

    Yields the growing comparison after each question, so that an interrupted one still shows what
    it has; the last is marked complete.
    """
    both = Both(left, right)
    found = Comparison()
    found.only_left, found.only_right = _one_sided(left, right), _one_sided(right, left)
    yield found
    for operation, kind in questions(both):
        _compare_one(both, found, operation, kind, examples, seed)
        if progress is not None:
            progress()
        yield found
    for operation in NAMED:
        if operation in both.operations():
            _compare_names(both, found, operation)
    found.complete = True
    yield found


def questions(both: Both) -> list[tuple[str, str]]:
    """Every operation and kind that both can be asked."""
    return [
        (operation, kind)
        for operation in QUESTIONS
        if operation in both.operations()
        for kind in both.kinds()
        if kind not in NOT_ABOUT.get(operation, ())
    ]


def _compare_one(both: Both, found: Comparison, operation: str, kind: str, examples: int, seed: int) -> None:
    last: list[tuple[Arguments, Any, Any]] = []

    def agree(_: Implementation, given: Given) -> None:
        arguments = QUESTIONS[operation](given)
        answers = _answer(both.left, operation, arguments), _answer(both.right, operation, arguments)
        if _differ(both, *answers):
            last[:] = [(arguments, *answers)]
            raise Violation(f"{answers[0]} against {answers[1]}")

    question = Law(f"diff/{operation}", "agreement", (kind,), (operation,), False, (), agree)
    outcome = sample(question, both, kind, examples=examples, seed_number=seed)
    if outcome.verdict == "held":
        found.same.append((operation, kind, outcome.examples))
    elif outcome.verdict == "violated" and last:
        arguments, one, other = last[0]
        found.different.append(
            Difference(
                operation,
                kind,
                outcome.case,
                arguments,
                _words(one, other),
                _words(other, one),
                _direction(one, other),
                _safety(both, operation, kind, seed),
            )
        )
    else:
        found.not_asked.append((operation, kind, outcome.message))


def _compare_names(both: Both, found: Comparison, operation: str) -> None:
    if operation == "quant_families":
        argument, names = "mode", tuple(both.quant_modes())
    else:
        right = both.right.cache_dtypes()
        argument, names = "cache_dtype", tuple(name for name in both.left.cache_dtypes() if name in right)
    for name in names:
        arguments = {argument: name}
        one, other = _answer(both.left, operation, arguments), _answer(both.right, operation, arguments)
        if _differ(both, one, other):
            found.different.append(
                Difference(
                    operation, NO_KIND, arguments, arguments, _words(one, other), _words(other, one), ""
                )
            )
    found.same.append((operation, NO_KIND, len(names)))


def _answer(side: Implementation, operation: str, arguments: Arguments) -> Any:
    try:
        return getattr(side, operation)(**arguments)
    except Refused as refusal:
        return Refusal(str(refusal))


def _differ(both: Both, one: Any, other: Any) -> bool:
    if isinstance(one, Refusal) or isinstance(other, Refusal):
        return type(one) is not type(other)
    if isinstance(one, Spec) and isinstance(other, Spec):
        return bool(_spec_differences(both, one, other))
    return bool(one != other)


def _spec_differences(both: Both, one: Spec, other: Spec) -> str:
    if one.kind != other.kind:
        return f"kind {one.kind} against {other.kind}"
    missing = set(field_names(one.kind)) - both.fields(one.kind)
    return differences(one, other, but=tuple(missing))


def _words(answer: Any, beside: Any) -> str:
    if isinstance(answer, Spec) and isinstance(beside, Spec) and answer.kind == beside.kind:
        names = [name for name in field_names(answer.kind) if getattr(answer, name) != getattr(beside, name)]
        return ", ".join(f"{name}={getattr(answer, name)}" for name in names)
    return str(answer)


def _direction(one: Any, other: Any) -> str:
    if isinstance(one, Refusal):
        return "answered"
    if isinstance(other, Refusal):
        return "refused"
    if isinstance(one, int) and isinstance(other, int):
        return "more" if other > one else "less"
    return ""


def _safety(both: Both, operation: str, kind: str, seed: int) -> tuple[tuple[str, str, str], ...]:
    """The verdict of each side for each safety law that asks the operation of the kind."""
    verdicts = []
    for law in CATALOGUE.values():
        if law.severity == "safety" and operation in law.needs and kind in law.kinds:
            sides = [
                sample(law, side, kind, examples=60, seed_number=seed).verdict
                for side in (both.left, both.right)
            ]
            verdicts.append((law.id, sides[0], sides[1]))
    return tuple(verdicts)


def _one_sided(has: Implementation, lacks: Implementation) -> list[str]:
    """What the first has and the second lacks: kinds, fields, operations, modes, cache dtypes."""
    found = [f"kind {kind}" for kind in has.kinds() if kind not in lacks.kinds()]
    for kind in has.kinds():
        if kind in lacks.kinds():
            found += [f"field {kind}.{name}" for name in sorted(has.fields(kind) - lacks.fields(kind))]
    found += [f"operation {name}" for name in sorted(has.operations() - lacks.operations())]
    for operation, word in (("quant_modes", "mode"), ("cache_dtypes", "cache dtype")):
        if operation in has.operations() and operation in lacks.operations():
            try:
                there = getattr(lacks, operation)()
                found += [f"{word} {name}" for name in getattr(has, operation)() if name not in there]
            except Unsupported:
                continue
    return found
