"""The smallest check of an adapter: whether every command is answered as the protocol says.

It tells a broken adapter from a wrong implementation: the answers must be there, in order and of
their types, and are held to nothing else. Any implementation is asked over the protocol, one in
Python by way of `adapters.serve`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvconform.conformance.implementations import Prepared
from kvconform.conformance.process import BrokenExchange, Fell, ProcessImplementation
from kvconform.conformance.values import parameters
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import OPERATIONS, Implementation, Refused, Unsupported
from kvconform.reference.plain import Plain
from kvconform.reference.specs import ATTENTION_KINDS, KINDS, FullAttention, Spec

SECONDS_PER_ASK = 10.0

MEMORY = 1 << 20

DEPLOYMENT = Deployment(max_model_len=64, max_num_batched_tokens=16)

ATTENTION: dict[str, Any] = {"block_size": 16, "num_kv_heads": 1, "head_size": 16, "dtype": "float16"}
FULL = FullAttention(**ATTENTION)

OWN_FIELDS: dict[str, dict[str, Any]] = {
    "sliding_window": {"sliding_window": 32},
    "sliding_window_mla": {"sliding_window": 32},
    "chunked_local_attention": {"attention_chunk_size": 32},
    "rswa": {"rswa_window": 32},
    "mamba": {"block_size": 16, "shapes": ((2, 4),), "dtypes": ("float32",)},
    "uniform_type": {"block_size": 16, "kv_cache_specs": (("layer.0", FULL), ("layer.1", FULL))},
}
"""What the simplest spec of a kind has that not every attention spec has."""


@dataclass
class Asked:
    """One operation asked of some kinds: how often each outcome came, and what the others said."""

    operation: str
    answered: int = 0
    remarks: dict[str, str] = field(default_factory=dict)


@dataclass
class Findings:
    """What a smoke check found.

    `steps` are the commands that were answered, in order. Where one was not, `broken` holds the
    exchange; `fell` are operations over which the implementation itself fell.
    """

    name: str = ""
    steps: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    fell: list[str] = field(default_factory=list)
    broken: BrokenExchange | None = None


def command_of(prepared: Prepared) -> tuple[str, ...]:
    """The command of a process that answers for what was prepared."""
    if prepared.command:
        return prepared.command
    serve = ("-P", "-m", "kvconform.conformance.adapters.serve")
    return (sys.executable, *serve, prepared.address, *prepared.options)


def check(prepared: Prepared) -> Findings:
    """Start it, ask each operation of each kind once, alone and in a batch, and stop it.

    Ends at the first exchange that breaks. Raises OSError where it cannot be run.
    """
    found = Findings()
    implementation: ProcessImplementation | None = None
    try:
        implementation = ProcessImplementation(command_of(prepared), seconds_per_ask=SECONDS_PER_ASK)
        found.name = f"{implementation.name} {implementation.version}".rstrip()
        kinds, operations = implementation.kinds(), implementation.operations()
        found.steps.append(f"start: {len(kinds)} kinds, {len(operations)} operations")
        questions = [
            (operation, kind, arguments)
            for operation in OPERATIONS
            if operation in operations
            for kind, arguments in simplest_questions(operation, implementation)
        ]
        for operation, kind, arguments in questions:
            _ask(found, kind, operation, getattr(implementation, operation), arguments)
        found.steps.append(f"ask: {len(questions)} answered")
        answers = implementation.ask_all([(operation, arguments) for operation, _, arguments in questions])
        found.steps.append(f"batch: {len(answers)} answered")
        implementation.close()
        found.steps.append("stop")
    except BrokenExchange as broken:
        found.broken = broken
    finally:
        if implementation is not None:
            implementation.kill()
    return found


def _ask(
    found: Findings, kind: str, operation: str, ask: Callable[..., Any], arguments: Mapping[str, Any]
) -> None:
    if not found.asked or found.asked[-1].operation != operation:
        found.asked.append(Asked(operation))
    asked = found.asked[-1]
    try:
        ask(**arguments)
        asked.answered += 1
    except Refused as refusal:
        asked.remarks[kind] = f"refused: {refusal}"
    except Unsupported as lack:
        asked.remarks[kind] = f"unsupported: {lack}"
    except Fell as fall:
        asked.remarks[kind] = f"error: {fall}"
        found.fell.append(f"{operation} {kind}".rstrip())


def simplest(kind: str, implementation: Implementation) -> Spec | None:
    """The simplest spec of a kind; None where the implementation lacks the kind of its layers."""
    if kind == "uniform_type" and FULL.kind not in implementation.kinds():
        return None
    common = ATTENTION if kind in ATTENTION_KINDS else {}
    return KINDS[kind](**common, **OWN_FIELDS.get(kind, {}))


def simplest_questions(
    operation: str, implementation: Implementation
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The arguments to ask an operation with: for each kind, or once where it is about none."""
    names = parameters(operation)
    if operation == "register_kv_cache_spec":
        yield "", {"kind": "smoke_attention", "base": implementation.kinds()[0]}
    elif not ABOUT_SPECS & set(names):
        yield "", {name: NAMES[name] for name in names}
    else:
        planned = bool(PLANNED & set(names))
        for kind in implementation.kinds():
            # A planner makes its own wrappers, and layers without cache are not given to it.
            if planned and kind in ("uniform_type", "encoder_only_attention"):
                continue
            spec = simplest(kind, implementation)
            if spec is not None:
                arguments = _arguments(spec, planned)
                yield kind, {name: arguments[name] for name in names if name in arguments}


NAMES = {"mode": "NONE", "cache_dtype": "auto"}
ABOUT_SPECS = {"spec", "specs", "layers", "ranks", "config", "configs"}
PLANNED = {"layers", "ranks", "config", "configs"}


def _arguments(spec: Spec, planned: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {"spec": spec, "specs": [spec, spec], "deployment": DEPLOYMENT}
    arguments |= {"block_size": 32, "max_len": 64}
    if planned:
        layers = {"layer.0": spec, "layer.1": spec}
        configs = Plain().get_kv_cache_configs([layers], DEPLOYMENT, [MEMORY])
        arguments |= {"layers": layers, "ranks": [layers], "available_memory": [MEMORY]}
        arguments |= {"config": configs[0], "configs": configs}
    return arguments
