"""Where the bytes of a spec or a model go: factor by factor, in words and exact integers.

Every figure follows the reference's base revision: pages as FACTS section 3, blocks per request as
its section 5 with the corrections that the laws ask for. Memory is given as a fixed part and a
slope per group of layers, never as one quotient: a window's cache does not grow with the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from kvconform.reference import blocks, pages
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.specs import (
    DTYPE_BYTES,
    LATENT,
    AttentionSpec,
    ChunkedLocalAttention,
    CrossAttention,
    EncoderOnlyAttention,
    FullAttention,
    Mamba,
    SlidingWindow,
    Spec,
)

DEFINITION = "reference, base revision: bytes of a page x the blocks that one request may hold at once"


@dataclass(frozen=True)
class Share:
    """What one group of equal layers takes.

    ``page`` is bytes, ``page_words`` the factors it is made of, ``filler`` the bytes of it that are
    padding. ``blocks`` is how many one request may hold, ``bound_words`` why. Of one layer's memory
    ``fixed`` (bytes) does not depend on the request's length once that is reached, and ``slope`` is
    bytes for each further token, up to whole blocks. ``beside`` is another implementation's page
    and blocks, or why it has none.
    """

    layers: int
    spec: Spec
    names: str
    page: int
    page_words: str
    filler: int
    blocks: int
    bound_words: str
    fixed: int
    slope: Fraction
    beside: str = ""

    @property
    def request_bytes(self) -> int:
        """Most bytes that one request may hold in all layers of the group."""
        return self.layers * self.blocks * self.page


def explain(
    layers: Mapping[str, Spec], deployment: Deployment, beside: Implementation | None = None
) -> tuple[Share, ...]:
    """The shares of a model's layers, grouped by equal spec in the order in which they first stand.

    Raises `Refused` where the reference refuses a layer.
    """
    grouped: dict[Spec, list[str]] = {}
    for name, spec in layers.items():
        grouped.setdefault(spec, []).append(name)
    return tuple(_share(spec, names, deployment, beside) for spec, names in grouped.items())


def _share(spec: Spec, names: list[str], deployment: Deployment, beside: Implementation | None) -> Share:
    page = pages.page_size_bytes(spec)
    filler = page - pages.unpadded_page_size_bytes(spec)
    held = blocks.max_blocks_per_request(spec, deployment)
    grows = _grows(spec, held, deployment)
    return Share(
        layers=len(names),
        spec=spec,
        names=names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}",
        page=page,
        page_words=_page_words(spec),
        filler=filler,
        blocks=held,
        bound_words=_bound_words(spec, deployment),
        fixed=0 if grows else held * page,
        slope=Fraction(page, spec.block_size * deployment.decode_context_parallel) if grows else Fraction(0),
        beside="" if beside is None else _beside(spec, deployment, beside, page, held),
    )


def _grows(spec: Spec, held: int, deployment: Deployment) -> bool:
    """Whether a longer request would hold more blocks."""
    if isinstance(spec, EncoderOnlyAttention | CrossAttention):
        return False
    block_of_all_ranks = spec.block_size * deployment.decode_context_parallel
    longer = replace(deployment, max_model_len=deployment.max_model_len + block_of_all_ranks)
    return blocks.max_blocks_per_request(spec, longer) > held


def _page_words(spec: Spec) -> str:
    if isinstance(spec, Mamba):
        parts = (
            f"{' x '.join(map(str, shape))} x {DTYPE_BYTES[dtype]} ({dtype})"
            for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
        )
        return " + ".join(parts) + ", whatever the block size"
    assert isinstance(spec, AttentionSpec)
    content = pages.state_content_size_bytes(spec)
    words = f"{pages.head_slots(spec)} head slots x {pages.states_per_block(spec)} states x {content}"
    if spec.state_content_bytes is not None:
        mode = "" if spec.kv_quant_mode == "NONE" else f" in mode {spec.kv_quant_mode}"
        return f"{words}; {content} = what its backend packs per state{mode}"
    latent = isinstance(spec, LATENT)
    sides = f"{spec.head_size} latent" if latent else f"{spec.head_size} K + {spec.value_head_size} V"
    return f"{words}; {content} = ({sides}) x {DTYPE_BYTES[spec.dtype]} ({spec.dtype})"


def _bound_words(spec: Spec, deployment: Deployment) -> str:
    block, length = spec.block_size, deployment.max_model_len
    in_flight = deployment.in_flight_tokens
    if isinstance(spec, SlidingWindow):
        retained = f" + {spec.extra_retained_tokens} retained" if spec.extra_retained_tokens else ""
        return (
            f"ceil(min({spec.sliding_window} window - 1{retained} + {in_flight} in flight, "
            f"{length} length) / {block}) + 1, at most those of the whole length"
        )
    if isinstance(spec, ChunkedLocalAttention):
        return (
            f"ceil(min({spec.attention_chunk_size} chunk + {in_flight} in flight, {length} length) / {block})"
        )
    if isinstance(spec, CrossAttention):
        return f"ceil({deployment.max_encoder_tokens} encoder tokens / {block})"
    if isinstance(spec, EncoderOnlyAttention):
        return "no cache"
    if isinstance(spec, Mamba):
        spare = f" + {spec.num_speculative_blocks} speculative" if spec.num_speculative_blocks else ""
        states = {"none": "1 state", "align": "2 states", "all": f"ceil({length} length / {block}) states"}
        return states[spec.mamba_cache_mode] + spare
    assert isinstance(spec, FullAttention)
    ranks = deployment.decode_context_parallel
    split = f" / {ranks} ranks" if ranks > 1 else ""
    return f"ceil({length} length{split} / {block})"


def _beside(spec: Spec, deployment: Deployment, other: Implementation, page: int, held: int) -> str:
    try:
        answers = other.page_size_bytes(spec), other.max_blocks_per_request(spec, deployment)
    except Refused as refusal:
        return f"refused: {refusal}"
    except Unsupported as lack:
        return f"unsupported: {lack}"
    if answers == (page, held):
        return "the same"
    return f"page {answers[0]:,} bytes, {answers[1]:,} blocks, {answers[0] * answers[1]:,} bytes a layer"
