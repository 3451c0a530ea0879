"""Reading the fields of a config.json: present, whole, positive, of one mind, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvconform.reference.interface import Refused


@dataclass(frozen=True)
class Fields:
    """A config.json, or the part of it that describes the language model.

    ``defaults`` are the values that the architecture's public configuration class gives to fields
    that its config.json files leave out. Every refusal names the field first.
    """

    values: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """What stands there or is the default; None where neither, or where null stands."""
        return self.values[name] if name in self.values else self.defaults.get(name)

    def number(self, name: str) -> int:
        """A whole number > 0."""
        value = self.optional(name)
        if value is None:
            raise Refused(f"{name}: missing")
        return value

    def optional(self, name: str) -> int | None:
        """A whole number > 0, or None where the field is missing or null."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise Refused(f"{name}: {value!r} is not a whole number")
        if value <= 0:
            raise Refused(f"{name}: {value} is not positive")
        return value

    def below(self, name: str, bound: int, bound_name: str) -> int:
        """A whole number from 0 up to less than another field."""
        stated = self.value(name)
        value = 0 if type(stated) is int and stated == 0 else self.number(name)
        if value >= bound:
            raise Refused(f"{name}: {value} is not below the {bound_name} of {bound}")
        return value

    def flag(self, name: str) -> bool:
        """True or false; missing or null is false only where that is the class's default."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise Refused(
                f"{name}: missing" if value is None else f"{name}: {value!r} is neither true nor false"
            )
        return value

    def sequence(self, name: str, length: int | None = None) -> tuple[Any, ...] | None:
        """A list of words or numbers, so many if told; None where the field is missing or null."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise Refused(f"{name}: {value!r} is not a list")
        if length is not None and len(value) != length:
            raise Refused(f"{name}: {len(value)} entries for {length} layers")
        if not all(isinstance(entry, str | int) for entry in value):
            raise Refused(f"{name}: entries that are neither words nor whole numbers")
        return tuple(value)

    def nested(self, name: str) -> Mapping[str, Any]:
        """An object inside the config.json."""
        value = self.value(name)
        if not isinstance(value, Mapping):
            raise Refused(f"{name}: missing" if value is None else f"{name}: {value!r} is not an object")
        return value

    def agree(self, name: str, expected: int) -> int:
        """``expected``, derived from other fields; refused where the field says otherwise."""
        value = self.optional(name)
        if value is not None and value != expected:
            raise Refused(f"{name}: {value} contradicts the {expected} that follows from the other fields")
        return expected
