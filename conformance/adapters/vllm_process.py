"""Serves a vLLM over the protocol in an interpreter that need not have kvconform.

``PYTHON vllm_process.py [--root DIRECTORY] [--name NAME] [--import MODULE]...`` answers for the
release under a directory, or for the installed one. It uses the files called vllm beside it and the
standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

PROTOCOL = 1
FIRST_STRING = 1 << 53
"""The least magnitude of an integer that is written as a decimal string."""

PACKAGE = "kvconform.conformance.adapters"

SEQUENCES = ("shapes", "dtypes", "draft_layers")
"""Fields of frozen specs, which must be hashable."""

NAMES = frozenset(
    (
        *("kind", "base", "dtype", "dtypes", "kv_quant_mode", "cache_dtype_str", "cache_dtype", "mode"),
        *("model_version", "mamba_type", "mamba_cache_mode", "layer_names", "shared_by", "draft_layers"),
    )
)
"""What holds names: never an integer, however it looks."""


def enter_package() -> None:
    """Have the files beside this one found under the names by which they import one another."""
    here = Path(__file__).resolve().parent
    # A script's own folder comes first on the path, where the adapter would pass for vLLM itself.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    parts = PACKAGE.split(".")
    for depth in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(here)] if depth == len(parts) else []
        sys.modules[package.__name__] = package


def _beside(name: str) -> types.ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


class Server:
    """Answers the commands of the protocol for one release."""

    def __init__(self, root: Path | None, name: str) -> None:
        self._outcomes = _beside("vllm_outcomes")
        self.adapter = _beside("vllm").Adapter(root)
        self.planner = _beside("vllm_planner").Planner(self.adapter)
        with contextlib.suppress(Exception):
            # Now, since a question may take less time than importing what it needs; where that
            # fails, each question that needs it says why.
            self.planner.modules.load_all()
        self.name = name

    def capabilities(self) -> dict[str, Any]:
        """What can be asked of the release."""
        kinds = self.adapter.kinds()
        operations = sorted(self.adapter.operations() | self.planner.operations)
        return {
            "protocol": PROTOCOL,
            "name": self.name,
            "version": self.name.partition("==")[2],
            "revisions": list(self.adapter.revisions()),
            "kinds": {kind: sorted(self.adapter.fields(kind)) for kind in kinds},
            "operations": operations,
            "locations": {operation: dict(self._places(operation, kinds)) for operation in operations},
        }

    def _places(self, operation: str, kinds: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for kind in (*kinds, "-"):
            if operation in self.planner.operations:
                place = self.planner.location(operation)
            else:
                place = self.adapter.location(operation, kind)
            if place:
                yield kind, place

    def reply(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to one question."""
        said: dict[str, Any] = {"id": ask["id"]}
        operation = ask["operation"]
        try:
            arguments = from_wire(ask["arguments"])
            planned = operation in self.planner.operations
            if not planned and operation not in self.adapter.operations():
                return {**said, "unsupported": f"operation {operation}"}
            if not planned:
                return {**said, "result": to_wire(self.adapter.ask(operation, arguments))}
            before = to_wire(arguments)
            said["result"] = to_wire(self.planner.ask(operation, arguments))
            # A planner may change the layers that it is given.
            changed = {name: wire for name in before if (wire := to_wire(arguments[name])) != before[name]}
            return {**said, "changed": changed} if changed else said
        except self._outcomes.Refused as refusal:
            said["refused"] = str(refusal)
            if isinstance(refusal, self._outcomes.Undocumented):
                said["documented"] = False
        except self._outcomes.Unsupported as lack:
            said["unsupported"] = str(lack)
        except Exception as error:
            traceback.print_exc()
            said["error"] = f"{type(error).__name__}: {error}"
        return said


def from_wire(value: Any, name: str = "") -> Any:
    """A value of the protocol with its integers as integers, and hashable where specs are."""
    if isinstance(value, dict):
        return {key: from_wire(part, key) for key, part in value.items()}
    if isinstance(value, list):
        if name == "kv_cache_specs":
            return [[layer, from_wire(spec)] for layer, spec in value]
        # The layers of a tensor are names; those of a model are a dictionary.
        parts = value if name in NAMES or name == "layers" else [from_wire(part, name) for part in value]
        return tuple(map(_hashable, parts)) if name in SEQUENCES else parts
    digits = value[1:] if isinstance(value, str) and value.startswith("-") else value
    if isinstance(digits, str) and len(digits) >= 16 and digits.isdecimal() and name not in NAMES:
        return int(value)
    return value


def _hashable(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part


def to_wire(value: Any) -> Any:
    """A value of the adapter as the protocol writes it."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
        return value
    if isinstance(value, int):
        return int(value) if -FIRST_STRING < value < FIRST_STRING else str(int(value))
    if isinstance(value, Mapping):
        return {str(key): to_wire(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_wire(part) for part in value]
    return value


def serve(open_server: Callable[[], Server], questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer commands until ``stop`` or the end of the questions."""

    def write(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    server: Server | None = None
    for line in questions:
        command = json.loads(line)
        if command["command"] == "stop":
            return
        if command["command"] == "start":
            try:
                server = open_server()
                write(server.capabilities())
            except Exception as error:
                traceback.print_exc()
                write({"error": f"{type(error).__name__}: {error}"})
        else:
            assert server is not None, "asked before it was started"
            for ask in command["asks"] if command["command"] == "batch" else (command,):
                write(server.reply(ask))
        answers.flush()


def main() -> None:
    """Take over the standard streams and serve what the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--name", default="vllm")
    parser.add_argument("--import", dest="imports", metavar="MODULE", action="append", default=[])
    options = parser.parse_args()
    # What is printed goes to standard error from here on.
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def open_server() -> Server:
        enter_package()
        if options.root is not None:
            sys.path.insert(0, str(options.root))
        if options.imports:
            sys.path.append(str(Path.cwd()))
        for module in options.imports:
            importlib.import_module(module)
        return Server(options.root, options.name)

    serve(open_server, questions, answers)


if __name__ == "__main__":
    main()
