"""Verdicts of proof: what holds is proved, what does not is refuted, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import kvconform.properties.laws  # noqa: F401 (fills the catalogue)
import pytest
from kvconform.conformance.miniatures import miniature
from kvconform.properties.given import Given
from kvconform.properties.law import CATALOGUE, NO_KIND, Law, ensure, ensure_equal
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.plain import Plain
from kvconform.reference.specs import Spec
from kvconform.solver.explore import Budget
from kvconform.solver.prove import Proof, prove
from kvconform.solver.replay import replay

Check = Callable[[Given], None]


def as_law(check: Check) -> Law:
    return Law("test/law", "formula", (NO_KIND,), (), True, (), lambda _, given: check(given))


def attempt(check: Check, **budget: Any) -> Proof:
    return prove(as_law(check), Plain(), NO_KIND, budget=Budget(**budget))


def positive(given: Given, name: str) -> int:
    return given.integer(name, at_least=1)


# False statements, one fault each


def floor_for_ceiling(given: Given) -> None:
    n, d = given.integer("n"), positive(given, "d")
    ensure(n // d * d >= n, "n // d blocks hold n tokens")


def off_by_one(given: Given) -> None:
    n, d = given.integer("n"), positive(given, "d")
    ensure(cdiv(n, d) * d - n < d - 1, "rounding up adds less than d - 1")


def swapped_min_and_max(given: Given) -> None:
    a, b, c = (given.integer(name, at_least=-100) for name in "abc")
    ensure(max(a, b) <= c or min(a, b) > c, "max <= c unless min > c")


def dropped_plus_one(given: Given) -> None:
    start, length, block = given.integer("start"), positive(given, "length"), positive(given, "block")
    ensure(cdiv(start + length, block) - start // block <= cdiv(length, block), "a run of tokens, its blocks")


def divisor_that_may_be_negative(given: Given) -> None:
    n, d = given.integer("n", at_least=-1000), given.integer("d", at_least=-1000)
    given.assume(d != 0)
    ensure(n % d >= 0, "a remainder is not negative")


def divisor_that_may_be_zero(given: Given) -> None:
    n, d = given.integer("n"), given.integer("d")
    ensure(n // d <= n, "a quotient is not larger")


def strict_for_weak(given: Given) -> None:
    n = given.integer("n")
    ensure(n * n > n - 1 and n // 2 < n, "half is less")


def fails_only_far_out(given: Given) -> None:
    ensure(given.integer("n") != 123456789012345678901, "some number")


def fails_on_one_choice(given: Given) -> None:
    kind = given.choice("kind", ("a", "b", "c"))
    size = given.optional("size", at_least=1)
    ensure(not (kind == "c" and size is not None and size % 7 == 3), "no size 3 mod 7 in c")


def fails_on_one_flag(given: Given) -> None:
    ensure(not (given.flag("a") and not given.flag("b")), "a implies b")


def wrong_distribution(given: Given) -> None:
    a, b, d = given.integer("a"), given.integer("b"), positive(given, "d")
    ensure_equal((a + b) // d, a // d + b // d, "quotient of a sum", "sum of quotients")


FALSE = {
    floor_for_ceiling: {"n": 1, "d": 2},
    off_by_one: {"n": 0, "d": 1},
    swapped_min_and_max: {"a": 0, "b": 1, "c": 0},
    dropped_plus_one: {"start": 1, "length": 2, "block": 2},
    divisor_that_may_be_negative: {"n": 1, "d": -2},
    divisor_that_may_be_zero: {"n": 0, "d": 0},
    strict_for_weak: {"n": 0},
    fails_only_far_out: {"n": 123456789012345678901},
    fails_on_one_choice: {"kind": "c", "size": 3},
    fails_on_one_flag: {"a": True, "b": False},
    wrong_distribution: {"a": 1, "b": 1, "d": 2},
}


@pytest.mark.parametrize("check", FALSE, ids=lambda check: check.__name__)
def test_a_false_statement_is_refuted_by_a_small_case(check: Check) -> None:
    proof = attempt(check)
    assert proof.verdict == ("broken" if check is divisor_that_may_be_zero else "violated"), proof
    assert replay(as_law(check), Plain(), NO_KIND, proof.case).failed
    numbers = sum(abs(value) for value in proof.case.values() if type(value) is int)
    assert numbers <= sum(abs(value) for value in FALSE[check].values() if type(value) is int), proof.case


# True statements, near the false ones


def rounding_up(given: Given) -> None:
    n, d = given.integer("n"), positive(given, "d")
    ensure(cdiv(n, d) * d >= n, "covers")
    ensure(cdiv(n, d) * d - n < d, "least")


def run_of_tokens(given: Given) -> None:
    start, length, block = given.integer("start"), positive(given, "length"), positive(given, "block")
    ensure(cdiv(start + length, block) - start // block <= cdiv(length, block) + 1, "a run's blocks")


def product_of_blocks_and_page(given: Given) -> None:
    blocks, more = given.integer("blocks"), given.integer("more")
    page = (positive(given, "k") + given.integer("v")) * positive(given, "heads")
    ensure((blocks + more) * page >= blocks * page, "more blocks take more bytes")
    ensure_equal((blocks + more) * page, blocks * page + page * more, "bytes", "sum of parts")


def remainder_has_the_divisors_sign(given: Given) -> None:
    n, d = given.integer("n", at_least=-1000), given.integer("d", at_least=-1000)
    given.assume(d != 0)
    ensure(n % d == 0 or (n % d > 0) == (d > 0), "sign")
    ensure_equal(n // d * d + n % d, n, "put together", "n")


def multiples_survive_division(given: Given) -> None:
    d = positive(given, "d")
    n = given.integer("n", multiple_of=d)
    ensure_equal(n % d, 0, "remainder", "0")
    m = given.integer("m")
    given.assume(m % d == 0)
    ensure_equal((n + m) // d * d, n + m, "whole blocks", "all of them")


def bounds_may_be_unknown(given: Given) -> None:
    low = given.integer("low")
    value = given.integer("value", at_least=low, at_most=low + 5)
    other = given.integer("other", at_most=value * low)
    ensure(0 <= value - low <= 5 and other <= low * low + 5 * low, "within bounds")


TRUE = (
    rounding_up,
    run_of_tokens,
    product_of_blocks_and_page,
    remainder_has_the_divisors_sign,
    multiples_survive_division,
    bounds_may_be_unknown,
)


@pytest.mark.parametrize("check", TRUE, ids=lambda check: check.__name__)
def test_a_true_statement_is_proved(check: Check) -> None:
    proof = attempt(check)
    assert proof.verdict == "proved", proof
    assert proof.ensured > 0


# What must not be called a proof


def test_a_law_that_ensures_nothing_is_vacuous() -> None:
    def check(given: Given) -> None:
        n = given.integer("n")
        given.assume(n % 4 == 1)
        given.assume(n % 2 == 0)
        ensure(False, "never reached")

    proof = attempt(check)
    assert proof.verdict == "inconclusive"
    assert "vacuous" in proof.message


def test_a_law_that_returns_early_is_vacuous() -> None:
    proof = attempt(lambda given: ensure(False, "") if given.integer("n", at_most=5) > 5 else None)
    assert (proof.verdict, "vacuous" in proof.message) == ("inconclusive", True)


CONCRETE: dict[str, Callable[[int], object]] = {
    "range": lambda n: list(range(n)),
    "index": lambda n: [1, 2, 3][n],
    "int": int,
    "float": float,
    "format": lambda n: f"{n:04d}",
    "division": lambda n: n / 3,
    "division by 2 past exactness": lambda n: n / 2,
    "power": lambda n: 2**n,
    "shift": lambda n: 1 << n,
    "bits": lambda n: n.bit_length(),
    "or": lambda n: n | 1,
    "chr": chr,
    "repetition": lambda n: "ab" * n,
    "float comparison": lambda n: n < 1.5,
    "float equality": lambda n: n == 2.0,
}


@pytest.mark.parametrize("name", CONCRETE)
def test_what_needs_the_number_is_inconclusive_and_says_where(name: str) -> None:
    def check(given: Given) -> None:
        n = given.integer("n")
        with suppress(BaseException):  # Swallowing it must not help.
            CONCRETE[name](n)
        ensure(True, "")

    proof = attempt(check)
    assert proof.verdict == "inconclusive"
    assert "concrete" in proof.message
    path, _, line = proof.where.rpartition(":")
    assert path == __file__
    assert int(line) in range(
        CONCRETE["range"].__code__.co_firstlineno - 1, check.__code__.co_firstlineno + 8
    )


def test_what_z3_cannot_decide_is_inconclusive() -> None:
    def check(given: Given) -> None:
        a, b, c = (positive(given, name) for name in "abc")
        ensure(a * a * a + b * b * b != c * c * c, "no cube is the sum of two")

    proof = attempt(check, rlimit=50_000)
    assert proof.verdict == "inconclusive"
    assert "z3 could not decide" in proof.message


def test_too_many_paths_narrow_the_domain_and_say_so() -> None:
    def check(given: Given) -> None:
        picked = [given.choice(f"c{index}", (1, 2, 3)) for index in range(8)]
        ensure(sum(picked) >= 8 + given.integer("n", at_most=0), "sum")

    proof = attempt(check, paths=200)
    assert proof.verdict == "proved"
    assert "at most 2 choices differ from the first option" in proof.domain
    assert "c7: 1, 2 or 3" in proof.domain
    assert "at most" not in attempt(check, paths=10_000).domain


def test_too_many_branches_are_inconclusive() -> None:
    def check(given: Given) -> None:
        n = given.integer("n")
        count = 0
        while n > count:
            count += 1
        ensure(count >= n, "counted")

    assert attempt(check, branches=50).verdict == "inconclusive"
    assert attempt(check, paths=20).verdict == "inconclusive"


def test_a_different_answer_the_second_time_is_noticed() -> None:
    calls = iter(range(10_000))

    def check(given: Given) -> None:
        n = given.integer("n")
        ensure(n + next(calls) % 3 >= 0 or n > 7, "")
        given.choice("c", (1, 2))
        ensure(n != next(calls), "")

    assert attempt(check).verdict != "proved"


def test_a_value_kept_from_an_earlier_path_is_noticed() -> None:
    @lru_cache
    def kept(_: str) -> list[int]:
        return []

    def check(given: Given) -> None:
        n = given.integer("n")
        box = kept("n")
        box.append(n)
        given.choice("c", (1, 2))
        ensure(box[0] + 1 > 0, "")

    proof = attempt(check)
    assert proof.verdict == "inconclusive"
    assert "earlier run" in proof.message


def test_a_fault_of_the_symbolic_run_alone_is_inconclusive() -> None:
    def check(given: Given) -> None:
        n = given.integer("n", at_most=9)
        ensure(type(n) is int, "only an int will do")

    proof = attempt(check)
    assert proof.verdict == "inconclusive"
    assert "plain numbers" in proof.message


def test_a_refusal_of_a_well_formed_input_is_a_violation() -> None:
    def check(given: Given) -> None:
        if given.integer("n", at_most=100) == 37:
            raise Refused("37")
        ensure(True, "")

    assert attempt(check).case == {"n": 37}


def test_the_domain_names_every_bound() -> None:
    def check(given: Given) -> None:
        low = given.integer("low", at_least=2, at_most=1 << 20)
        given.integer("value", at_least=low * low)
        given.integer("even", at_least=4, at_most=64, multiple_of=2)
        given.optional("maybe", at_least=1)
        given.flag("flag")
        ensure(given.choice("dtype", ("a", "b")) != "c", "")

    assert attempt(check).domain == (
        "low: from 2 to 2^20; value: from low*low up; even: from 4 to 64, a multiple of 2; "
        "maybe: none or from 1 up; flag: false or true; dtype: a or b"
    )


def test_what_an_implementation_lacks_is_unsupported() -> None:
    class Bare(Plain):
        def operations(self) -> frozenset[str]:
            return frozenset()

        def page_size_bytes(self, spec: Spec) -> int:
            raise Unsupported("page_size_bytes")

    law = CATALOGUE["page/positive"]
    assert prove(law, Bare(), "full_attention").verdict == "unsupported"
    assert prove(replace(law, needs=()), Bare(), "full_attention").verdict == "unsupported"


# Over the reference, and over implementations with one fault


@pytest.mark.parametrize(
    ("id", "kind"),
    [
        ("page/padded-covers-unpadded", "mla_attention"),
        ("page/aligned", "sliding_window_mla"),
        ("page/layers-add-up", "uniform_type"),
        ("page/state-is-sum-of-parts", "mamba"),
        ("resize/composes", "full_attention"),
        ("bound/window-suffices", "sliding_window"),
        ("bound/chunk-suffices", "chunked_local_attention"),
        ("bound/rswa-suffices", "rswa"),
        ("bound/memory-is-blocks-times-page", "full_attention"),
        ("merge/commutative", "cross_attention"),
        ("merge/refuses-conflicts", "chunked_local_attention"),
        ("plan/within-budget", NO_KIND),
        ("plan/maximal", NO_KIND),
        ("plan/monotone", NO_KIND),
        ("plan/backs-every-block", NO_KIND),
        ("plan/disjoint", NO_KIND),
        ("plan/blocks-apart", NO_KIND),
        ("plan/blocks-aligned", NO_KIND),
        ("plan/startup-implies-admission", NO_KIND),
    ],
)
def test_laws_are_proved_over_the_reference(id: str, kind: str) -> None:
    proof = prove(CATALOGUE[id], Plain(), kind)
    assert proof.verdict == "proved", proof


class Floored(Plain):
    """Rounds the blocks of a window down."""

    def max_blocks_per_request(self, spec: Any, deployment: Any) -> int:
        tokens = spec.sliding_window - 1 + spec.extra_retained_tokens + deployment.in_flight_tokens
        return int.__floordiv__(1, 1) * (min(tokens, deployment.max_model_len) // spec.block_size) + 1


class Stale(Plain):
    """Carries the padding across when it resizes."""

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        return replace(spec, block_size=block_size)


class Narrow(Plain):
    """Counts pages in 32 bits."""

    def page_size_bytes(self, spec: Spec) -> int:
        return super().page_size_bytes(spec) % (1 << 32)


class Lenient(Plain):
    """Merges whatever has the first layer's block size."""

    def merge(self, specs: Any, kind: str | None = None) -> Spec:
        if len({spec.block_size for spec in specs}) > 1:
            raise Refused("block sizes differ")
        first: Spec = specs[0]
        return first


@pytest.mark.parametrize(
    ("implementation", "id", "kind"),
    [
        (Floored(), "bound/window-suffices", "sliding_window"),
        (Stale(), "resize/still-covers", "full_attention"),
        (Narrow(), "page/exact-at-scale", "cross_attention"),
        (Narrow(), "page/positive", "full_attention"),
        (Lenient(), "merge/commutative", "cross_attention"),
        (Lenient(), "merge/keeps-every-field", "chunked_local_attention"),
        (miniature("tensors-rounded-up"), "plan/within-budget", NO_KIND),
        (miniature("blocks-in-pairs"), "plan/maximal", NO_KIND),
        (miniature("null-block-not-backed"), "plan/backs-every-block", NO_KIND),
        (miniature("blocks-counted-in32-bits"), "plan/monotone", NO_KIND),
        (miniature("admission-by-length"), "plan/startup-implies-admission", NO_KIND),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Implementation) else str(value),
)
def test_a_fault_of_the_code_is_refuted(implementation: Implementation, id: str, kind: str) -> None:
    proof = prove(CATALOGUE[id], implementation, kind)
    assert proof.verdict == "violated", proof
    assert replay(CATALOGUE[id], implementation, kind, proof.case).verdict == "violated"
