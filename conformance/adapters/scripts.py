"""A failing case as a few lines of plain vLLM Python, to paste into a bug report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kvconform.conformance.adapters.scripts_admission import write_admission
from kvconform.conformance.adapters.scripts_manager import ScheduleWriter
from kvconform.conformance.adapters.vllm import INTERFACE, Adapter
from kvconform.conformance.adapters.vllm_configuration import Returns
from kvconform.conformance.adapters.vllm_planner import FUNCTIONS, Planner
from kvconform.conformance.adapters.vllm_specs import CLASSES, DEFAULTS

UNPRINTED = ("register_kv_cache_spec", "records_new_block_ids")
"""Operations that take more of an engine than a few lines can stand in for."""

Call = tuple[str, Mapping[str, Any], Any]
"""An operation, its arguments as dictionaries, and what it answered or raised."""


def script(planner: Planner, name: str, calls: Sequence[Call], message: str) -> str:
    """Lines that build the specs of the calls, ask the release and print what it answers.

    The message stands above them as a comment. Values that repeat are named once; what an earlier
    call answered is that call's result. Empty where the calls cannot be written so.
    """
    try:
        return Writer(planner).write(name, calls, message)
    except _Unprintable:
        return ""


class _Unprintable(Exception):
    """A call that plain lines would ask differently."""


class Writer:
    """The lines so far of the script of some calls, and what is named in them."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.adapter: Adapter = planner.adapter
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
        if operation in UNPRINTED:
            raise _Unprintable
        if operation == "follow_schedule":
            if isinstance(answer, Exception):
                raise _Unprintable
            ScheduleWriter(self, **arguments).write(answer)
            return
        if operation == "max_admission_blocks_per_request":
            write_admission(self, **arguments, answer=answer)
            return
        if operation in self.planner.operations:
            self.plan(operation, arguments, answer)
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
            self.lines += self.attempt(expression)
        elif isinstance(answer, Mapping) and "kind" in answer:
            result = self.fresh("result")
            self.lines += [f"{result} = {expression}", f"print({result})"]
            self.named.append((dict(answer), result))
        else:
            self.lines.append(f"print({expression})")

    def attempt(self, expression: str) -> list[str]:
        """Lines that print what an expression gives, or how it is refused."""
        return [
            "try:",
            f"    print({expression})",
            "except Exception as error:",
            '    print(f"refused: {error!r}")',
        ]

    def plan(self, operation: str, arguments: Mapping[str, Any], answer: Any) -> None:
        """The lines of one call of the planner; whatever it changes is made anew for it."""
        expression, prefix, shown = self.plan_expression(operation, arguments)
        result = self.fresh(RESULTS.get(operation, "answer"))
        self.lines += prefix
        if isinstance(answer, Exception):
            self.lines += self.attempt(expression)
            return
        if operation not in RESULTS:
            self.lines.append(f"print({shown or expression})")
            return
        self.lines += [f"{result} = {expression}", f"print({result}{shown})"]
        if operation == "get_kv_cache_configs":
            self.named.append((answer, result))
            self.named += [(config, f"{result}[{index}]") for index, config in enumerate(answer)]
        elif operation == "generate_scheduler_kv_cache_config":
            self.named.append((answer, result))

    def plan_expression(self, operation: str, arguments: Mapping[str, Any]) -> tuple[str, list[str], str]:
        """An expression that asks, the lines before it, and what is to be printed besides."""
        if operation == "is_uniform_type":
            members = ", ".join(
                f"'layer.{index}': {self.spec(spec)}" for index, spec in enumerate(arguments["specs"])
            )
            return f"{self.name('UniformTypeKVCacheSpecs')}.is_uniform_type({{{members}}})", [], ""
        if operation == "needs_kv_cache_zeroing":
            return f"{self.kv_cache_config(arguments['config'])}.needs_kv_cache_zeroing", [], ""
        function = self.function(FUNCTIONS[operation])
        if operation == "generate_scheduler_kv_cache_config":
            configs = self.name_of(arguments["configs"])
            if configs is None:
                configs = f"[{', '.join(map(self.kv_cache_config, arguments['configs']))}]"
            return f"{function}({configs})", [], ""
        deployment = arguments["deployment"]
        if "config" in arguments:
            config = self.kv_cache_config(arguments["config"])
            groups = arguments["config"]["kv_cache_groups"]
            specs = [group["kv_cache_spec"] for group in groups]
            settings = self.settings(self.planner.configuration.config_values(deployment, specs))
            first, second = (
                (config, settings) if operation == "resolve_kv_cache_block_sizes" else (settings, config)
            )
            return f"{function}({first}, {second})", [], ""
        automatic = operation == "estimate_max_model_len"
        ranks = arguments["ranks"] if "ranks" in arguments else [arguments["layers"]]
        settings = self.settings(self.planner.configuration.model_values(ranks, deployment, automatic))
        handed = [self.layers(rank, deployment["draft_layers"]) for rank in ranks]
        self.imports.setdefault("copy", set()).add("deepcopy")
        if operation == "get_kv_cache_groups":
            given = self.fresh("given")
            prefix = [f"{given} = deepcopy({handed[0]})"]
            return f"{function}({settings}, {given})", prefix, f", {given}"
        prefix = []
        if automatic:
            own = self.fresh("automatic")
            prefix.append(f"{own} = deepcopy({settings})")
            settings = own
        given = f"deepcopy([{', '.join(handed)}])"
        memory = list(arguments["available_memory"])
        grouping = "get_global_kv_cache_groups"
        if f"def {grouping}" in self.planner.modules.source():
            given_name = self.fresh("given")
            prefix.append(f"{given_name} = {given}")
            grouped = f"{self.function(grouping)}({settings}, {given_name})"
            expression = f"{function}({settings}, {given_name}, {memory}, {grouped})"
        else:
            expression = f"{function}({settings}, {given}, {memory})"
        if automatic:
            # The length is left in the configuration.
            expression = f"({expression}, {settings}.model_config.max_model_len)[1]"
        return expression, prefix, ""

    def function(self, name: str) -> str:
        self.imports.setdefault(self.planner.modules.module_of(name), set()).add(name)
        return name

    def name(self, class_name: str) -> str:
        self.imports.setdefault(INTERFACE, set()).add(class_name)
        return class_name

    def layers(self, rank: Mapping[str, Any], drafts: Sequence[str]) -> str:
        """The name of a rank's layers, with what a planner is told of them besides."""
        pairs = []
        for name, spec in rank.items():
            told = self.planner.told(spec, name in drafts)
            built = self.spec(spec)
            if told:
                self.imports.setdefault("dataclasses", set()).add("replace")
                changes = ", ".join(f"{field}={value!r}" for field, value in told.items())
                built = f"replace({built}, {changes})"
            pairs.append(f"{name!r}: {built}")
        literal = f"{{{', '.join(pairs)}}}"
        return self.bound("layers", literal)

    def settings(self, values: Mapping[str, Any]) -> str:
        """The name of a configuration with those of its values that the release's code mentions."""
        self.imports.setdefault("types", set()).add("SimpleNamespace")
        return self.bound("config", self.namespace(values, separator=",\n    "))

    def namespace(self, values: Mapping[str, Any], separator: str = ", ") -> str:
        parts = []
        for name, value in values.items():
            if not self.planner.modules.reads(name):
                continue
            if isinstance(value, Mapping):
                parts.append(f"{name}={self.namespace(value)}")
            elif isinstance(value, Returns):
                if value.module:
                    self.imports.setdefault(value.module, set()).add(value.text.partition(".")[0])
                parts.append(f"{name}=lambda: {value.text}")
            else:
                parts.append(f"{name}={value!r}")
        inside = separator.join(parts)
        return f"SimpleNamespace({inside})" if separator == ", " else f"SimpleNamespace(\n    {inside},\n)"

    def kv_cache_config(self, wire: Mapping[str, Any]) -> str:
        """A planned configuration by the name of the answer it is, else built."""
        known = self.name_of(wire)
        if known is not None:
            return known
        groups = ", ".join(map(self.kv_cache_group, wire["kv_cache_groups"]))
        tensors = ", ".join(
            f"{self.name('KVCacheTensor')}({', '.join(f'{k}={v!r}' for k, v in tensor.items() if v != 0)})"
            for tensor in wire["kv_cache_tensors"]
        )
        literal = (
            f"{self.name('KVCacheConfig')}(num_blocks={wire['num_blocks']}, kv_cache_tensors=[{tensors}], "
            f"kv_cache_groups=[{groups}])"
        )
        return self.bound("planned", literal, wire)

    def kv_cache_group(self, wire: Mapping[str, Any]) -> str:
        flag = ", is_eagle_group=True" if wire["is_eagle_group"] else ""
        spec = self.spec(wire["kv_cache_spec"])
        return f"{self.name('KVCacheGroupSpec')}({list(wire['layer_names'])}, {spec}{flag})"

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

    def bound(self, stem: str, expression: str, value: Any = None) -> str:
        """The name of an expression, the same for the same one; ``value`` is known by it, if given."""
        known = self.name_of(expression)
        if known is not None:
            return known
        name = self.fresh(stem)
        self.lines.append(f"{name} = {expression}")
        self.named.append((expression if value is None else value, name))
        return name

    def spec(self, wire: Mapping[str, Any]) -> str:
        known = self.name_of(wire)
        if known is not None:
            return known
        return self.bound("spec", self.construction(wire), dict(wire))

    def construction(self, wire: Mapping[str, Any]) -> str:
        kind = wire["kind"]
        if kind not in CLASSES:
            raise _Unprintable
        self.imports.setdefault(INTERFACE, set()).add(CLASSES[kind])
        if kind == "uniform_type":
            layers = ", ".join(
                f"{name!r}: {self.construction(layer)}" for name, layer in wire["kv_cache_specs"]
            )
            return f"{CLASSES[kind]}(block_size={wire['block_size']}, kv_cache_specs={{{layers}}})"
        if None not in (wire.get("alignment"), wire.get("page_size_padded")):
            release = self.adapter.release
            if release.classes[kind](**release.arguments(wire)) != release.build(wire):
                # A planner wrote a padding into a spec whose constructor derives another.
                raise _Unprintable
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
        self.imports.setdefault("types", set()).add("SimpleNamespace")
        return self.bound("config", _namespace(values))


RESULTS = {
    "get_kv_cache_groups": "groups",
    "get_kv_cache_configs": "configs",
    "generate_scheduler_kv_cache_config": "scheduler",
}
"""What the answers that later calls are asked about are called."""


def _namespace(values: Mapping[str, Any]) -> str:
    parts = (
        f"{name}={_namespace(value) if isinstance(value, Mapping) else repr(value)}"
        for name, value in values.items()
    )
    return f"SimpleNamespace({', '.join(parts)})"
