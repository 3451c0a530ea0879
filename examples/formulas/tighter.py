"""A bound that is in no release yet: one token less than the window, retained and in-flight tokens."""

from kvconform.reference.arithmetic import cdiv
from kvconform.reference.deployment import Deployment
from kvconform.reference.plain import Plain
from kvconform.reference.specs import SlidingWindow, Spec


class TighterWindow(Plain):
    """The reference with another bound for sliding windows."""

    name = "tighter window"

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        """Most blocks that one request may hold: cdiv(window - 2 + retained + in flight, block) + 1."""
        if not isinstance(spec, SlidingWindow) or deployment.decode_context_parallel > 1:
            return super().max_blocks_per_request(spec, deployment)
        deployment = deployment.counting_lookahead()
        tokens = spec.sliding_window - 2 + spec.extra_retained_tokens + deployment.in_flight_tokens
        length = deployment.max_model_len
        return min(cdiv(tokens, spec.block_size) + 1, cdiv(length, spec.block_size))
