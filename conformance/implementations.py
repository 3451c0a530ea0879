"""Addresses of implementations under test, and how each is opened.

An address is read and prepared by the process that a person started (a release is fetched there,
with its progress shown), and opened by a worker process, since two vLLM releases cannot share one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from kvconform.reference.interface import Implementation

FORMS = "reference, vllm, vllm==VERSION, vllm@DIRECTORY, python:MODULE:ATTRIBUTE"
"""What can be written as an address, for messages."""

LATER = ("process:", "miniature:")

Progress = Callable[[int, int | None], None]


class AddressError(Exception):
    """The address names nothing that can be put under test; one line says why."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """An address whose files are all here.

    `paths` go first on ``sys.path`` of the worker; `target` is what is imported from there.
    """

    address: str
    scheme: str
    target: str = ""
    paths: tuple[str, ...] = ()


def prepare(address: str, *, progress: Progress | None = None) -> Prepared:
    """Read an address and fetch what it names; `progress` is told of bytes fetched.

    Imports nothing of the implementation. Raises AddressError for an address that cannot be read,
    or whose release or directory cannot be had.
    """
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
    for scheme in LATER:
        if address.startswith(scheme):
            raise AddressError(f"{address}: {scheme} is not known to this version of kvconform; use {FORMS}")
    raise AddressError(f"unknown implementation {address!r}; use {FORMS}")


def open_implementation(prepared: Prepared) -> Implementation:
    """Import and construct what was prepared; only in a process of its own.

    Raises AddressError when there is nothing of that name. What the code under test raises while
    it is imported passes through.
    """
    sys.path[:0] = prepared.paths
    if prepared.scheme == "reference":
        from kvconform.reference.plain import Plain

        return Plain()
    if prepared.scheme == "vllm":
        return _open_vllm(prepared)
    return _open_python(prepared)


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
    return made
