"""What sampling a law costs beside the bare Hypothesis draws it is made of.

Run with ``pytest benchmarks``. Read the ratio of the two means within one run, never the means.
"""

from __future__ import annotations

from typing import Any

import kvconform.properties.laws  # noqa: F401
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from kvconform.properties.law import CATALOGUE
from kvconform.properties.sampling import sample
from kvconform.reference.plain import Plain

EXAMPLES = 100


def draw_only(picks: int) -> None:
    """As many examples of as many integers, each from a list of the size that laws pick from."""

    @seed(0)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*[st.sampled_from(range(32))] * picks))
    def bare(_: Any) -> None:
        pass

    bare()


@pytest.mark.benchmark(group="sampling full_attention: page/positive against bare draws")
def test_bare_draws(benchmark: Any) -> None:
    benchmark(draw_only, 12)


@pytest.mark.benchmark(group="sampling full_attention: page/positive against bare draws")
def test_a_sampled_law(benchmark: Any) -> None:
    law = CATALOGUE["page/positive"]
    outcome = benchmark(sample, law, Plain(), "full_attention", examples=EXAMPLES, seed_number=0)
    assert outcome.examples == EXAMPLES
