"""Faults of handing out what was planned."""

from __future__ import annotations

from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Undocumented
from kvconform.reference.specs import SinkFullAttention, Spec


@breaks("hold/constructs")
class NoManagerForSinks(Engine):
    """The manager of sink layers is built without an argument that all others were given since."""

    def max_admission_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, SinkFullAttention):
            raise Undocumented("TypeError: SinkManager() got an unexpected keyword argument 'needs_zeroing'")
        return super().max_admission_blocks_per_request(spec, deployment)
