"""Until 0.25: one batch's token budget stood where the tokens in flight stand now.

Too little as soon as more than one batch is unsettled (bound/in-flight-counts; tt-xla#5908).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kvconform.reference.deployment import Deployment
from kvconform.reference.revisions.formulas import Formulas
from kvconform.reference.specs import Spec


class PerBatchBudget(Formulas):
    """Bounds count one batch of ``max_num_batched_tokens``, however many are concurrent."""

    name: ClassVar[str] = "per-batch-budget"
    until: ClassVar[str] = "0.25"

    def stated_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return super().stated_blocks_per_request(spec, replace(deployment, max_concurrent_batches=1))
