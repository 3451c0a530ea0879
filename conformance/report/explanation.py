"""Where the bytes go, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvconform.conformance.explain import DEFINITION, Share
from kvconform.reference.deployment import Deployment

if TYPE_CHECKING:
    from rich.console import Console


def show(console: Console, title: str, shares: Sequence[Share], deployment: Deployment, beside: str) -> None:
    """Print each group's factors, then fixed part and slope of all of them together."""
    console.print(title)
    console.print(
        f"request of {deployment.max_model_len:,} tokens, {deployment.in_flight_tokens:,} tokens in flight"
        + (f", {deployment.max_encoder_tokens:,} encoder tokens" if deployment.max_encoder_tokens else "")
    )
    console.print(f"figures: {DEFINITION}\n")
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
