"""One bound at startup and at run time, speculation included (FACTS sections 5 and 6)."""

from __future__ import annotations

from kvconform.properties import drawn
from kvconform.properties.given import Given
from kvconform.properties.law import ensure, ensure_equal, law
from kvconform.properties.laws.bound import step
from kvconform.reference.interface import Implementation, Refused
from kvconform.reference.residency import held_blocks

LOCAL = ("sliding_window", "sliding_window_mla", "chunked_local_attention")
ADMITTED = ("full_attention", "mla_attention", *LOCAL)


@law(
    "bound/lookahead-counts",
    severity="safety",
    kinds=ADMITTED,
    needs=("max_blocks_per_request",),
    proved=True,
)
def lookahead_counts(implementation: Implementation, given: Given) -> None:
    """Slots reserved past the scheduled tokens for speculation are covered by the bound too.

    A request whose draft tokens reach into one block more than the bound is admitted, and then
    cannot get that block.
    """
    spec = drawn.spec(given, padding=("none",), packed=False)
    lookahead = given.tokens("lookahead", at_most=1 << 20)
    deployment, settled, _ = step(given, spec, lookahead)
    held = held_blocks(spec, settled, deployment.in_flight_tokens, deployment.max_model_len, lookahead)
    try:
        bound = implementation.max_blocks_per_request(spec, deployment)
    except Refused:
        given.reject()
    ensure(
        bound >= held,
        f"bound: got {bound} blocks, wanted at least {held} = held with {settled} tokens settled, "
        f"{deployment.in_flight_tokens} in flight and {lookahead} slots ahead of them",
    )


@law(
    "bound/one-number",
    severity="safety",
    kinds=ADMITTED,
    needs=("max_blocks_per_request", "max_admission_blocks_per_request"),
    proved=True,
    reports=("vllm#50169",),
)
def one_number(implementation: Implementation, given: Given) -> None:
    """Startup sizing and run-time admission use the same number of blocks per request.

    Where admission asks for more, a request that startup promised to serve waits for ever.
    """
    spec = drawn.spec(given, padding=("none",), packed=False)
    deployment = drawn.deployment(given, concurrent=(1, 2))
    try:
        startup = implementation.max_blocks_per_request(spec, deployment)
    except Refused:
        given.reject()
    ensure_equal(
        implementation.max_admission_blocks_per_request(spec, deployment),
        startup,
        "blocks that admission asks for",
        "blocks that startup counts for one request of max length",
    )
