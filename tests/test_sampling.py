"""Sampling: when a law is taken to lack something in all, and what it says then."""

from __future__ import annotations

from kvconform.properties import drawn
from kvconform.properties.given import Given
from kvconform.properties.law import Law, ensure
from kvconform.properties.sampling import FEWEST_LACKING, sample
from kvconform.reference.interface import Implementation, Unsupported
from kvconform.reference.plain import Plain
from kvconform.reference.specs import Spec


class Lacking(Plain):
    """Answers one page in so many, and lacks the others."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.asked = 0

    def page_size_bytes(self, spec: Spec) -> int:
        self.asked += 1
        if self.asked % self.every:
            raise Unsupported("pages of that kind")
        return super().page_size_bytes(spec)


def check(implementation: Implementation, given: Given) -> None:
    """A page is positive."""
    ensure(implementation.page_size_bytes(drawn.spec(given)) > 0, "a page of nothing")


PAGES = Law("test/page", "safety", ("full_attention",), ("page_size_bytes",), False, (), check)


def test_a_law_of_which_nothing_can_be_asked_is_given_up_soon() -> None:
    for examples, runs in ((8, FEWEST_LACKING), (120, 120)):
        lacking = Lacking(every=1 << 40)
        outcome = sample(PAGES, lacking, "full_attention", examples=examples, seed_number=0)
        assert (outcome.verdict, outcome.message) == ("unsupported", "pages of that kind")
        assert lacking.asked == runs


def test_a_law_of_which_something_can_be_asked_goes_on() -> None:
    some = sample(PAGES, Lacking(every=10), "full_attention", examples=120, seed_number=0)
    assert some.verdict == "held"
    assert some.examples >= 20
