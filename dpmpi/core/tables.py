"""Tables of a TOML or JSON file, checked key by key, with one-line errors that name the file.

    table = TomlTable(read_toml(path, "the codebook"), str(path))
    table.only("bias", "decimal", "label", "columns")
    bias = table.get("bias", bool, False)
    decimal = table.get("decimal", ("point", "comma"), "point")
    label = table.table("label")
    column = label.get("column", str)

raise errors such as `book.toml: expected bias = true or false, found 1`, or `book.toml: [label]: expected column =
"TEXT", found nothing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, DpmpiError, nearest, shown

_REQUIRED: Any = object()
_MOST_LISTED = 12
_FORMS = {bool: "true or false", int: "a whole number", float: "a number", str: '"TEXT"', list: "[...]", dict: "{...}"}


@frozen
class TomlTable:
    """A table, the file that it stands in, and its dotted name there, which is empty for the whole file."""

    content: Mapping[str, Any]
    file: str
    error: type[DpmpiError] = ConfigError
    name: str = ""

    @property
    def where(self) -> str:
        """The file and the name, as an error begins."""
        return f"{self.file}: [{self.name}]" if self.name else self.file

    def only(self, *known: str) -> None:
        """Raise for a key that is not `known`, with the nearest one that is."""
        for key in self.content:
            if key not in known:
                keys = f"some of {', '.join(known)}" if len(known) <= _MOST_LISTED else "known keys"
                near = nearest(key[:80], known)
                raise self.error(f"{self.where}: expected {keys}, found the unknown key {shown(key)}{near}")

    def get(
        self,
        key: str,
        kind: type | tuple[str, ...],
        default: Any = _REQUIRED,
        *,
        expected: str = "",
        valid: Callable[[Any], object] | None = None,
    ) -> Any:
        """Return the value of a key, or `default` if it is not there; without one, the key is required.

        `kind` is the type of the value, or the words to choose from; a whole number serves as a float. `valid` tells a
        value that will do from others of its kind, and `expected` describes such a value in the error.
        """
        if key not in self.content and default is not _REQUIRED:
            return default
        value = self.content.get(key)
        if isinstance(kind, tuple):
            right, written = value in list(kind), " or ".join(f'"{word}"' for word in kind)
        else:
            right, written = isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), _FORMS[kind]
        if kind is float and type(value) is int:
            with suppress(OverflowError):
                right, value = True, float(value)
        if not right or (valid is not None and not valid(value)):
            raise self.fault(key, expected or written)
        return value

    def table(self, key: str, default: Mapping[str, Any] | None = None) -> TomlTable:
        """Return the table [key] within this one; without a `default` it is required."""
        inner = self.content.get(key, default)
        if not isinstance(inner, dict):
            raise self.error(f"{self.where}: expected a table [{key}], found {self._found(key)}")
        return TomlTable(inner, self.file, self.error, f"{self.name}.{key}".lstrip("."))

    def tables(self, key: str) -> list[TomlTable]:
        """Return the tables [[key]] within this one, in order; none if the key is not there."""
        inner = self.content.get(key, [])
        if not isinstance(inner, list) or not all(isinstance(one, dict) for one in inner):
            raise self.error(f"{self.where}: expected tables [[{key}]], found {self._found(key)}")
        return [TomlTable(one, self.file, self.error, f"{key} {number}") for number, one in enumerate(inner, 1)]

    def fault(self, key: str, expected: str) -> DpmpiError:
        """Return the error for a key whose value is not as expected."""
        return self.error(f"{self.where}: expected {key} = {expected}, found {self._found(key)}")

    def _found(self, key: str) -> str:
        return shown(self.content[key]) if key in self.content else "nothing"
