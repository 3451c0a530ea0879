"""Revisions: what each changes, who declares it, and that it changes nothing but the formulas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import kvconform
from kvconform.conformance import protocol
from kvconform.properties import laws as _laws  # noqa: F401 (fills the catalogue)
from kvconform.properties.law import CATALOGUE
from kvconform.properties.sampling import Outcome, sample
from kvconform.reference import blocks, modes
from kvconform.reference.deployment import Deployment
from kvconform.reference.plain import Plain
from kvconform.reference.revisions import REVISIONS, describe, following
from kvconform.reference.specs import (
    AttentionSpec,
    FullAttention,
    Mamba,
    MLAAttention,
    SlidingWindow,
    Spec,
    UniformType,
)
from releases import root_of

WINDOW = SlidingWindow(block_size=4, num_kv_heads=1, head_size=8, dtype="bfloat16", sliding_window=9)
STATES = Mamba(
    block_size=4, shapes=((8,),), dtypes=("float32",), mamba_cache_mode="all", num_speculative_blocks=2
)
LATENT = MLAAttention(
    block_size=8,
    num_kv_heads=1,
    head_size=64,
    dtype="uint8",
    kv_quant_mode="INT8_PER_TOKEN_HEAD",
    compress_ratio=4,
)
BUSY = Deployment(max_model_len=100, max_num_batched_tokens=4, max_concurrent_batches=2)


def test_the_base_is_what_the_reference_states() -> None:
    base = following(())
    for spec in (WINDOW, STATES, LATENT):
        assert base.stated_blocks_per_request(spec, BUSY) == blocks.stated_blocks_per_request(spec, BUSY)
    assert base.stored_bytes(LATENT) == modes.stored_bytes(LATENT) == 72
    assert describe(()) == "base"


def test_one_batch_counts_until_0_25() -> None:
    # 9 - 1 + 2 x 4 tokens in blocks of 4, and one: against 9 - 1 + 4.
    assert following(()).stated_blocks_per_request(WINDOW, BUSY) == 5
    assert following(("per-batch-budget",)).stated_blocks_per_request(WINDOW, BUSY) == 4


def test_every_token_has_its_scales_until_0_27() -> None:
    earlier = following(("scales-per-token",))
    assert earlier.stored_bytes(LATENT) == 64 + 4 * 8
    assert earlier.stored_bytes(replace(LATENT, kv_quant_mode="NONE")) == 64
    full = FullAttention(
        block_size=8, num_kv_heads=1, head_size=64, dtype="int8", kv_quant_mode="INT8_PER_TOKEN_HEAD"
    )
    assert earlier.stored_bytes(full) == 2 * 64 + 8


def test_speculative_states_are_not_counted_until_0_21() -> None:
    earlier = following(("no-speculative-states",))
    assert following(()).stated_blocks_per_request(STATES, BUSY) == 27
    assert earlier.stated_blocks_per_request(STATES, BUSY) == 25
    assert earlier.stated_blocks_per_request(replace(STATES, mamba_cache_mode="align"), BUSY) == 4


def test_several_are_followed_together_and_inside_a_uniform_type() -> None:
    every = following(tuple(REVISIONS))
    assert every.stored_bytes(LATENT) == 96
    for spec, blocks_ in ((WINDOW, 4), (STATES, 25)):
        layers: tuple[tuple[str, Spec], ...] = (("a", spec), ("b", spec))
        wrapped = UniformType(block_size=4, kv_cache_specs=layers)
        assert every.stated_blocks_per_request(wrapped, BUSY) == blocks_


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no revision is called 'per-batch'; there are per-batch-budget, "):
        following(("per-batch",))


class Earlier(Plain):
    """Answers by the formulas of a revision, and may or may not declare it."""

    def __init__(self, name: str, declared: bool = True) -> None:
        super().__init__()
        self.formulas = following((name,))
        self.declared = (name,) if declared else ()

    def revisions(self) -> tuple[str, ...]:
        return self.declared

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return self.formulas.stated_blocks_per_request(spec, deployment)

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        return self.formulas.stored_bytes(spec)


COMPARED = {
    "per-batch-budget": ("bound/formula", "sliding_window"),
    "scales-per-token": ("quant/content-formula", "mla_attention"),
    "no-speculative-states": ("bound/formula", "mamba"),
}


def judged(law: str, kind: str, implementation: Plain) -> Outcome:
    return sample(CATALOGUE[law], implementation, kind, examples=300, seed_number=0)


@pytest.mark.parametrize("name", REVISIONS)
def test_who_declares_it_is_measured_against_it(name: str) -> None:
    law, kind = COMPARED[name]
    assert judged(law, kind, Earlier(name)).verdict == "held"
    undeclared = judged(law, kind, Earlier(name, declared=False))
    assert undeclared.verdict == "violated"
    assert "(base)" in undeclared.message
    falsely = Plain()
    falsely.revisions = lambda: (name,)  # type: ignore[method-assign]
    outcome = judged(law, kind, falsely)
    # A bound that is right in the base is accepted in any revision: it is the corrected one.
    assert outcome.verdict == ("violated" if law == "quant/content-formula" else "held")


def test_what_is_too_little_is_too_little_in_any_revision() -> None:
    outcome = judged("bound/in-flight-counts", "sliding_window", Earlier("per-batch-budget"))
    assert outcome.verdict == "violated"


def test_a_process_that_declares_an_unknown_one_is_told() -> None:
    said = {"protocol": 1, "name": "x", "kinds": {}, "operations": [], "revisions": ["per-batch-budget"]}
    assert protocol.read_capabilities(json.dumps(said).encode()).revisions == ("per-batch-budget",)
    said["revisions"] = ["0.25"]
    with pytest.raises(
        protocol.ProtocolError, match=r"unknown revision '0.25': there are per-batch-budget, "
    ):
        protocol.read_capabilities(json.dumps(said).encode())


def test_an_unknown_one_ends_the_run_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from kvconform.reference.plain import Plain\n"
        "class Mine(Plain):\n"
        "    def revisions(self):\n"
        "        return ('0.25',)\n"
    )
    ended = kvconform("run", "python:mine:Mine", "--laws", "page/positive", cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert "no revision is called '0.25'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("version", "declared"),
    [
        ("0.20.2", ["per-batch-budget", "scales-per-token", "no-speculative-states"]),
        ("0.26.0", ["scales-per-token"]),
        ("0.33.0", []),
    ],
)
def test_a_release_declares_what_it_follows(version: str, declared: list[str], tmp_path: Path) -> None:
    root_of(version)
    ended = kvconform(
        "run",
        f"vllm=={version}",
        "--laws",
        "bound/formula,quant/content-formula",
        "--kinds",
        "mamba,mla_attention",
        "--json",
        "report.json",
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["implementation"]["revisions"] == declared
    assert {result["verdict"] for result in report["results"]} <= {"held", "unsupported"}
    assert ("formulas of base but" in " ".join(ended.stdout.split())) == bool(declared)
