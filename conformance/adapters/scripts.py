"""A failing case as a few lines of plain vLLM Python, to paste into a bug report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kvconform.conformance.adapters.vllm import CLASSES, DEFAULTS, INTERFACE, Adapter

Call = tuple[str, Mapping[str, Any], Any]
"""An operation, its arguments as dictionaries, and what it answered or raised."""


def script(adapter: Adapter, name: str, calls: Sequence[Call], message: str) -> str:
    """Lines that build the specs of the calls, ask the release and print what it answers.

    The message stands above them as a comment. Values that repeat are named once; a spec that an
    earlier call answered is that call's result.
    """
    return _Writer(adapter).write(name, calls, message)


class _Writer:
    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.imports: dict[str, set[str]] = {}
        self.plain_imports: set[str] = set()
        self.lines: list[str] = []
        self.named: list[tuple[Any, str]] = []

    def write(self, name: str, calls: Sequence[Call], message: str) -> str:
        for operation, arguments, answer in calls:
            self.call(operation, arguments, answer)
        comment = textwrap.wrap(f"{name}: {message}", 96, break_long_words=False)
        head = [f"# {line}" for line in comment]
        modules = [f"import {module}" for module in sorted(self.plain_imports)]
        names = [
            f"from {module} import {', '.join(sorted(self.imports[module]))}"
            for module in sorted(self.imports)
        ]
        return "\n".join([*head, *modules, *names, "", *self.lines, ""])

    def call(self, operation: str, arguments: Mapping[str, Any], answer: Any) -> None:
        if operation == "cache_dtypes":
            return
        if operation == "merge_without_asserts":
            self.lines.append("# Run with python -O:")
        if operation == "stored_bytes":
            expression = self.stored_bytes(arguments["spec"])
        else:
            question = self.adapter.question(operation, arguments)
            for line in question.imports:
                _, module, _, imported = line.split(" ", 3)
                self.imports.setdefault(module, set()).update(imported.split(", "))
            expression = question.expression
            for name, value in arguments.items():
                if not (operation.startswith("merge") and name == "kind"):
                    expression = self.substitute(expression, name, value, arguments)
        if isinstance(answer, Exception):
            self.lines += [
                "try:",
                f"    print({expression})",
                "except Exception as error:",
                '    print(f"refused: {error!r}")',
            ]
        elif isinstance(answer, Mapping) and "kind" in answer:
            result = self.fresh("result")
            self.lines += [f"{result} = {expression}", f"print({result})"]
            self.named.append((dict(answer), result))
        else:
            self.lines.append(f"print({expression})")

    def stored_bytes(self, spec: Mapping[str, Any]) -> str:
        name = self.spec(spec)
        if not hasattr(self.adapter.release.module.AttentionSpec, "state_content_size_bytes"):
            return f"{name}.page_size_bytes // ({name}.num_kv_heads * {name}.block_size)"
        backend = self.adapter.packing_backend(spec)
        if backend is None:
            packed = name
        else:
            module, class_name = backend
            self.imports.setdefault(module, set()).add(class_name)
            packed = self.fresh("packed")
            self.lines.append(f"{packed} = {class_name}.customize_spec({name})")
        return f"{packed}.num_heads * {packed}.state_content_size_bytes // {packed}.num_kv_heads"

    def substitute(self, expression: str, name: str, value: Any, arguments: Mapping[str, Any]) -> str:
        if name == "spec":
            return re.sub(r"\bspec\b", self.spec(value), expression)
        if name == "specs":
            members = ", ".join(self.spec(member) for member in value)
            return re.sub(r"\bspecs\b", f"[{members}]", expression)
        if name == "deployment":
            values = self.adapter.config_values(value, arguments.get("spec"))
            if "max_admission_blocks_per_request" in expression:
                tokens = value["max_num_batched_tokens"]
                if "max_in_flight_tokens" in expression:
                    tokens = values["max_in_flight_tokens"]
                expression = re.sub(
                    r"config(\.scheduler_config\.max_num_batched_tokens|\.max_in_flight_tokens)",
                    str(tokens),
                    expression,
                )
                return expression.replace("config.model_config.max_model_len", str(value["max_model_len"]))
            return re.sub(r"\bconfig\b", self.config(values), expression)
        return re.sub(rf"\b{name}\b", repr(value), expression)

    def fresh(self, stem: str) -> str:
        taken = {name for _, name in self.named} | set(re.findall(r"^(\w+) =", "\n".join(self.lines), re.M))
        if stem not in taken:
            return stem
        return next(f"{stem}{n}" for n in range(2, 1000) if f"{stem}{n}" not in taken)

    def name_of(self, value: Any) -> str | None:
        return next((name for known, name in self.named if known == value), None)

    def spec(self, wire: Mapping[str, Any]) -> str:
        known = self.name_of(wire)
        if known is not None:
            return known
        name = self.fresh("spec")
        self.lines.append(f"{name} = {self.construction(wire)}")
        self.named.append((dict(wire), name))
        return name

    def construction(self, wire: Mapping[str, Any]) -> str:
        kind = wire["kind"]
        self.imports.setdefault(INTERFACE, set()).add(CLASSES[kind])
        if kind == "uniform_type":
            layers = ", ".join(
                f"{name!r}: {self.construction(layer)}" for name, layer in wire["kv_cache_specs"]
            )
            return f"{CLASSES[kind]}(block_size={wire['block_size']}, kv_cache_specs={{{layers}}})"
        names = self.adapter.release.field_names(kind)
        parts = []
        for name, value in wire.items():
            if name == "kind" or name not in names or (name in DEFAULTS and value == DEFAULTS[name]):
                continue
            if name == "head_size_v" and (value is None or "mla" in kind or kind == "hidden_state_cache"):
                continue
            parts.append(f"{names[name]}={self.literal(name, value)}")
        return f"{CLASSES[kind]}({', '.join(parts)})"

    def literal(self, name: str, value: Any) -> str:
        if name == "dtype":
            self.plain_imports.add("torch")
            return f"torch.{value}"
        if name == "dtypes":
            self.plain_imports.add("torch")
            return "(" + "".join(f"torch.{dtype}, " for dtype in value).strip() + ")"
        if name == "kv_quant_mode":
            self.imports.setdefault(INTERFACE, set()).add("KVQuantMode")
            return f"KVQuantMode.{value}"
        return repr(value)

    def config(self, values: Mapping[str, Any]) -> str:
        known = self.name_of(values)
        if known is not None:
            return known
        self.imports.setdefault("types", set()).add("SimpleNamespace")
        name = self.fresh("config")
        self.lines.append(f"{name} = {_namespace(values)}")
        self.named.append((dict(values), name))
        return name


def _namespace(values: Mapping[str, Any]) -> str:
    parts = (
        f"{name}={_namespace(value) if isinstance(value, Mapping) else repr(value)}"
        for name, value in values.items()
    )
    return f"SimpleNamespace({', '.join(parts)})"
