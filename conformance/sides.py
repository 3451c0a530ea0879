"""The two sides of a comparison, and what of them is compared, as named on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvconform.conformance.screen import Stop
from kvconform.conformance.starting import prepare_address

if TYPE_CHECKING:
    from kvconform.conformance.implementations import Prepared

NAMES = ("left", "right")


@dataclass(frozen=True)
class Side:
    """One side: what was written for it, and what it is."""

    address: str
    prepared: Prepared

    @property
    def options(self) -> tuple[str, ...]:
        """What stands beside the address on a command line that asks the same."""
        return self.prepared.options

    @property
    def label(self) -> str:
        """The address, and what went with it."""
        return " ".join((self.address, *self.options))


def read_sides(left: str, right: str, imports: Sequence[str], pythons: Sequence[str]) -> tuple[Side, Side]:
    """Both sides with their files here; ends the command for one that there is not.

    An import or interpreter goes with every vLLM compared, or with the side named before it, as
    ``left:MODULE``. Ends the command where there is none that it could go with, and for a second
    interpreter of one side.
    """
    addresses = (left, right)
    modules = _assigned("--import", imports, addresses)
    interpreters = _assigned("--python", pythons, addresses)
    sides = []
    for name, address, wanted, given in zip(NAMES, addresses, modules, interpreters, strict=True):
        if len(given) > 1:
            raise Stop(f"--python: {given[0]} and {given[1]} for the {name} side: choose one")
        sides.append(
            Side(address, prepare_address(address, imports=wanted, python=given[0] if given else None))
        )
    one, other = sides
    return one, other


def find_kinds(names: str | None) -> frozenset[str] | None:
    """The kinds named, separated by commas; None for all. Ends the command for an unknown one."""
    from kvconform.conformance.selection import SelectionError, find_pairs

    if names is None:
        return None
    try:
        return frozenset(kind for _, kind in find_pairs(kinds=names))
    except SelectionError as error:
        raise Stop(str(error)) from error


def _assigned(option: str, values: Sequence[str], addresses: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Which values go with which side."""
    found: tuple[list[str], list[str]] = ([], [])
    for value in values:
        name, colon, rest = value.partition(":")
        if colon and name in NAMES:
            found[NAMES.index(name)].append(rest)
            continue
        of_vllm = [index for index, address in enumerate(addresses) if _is_vllm(address)]
        if not of_vllm:
            raise Stop(f"{option} {value}: neither side is a vLLM; write left:{value} or right:{value}")
        for index in of_vllm:
            found[index].append(value)
    return found


def _is_vllm(address: str) -> bool:
    return address == "vllm" or address.startswith(("vllm==", "vllm@"))
