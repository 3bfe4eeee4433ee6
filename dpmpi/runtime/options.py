"""What the options of runs and methods have in common: a field is a flag, a key in TOML, and has a bounded size."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from dpmpi.core import Method
from dpmpi.errors import ConfigError, shown

AUTO = "auto"
"""What stands for None where a setting is derived from public facts: in flags, files and hyperparameters."""
LONGEST_TEXT = 1000
"""Characters of a setting: longer than paths are, and fewer digits than Python makes a number of."""

MOST_RANKS = 10_000
"""Ranks of a run, whoever starts or plans it."""


def or_auto(f: dataclasses.Field[Any], value: Any) -> Any:
    """Return a field's value, `auto` in the place of a None that stands for it."""
    return AUTO if value is None and (f.metadata.get("auto") or "kind" not in f.metadata) else value


def check_size(name: str, value: object, longest: int = LONGEST_TEXT) -> None:
    """Raise `ConfigError` for text or numbers beyond what any file or array can take, whatever the setting."""
    if isinstance(value, str) and not (value.isprintable() and len(value) <= longest):
        expected = f"{flag_of(name)} must be one line of at most {longest} printable characters"
        raise ConfigError(f"{expected}, got {shown(value, 40)} with {len(value)}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"{flag_of(name)} must be less than 2^63, got {shown(value, 40)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{flag_of(name)} must be a finite number, got {value}")


def flag_of(name: str) -> str:
    """Return a field's name as a flag."""
    return "--" + name.replace("_", "-")


def hyperfields(cls: type[Method]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a method: its hyperparameters."""
    return dataclasses.fields(cls)  # type: ignore[arg-type]


def toml_text(value: object) -> str:
    """Return a value as TOML has it; a tuple of one as that one."""
    if isinstance(value, tuple):
        return toml_text(value[0]) if len(value) == 1 else f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value)).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
