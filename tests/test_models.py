"""The collection of models: complete, sourced, and in agreement with what others published."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kvconform.reference import modes, specs
from kvconform.reference.grouping import get_kv_cache_groups
from kvconform.reference.interface import Refused
from kvconform.reference.models import WITHOUT_MODEL, Model, model, models, read
from kvconform.reference.models.figures import UNITS, Figure
from kvconform.reference.models.states import gated_delta_net, mamba1, mamba2
from kvconform.reference.pages import copy_with_new_block_size
from kvconform.reference.plain import Plain
from kvconform.reference.specs import AttentionSpec, Mamba, Spec
from kvconform.reference.uniform import Registry

FIGURES = [(name, figure) for name in models() for figure in model(name).figures]

UNPLANNED = {"deepseek-v4-flash": "does not index by block stride"}
"""Models whose caches the base spec's planning refuses to share out, and what it says."""


def distinct(layers: tuple[tuple[str, Spec], ...]) -> list[Spec]:
    """The different specs of a model's layers."""
    return list(dict.fromkeys(spec for _, spec in layers))


def test_there_are_enough() -> None:
    assert len(models()) >= 25
    assert len({name for name, _ in FIGURES}) >= 5


@pytest.mark.parametrize("name", models())
def test_every_model_can_be_sized(name: str) -> None:
    found = model(name)
    assert found.name == name
    assert len(found.source) > 40
    plain = Plain()
    deployment = found.deployment(max_num_batched_tokens=8192)
    layers = found.layers()
    assert len(dict(layers)) == len(layers)
    for spec in distinct(layers):
        built = plain.construct(spec)
        assert plain.page_size_bytes(built) > 0
        held = plain.max_blocks_per_request(built, deployment)
        assert (held == 0) == (spec.kind == "encoder_only_attention")
        assert plain.max_memory_usage_bytes(built, deployment) == held * plain.page_size_bytes(built)


@pytest.mark.parametrize("name", models())
def test_every_model_can_be_planned(name: str) -> None:
    found = model(name)
    layers = dict(found.layers())
    if name in UNPLANNED:
        with pytest.raises(Refused, match=UNPLANNED[name]):
            get_kv_cache_groups(layers, found.deployment(), Registry())
        return
    groups = get_kv_cache_groups(layers, found.deployment(), Registry())
    assert sorted(layer for group in groups for layer in group.layer_names) == sorted(layers)
    assert any(group.is_eagle_group for group in groups) == bool(found.draft_layers())


def test_every_kind_has_a_model_or_a_reason() -> None:
    kinds = {spec.kind for name in models() for spec in distinct(model(name).layers())}
    assert kinds.isdisjoint(WITHOUT_MODEL)
    assert kinds | set(WITHOUT_MODEL) == set(specs.KINDS)


def test_every_part_is_placed() -> None:
    for name in models():
        found = model(name)
        placed = {layer.rpartition(".")[2] for layer, _ in found.layers()}
        assert placed == set(found.parts), name


@pytest.mark.parametrize(("name", "figure"), FIGURES, ids=[f"{name} {f.printed}" for name, f in FIGURES])
def test_published_figures_are_reproduced(name: str, figure: Figure) -> None:
    size = model(name).kv_bytes(figure)
    assert figure.is_reproduced_by(size), f"{figure.printed} is published, {size} bytes computed"
    assert len(figure.source) > 20
    assert figure.unit in UNITS


def test_a_figure_tells_one_token_in_a_thousand_apart() -> None:
    published = model("deepseek-v3").figures[0]
    assert published.printed == "70.272 KB"
    assert published.is_reproduced_by(70_272)
    assert not published.is_reproduced_by(70_273)


def test_layers_by_hand() -> None:
    names = [name for name, _ in model("gemma-3-27b").layers()]
    assert names[:7] == [f"layers.{index}.sliding" for index in range(5)] + [
        "layers.5.full",
        "layers.6.sliding",
    ]
    assert names[-2:] == ["layers.60.sliding", "layers.61.sliding"]
    hybrid = [name for name, _ in model("zamba2-2.7b").layers() if name.endswith(".full")]
    assert hybrid == [f"layers.{index}.full" for index in (6, 12, 18, 24, 30, 36, 42, 47, 51)]
    assert model("deepseek-v3-mtp").draft_layers() == ("draft.0.latent",)


def test_recurrent_states_by_hand() -> None:
    assert mamba1(intermediate_size=8192, state_size=16, conv_kernel=4) == ((3, 8192), (8192, 16))
    dims = {"num_heads": 128, "head_size": 64, "num_groups": 1, "state_size": 128, "conv_kernel": 4}
    assert mamba2(**dims) == ((3, 8192 + 2 * 128), (128, 64, 128))
    assert mamba2(**dims, ranks=4) == ((3, 2048 + 2 * 128), (32, 64, 128))
    delta = {"num_key_heads": 16, "num_value_heads": 32, "key_head_size": 128, "value_head_size": 128}
    assert gated_delta_net(**delta, conv_kernel=4) == ((3, 2 * 2048 + 4096), (32, 128, 128))


