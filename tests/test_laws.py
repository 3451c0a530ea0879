"""Every law holds on the reference, is deterministic, and counts what it ran."""

from __future__ import annotations

import kvconform.properties.laws  # noqa: F401
import pytest
from kvconform.properties.law import CATALOGUE, Law
from kvconform.properties.sampling import sample
from kvconform.reference.plain import Plain

PAIRS = [(law, kind) for law in CATALOGUE.values() for kind in law.kinds]


@pytest.mark.parametrize("law", CATALOGUE.values(), ids=list(CATALOGUE))
@pytest.mark.parametrize("seed_number", [1, 2])
def test_the_reference_keeps_it(law: Law, seed_number: int) -> None:
    for kind in law.kinds:
        outcome = sample(law, Plain(), kind, examples=40, seed_number=seed_number)
        assert outcome.verdict == "held", f"{kind}: {outcome}"
        assert outcome.examples > 0
