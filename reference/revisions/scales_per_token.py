"""Until 0.27: per-token-head scales were added to the page, for every token of a block.

Since then a backend publishes the content of a state, its scales among it. The two differ where a
compressed cache keeps one state for several tokens.
"""

from __future__ import annotations

from typing import ClassVar

from kvconform.reference import modes
from kvconform.reference.revisions.formulas import Formulas
from kvconform.reference.specs import LATENT, AttentionSpec


class ScalesPerToken(Formulas):
    """A state of ``compress_ratio`` tokens carries the scales of each of them."""

    name: ClassVar[str] = "scales-per-token"
    until: ClassVar[str] = "0.27"

    def stored_bytes(self, spec: AttentionSpec) -> int:
        stored = super().stored_bytes(spec)
        if isinstance(spec, LATENT) and spec.kv_quant_mode in modes.FAMILIES["per_token_head"]:
            return stored + (spec.compress_ratio - 1) * 2 * modes.SCALE_BYTES
        return stored
