"""The formulas that laws of severity ``formula`` compare, as the base revision states them."""

from __future__ import annotations

from typing import ClassVar

from kvconform.reference import blocks, modes
from kvconform.reference.deployment import Deployment
from kvconform.reference.specs import AttentionSpec, Spec, UniformType


class Formulas:
    """The base revision. A revision derives from it and overrides what was computed otherwise.

    ``name`` is what an implementation declares, ``until`` the last release that followed it.
    """

    name: ClassVar[str] = "base"
    until: ClassVar[str] = ""

    def stored_bytes(self, spec: AttentionSpec) -> int:
        """Bytes stored for one state of one KV head: FACTS section 10. Raises `Refused` as it does."""
        return modes.stored_bytes(spec)

    def stated_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        """The bound in blocks: FACTS section 5. Raises `Refused` as it does."""
        if isinstance(spec, UniformType):
            return max(self.stated_blocks_per_request(layer, deployment) for layer in spec.layers())
        return blocks.stated_blocks_per_request(spec, deployment)
