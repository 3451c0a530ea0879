"""A vLLM release in this process, as an `Implementation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvconform.conformance.adapters import vllm
from kvconform.conformance.adapters.scripts import script
from kvconform.conformance.adapters.vllm import AdapterError
from kvconform.reference.deployment import Deployment
from kvconform.reference.interface import Implementation, Refused, Unsupported
from kvconform.reference.specs import Spec
from kvconform.reference.wire import deployment_to_wire, spec_from_wire, spec_to_wire

__all__ = ["AdapterError", "VllmImplementation"]


class VllmImplementation(Implementation):
    """The release under ``root`` (its unpacked source), or the installed one.

    The constructor raises `AdapterError` where vLLM cannot be imported.
    """

    def __init__(self, root: Path | None, name: str) -> None:
        self.adapter = vllm.Adapter(root)
        self.name = name
        _, _, self.version = name.partition("==")

    def kinds(self) -> tuple[str, ...]:
        return self.adapter.kinds()

    def fields(self, kind: str) -> frozenset[str]:
        return self.adapter.fields(kind)

    def operations(self) -> frozenset[str]:
        return self.adapter.operations()

    def location(self, operation: str, kind: str) -> str:
        return self.adapter.location(operation, kind)

    def script(self, calls: Sequence[tuple[str, Mapping[str, Any], Any]], message: str) -> str:
        """The calls as a few lines of plain vLLM Python; ``message`` says what is wrong with them."""
        wired = [(operation, to_wire(arguments), answer) for operation, arguments, answer in calls]
        return script(self.adapter, self.name, wired, message)

    def ask(self, operation: str, **arguments: Any) -> Any:
        """The release's answer to an operation, its specs as reference specs."""
        try:
            return self.adapter.ask(operation, to_wire(arguments))
        except vllm.Refused as refusal:
            raise Refused(str(refusal)) from refusal
        except vllm.Unsupported as lack:
            raise Unsupported(str(lack)) from lack

    def _number(self, operation: str, **arguments: Any) -> int:
        answer: int = self.ask(operation, **arguments)
        return answer

    def _spec(self, operation: str, **arguments: Any) -> Spec:
        return spec_from_wire(self.ask(operation, **arguments))

    def quant_modes(self) -> Mapping[str, int]:
        modes: Mapping[str, int] = self.ask("quant_modes")
        return modes

    def quant_families(self, mode: str) -> tuple[str, ...]:
        return tuple(self.ask("quant_families", mode=mode))

    def cache_dtypes(self) -> tuple[str, ...]:
        return tuple(self.ask("cache_dtypes"))

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        return str(self.ask("get_kv_quant_mode", cache_dtype=cache_dtype))

    def cache_element_dtype(self, cache_dtype: str) -> str | None:
        element: str | None = self.ask("cache_element_dtype", cache_dtype=cache_dtype)
        return element

    def stored_bytes(self, spec: Spec) -> int:
        return self._number("stored_bytes", spec=spec)

    def construct(self, spec: Spec) -> Spec:
        return self._spec("construct", spec=spec)

    def page_size_bytes(self, spec: Spec) -> int:
        return self._number("page_size_bytes", spec=spec)

    def unpadded_page_size_bytes(self, spec: Spec) -> int:
        return self._number("unpadded_page_size_bytes", spec=spec)

    def real_page_size_bytes(self, spec: Spec) -> int:
        return self._number("real_page_size_bytes", spec=spec)

    def state_content_size_bytes(self, spec: Spec) -> int:
        return self._number("state_content_size_bytes", spec=spec)

    def copy_with_new_block_size(self, spec: Spec, block_size: int) -> Spec:
        return self._spec("copy_with_new_block_size", spec=spec, block_size=block_size)

    def max_blocks_per_request(self, spec: Spec, deployment: Deployment) -> int:
        return self._number("max_blocks_per_request", spec=spec, deployment=deployment)

    def max_memory_usage_bytes(self, spec: Spec, deployment: Deployment) -> int:
        return self._number("max_memory_usage_bytes", spec=spec, deployment=deployment)

    def max_num_blocks_per_req(self, spec: Spec, deployment: Deployment, max_len: int) -> int:
        return self._number("max_num_blocks_per_req", spec=spec, deployment=deployment, max_len=max_len)

    def merge(self, specs: Sequence[Spec], kind: str | None = None) -> Spec:
        return self._spec("merge", specs=specs, kind=kind)

    def merge_without_asserts(self, specs: Sequence[Spec]) -> Spec:
        return self._spec("merge_without_asserts", specs=specs)

    def merge_side_effects(self, specs: Sequence[Spec]) -> tuple[str, ...]:
        return tuple(self.ask("merge_side_effects", specs=specs))


def to_wire(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation with specs and deployments as dictionaries."""
    return {name: _value_to_wire(value) for name, value in arguments.items()}


def _value_to_wire(value: Any) -> Any:
    if isinstance(value, Spec):
        return spec_to_wire(value)
    if isinstance(value, Deployment):
        return deployment_to_wire(value)
    if isinstance(value, list | tuple) and value and isinstance(value[0], Spec):
        return [spec_to_wire(spec) for spec in value]
    return value
