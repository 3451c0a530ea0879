"""Where the bytes go: the parts add up to what the reference computes, and bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import kvconform
from kvconform.conformance.explain import explain
from kvconform.reference import blocks, pages
from kvconform.reference.deployment import Deployment
from kvconform.reference.models import model, models
from kvconform.reference.plain import Plain


@pytest.mark.parametrize("name", models())
def test_shares_add_up_to_the_reference(name: str) -> None:
    known = model(name)
    layers = dict(known.layers())
    deployment = known.deployment(max_num_batched_tokens=2048)
    shares = explain(layers, deployment, Plain())
    assert sum(share.layers for share in shares) == len(layers)
    wanted = sum(blocks.max_memory_usage_bytes(spec, deployment) for spec in layers.values())
    assert sum(share.request_bytes for share in shares) == wanted
    for share in shares:
        assert share.beside == "the same"
        assert share.page - share.filler == pages.unpadded_page_size_bytes(share.spec)
        assert bool(share.fixed) != bool(share.slope) or share.request_bytes == 0


def test_fixed_part_and_slope_foretell_a_longer_request() -> None:
    layers = dict(model("gemma-3-27b").layers(block_size=16))
    short, long = (Deployment(max_model_len=length, max_num_batched_tokens=512) for length in (32768, 65536))
    before, after = explain(layers, short), explain(layers, long)
    for one, other in zip(before, after, strict=True):
        grown = one.request_bytes + one.slope * one.layers * (65536 - 32768)
        assert grown == other.request_bytes
    assert {bool(share.slope) for share in before} == {True, False}


def test_a_spec_of_options(tmp_path: Path) -> None:
    done = kvconform(
        *("explain", "--kind", "mla_attention", "--block-size", "64", "--alignment", "576"),
        *("--num-kv-heads", "1", "--head-size", "584", "--dtype", "uint8"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "37,440 bytes = 1 head slots x 64 states x 584" in done.stdout
    assert "64 bytes of each page are padding" in done.stdout
    assert "reference, base revision" in done.stdout


def test_a_mode_is_stored_as_its_backend_packs_it(tmp_path: Path) -> None:
    done = kvconform(
        *("explain", "--kind", "full_attention", "--block-size", "16", "--num-kv-heads", "2"),
        *("--head-size", "256", "--dtype", "uint8", "--kv-quant-mode", "TURBOQUANT_K8V4"),
        cwd=tmp_path,
    )
    assert "12,416 bytes" in done.stdout


def test_a_config_file(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = kvconform("explain", "config.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "32 layers" in done.stdout
    assert "131,072 bytes for each token" in done.stdout
    del config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused = kvconform("explain", "config.json", cwd=tmp_path)
    assert refused.returncode == 2
    assert "num_hidden_layers" in refused.stderr


BAD = {
    "name a model": [],
    "goes with --kind": ["llama-2-7b", "--head-size", "3"],
    "did you mean gemma": ["gemma-3-27"],
    "unknown kind": ["--kind", "attention"],
    "did you mean --block-size": ["--kind", "full_attention", "--blok-size", "3"],
    "needs --": ["--kind", "full_attention", "--block-size", "16"],
    "wanted a whole number": ["--kind", "full_attention", "--block-size", "x"],
    "no such dtype": ["--kind", "full_attention", "--dtype", "int3"],
    "no such mode": ["--kind", "full_attention", "--kv-quant-mode", "Q4"],
    "unknown cache dtype": ["llama-2-7b", "--cache-dtype", "fp3"],
    "odd head size": [
        *("--kind", "full_attention", "--block-size", "1", "--num-kv-heads", "1", "--head-size", "3"),
        *("--dtype", "uint8", "--kv-quant-mode", "INT4_PER_TOKEN_HEAD"),
    ],
    "No such file": ["nowhere.json"],
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words: str, tmp_path: Path) -> None:
    done = kvconform("explain", *BAD[words], cwd=tmp_path)
    assert done.returncode == 2, done
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
