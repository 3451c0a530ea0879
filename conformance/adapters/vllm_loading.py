"""Importing what sizes a KV cache out of a vLLM release, though most of what it needs is not here.

A release's modules import much of the serving package. What of that is not installed is stood in
for, and says so once it is really used.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvconform.conformance.adapters.vllm_outcomes import Unsupported

_UNEVALUATED = __future__.annotations.compiler_flag


class StandIn(types.ModuleType):
    """Takes the place of what cannot be imported; using anything in it raises `Unsupported`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(f"{self.__name__}.{name}, which cannot be imported here")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise Unsupported(f"{self.__name__}, which cannot be imported here")


class EmptyClasses(types.ModuleType):
    """Takes the place of a module of which others only name classes: each is an empty one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


COMPILER_PASSES = ("vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass")
"""Where releases keep what configuration classes name of torch's compiler."""

STOOD_IN: set[str] = set()
"""What `load_leniently` put a stand-in for, as dotted names."""


def load_leniently(name: str, root: Path, *, siblings: Sequence[str] = ()) -> types.ModuleType:
    """Import a module of the release although much of what it imports is not installed.

    Its package is entered without running the package's own imports, and each statement at the top
    of the module that fails binds a stand-in which raises once anything in it is used. ``siblings``
    are modules that it needs more of than such stand-ins: those the release has are loaded first.
    """
    if name in sys.modules:
        return sys.modules[name]
    for sibling in siblings:
        if root.joinpath(*sibling.split(".")).with_suffix(".py").exists():
            load_leniently(sibling, root)
    parts = name.split(".")
    for depth in range(2, len(parts)):
        package = ".".join(parts[:depth])
        if package not in sys.modules:
            bare = StandIn(package)
            bare.__path__ = [str(root.joinpath(*parts[:depth]))]
            sys.modules[package] = bare
    path = root.joinpath(*parts).with_suffix(".py")
    if not path.exists():
        raise Unsupported(f"module {name}")
    module = types.ModuleType(name)
    module.__file__ = str(path)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    try:
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            try:
                exec(_compile(statement, path), module.__dict__)
            except Exception as error:
                for bound in _names_bound(statement):
                    STOOD_IN.add(f"{name}.{bound}")
                    module.__dict__[bound] = StandIn(f"{name}.{bound} ({type(error).__name__}: {error})")
    except BaseException:
        # Interrupted, as by a time limit: half a module must not pass for the whole one.
        del sys.modules[name]
        raise
    return module


def enter(root: Path) -> None:
    """Have the release's modules found without running what its top package does on import.

    That patches torch's compiler, which takes two seconds to load and has no say in sizes; the
    passes of it that configuration classes name are stood in for likewise.
    """
    if "vllm" not in sys.modules and (root / "vllm").is_dir():
        package = types.ModuleType("vllm")
        package.__path__ = [str(root / "vllm")]
        sys.modules["vllm"] = package
        for name in COMPILER_PASSES:
            sys.modules[name] = EmptyClasses(name)


def compile_without_asserts(module: types.ModuleType) -> types.ModuleType:
    """The module's own source, compiled as ``python -O`` does, beside the original."""
    path = inspect.getsourcefile(module)
    assert path is not None
    twin = types.ModuleType(f"{module.__name__}_without_asserts")
    twin.__file__ = path
    sys.modules[twin.__name__] = twin
    source = Path(path).read_text(encoding="utf-8")
    exec(compile(source, path, "exec", optimize=1, dont_inherit=True), twin.__dict__)
    return twin


def extract_method(root: Path, module: str, class_name: str, method: str) -> Callable[[Any], Any]:
    """A class method of a backend, run from its source without importing its module.

    Attention backends import kernels that need a device; the method that says what they pack is
    plain arithmetic. The class is cut down to that method, and only the imports that bind names it
    uses are executed. Raises `Unsupported` where there is no such method.
    """
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    missing = Unsupported(f"{class_name}.{method} in {module}")
    if not path.exists():
        raise missing
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owners = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    if not owners:
        raise missing
    owner = owners[0]
    owner.body = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == method]
    if not owner.body:
        raise missing
    owner.keywords, owner.decorator_list = [], []
    used = {node.id for node in ast.walk(owner) if isinstance(node, ast.Name)}
    if "super" not in used:
        used -= {base.id for base in owner.bases if isinstance(base, ast.Name)}
        owner.bases = []
    for node in ast.walk(owner):
        if isinstance(node, ast.ImportFrom) and node.module:
            _make_importable(node.module, root)
    namespace: dict[str, Any] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) in used:
                    if isinstance(statement, ast.ImportFrom) and statement.module:
                        _make_importable(statement.module, root)
                    only = ast.copy_location(_only(statement, alias), statement)
                    try:
                        exec(_compile(only, path), namespace)
                    except ImportError as error:
                        raise Unsupported(f"{class_name}.{method}: {error}") from error
    exec(_compile(owner, path), namespace)
    bound: Callable[[Any], Any] = getattr(namespace[class_name], method)
    return bound


def _make_importable(module: str, root: Path) -> None:
    """Load a module of the release leniently where it cannot be imported as it is."""
    if module.startswith("vllm.") and root.joinpath(*module.split(".")).with_suffix(".py").exists():
        try:
            importlib.import_module(module)
        except Exception:
            load_leniently(module, root)


def _compile(statement: ast.stmt, path: Path) -> types.CodeType:
    # Annotations stay unevaluated: they name much that is not here.
    module = ast.Module([statement], [])
    code: types.CodeType = compile(module, str(path), "exec", _UNEVALUATED, dont_inherit=True)
    return code


def _only(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    if isinstance(statement, ast.Import):
        return ast.Import([alias])
    return ast.ImportFrom(statement.module, [alias], statement.level)


def _names_bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []
