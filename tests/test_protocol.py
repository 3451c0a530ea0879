"""The protocol's messages: every value goes there and back, and the schema says what is sent."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from commands import kvconform
from kvconform.conformance import protocol
from kvconform.conformance.adapters import serve, vllm_process
from kvconform.conformance.process import ProcessImplementation
from kvconform.conformance.protocol import Ask, Batch, ProtocolError, Question, Start, Stop
from kvconform.conformance.simplest import questions, simplest
from kvconform.conformance.values import read_argument, read_arguments, read_result, to_wire
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import OPERATIONS, Refused, Undocumented, Unsupported
from kvconform.reference.plain import Plain
from kvconform.reference.planning import KVCacheConfig, KVCacheTensor, StridedKVCacheTensor
from kvconform.reference.specs import KINDS, FullAttention, Mamba, Spec, UniformType
from kvconform.reference.uniform import third_party

jsonschema = pytest.importorskip("jsonschema", reason="messages are held to their schema by jsonschema")

SHIPPED = Path(protocol.__file__).parent / "protocol.schema.json"
EXTREMES = (0, -1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53), 2**63, 2**64, -(2**64), 10**30, -(10**30), 10**300)


def there_and_back(operation: str, result: Any) -> Any:
    return read_result(operation, json.loads(json.dumps(to_wire(result))))


def spec_of(kind: str) -> Spec:
    spec = simplest(kind, Plain())
    assert spec is not None
    return spec


def numbers(value: Any) -> list[int]:
    """Every JSON number in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_specs_of_every_kind_and_size_go_there_and_back(kind: str, extreme: int) -> None:
    whole = {field.name: extreme for field in dataclasses.fields(KINDS[kind]) if "int" in str(field.type)}
    whole |= {"shapes": ((extreme, 1), (2,)), "dtypes": ("int8", "int8")} if kind == "mamba" else {}
    spec = dataclasses.replace(spec_of(kind), **whole)
    if isinstance(spec, UniformType):
        inside = dataclasses.replace(spec.layers()[0], block_size=extreme)
        spec = dataclasses.replace(spec, kv_cache_specs=((str(10**20), inside),))
    wire = to_wire(spec)
    assert read_result("construct", json.loads(json.dumps(wire))) == spec
    assert all(abs(number) < 2**53 for number in numbers(wire))
    # The stand-alone loop for vLLM reads and writes the same.
    assert vllm_process.to_wire(vllm_process.from_wire({"spec": wire})) == {"spec": wire}
    read = vllm_process.from_wire({"spec": wire})["spec"]
    assert read["block_size"] == spec.block_size
    if isinstance(spec, Mamba):
        assert hash(read["shapes"]) == hash(spec.shapes)


@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_every_result_goes_there_and_back(extreme: int) -> None:
    layers = {str(10**20): spec_of("full_attention"), "b": spec_of("mamba")}
    wrapped = UniformType(block_size=extreme, kv_cache_specs=tuple(layers.items()))
    acme = third_party("acme", FullAttention)(block_size=extreme, num_kv_heads=1, head_size=1, dtype="int8")
    groups = (
        KVCacheGroupSpec(layer_names=(str(10**20),), kv_cache_spec=wrapped, is_eagle_group=True),
        KVCacheGroupSpec(layer_names=(), kv_cache_spec=acme),
    )
    tensors = (
        KVCacheTensor(size=extreme, shared_by=(str(10**20), "b"), offset=extreme),
        StridedKVCacheTensor(size=1, layers=("b", str(10**20)), layer_stride=extreme, block_stride=extreme),
    )
    config = KVCacheConfig(num_blocks=extreme, kv_cache_tensors=tensors, kv_cache_groups=groups)
    results = {
        "page_size_bytes": extreme,
        "quant_modes": {"NONE": extreme},
        "get_kv_cache_groups": groups,
        "get_kv_cache_configs": (config, config),
        "generate_scheduler_kv_cache_config": config,
        "resolve_kv_cache_block_sizes": (extreme, 1),
        "get_max_concurrency": Fraction(extreme, 7),
        "register_kv_cache_spec": None,
        "is_uniform_type": True,
        "records_new_block_ids": (True, False),
        "cache_element_dtype": None,
    }
    for operation, result in results.items():
        assert there_and_back(operation, result) == result, operation
        assert vllm_process.to_wire(vllm_process.from_wire(to_wire(result))) == to_wire(result)
    assert there_and_back("get_max_concurrency", 1.5) == 1.5
    arguments = {
        "ranks": ({**layers, "c": acme}, {}),
        "deployment": Deployment(max_model_len=extreme, draft_layers=(str(10**20),)),
        "available_memory": (extreme,),
    }
    wire = json.loads(json.dumps(to_wire(arguments)))
    assert read_arguments("get_kv_cache_configs", wire) == arguments
    read = vllm_process.from_wire(wire)
    assert read["deployment"]["draft_layers"] == (str(10**20),)
    assert [*read["ranks"][0]] == [str(10**20), "b", "c"]
    assert vllm_process.to_wire(read) == wire


