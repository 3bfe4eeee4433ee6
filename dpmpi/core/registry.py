"""Classes by name, each imported when it is first asked for: a rank needs one of many, and 200 ranks pay for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, type[T]], Generic[T]):
    """A mapping from names to classes; its names are known without importing anything."""

    def __init__(self, package: str, homes: Mapping[str, str]) -> None:
        """Register `module:Class` of a package for each name."""
        self._package = package
        self._homes = dict(homes)

    def __getitem__(self, name: str) -> type[T]:
        """Return the class; import its module the first time."""
        module, _, cls = self._homes[name].partition(":")
        found: type[T] = getattr(import_module(f"{self._package}.{module}"), cls)
        return found

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._homes)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._homes)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a class of this name."""
        return name in self._homes

    def name_of(self, cls: type) -> str | None:
        """Return the name of a class, None if it is not one of these."""
        here = (cls.__module__.removeprefix(f"{self._package}."), cls.__qualname__)
        return next((name for name, home in self._homes.items() if home == ":".join(here) and self[name] is cls), None)
