"""Whether what is planned can be held: an allocator's side of a spec."""

from __future__ import annotations

from dataclasses import replace

from kvconform.properties import drawn
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, law
from kvconform.reference.interface import Implementation, Refused, Undocumented
from kvconform.reference.specs import ATTENTION_KINDS, SinkFullAttention

MANAGED = (*(kind for kind in ATTENTION_KINDS if kind != "encoder_only_attention"), "mamba")
"""Kinds whose blocks a manager hands out: layers without cache have none."""


@law(
    "hold/constructs",
    severity="agreement",
    kinds=MANAGED,
    needs=("max_admission_blocks_per_request",),
)
def constructs(implementation: Implementation, given: Given) -> None:
    """The manager of every registered kind can be built by the coordinator, and asked for admission.

    A kind that planning accepts and no manager can be made for ends the server after its memory has
    been taken.
    """
    spec = drawn.spec(given, padding=("none",))
    if isinstance(spec, SinkFullAttention) and "sink_len" in implementation.fields(spec.kind):
        # What a pool withholds for sinks is whole blocks.
        spec = replace(spec, sink_len=spec.block_size * given.choice("sink_blocks", (1, 2)))
    deployment = drawn.deployment(given, encoder=True)
    fall = ""
    try:
        implementation.max_admission_blocks_per_request(spec, deployment)
    except Undocumented as undocumented:
        fall = str(undocumented)
    except Refused:
        given.reject()
    ensure(not fall, f"no manager for a {spec.kind} layer: {fall}")
