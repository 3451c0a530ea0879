"""The reference against figures published elsewhere, and against its slow twins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvconform.reference import blocks, merging, modes, pages, residency
from kvconform.reference.arithmetic import cdiv, round_up
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Refused
from kvconform.reference.specs import (
    KINDS,
    ChunkedLocalAttention,
    CrossAttention,
    FullAttention,
    Mamba,
    MLAAttention,
    ReferenceSlidingWindow,
    SlidingWindow,
    SlidingWindowMLA,
    Spec,
    UniformType,
)

ANSWERS = {
    answer["id"]: answer
    for answer in json.loads((Path(__file__).parent / "known_answers.json").read_text())["answers"]
}
SHAPE: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "bfloat16"}


def spec_of(answer: dict[str, Any], **fields: Any) -> Spec:
    kind = KINDS[answer["kind"]]
    names = (
        "block_size",
        "num_kv_heads",
        "head_size",
        "dtype",
        "state_content_bytes",
        "alignment",
        "sliding_window",
    )
    values = {**SHAPE, **{name: answer[name] for name in names if name in answer}, **fields}
    if answer["kind"] == "sliding_window_mla":
        values.setdefault("sliding_window", 1)
    return kind(**values)


@pytest.mark.parametrize("name", [name for name in ANSWERS if name.startswith("bound-")])
def test_published_bounds(name: str) -> None:
    answer = ANSWERS[name]
    deployment = Deployment(
        max_model_len=answer.get("max_model_len", 1),
        max_num_batched_tokens=answer.get("in_flight", 1),
        max_encoder_tokens=answer.get("max_encoder_tokens", 0),
    )
    assert blocks.max_blocks_per_request(spec_of(answer), deployment) == answer["blocks"]


@pytest.mark.parametrize("name", [name for name in ANSWERS if name.startswith("content-")])
def test_published_contents(name: str) -> None:
    answer = ANSWERS[name]
    spec = FullAttention(
        block_size=1,
        num_kv_heads=1,
        head_size=answer["head_size"],
        head_size_v=answer["head_size_v"],
        dtype="uint8",
        kv_quant_mode=answer["mode"],
    )
    assert modes.stored_bytes(spec) == answer["content_bytes"]


@pytest.mark.parametrize("name", [name for name in ANSWERS if name.startswith("page-")])
def test_published_pages(name: str) -> None:
    assert pages.page_size_bytes(spec_of(ANSWERS[name])) == ANSWERS[name]["page_bytes"]


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_cdiv_is_the_least_that_covers(dividend: int, divisor: int) -> None:
    quotient = cdiv(dividend, divisor)
    assert quotient * divisor >= dividend > (quotient - 1) * divisor
    assert round_up(dividend, divisor) == quotient * divisor


SMALL = st.integers(1, 9)


@given(SMALL, SMALL, st.integers(0, 4), st.integers(1, 40), SMALL, st.integers(1, 3))
def test_window_steps_stay_within_the_closed_form_and_the_bound(
    block: int, window: int, retained: int, length: int, batch: int, concurrent: int
) -> None:
    spec = SlidingWindow(block_size=block, sliding_window=window, extra_retained_tokens=retained, **SHAPE)
    deployment = Deployment(
        max_model_len=length, max_num_batched_tokens=batch, max_concurrent_batches=concurrent
    )
    most = max(residency.steps(spec, length, batch, concurrent))
    closed = max(
        residency.held_blocks(spec, settled, batch * concurrent, length) for settled in range(length + 1)
    )
    assert most <= closed <= blocks.max_blocks_per_request(spec, deployment)


@given(SMALL, SMALL, st.integers(1, 40), SMALL)
def test_chunk_steps_stay_within_the_closed_form(block: int, chunk: int, length: int, batch: int) -> None:
    spec = ChunkedLocalAttention(block_size=block, attention_chunk_size=chunk, **SHAPE)
    most = max(residency.steps(spec, length, batch))
    closed = max(residency.held_blocks(spec, settled, batch, length) for settled in range(length + 1))
    assert most <= closed


def test_the_closed_form_is_reached_step_by_step() -> None:
    spec = SlidingWindow(block_size=4, sliding_window=4, **SHAPE)
    steps = list(residency.steps(spec, 40, 1))
    assert max(steps) == max(residency.held_blocks(spec, settled, 1, 40) for settled in range(40)) == 2
    chunked = ChunkedLocalAttention(block_size=4, attention_chunk_size=6, **SHAPE)
    assert max(residency.steps(chunked, 40, 1)) == 2


@given(SMALL, SMALL, st.integers(0, 20), st.integers(1, 40), SMALL)
def test_reference_window_frees_only_the_gap(
    block: int, window: int, prompt: int, length: int, batch: int
) -> None:
    spec = ReferenceSlidingWindow(block_size=block, rswa_window=window, **SHAPE)
    prompt = min(prompt, length)
    most = max(residency.steps(spec, length, batch, prompt=prompt))
    closed = max(
        residency.held_blocks(spec, settled, batch, length, prompt=prompt) for settled in range(length + 1)
    )
    assert most <= closed <= cdiv(length, block)


def test_mamba_holds_states_not_tokens() -> None:
    state = Mamba(block_size=16, shapes=((4, 8),), dtypes=("float32",), num_speculative_blocks=3)
    assert pages.page_size_bytes(state) == 4 * 8 * 4
    deployment = Deployment(max_model_len=100)
    counts = {"none": 4, "align": 5, "all": 7 + 3}
    for mode, blocks_held in counts.items():
        spec = replace(state, mamba_cache_mode=mode)
        assert blocks.max_blocks_per_request(spec, deployment) == blocks_held
    assert blocks.max_num_blocks_per_req(replace(state, mamba_cache_mode="align"), deployment, 100) == 7 + 3


REFUSED: dict[str, Any] = {
    "padding below the contents": lambda: pages.page_size_bytes(
        FullAttention(block_size=1, num_kv_heads=1, head_size=8, dtype="uint8", page_size_padded=15)
    ),
    "half a state": lambda: pages.page_size_bytes(MLAAttention(block_size=3, compress_ratio=2, **SHAPE)),
    "no block": lambda: pages.page_size_bytes(FullAttention(block_size=0, **SHAPE)),
    "shapes without dtypes": lambda: pages.page_size_bytes(
        Mamba(block_size=1, shapes=((1,), (2,)), dtypes=("float32",))
    ),
    "model version": lambda: pages.construct(
        SlidingWindowMLA(block_size=1, sliding_window=1, model_version="deepseek_v3", **SHAPE)
    ),
    "alignment of nothing": lambda: pages.construct(MLAAttention(block_size=1, alignment=0, **SHAPE)),
    "resizing to nothing": lambda: pages.copy_with_new_block_size(FullAttention(block_size=1, **SHAPE), 0),
    "window over ranks": lambda: blocks.max_blocks_per_request(
        SlidingWindow(block_size=1, sliding_window=1, **SHAPE),
        Deployment(max_model_len=1, decode_context_parallel=2),
    ),
    "chunk of part of a block": lambda: blocks.max_blocks_per_request(
        ChunkedLocalAttention(block_size=6, attention_chunk_size=1, **SHAPE), Deployment(max_model_len=16)
    ),
    "odd head in nibbles": lambda: modes.stored_bytes(
        FullAttention(
            block_size=1, num_kv_heads=1, head_size=3, dtype="uint8", kv_quant_mode="INT4_PER_TOKEN_HEAD"
        )
    ),
    "unequal heads in nvfp4": lambda: modes.stored_bytes(
        FullAttention(
            block_size=1, num_kv_heads=1, head_size=16, head_size_v=32, dtype="uint8", kv_quant_mode="NVFP4"
        )
    ),
    "latent in turboquant": lambda: modes.stored_bytes(
        MLAAttention(
            block_size=1, num_kv_heads=1, head_size=512, dtype="uint8", kv_quant_mode="TURBOQUANT_K8V4"
        )
    ),
    "unknown cache dtype": lambda: modes.quant_mode("fp9"),
    "merging nothing": lambda: merging.merge([]),
    "merging kinds": lambda: merging.merge(
        [FullAttention(block_size=1, **SHAPE), CrossAttention(block_size=1, **SHAPE)]
    ),
    "two windows": lambda: merging.merge(
        [FullAttention(block_size=1, sliding_window=window, **SHAPE) for window in (1, 2)]
    ),
    "a window and a chunk": lambda: merging.merge(
        [
            FullAttention(block_size=1, sliding_window=1, **SHAPE),
            FullAttention(block_size=1, attention_chunk_size=1, **SHAPE),
        ]
    ),
    "layers of unlike tables": lambda: blocks.max_num_blocks_per_req(
        UniformType(
            block_size=1,
            kv_cache_specs=(
                ("a", FullAttention(block_size=1, **SHAPE)),
                ("b", FullAttention(block_size=2, **SHAPE)),
            ),
        ),
        Deployment(max_model_len=8),
        8,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_nonsense_is_refused_with_a_reason(what: str) -> None:
    with pytest.raises(Refused) as refusal:
        REFUSED[what]()
    assert len(str(refusal.value)) > 10


def test_merged_windows_and_flags_are_reconciled() -> None:
    plain = FullAttention(block_size=1, **SHAPE)
    merged = merging.merge([plain, replace(plain, sliding_window=8), replace(plain, non_causal=True)])
    assert merged == replace(plain, sliding_window=8, non_causal=True)


def test_resizing_derives_padding_anew() -> None:
    aligned = MLAAttention(block_size=64, num_kv_heads=1, head_size=584, dtype="uint8", alignment=576)
    built = pages.construct(aligned)
    assert built.page_size_padded == 37_440  # type: ignore[attr-defined]
    resized = pages.copy_with_new_block_size(built, 72)
    assert pages.page_size_bytes(resized) == 42_048 == pages.page_size_bytes(replace(aligned, block_size=72))
