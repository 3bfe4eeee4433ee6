"""`@frozen`: an immutable dataclass that costs next to nothing to define.

`dataclasses.dataclass(frozen=True)` writes, compiles and runs the source of six methods for every class, 0.8 ms a class
on every rank that starts, and a run defines about a hundred classes. Here all classes share the six, which look at the
fields when they are called. Else it is a dataclass: `fields`, `replace`, `asdict`, `match` and type checkers see no
difference. It is slower to make and to hash, by 2 us or so: what is made or looked up in every round is a dataclass of
the standard library, and so is what a plug-in may derive from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, field
from functools import partial
from typing import Any, TypeVar, dataclass_transform

C = TypeVar("C", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: C) -> C:
    """Make a dataclass of a class: immutable, equal if all fields are, with a hash."""
    own = dict(vars(cls))
    if own.get("__hash__") is None:  # Python's own way to say that there is an __eq__
        own.pop("__hash__", None)
    for name, method in _SHARED.items():
        if name not in own:
            setattr(cls, name, method)
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    return cls


def _init(self: Any, *args: Any, **given: Any) -> None:
    layout = _layout(type(self))
    if len(args) > len(layout.positional):
        raise TypeError(f"{layout.title}() takes {len(layout.positional)} positional values, found {len(args)}")
    values = dict(zip(layout.positional, args, strict=False))
    if twice := values.keys() & given.keys():
        raise TypeError(f"{layout.title}() got two values for {', '.join(sorted(twice))}")
    values |= given
    for name, make in layout.defaults.items():
        if name not in values:
            values[name] = make()
    if missing := [name for name in layout.names if name not in values]:
        raise TypeError(f"{layout.title}() is missing {', '.join(missing)}")
    if len(values) > len(layout.names):
        raise TypeError(f"{layout.title}() has no {', '.join(sorted(values.keys() - set(layout.names)))}")
    self.__dict__.update({name: values[name] for name in layout.names})
    if layout.after is not None:
        layout.after(self)


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name in _layout(type(self)).shown)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _key(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in _layout(type(self)).compared])


def _eq(self: Any, other: Any) -> Any:
    return _key(self) == _key(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_key(self))


def _setattr(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_SHARED: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
}


class _Layout:
    """What the shared methods have to know of a class."""

    def __init__(self, cls: type) -> None:
        found = dataclasses.fields(cls)
        self.title = cls.__name__
        self.names = tuple([one.name for one in found])
        self.positional = tuple([one.name for one in found if not one.kw_only])
        self.defaults: dict[str, Callable[[], Any]] = {}
        for one in found:
            if one.default_factory is not MISSING:
                self.defaults[one.name] = one.default_factory
            elif one.default is not MISSING:
                self.defaults[one.name] = partial(_same, one.default)
        self.shown = tuple([one.name for one in found if one.repr])
        self.compared = tuple([one.name for one in found if (one.compare if one.hash is None else one.hash)])
        self.after: Callable[[Any], None] | None = getattr(cls, "__post_init__", None)


def _same(value: Any) -> Any:
    return value


def _layout(cls: type) -> _Layout:
    found: _Layout | None = vars(cls).get("__layout__")
    if found is None:
        found = _Layout(cls)
        cls.__layout__ = found  # type: ignore[attr-defined]
    return found
