"""What is proved of the reference itself: T1 to T12, each with the assumptions it needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvconform.properties.given import Given
from kvconform.properties.law import NO_KIND, Law
from kvconform.reference.interface import Implementation
from kvconform.reference.plain import Plain
from kvconform.solver import statements
from kvconform.solver.explore import Budget
from kvconform.solver.prove import BROKEN, INCONCLUSIVE, PROVED, VIOLATED, Proof, prove
from kvconform.solver.replay import Case

Suppose = Callable[[str, bool], None]
"""Assumes a condition by the name of the assumption, unless that one is left out."""

BUDGET = Budget(paths=20_000, deviations=None)


@dataclass(frozen=True)
class Theorem:
    """One statement about the reference's functions.

    ``assumptions`` gives each assumption of the statement by name with its sentence. ``check``
    draws the inputs, supposes the assumptions and ensures the statement.
    """

    id: str
    statement: str
    assumptions: Mapping[str, str]
    check: Callable[[Given, Suppose], None]

    def as_law(self, without: str | None = None) -> Law:
        """The theorem as a law of no kind, one of its assumptions left out if named."""

        def check(_: Implementation, given: Given) -> None:
            def suppose(name: str, condition: bool) -> None:
                if name not in self.assumptions:
                    raise KeyError(f"{self.id} does not list the assumption {name!r}")
                if name != without:
                    given.assume(condition)

            self.check(given, suppose)

        return Law(self.id, "formula", (NO_KIND,), (), True, (), check)


@dataclass(frozen=True)
class Necessity:
    """An assumption, and what goes wrong without it.

    ``case`` holds the draws of a counterexample and ``message`` what it breaks; the case is None
    where none was found, and then the message says why.
    """

    name: str
    sentence: str
    case: Case | None
    message: str


@dataclass(frozen=True)
class Proven:
    """What proving a theorem came to.

    ``verdict`` is proved only if the statement holds on the whole domain and each assumption is
    necessary; otherwise violated, broken or inconclusive, and ``message`` says why. ``paths``
    counts the runs of the statement itself, ``seconds`` the time for everything.
    """

    theorem: Theorem
    verdict: str
    domain: str
    message: str
    case: Case
    paths: int
    seconds: float
    assumptions: tuple[Necessity, ...]


def prove_theorem(theorem: Theorem, budget: Budget = BUDGET) -> Proven:
    """Prove the theorem on the reference, then refute it once without each assumption."""
    began = time.perf_counter()
    plain = Plain()
    proof = prove(theorem.as_law(), plain, NO_KIND, budget=budget)
    needed = tuple(
        _necessity(name, sentence, prove(theorem.as_law(without=name), plain, NO_KIND, budget=budget))
        for name, sentence in theorem.assumptions.items()
    )
    verdict, message = proof.verdict, proof.message
    idle = [assumption.name for assumption in needed if assumption.case is None]
    if verdict == PROVED and idle:
        verdict, message = INCONCLUSIVE, f"not shown necessary: {', '.join(idle)}"
    return Proven(
        theorem=theorem,
        verdict=verdict,
        domain=proof.domain,
        message=message,
        case=proof.case,
        paths=proof.paths,
        seconds=time.perf_counter() - began,
        assumptions=needed,
    )


def _necessity(name: str, sentence: str, proof: Proof) -> Necessity:
    if proof.verdict in (VIOLATED, BROKEN):
        return Necessity(name, sentence, proof.case, proof.message)
    why = "the statement holds without it" if proof.verdict == PROVED else proof.message
    return Necessity(name, sentence, None, why)


def _theorem(id: str, check: Callable[..., None], statement: str, **assumptions: str) -> Theorem:
    return Theorem(id, statement, assumptions, check)


_POSITIVE_ALIGNMENT = "the alignment is positive"
_IN_FLIGHT = "no more tokens are in flight than the deployment allows"

THEOREMS: dict[str, Theorem] = {
    theorem.id: theorem
    for theorem in (
        _theorem(
            "T1",
            statements.padded_covers_unpadded,
            "A page, padded by hand or aligned or neither, is at least its unpadded size, or refused.",
            aligned=_POSITIVE_ALIGNMENT,
        ),
        _theorem(
            "T2",
            statements.window_bound_suffices,
            "A windowed request never holds more blocks than its bound.",
            in_flight=_IN_FLIGHT,
            partial_block="the bound counts one block for a window that starts inside a block (the + 1)",
        ),
        _theorem(
            "T3",
            statements.window_bound_is_tight,
            "Some state of every long enough windowed request holds the bound's blocks, or one less where "
            "window - 2 + retained + in flight is a whole number of blocks.",
            long_enough="a window and a block more fit in the longest request",
            not_whole="for all of them: window - 2 + retained + in flight is not a whole number of blocks",
        ),
        _theorem(
            "T4",
            statements.chunk_bound_suffices,
            "A chunked-local request never holds more blocks than its bound.",
            whole_blocks="the chunk is a whole number of blocks",
            in_flight=_IN_FLIGHT,
        ),
        _theorem(
            "T5",
            statements.merge_is_a_semilattice,
            "Merging is idempotent, commutative and associative, refusals included, for every kind.",
            one_record="no layer records a window and a chunk at once",
        ),
        _theorem(
            "T6",
            statements.alignment_is_least,
            "An aligned page is the least multiple of the alignment that covers its contents.",
            aligned=_POSITIVE_ALIGNMENT,
        ),
        _theorem(
            "T7",
            statements.rounding_up_nests,
            "Rounding up twice is rounding up once: cdiv(cdiv(n, d), b) = cdiv(n, d x b).",
            divisible="d is not 0",
            positive="b is positive",
        ),
        _theorem(
            "T8",
            statements.plan_fits_and_is_maximal,
            "A plan's tensors fit the memory of every rank, and one more block would not fit on some rank.",
            not_overridden="the number of blocks is not overridden",
        ),
        _theorem(
            "T9",
            statements.packed_layers_are_disjoint,
            "Packed pages of any layers and blocks share no byte, and the last ends within the stride.",
            pages="no page is smaller than 0 bytes",
            aligned="every alignment is positive",
            stride="the stride is at least the end of the last page",
        ),
        _theorem(
            "T10",
            statements.quantisation_error,
            "Uniform quantisation is at most half a step off, everywhere from its first level to its last.",
            step="the step is positive",
            above="the value is not below the first level",
            below="the value is not above the last level",
        ),
        _theorem(
            "T11",
            statements.resizing_composes,
            "Resizing a spec twice gives the spec that resizing it once gives.",
            not_by_hand="no padding was asked for by hand",
        ),
        _theorem(
            "T12",
            statements.startup_implies_admission,
            "A plan that startup accepts always has the blocks that one request of any length holds.",
            in_flight=_IN_FLIGHT,
            length="the request is no longer than the longest allowed",
            withheld="no more blocks are withheld than the null block",
        ),
    )
}
"""Every theorem by its id."""