@pytest.mark.parametrize("name", [name for name in models() if model(name).own_block_size() != 16])
def test_own_block_size_is_the_least_that_covers_the_state(name: str) -> None:
    found = model(name)
    plain = Plain()
    own = found.own_block_size()
    built = distinct(found.layers())
    state = [plain.page_size_bytes(spec) for spec in built if isinstance(spec, Mamba)]
    attention = [spec for spec in built if isinstance(spec, AttentionSpec)]
    if not state:
        assert own == found.block_size
        return
    assert own % found.block_size == 0
    assert plain.page_size_bytes(attention[0]) >= state[0]
    smaller = copy_with_new_block_size(attention[0], own - found.block_size)
    assert plain.page_size_bytes(smaller) < state[0]


@pytest.mark.parametrize("cache_dtype", modes.CACHE_DTYPES)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3.2", "gpt-oss-20b", "jamba-v0.1"])
def test_cache_dtypes(name: str, cache_dtype: str) -> None:
    """Each is stored as the modes say, and a latent has no layout in some."""
    latent = name == "deepseek-v3.2"
    mode = modes.quant_mode(cache_dtype)
    unknown = cache_dtype == "fp8_ds_mla" or mode == "NVFP4" or mode.startswith("TURBOQUANT")
    if unknown and (latent != (cache_dtype == "fp8_ds_mla")):
        with pytest.raises(Refused):
            model(name).layers(16, cache_dtype)
        return
    plain = Plain()
    for spec in distinct(model(name).layers(16, cache_dtype)):
        if not isinstance(spec, AttentionSpec):
            continue
        page = plain.page_size_bytes(plain.construct(spec))
        if spec.head_size == 132:
            assert page == 16 * 132
        elif cache_dtype == "fp8_ds_mla":
            assert page == 16 * 656
        else:
            assert spec.kv_quant_mode == mode
            assert page == 16 * spec.num_kv_heads * modes.stored_bytes(spec)


def test_the_deepseek_v4_layout() -> None:
    plain = Plain()
    packed = {
        name.rpartition(".")[2]: spec for name, spec in model("deepseek-v4-flash").layers(256, "fp8_ds_mla")
    }
    assert plain.page_size_bytes(packed["window"]) == 37_440
    assert plain.page_size_bytes(packed["c4"]) == 37_440
    assert plain.page_size_bytes(packed["index"]) % 576 == 0
    with pytest.raises(Refused, match="compress ratio"):
        plain.construct(dict(model("deepseek-v4-flash").layers(16))["layers.3.c128"])


@pytest.mark.parametrize(
    ("name", "ranks", "heads"),
    [("llama-3.1-8b", 1, 8), ("llama-3.1-8b", 8, 1), ("llama-3.1-8b", 16, 1), ("deepseek-v3", 8, 1)],
)
def test_tensor_parallel_shares_heads(name: str, ranks: int, heads: int) -> None:
    spec = distinct(model(name).layers(tensor_parallel=ranks))[0]
    assert isinstance(spec, AttentionSpec)
    assert spec.num_kv_heads == heads


def test_tensor_parallel_that_leaves_a_rest_is_refused() -> None:
    with pytest.raises(Refused, match="8 KV heads"):
        model("llama-3.1-8b").layers(tensor_parallel=3)
    with pytest.raises(Refused, match="num_heads"):
        model("zamba2-2.7b").layers(tensor_parallel=32)
    with pytest.raises(Refused, match="0 ranks"):
        model("llama-3.1-8b").layers(tensor_parallel=0)


def test_unknown_names_are_refused_with_the_near_ones() -> None:
    with pytest.raises(ValueError, match=r"llama-3\.1-8b"):
        model("llama-3-8b")
    with pytest.raises(ValueError, match="bert-base"):
        model("")
    with pytest.raises(Refused, match="int3"):
        model("llama-3.1-8b").layers(cache_dtype="int3")


def test_a_model_can_be_read_from_elsewhere() -> None:
    text = """
        source = "a drawing"
        dtype = "bfloat16"
        max_model_len = 64
        runs = [{ repeat = 2, layers = [[1, "full"], [2]] }]
        [part.full]
        kind = "full_attention"
        num_kv_heads = 1
        head_size = 8
    """
    drawn = read("drawn", text)
    assert isinstance(drawn, Model)
    assert [name for name, _ in drawn.layers()] == ["layers.0.full", "layers.3.full"]
    assert hash(drawn) == hash(read("drawn", text))
    assert drawn == read("drawn", text)


def test_listing_the_models_is_light() -> None:
    code = (
        "import sys, kvconform.reference.models as m\n"
        "assert m.models()\n"
        "heavy = {'hypothesis', 'z3', 'torch', 'numpy', 'msgspec', 'typer'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
