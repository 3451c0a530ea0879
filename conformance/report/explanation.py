"""Where the bytes go, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvconform.conformance.explain import DEFINITION, Share
from kvconform.reference.deployment import Deployment
from kvconform.reference.revisions import describe

if TYPE_CHECKING:
    from kvconform.conformance.pool import Pool
    from rich.console import Console


def show(
    console: Console,
    title: str,
    shares: Sequence[Share],
    deployment: Deployment,
    beside: str,
    revisions: Sequence[str] = (),
) -> None:
    """Print each group's factors, then fixed part and slope of all of them together.

    ``beside`` is the implementation whose figures stand beside the reference's, and ``revisions``
    what it declares.
    """
    console.print(title)
    console.print(
        f"request of {deployment.max_model_len:,} tokens, {deployment.in_flight_tokens:,} tokens in flight"
        + (f", {deployment.max_encoder_tokens:,} encoder tokens" if deployment.max_encoder_tokens else "")
    )
    console.print(f"figures: {DEFINITION}")
    if beside:
        said = f"beside:  {beside}, its own answers; formulas of {describe(revisions)}"
        console.print(said, soft_wrap=True)
    console.print()
    for share in shares:
        count = "1 layer" if share.layers == 1 else f"{share.layers} layers"
        console.print(f"{share.spec.kind}, {count} ({share.names}), blocks of {share.spec.block_size} tokens")
        console.print(f"  page    {share.page:>14,} bytes = {share.page_words}", soft_wrap=True)
        if share.filler:
            console.print(f"  filler  {share.filler:>14,} bytes of each page are padding")
        console.print(f"  blocks  {share.blocks:>14,} = {share.bound_words}", soft_wrap=True)
        console.print(f"  request {share.request_bytes:>14,} bytes = {share.layers} x blocks x page")
        if share.slope:
            slope = share.slope * share.layers
            words = f"{slope.numerator:,}" if slope.denominator == 1 else f"{float(slope):,.3f}"
            console.print(f"  grows   {words:>14} bytes for each token, a block at a time")
        else:
            console.print(
                f"  fixed   {share.fixed * share.layers:>14,} bytes, whatever the length from here on"
            )
        if share.beside:
            console.print(f"  {beside}: {share.beside}", soft_wrap=True)
        console.print()
    slope = sum((share.slope * share.layers for share in shares), start=0 * shares[0].slope)
    fixed = sum(share.fixed * share.layers for share in shares)
    request = sum(share.request_bytes for share in shares)
    words = f"{slope.numerator:,}" if slope.denominator == 1 else f"{float(slope):,.3f}"
    console.print(f"one request at this length: {request:,} bytes")
    console.print(f"  fixed part {fixed:,} bytes, and {words} bytes for each token in the groups that grow")


def show_pool(console: Console, whose: str, pool: Pool | str, shares: Sequence[Share], memory: int) -> None:
    """Print what the layers take once ``whose`` planner has put them together.

    ``memory`` (bytes) is what it was given, 0 for none.
    """
    if isinstance(pool, str):
        console.print(f"\nplanned by {whose}: {pool}", soft_wrap=True)
        return
    console.print(f"\nplanned by {whose}, all layers in one pool of blocks", soft_wrap=True)
    for words, count in pool.groups:
        console.print(f"  {count:>3} x {words}", soft_wrap=True)
    console.print(f"  block   {pool.block_bytes:>14,} bytes, whichever group holds it")
    if pool.empty_slots:
        share = 100 * pool.empty_slots / pool.slots
        console.print(
            f"  filler  {pool.empty_slots:>14,} of {pool.slots} layer slots are empty: {share:.1f}%"
        )
    beyond = pool.request_bytes - sum(one.request_bytes for one in shares)
    compared = f"{abs(beyond):,} {'more' if beyond > 0 else 'less'} than" if beyond else "as many as"
    console.print(
        f"  request {pool.request_bytes:>14,} bytes = {pool.request_blocks:,} blocks; {compared} its layers "
        "one by one",
        soft_wrap=True,
    )
    if pool.num_blocks is not None:
        held = f"{pool.num_blocks:,} blocks, {pool.requests:,.2f} requests at once"
        console.print(f"  memory  {memory:>14,} bytes = {held}")
    elif pool.longest is not None:
        console.print(
            f"  memory  {memory:>14,} bytes do not serve the request; the longest that fits has "
            f"{pool.longest:,} tokens",
            soft_wrap=True,
        )