WRONG = [
    ("page_size_bytes", 1.0, "wanted an integer, got 1.0"),
    ("page_size_bytes", True, "wanted an integer, got True"),
    ("page_size_bytes", "1e3", "wanted an integer, got '1e3'"),
    ("page_size_bytes", "+1", "wanted an integer, got '+1'"),
    ("page_size_bytes", " 1", "wanted an integer, got ' 1'"),
    ("page_size_bytes", "", "wanted an integer, got ''"),
    ("page_size_bytes", "٣", "wanted an integer, got '٣'"),
    ("page_size_bytes", "1" * 5000, "wanted an integer, got '1111"),
    ("page_size_bytes", 2**53 + 1, "wanted integers beyond 2^53 as decimal strings"),
    ("is_uniform_type", 1, "Expected `bool`, got `int`"),
    ("get_kv_quant_mode", 0, "Expected `str`, got `int`"),
    ("get_max_concurrency", "1/0", "wanted a number, got '1/0'"),
    ("construct", {}, "wanted a spec with its kind, got {}"),
    ("construct", {"kind": "x"}, "unknown kind 'x'"),
    ("construct", {"kind": "x", "base": "y"}, "unknown base 'y' of kind 'x'"),
    (
        "construct",
        {"kind": "mamba", "block_size": 1, "shapes": [[1, "a"]], "dtypes": []},
        "got 'a' - at `$.shapes[0][1]`",
    ),
    ("construct", {"kind": "cross_attention"}, "Object missing required field"),
    ("construct", {**to_wire(spec_of("full_attention")), "width": 1}, "unknown field `width`"),
]


@pytest.mark.parametrize(("operation", "wire", "message"), WRONG)
def test_what_is_of_another_type_is_said(operation: str, wire: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_result(operation, wire)
    assert message in str(caught.value)


def test_arguments_are_held_to_the_parameters() -> None:
    with pytest.raises(ValueError, match="missing required field `block_size`"):
        read_arguments("copy_with_new_block_size", {"spec": to_wire(spec_of("mamba"))})
    with pytest.raises(ValueError, match="has no parameter 'spec'"):
        read_argument("merge", "spec", {})
    with pytest.raises(TypeError, match="a set is no value"):
        to_wire({"specs": {1}})


@pytest.mark.parametrize(
    "message",
    [
        Start(1, "0.1"),
        Ask(2**40, "merge", {"specs": []}),
        Batch((Question(1, "a", {}), Question(2, "b", {"é": None}))),
        Stop(),
    ],
)
def test_commands_go_there_and_back(message: Any) -> None:
    line = protocol.write(message)
    assert line.count(b"\n") == 1
    assert protocol.read_command(line) == message


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b'{"command":"go"}', b'{"command":"ask","id":"1"}', b"\xff"]
)
def test_what_is_no_command_is_said(line: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^no command: "):
        protocol.read_command(line)


# The schema


@cache
def validator(name: str = "") -> Any:
    schema = json.loads(SHIPPED.read_text(encoding="utf-8"))
    if name:
        schema = {"$schema": schema["$schema"], "$defs": schema["$defs"], "$ref": f"#/$defs/{name}"}
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_shipped_is_the_one_made_from_the_types(tmp_path: Path) -> None:
    printed = kvconform("protocol", "--schema", cwd=tmp_path)
    shipped = SHIPPED.read_text(encoding="utf-8")
    assert printed.stdout == shipped, f"out of date: kvconform protocol --schema > {SHIPPED}"
    jsonschema.Draft202012Validator.check_schema(json.loads(printed.stdout))


def test_the_schema_accepts_every_real_message() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []
    command = (sys.executable, "-P", "-m", "kvconform.conformance.adapters.serve", "reference")
    implementation = ProcessImplementation(
        command, seconds_per_ask=20, trace=lambda what, line: lines.append((what, json.loads(line)))
    )
    asked = []
    for operation, _, arguments in questions(implementation):
        asked.append((operation, arguments))
        with contextlib.suppress(Refused):
            getattr(implementation, operation)(**arguments)
    huge = dataclasses.replace(spec_of("full_attention"), block_size=10**30)
    assert implementation.page_size_bytes(huge) == 64 * 10**30
    implementation.ask_all(asked)
    implementation.close()
    operations: dict[int, str] = {}
    for what, message in lines:
        assert validator().is_valid(message), message
        if what == "sent" and message["command"] == "ask":
            operations[message["id"]] = message["operation"]
            assert validator(f"ask.{message['operation']}").is_valid(message), message
        elif "result" in message and message["id"] in operations:
            assert validator(f"result.{operations[message['id']]}").is_valid(message), message
    assert set(operations.values()) == set(OPERATIONS)
    sent = {message["command"] for what, message in lines if what == "sent"}
    assert sent == {"start", "ask", "batch", "stop"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", {"command": "go"}),
        ("", {"id": 1}),
        ("", {"id": 1, "result": 1, "refused": "no"}),
        ("ask.page_size_bytes", {"command": "ask", "id": 1, "operation": "page_size_bytes", "arguments": {}}),
        ("result.page_size_bytes", {"id": 1, "result": 2**53}),
        ("result.page_size_bytes", {"id": 1, "result": 1.5}),
        ("result.page_size_bytes", {"id": 1, "result": "12"}),
        ("Spec", {"kind": "full_attention", "block_size": 1}),
        ("Spec", {"kind": "acme", "block_size": 1}),
    ],
)
def test_the_schema_rejects_what_is_no_message(name: str, message: dict[str, Any]) -> None:
    assert not validator(name).is_valid(message)


