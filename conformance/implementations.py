"""Addresses of implementations under test, and how each is opened.

An address is read and prepared by the process that a person started (a release is fetched there,
with its progress shown), and opened by a worker process, since two vLLM releases cannot share one.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from kvconform.reference.interface import Implementation

FORMS = (
    "reference, vllm, vllm==VERSION, vllm@DIRECTORY, python:MODULE:ATTRIBUTE, process:COMMAND, miniature:NAME"
)
"""What can be written as an address, for messages."""

DECLARED = ("kinds", "fields", "operations")
"""What every `Implementation` must say of itself."""

Progress = Callable[[int, int | None], None]


class AddressError(Exception):
    """The address names nothing that can be put under test; one line says why."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """An address whose files are all here.

    `paths` go first on ``sys.path`` of the worker; `target` is what is imported from there, after
    the modules in `imports`, which are also looked for in the directory `beside`. Where there is a
    `command`, its process is asked instead. `python` is the interpreter that was named for it.
    """

    address: str
    scheme: str
    target: str = ""
    paths: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    beside: str = ""
    command: tuple[str, ...] = ()
    python: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """What stands beside the address on a command line that names the same."""
        imports = (word for module in self.imports for word in ("--import", module))
        return (*imports, *(("--python", self.python) if self.python else ()))


def prepare(
    address: str, *, imports: Sequence[str] = (), python: str | None = None, progress: Progress | None = None
) -> Prepared:
    """Read an address and fetch what it names; `progress` is told of bytes fetched.

    `imports` are modules to be imported before the implementation is opened, and `python` is the
    interpreter to ask a vLLM in, where it is not this one. Imports nothing of the implementation.
    Raises AddressError for an address that cannot be read, or whose release or directory cannot be
    had, and for options that do not go with it.
    """
    for module in imports:
        if not all(part.isidentifier() for part in module.split(".")):
            raise AddressError(f"--import {module}: not the name of a module")
    if address.startswith("process:"):
        if imports or python is not None:
            raise AddressError(f"{address}: --import and --python are not for process:COMMAND")
        return _commanded(address)
    if python is not None:
        return _foreign(address, python, tuple(imports), progress)
    prepared = _read(address, progress)
    if not imports:
        return prepared
    return msgspec.structs.replace(prepared, imports=tuple(imports), beside=str(Path.cwd()))


def _read(address: str, progress: Progress | None) -> Prepared:
    if address == "reference":
        return Prepared(address=address, scheme="reference")
    if address == "vllm":
        return _installed(address)
    if address.startswith("vllm=="):
        return _released(address, address.removeprefix("vllm=="), progress)
    if address.startswith("vllm@"):
        return _checked_out(address, address.removeprefix("vllm@"))
    if address.startswith("python:"):
        return _named(address)
    if address.startswith("miniature:"):
        return _miniature(address)
    raise AddressError(f"unknown implementation {address!r}; use {FORMS}")


def open_implementation(prepared: Prepared, *, seconds_per_ask: float = 2.0) -> Implementation:
    """Import and construct what was prepared; only in a process of its own.

    An implementation that is a process may take `seconds_per_ask` for each answer. Raises
    AddressError when there is nothing of that name. What the code under test raises while it is
    imported passes through, and so does BrokenExchange.
    """
    if prepared.command:
        return _open_process(prepared, seconds_per_ask)
    sys.path[:0] = prepared.paths
    _import(prepared)
    if prepared.scheme == "reference":
        from kvconform.reference.plain import Plain

        return Plain()
    if prepared.scheme == "miniature":
        from kvconform.conformance.miniatures import miniature

        return miniature(prepared.target)
    if prepared.scheme == "vllm":
        return _open_vllm(prepared)
    return _open_python(prepared)


def _miniature(address: str) -> Prepared:
    from kvconform.conformance.miniatures import miniature

    name = address.removeprefix("miniature:")
    try:
        miniature(name)
    except ValueError as error:
        raise AddressError(str(error)) from error
    return Prepared(address=address, scheme="miniature", target=name)


def _installed(address: str) -> Prepared:
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        raise AddressError("vllm is not installed here; write vllm==VERSION to have a release fetched")
    return Prepared(address=address, scheme="vllm")


def _released(address: str, version: str, progress: Progress | None) -> Prepared:
    from kvconform.conformance.releases import ReleaseError, release

    try:
        root = release(version, progress=progress)
    except ReleaseError as error:
        raise AddressError(f"{address}: {error}") from error
    return Prepared(address=address, scheme="vllm", target=str(root), paths=(str(root),))


def _checked_out(address: str, directory: str) -> Prepared:
    root = Path(directory).expanduser().absolute()
    if not (root / "vllm" / "__init__.py").is_file():
        raise AddressError(f"{address}: {root} holds no vllm package")
    return Prepared(address=address, scheme="vllm", target=str(root), paths=(str(root),))


def _named(address: str) -> Prepared:
    module, colon, attribute = address.removeprefix("python:").partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise AddressError(f"{address}: write python:MODULE:ATTRIBUTE, such as python:my_engine.specs:Specs")
    # Like `python -m`: a module beside the person who names it is found.
    beside = str(Path.cwd())
    return Prepared(address=address, scheme="python", target=f"{module}:{attribute}", paths=(beside,))


def _commanded(address: str) -> Prepared:
    try:
        command = shlex.split(address.removeprefix("process:"))
    except ValueError as error:
        raise AddressError(f"{address}: {error}") from error
    if not command:
        raise AddressError(f"{address}: write process:COMMAND, such as 'process:node adapter.mjs'")
    return Prepared(address=address, scheme="process", command=(_program(address, command[0]), *command[1:]))


def _foreign(address: str, python: str, imports: tuple[str, ...], progress: Progress | None) -> Prepared:
    if address != "vllm" and not address.startswith(("vllm==", "vllm@")):
        raise AddressError(f"{address}: --python is for vllm, vllm==VERSION and vllm@DIRECTORY")
    adapter = Path(__file__).parent / "adapters" / "vllm_process.py"
    command = [_program("--python", python), str(adapter), "--name", address]
    if address != "vllm":
        command += ["--root", _read(address, progress).target]
    for module in imports:
        command += ["--import", module]
    return Prepared(address=address, scheme="process", command=tuple(command), imports=imports, python=python)


def _program(named_by: str, name: str) -> str:
    found = shutil.which(os.path.expanduser(name))
    if found is None:
        raise AddressError(f"{named_by}: no program {name!r} can be run")
    return found


def _import(prepared: Prepared) -> None:
    """Import the modules that the person named; those beside that person last."""
    if prepared.beside:
        sys.path.append(prepared.beside)
    for module in prepared.imports:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise AddressError(f"--import {module}: {error}") from error


def _open_process(prepared: Prepared, seconds_per_ask: float) -> Implementation:
    from kvconform.conformance.process import ProcessImplementation

    try:
        return ProcessImplementation(prepared.command, seconds_per_ask=seconds_per_ask)
    except OSError as error:
        raise AddressError(f"{prepared.address}: it cannot be run: {error.strerror}") from error


def _open_vllm(prepared: Prepared) -> Implementation:
    from kvconform.conformance.adapters.vllm_implementation import AdapterError, VllmImplementation

    try:
        return VllmImplementation(Path(prepared.target) if prepared.target else None, prepared.address)
    except AdapterError as error:
        raise AddressError(f"{prepared.address}: {error}") from error


def _open_python(prepared: Prepared) -> Implementation:
    from kvconform.reference.interface import Implementation

    module, _, attribute = prepared.target.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise AddressError(f"{prepared.address}: {error}") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise AddressError(f"{prepared.address}: {module} has no attribute {attribute}")
        found = getattr(found, name)
    made: object = found
    if not isinstance(made, Implementation) and callable(made):
        made = made()
    if not isinstance(made, Implementation):
        wanted = "neither an Implementation nor a class or function that makes one"
        raise AddressError(f"{prepared.address}: {attribute} is {wanted}")
    _check_declared(prepared.address, made)
    return made


def _check_declared(address: str, made: Implementation) -> None:
    from kvconform.conformance.declarations import BadDeclaration, check_declarations
    from kvconform.reference.interface import Implementation

    shape = type(made)
    lacking = [name for name in DECLARED if getattr(shape, name) is getattr(Implementation, name)]
    if lacking:
        raise AddressError(f"{address}: {shape.__name__} does not define {', '.join(lacking)}")
    try:
        kinds = {kind: made.fields(kind) for kind in made.kinds()}
        operations = made.operations()
    except Exception:
        # What it raises there it raises under each law, which tells of it.
        return
    try:
        check_declarations(kinds, operations)
    except BadDeclaration as error:
        raise AddressError(f"{address}: {error}") from error
