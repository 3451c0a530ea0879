"""Until 0.21: a mamba layer that caches all states was given no block for speculative ones."""

from __future__ import annotations

from typing import ClassVar

from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.revisions.formulas import Formulas
from kvconform.reference.specs import Mamba, Spec


class NoSpeculativeStates(Formulas):
    """The bound of mode all is the blocks of the request's length, and nothing more."""

    name: ClassVar[str] = "no-speculative-states"
    until: ClassVar[str] = "0.21"

    def stated_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        if isinstance(spec, Mamba) and spec.mamba_cache_mode == "all":
            return cdiv(deployment.max_model_len, spec.block_size)
        return super().stated_blocks_per_request(spec, deployment)
