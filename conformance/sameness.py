"""Laws by which the answers of two implementations are proved to be the same.

Two releases cannot share a process, so what one answers cannot be proved equal to what the other
does. But each can be proved equal to one and the same third formula, by a worker that holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvconform.conformance.answers import Fall, answer, differ, in_words
from kvconform.conformance.common import Common, InCommon
from kvconform.conformance.questions import TOPICS
from kvconform.properties.given import Given
from kvconform.properties.law import Law, ensure
from kvconform.reference import pages
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Implementation
from kvconform.reference.plain import Plain
from kvconform.reference.revisions import Formulas, following
from kvconform.reference.specs import KINDS, LATENT, AttentionSpec, Spec, UniformType

REFERENCE, STATED = "reference", "stated"
FORMULAS = (REFERENCE, STATED)
"""The third formulas, in the order in which they are tried."""

PREFIX = "same-as-"


class Stated(Plain):
    """The reference without its corrections: the formulas as the specification states them.

    Bounds and stored bytes are those of the revisions that are followed, and resizing carries a
    padding across as it is (FACTS section 4, finding).
    """

    name = "the stated formula"

    def __init__(self, formulas: Formulas) -> None:
        super().__init__()
        self._formulas = formulas

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        return self._formulas.stored_bytes(spec)

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return self._formulas.stated_blocks_per_request(spec, deployment)

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        carried = replace(pages.construct(spec), block_size=block_size)
        if isinstance(carried, UniformType):
            return carried
        if isinstance(carried, LATENT) and carried.alignment is not None:
            derived = pages.construct(replace(carried, page_size_padded=None))
            assert isinstance(derived, AttentionSpec)
            return carried if derived.page_size_padded is None else derived
        return carried


def sameness(operations: Sequence[str], formula: str, common: Common) -> Law:
    """The law that an implementation answers operations of one topic as a third formula does.

    Questions are drawn from what two implementations have in common, so that the law is about the
    same questions for both.
    """
    topic = next(topic for topic in TOPICS if operations[0] in topic.operations)
    third = Plain() if formula == REFERENCE else Stated(following(common.revisions))
    shared = InCommon(common)

    def as_formula(implementation: Implementation, given: Given) -> None:
        given.implementation = shared
        drawn = topic.draw(given)
        for operation in operations:
            arguments = topic.arguments(operation, drawn)
            got, wanted = answer(implementation, operation, arguments), answer(third, operation, arguments)
            if isinstance(got, Fall) or isinstance(wanted, Fall):
                raise RuntimeError(f"{operation}: {got if isinstance(got, Fall) else wanted}")
            same = not differ(common, got, wanted)
            # Words only where there is something to tell: most runs of many do not need them.
            words = "" if same else f"got {in_words(got, wanted)}, wanted {in_words(wanted, got)}"
            ensure(same, f"{operation}: {words} = {third.name}")

    id = f"{PREFIX}{formula}/{'+'.join(operations)}"
    return Law(id, "agreement", (*KINDS,), (*operations,), True, (), as_formula)


def read_sameness(law: str, common: Common) -> Law:
    """The law of an id that `sameness` gave. Raises KeyError for an id that is none."""
    prefix, _, operations = law.partition("/")
    formula = prefix.removeprefix(PREFIX)
    if formula not in FORMULAS or not prefix.startswith(PREFIX):
        raise KeyError(law)
    return sameness(operations.split("+"), formula, common)