def test_the_schema_knows_third_parties() -> None:
    acme = {"kind": "acme", "base": "mamba", "block_size": 1, "shapes": [], "dtypes": []}
    assert validator("Spec").is_valid(acme)


# Serving in Python


class Odd(Plain):
    """Changes what it is given, and falls over."""

    def get_kv_cache_groups(self, layers: Any, deployment: Deployment) -> Any:
        groups = super().get_kv_cache_groups(layers, deployment)
        layers["added"] = layers.pop("layer.0")
        return groups

    def merge(self, specs: Any, kind: str | None = None) -> Spec:
        raise Undocumented("KeyError deep inside")

    def construct(self, spec: Spec) -> Spec:
        raise Unsupported("constructing")

    def page_size_bytes(self, spec: Spec) -> int:
        raise LookupError("no page")


def served(*messages: Any) -> list[dict[str, Any]]:
    questions = io.BytesIO(b"".join(map(protocol.write, messages)))
    answers = io.BytesIO()
    serve.serve(Odd(), questions, answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_every_outcome_is_served() -> None:
    spec = to_wire(spec_of("full_attention"))
    layers = {"layer.0": spec, "layer.1": spec}
    deployment = to_wire(Deployment(max_model_len=9))
    said = served(
        Start(1, ""),
        Ask(1, "construct", {"spec": spec}),
        Batch((Question(2, "merge", {"specs": [spec]}), Question(3, "page_size_bytes", {"spec": spec}))),
        Ask(4, "nothing", {}),
        Ask(5, "page_size_bytes", {}),
        Ask(6, "get_kv_cache_groups", {"layers": layers, "deployment": deployment}),
        Ask(7, "max_blocks_per_request", {"spec": spec, "deployment": deployment}),
        Stop(),
        Ask(8, "quant_modes", {}),
    )
    assert said[0]["protocol"] == protocol.VERSION
    assert said[1:6] == [
        {"id": 1, "unsupported": "constructing"},
        {"id": 2, "refused": "KeyError deep inside", "documented": False},
        {"id": 3, "error": "LookupError: no page"},
        {"id": 4, "unsupported": "operation nothing"},
        {"id": 5, "error": "ValueError: Object missing required field `spec`"},
    ]
    assert said[6]["changed"].keys() == {"layers"}
    assert said[6]["changed"]["layers"].keys() == {"layer.1", "added"}
    assert said[7] == {"id": 7, "result": 1}
    assert len(said) == 8


def test_what_the_other_side_changed_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    command = (sys.executable, "-P", "-m", "kvconform.conformance.adapters.serve", "python:test_protocol:Odd")
    implementation = ProcessImplementation(command, seconds_per_ask=20)
    layers: dict[str, Spec] = {"layer.0": spec_of("full_attention"), "layer.1": spec_of("full_attention")}
    implementation.get_kv_cache_groups(layers, Deployment(max_model_len=9))
    assert sorted(layers) == ["added", "layer.1"]
    with pytest.raises(Undocumented, match="deep inside"):
        implementation.merge([layers["added"]])
    frozen: Mapping[str, Spec] = layers
    assert frozen["added"] == spec_of("full_attention")
    implementation.close()
