"""The command that says where the bytes go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from kvconform.conformance.exits import BROKEN, CONFORMS
from kvconform.conformance.screen import Stop, page

if TYPE_CHECKING:
    from kvconform.reference.interface import Implementation
    from kvconform.reference.specs import Spec


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("explain", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
        explain_command
    )


def explain_command(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A model of the collection, or a Hugging Face config.json. Without one, describe a spec: "
            "--kind sliding_window --block-size 16 --num-kv-heads 8 --head-size 128 --dtype bfloat16 "
            "--sliding-window 1024",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Explain one spec of this kind.")] = None,
    length: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="Length of a request; a model's longest.")
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Tokens one batch may schedule.")
    ] = 8192,
    batches: Annotated[int, typer.Option(min=1, metavar="N", help="Batches in flight at once.")] = 1,
    encoder: Annotated[int, typer.Option(min=0, metavar="TOKENS", help="Longest encoder input.")] = 0,
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="Decode context parallel ranks.")] = 1,
    blocks: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="Block size for a model; its own by default.")
    ] = None,
    cache_dtype: Annotated[str, typer.Option(metavar="NAME", help="Cache dtype for a model.")] = "auto",
    memory: Annotated[
        int, typer.Option(min=0, metavar="GIB", help="Memory for the cache: how many requests it serves.")
    ] = 0,
    implementation: Annotated[
        str | None, typer.Option(metavar="IMPLEMENTATION", help="Show its figures beside the reference.")
    ] = None,
) -> int:
    """Show where the bytes of a spec or a model go, factor by factor."""
    from contextlib import nullcontext

    from kvconform.conformance.commands_compare import asked
    from kvconform.conformance.explain import explain
    from kvconform.conformance.pool import plan
    from kvconform.conformance.process import BrokenExchange, Fell
    from kvconform.conformance.report.explanation import show, show_pool
    from kvconform.reference.deployment import Deployment
    from kvconform.reference.interface import Refused
    from kvconform.reference.plain import Plain

    words = list(context.args)
    if kind is not None and model is not None:
        # The first field of a spec is taken for the model: to the parser it is just a word.
        words, model = [model, *words], None
    given = _given_fields(words)
    if (model is None) == (kind is None):
        raise Stop("name a model or a config.json, or describe a spec with --kind")
    if model is not None and given:
        raise Stop(f"--{next(iter(given)).replace('_', '-')} goes with --kind, not with a model")
    try:
        if kind is not None:
            title, layers, longest, encoder_len = kind, {"layer": _spec(kind, given)}, 4096, 0
        else:
            assert model is not None
            title, layers, longest, encoder_len = _model(model, blocks, cache_dtype)
        deployment = Deployment(
            max_model_len=length or longest,
            max_num_batched_tokens=batch,
            max_concurrent_batches=batches,
            max_encoder_tokens=encoder or encoder_len,
            decode_context_parallel=ranks,
        )
        with asked(implementation) if implementation else nullcontext() as beside:
            shares = explain(layers, deployment, beside)
            revisions = beside.revisions() if beside else ()
            planners: dict[str, Implementation] = {"reference": Plain()}
            if implementation and beside:
                planners[implementation] = beside
            bytes_ = memory << 30
            pools = {
                name: plan(planner, layers, deployment, bytes_ or None)
                for name, planner in planners.items()
                if model is not None or memory
            }
    except Refused as refusal:
        raise Stop(str(refusal)) from refusal
    except (BrokenExchange, Fell) as fall:
        raise Stop(str(fall), BROKEN) from fall
    with page() as console:
        show(console, title, shares, deployment, implementation or "", revisions)
        for name, pool in pools.items():
            show_pool(console, name, pool, shares, bytes_)
    return CONFORMS


def _given_fields(words: list[str]) -> dict[str, str]:
    """Options that are no option of the command: the fields of a spec."""
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise Stop(f"{word!r} is no option; fields of a spec are written --block-size 16")
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = next(rest, "")
            if not value:
                raise Stop(f"--{name} wants a value")
        found[name.replace("-", "_")] = value
    return found


def _spec(kind: str, given: dict[str, str]) -> Spec:
    import difflib

    from kvconform.reference.modes import pack
    from kvconform.reference.specs import KINDS, AttentionSpec, defaults, field_names, make

    if kind not in KINDS or kind == "uniform_type":
        raise Stop(f"unknown kind {kind!r}; the kinds: {', '.join(k for k in KINDS if k != 'uniform_type')}")
    names = field_names(kind)
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean --{near[0].replace('_', '-')}?" if near else ""
            raise Stop(f"{kind} has no field --{name.replace('_', '-')}{hint}")
        values[name] = _value(kind, name, text)
    missing = [name for name in names if name not in values and name not in defaults(kind)]
    if missing:
        raise Stop(f"a {kind} needs --{missing[0].replace('_', '-')}")
    spec: Spec = make(kind, **values)
    return pack(spec) if isinstance(spec, AttentionSpec) else spec


TEXTS = ("kv_quant_mode", "cache_dtype_str", "model_version", "mamba_type", "mamba_cache_mode")


def _value(kind: str, name: str, text: str) -> Any:
    from kvconform.reference.modes import MODES
    from kvconform.reference.specs import DTYPE_BYTES

    option = f"--{name.replace('_', '-')}"
    if name == "dtype":
        if text not in DTYPE_BYTES:
            raise Stop(f"{option} {text}: no such dtype; one of {', '.join(DTYPE_BYTES)}")
        return text
    if name == "dtypes":
        return tuple(_value(kind, "dtype", part) for part in text.split(","))
    if name == "shapes":
        return tuple(tuple(_whole(option, size) for size in part.split("x")) for part in text.split(","))
    if name == "kv_quant_mode" and text not in MODES:
        raise Stop(f"{option} {text}: no such mode; one of {', '.join(MODES)}")
    if name == "mamba_cache_mode" and text not in ("none", "align", "all"):
        raise Stop(f"{option} {text}: one of none, align, all")
    if name in TEXTS:
        return text
    if text in ("true", "false"):
        return text == "true"
    return _whole(option, text)


def _whole(option: str, text: str) -> int:
    if not text.isdecimal():
        raise Stop(f"{option} {text}: wanted a whole number")
    return int(text)


def _model(name: str, blocks: int | None, cache_dtype: str) -> tuple[str, dict[str, Spec], int, int]:
    """Title, layers, longest request and longest encoder input (tokens) of a model."""
    from kvconform.reference.modes import CACHE_DTYPES

    if cache_dtype not in CACHE_DTYPES:
        raise Stop(f"unknown cache dtype {cache_dtype!r}; one of {', '.join(CACHE_DTYPES)}")
    if name.endswith(".json") or Path(name).is_file():
        return _config(Path(name), blocks, cache_dtype)
    from kvconform.reference.models import model

    try:
        known = model(name)
    except ValueError as error:
        raise Stop(str(error)) from error
    layers = dict(known.layers(block_size=blocks, cache_dtype=cache_dtype))
    return f"{name} ({known.source})", layers, known.max_model_len, known.max_encoder_len


def _config(path: Path, blocks: int | None, cache_dtype: str) -> tuple[str, dict[str, Spec], int, int]:
    import json

    from kvconform.reference.huggingface import layers_of

    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Stop(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise Stop(f"{path}: not JSON: {error}") from error
    layers = dict(layers_of(config, block_size=blocks or 16, cache_dtype=cache_dtype))
    inner = config.get("text_config", config)
    longest = inner.get("max_position_embeddings") if isinstance(inner, dict) else None
    return str(path), layers, longest if isinstance(longest, int) and longest > 0 else 4096, 0
