"""config.json of a checkpoint with typed look-ups, which check its untrusted contents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantizer.system.errors import UserError, registered


@registered
class CheckpointError(UserError):
    """A checkpoint folder that cannot be read or converted."""


_MAX_INTEGER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Config:
    """Typed look-ups in a parsed config.json; the first of several names that is there counts."""

    values: Mapping[str, Any]
    # settings that config.json has as null, which `values` may lack
    nulls: frozenset[str] = frozenset()

    def integer(self, *names: str) -> int:
        """Return a whole number in [0, 2^31). Raises CheckpointError when it is missing or something else."""
        value = self.optional_integer(*names)
        if value is None:
            raise self._missing(names)
        return value

    def optional_integer(self, *names: str) -> int | None:
        """Return like `integer`, None when no name is there (or null)."""
        value = self._first(names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_INTEGER:
            raise CheckpointError(f"config.json has {names[0]} = {value!r}.", "It should be an integer.")
        return value

    def number(self, *names: str) -> float:
        """Return a finite number. Raises CheckpointError when it is missing or something else."""
        value = self.optional_number(*names)
        if value is None:
            raise self._missing(names)
        return value

    def optional_number(self, *names: str) -> float | None:
        """Return like `number`, None when no name is there (or null)."""
        value = self._first(names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise CheckpointError(f"config.json has {names[0]} = {value!r}.", "It should be a number.")
        return float(value)

    def text(self, name: str) -> str | None:
        """Return a string, or None when it is missing or something else."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def flag(self, name: str) -> bool | None:
        """Return a bool, or None when it is missing or something else."""
        value = self.values.get(name)
        return value if isinstance(value, bool) else None

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers above zero, or None when it is missing or null."""
        values = self.values.get(name)
        if values is None:
            return None
        is_list = isinstance(values, list) and values
        if not is_list or not all(type(n) is int and 0 < n <= _MAX_INTEGER for n in values):
            raise CheckpointError(f"config.json has {name} = {values!r}.", "It should be a list of sizes.")
        return tuple(values)

    def section(self, *names: str) -> Config:
        """Return a nested object, empty when it is missing or null."""
        value = self._first(names)
        if value is None:
            return Config({})
        if not isinstance(value, dict):
            raise CheckpointError(f"config.json has {names[0]} = {value!r}.", "It should be an object.")
        return Config(value)

    def _first(self, names: Sequence[str]) -> Any:
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def _missing(self, names: Sequence[str]) -> CheckpointError:
        if null := next((name for name in names if name in self.nulls), None):
            return CheckpointError(
                f"config.json has {null} = null, and this architecture needs a number.",
                "Check config.json, or choose another model.",
            )
        return CheckpointError(f"config.json does not have {' or '.join(names)}.", "Download the whole checkpoint.")
