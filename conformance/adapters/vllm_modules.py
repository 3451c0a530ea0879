"""The planning modules of a vLLM release: found by their text, loaded leniently, and called.

Planning modules import most of the serving package, of which sizing calls nothing.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvconform.conformance.adapters.vllm_loading import load_leniently
from kvconform.conformance.adapters.vllm_outcomes import Refused, Undocumented, Unsupported, reason

UTILITIES = "vllm.v1.core.kv_cache_utils"
PLANNING = "vllm.v1.core.kv_cache_planning"
MANAGERS = "vllm.v1.core.single_type_kv_cache_manager"
REGISTRY = "vllm.v1.kv_cache_spec_registry"
LAYOUTS = "vllm.v1.kv_cache_layout"

SIBLINGS = ("vllm.v1.hisparse.layout", "vllm.v1.attention.backend")
"""Modules of which planning uses something even where their feature is off."""

DOCUMENTED = (ValueError, NotImplementedError)
"""What the planner raises to refuse; only where a ``raise`` of its own does, not a built-in's."""


class PlanningModules:
    """Those of the release under ``root``, whose spec module is called ``interface``."""

    def __init__(self, root: Path, interface: str) -> None:
        self.root = root
        self._interface = interface
        self._texts: dict[str, str] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._filled = False

    # Found by their text

    def find(self, function: str) -> str | None:
        """The module that defines a function of that name; None if there is none."""
        for module in (PLANNING, UTILITIES, MANAGERS):
            if re.search(rf"^def {function}\(", self.text(module), re.MULTILINE):
                return module
        return None

    def path(self, module: str) -> Path:
        """The file of a module, which need not be there."""
        return self.root.joinpath(*module.split(".")).with_suffix(".py")

    def text(self, module: str) -> str:
        """The source of a module; empty if the release has none such."""
        if module not in self._texts:
            path = self.path(module)
            self._texts[module] = path.read_text(encoding="utf-8") if path.exists() else ""
        return self._texts[module]

    def line(self, module: str, pattern: str) -> str:
        """Where a line of a module begins so, as ``file:line`` from the root; empty if none does."""
        before = re.split(f"^{pattern}", self.text(module), maxsplit=1, flags=re.MULTILINE)
        if len(before) == 1:
            return ""
        place = self.path(module).relative_to(self.root)
        return f"{place}:{before[0].count(chr(10)) + 1}"

    def reads(self, name: str) -> bool:
        """Whether the release's planning or its specs mention a configuration value of that name."""
        modules = (UTILITIES, PLANNING, self._interface)
        return any(re.search(rf"\.{name}\b", self.text(module)) for module in modules)

    def source(self) -> str:
        """The text of the release's planning modules."""
        return self.text(UTILITIES) + self.text(PLANNING)

    def module_of(self, function: str) -> str:
        """The module that defines one of the release's functions. Raises `Unsupported` if none does."""
        module = self.find(function)
        if module is None:
            raise Unsupported(f"function {function}")
        return module

    # Loaded and called

    def load_all(self) -> None:
        """Load all that planning uses and register its kinds, as an engine does before it plans."""
        self.registry()
        for module in (UTILITIES, PLANNING, MANAGERS):
            if self.path(module).exists():
                self.load(module)

    def function(self, name: str) -> Callable[..., Any]:
        """One of the release's functions. Raises `Unsupported` if it has none of that name."""
        if name not in self._functions:
            self._functions[name] = getattr(self.load(self.module_of(name)), name)
        return self._functions[name]

    def load(self, module: str) -> types.ModuleType:
        """A module of the release, stand-ins in it for what is not installed."""
        if module not in sys.modules:
            # Planning warns of every model with filler layers or without a hybrid manager.
            logging.getLogger("vllm").setLevel(logging.ERROR)
        return load_leniently(module, self.root, siblings=SIBLINGS)

    def registry(self) -> Any:
        """The registry of spec classes, filled; None in a release without one."""
        if not self.path(REGISTRY).exists():
            return None
        registry = sys.modules[REGISTRY]
        if not self._filled:
            # What the engine core does first. Left to itself the registry fills itself from the
            # configuration module, which needs the whole serving package.
            self.load(UTILITIES)
            try:
                self.load(MANAGERS).register_all_kvcache_specs(None)
            except ImportError as error:
                raise Unsupported(f"{error}, which is imported to register its kinds") from error
            self._filled = True
        return registry.KVCacheSpecRegistry

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What a function of the release answers.

        Raises `Refused` where it refuses by a ``raise`` of its own, `Undocumented` where it falls
        over, and `Unsupported` where it imports what is not here.
        """
        try:
            return function(*arguments, **named)
        except (Refused, Unsupported, MemoryError, RecursionError):
            raise
        except ImportError as error:
            raise Unsupported(f"{error}, which the planner imports when it is called") from error
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            own = [frame for frame in frames if Path(frame.filename).is_relative_to(self.root)]
            if not own:
                raise
            deliberate = frames[-1] is own[-1] and (frames[-1].line or "").startswith("raise")
            kind = Refused if isinstance(error, DOCUMENTED) and deliberate else Undocumented
            raise kind(reason(error, self.root)) from error


@cache
def parameters(function: Callable[..., Any]) -> frozenset[str]:
    """The names of a function's parameters."""
    return frozenset(inspect.signature(function).parameters)


def taken(given: Mapping[str, Any], *functions: Callable[..., Any]) -> dict[str, Any]:
    """What of the arguments any of the release's functions takes, by name."""
    names = frozenset().union(*map(parameters, functions))
    return {name: value for name, value in given.items() if name in names}
