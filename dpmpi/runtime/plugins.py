"""Methods, losses and penalties of the user's own: from a file, a module, an entry point, or as objects in Python.

A plug-in is Python source. Every public subclass of `Method`, `Loss` or `Penalty` that it defines is known to a run
that names the plug-in (`--plugin my.py`), by the class's name in small letters: `MixedGd` is `--algorithm mixed-gd`,
`Pinball` is `--loss pinball`, or `--loss pinball:0.9` with the numbers of its fields, `NonNegative` is `--penalty
non-negative:0.1`. A class may choose another name: `name = "gd"`. Built-in names are taken.

The SHA-256 of the source is a setting (`plugin-digest`), hence part of the settings' digest: ranks with other sources
refuse to begin, and nothing is resumed or verified with a file that has changed. Where the file lies is not. What a
plug-in imports is not covered by its digest, unless it is part of the same package.

A package offers plug-ins by entry points of the groups `dpmpi.methods`, `dpmpi.losses` and `dpmpi.penalties`. They are
looked for only when a name is asked for that is neither built in nor in a plug-in that was given; the settings then
name the module.

Nothing is imported or read for a run without plug-ins.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dpmpi.algorithms import ALGORITHMS
from dpmpi.core import Method, Penalty
from dpmpi.errors import ConfigError, DpmpiError
from dpmpi.problem.losses import LOSSES, MEAN, Loss, parse_loss
from dpmpi.problem.penalties import PENALTIES, Regulariser, parse_penalty
from dpmpi.problem.task import TaskKind
from dpmpi.runtime.plugin_source import (
    PROMPT,
    cells_of,
    is_file,
    last_line,
    one_line,
    read_source,
    run_source,
    source_file,
    typed_source,
)

KINDS: Mapping[str, type] = {"methods": Method, "losses": Loss, "penalties": Penalty}
"""What plug-ins offer; packages do by entry points of the groups `dpmpi.methods` and so on."""
_MADE_BY = {"methods": "round", "losses": "value", "penalties": "prox"}
"""What a class must define: others are bases."""
_BUILT_IN = {"methods": {*ALGORITHMS}, "losses": {*LOSSES, MEAN}, "penalties": {*PENALTIES, "auto"}}
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, eq=False)
class Plugin:
    """A plug-in that was loaded."""

    where: str
    """Its absolute path, or the name of its module."""
    digest: str
    """The SHA-256 of its source."""
    files: frozenset[str]
    """The files of its source, as tracebacks name them."""
    methods: Mapping[str, type[Method]]
    losses: Mapping[str, type[Loss]]
    penalties: Mapping[str, type[Penalty]]

    @property
    def classes(self) -> list[type]:
        """All that it offers."""
        return [cls for kind in KINDS for cls in getattr(self, kind).values()]


_loaded: dict[str, Plugin] = {}
"""By digest: what was loaded in this process."""


def methods(digests: Sequence[str] = ()) -> Mapping[str, type[Method]]:
    """Return the methods by name: those built in, and those of the plug-ins with these digests."""
    if not digests:
        return ALGORITHMS
    own = {name: cls for digest in digests for name, cls in _loaded[digest].methods.items()}
    return ChainMap(own, ALGORITHMS)  # type: ignore[arg-type]  # it is read alone, and imports what is looked up


def loss_of(text: str, digests: Sequence[str] = ()) -> Loss:
    """Return the loss that `--loss` names: one built in, or one of the plug-ins with these digests."""
    known = _known("losses", digests)
    own: Loss | None = _made("--loss", text, known)
    return parse_loss(text, [*known]) if own is None else own


def penalty_of(text: str, domain: str | None, digests: Sequence[str] = ()) -> Penalty:
    """Return the penalty that `--penalty` and `--domain` name: one built in, or one of the plug-ins."""
    known = _known("penalties", digests)
    own: Penalty | None = _made("--penalty", text, known)
    if own is None:
        return parse_penalty(text, domain, [*known])
    if domain is not None:
        found = f"expected no --domain beside --penalty {text}, found {domain}"
        raise ConfigError(f"{found}: let its value be infinite outside of a domain, and its prox stay inside")
    return own


def _known(kind: str, digests: Sequence[str]) -> dict[str, Any]:
    return {name: cls for digest in digests for name, cls in getattr(_loaded[digest], kind).items()}


def _made(flag: str, text: str, known: Mapping[str, Any]) -> Any:
    """Return the object of `NAME` or `NAME:NUMBER,...`, the numbers of its fields in order; None for other names."""
    name, _, rest = text.partition(":")
    if name not in known:
        return None
    cls = known[name]
    own = [f.name.upper() for f in fields(cls)] if is_dataclass(cls) else []
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        numbers = [math.nan]
    if len(numbers) > len(own) or any(map(math.isnan, numbers)):
        form = f"{name}:{','.join(own)} with numbers" if own else name
        raise ConfigError(f"expected {flag} {form}, found {text!r}: correct it")
    with blamed():
        return cls(*numbers)


def resolve(
    where: Sequence[str], pinned: Sequence[str] = (), asked: Mapping[str, str | None] | None = None
) -> list[Plugin]:
    """Return the plug-ins that are named, and those that packages offer for what is asked for and nobody else has.

    `pinned` are the digests that they must have. `asked` has a name for each kind: `methods`, `losses`, `penalties`.
    Raise `ConfigError`.
    """
    if pinned and len(pinned) != len(where):
        found = f"{len(pinned)} of them for {len(where)} plug-ins"
        raise ConfigError(f"expected a plugin-digest for every plugin, found {found}: give all of them, or none")
    loaded = [_load(one, pinned[k] if pinned else None) for k, one in enumerate(where)]
    for kind, text in (asked or {}).items():
        name = (text or "").partition(":")[0]
        if not name or name in _BUILT_IN[kind] or any(name in getattr(one, kind) for one in loaded):
            continue
        module = _offered(f"dpmpi.{kind}", name)
        if module is not None:
            loaded.append(_load(module))
            if name not in getattr(loaded[-1], kind):
                has = ", ".join(getattr(loaded[-1], kind)) or "none"
                raise ConfigError(f"expected {name} among the {kind} of the module {module}, found {has}")
    loaded = list(dict.fromkeys(loaded))
    owners: dict[tuple[str, str], Plugin] = {}
    for one in loaded:
        for named in [(kind, name) for kind in KINDS for name in getattr(one, kind)]:
            if (other := owners.setdefault(named, one)) is not one:
                both = f"{other.where} and {one.where}"
                raise ConfigError(f"expected names of their own in plug-ins, found {named[1]} in {both}: rename one")
    return loaded


def settings_of(method: Method | type[Method]) -> dict[str, Any]:
    """Return the settings that name a method that is given as an object: its name, source and hyperparameters.

    A class that is not built in is registered, so that this process knows it; other processes load its source.
    """
    cls = method if isinstance(method, type) else type(method)
    if not issubclass(cls, Method):
        raise ConfigError(f"expected a method, an object or a class of dpmpi.core.Method, found {method!r:.80}")
    found: dict[str, Any] = {"algorithm": ALGORITHMS.name_of(cls)}
    if found["algorithm"] is None:
        plugin = _registered(cls)
        found["algorithm"] = next(name for name, one in plugin.methods.items() if one is cls)
        found |= {"plugin": (plugin.where,), "plugin_digest": (plugin.digest,)}
    if isinstance(method, Method):
        every: Any = fields(method)  # type: ignore[arg-type]
        found |= {f.name: getattr(method, f.name) for f in every if getattr(method, f.name) != f.default}
    return found


def settings_of_loss(loss: str | Loss | type[Loss]) -> dict[str, Any]:
    """Return the settings that name a loss that is given as an object, or as text: its name, source and numbers."""
    return _settings_of("loss", "losses", loss, {type(one): name for name, one in LOSSES.items()})


def settings_of_penalty(penalty: str | Penalty | type[Penalty]) -> dict[str, Any]:
    """Return the settings that name a penalty that is given as an object, or as text: its name, source and numbers."""
    if type(penalty) is Regulariser:
        return {"penalty": penalty.describe(), "domain": penalty.domain}
    return _settings_of("penalty", "penalties", penalty)


def _settings_of(
    word: str, kind: str, given: Any, built_in: Mapping[type, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the settings that name an object of numbers, or its class."""
    if isinstance(given, str):
        return {word: given}
    cls: Any = given if isinstance(given, type) else type(given)
    if not issubclass(cls, KINDS[kind]):
        base = f"dpmpi.{KINDS[kind].__name__}"
        raise ConfigError(f"expected a {word}, an object or a class of {base}, found {given!r:.80}")
    plugin = None if cls in built_in else _registered(cls)
    own: Any = fields(cls) if is_dataclass(cls) else ()
    text = built_in[cls] if plugin is None else next(name for name, one in getattr(plugin, kind).items() if one is cls)
    if given is not cls:
        if not own and vars(given):
            raise ConfigError(f"expected @dataclass(frozen=True) above {cls.__name__}, which has numbers: add it")
        numbers = [getattr(given, f.name) for f in own]
        if any(number != f.default for number, f in zip(numbers, own, strict=True)):
            text += ":" + ",".join(repr(float(number)) for number in numbers)
    found: dict[str, Any] = {word: text}
    return found if plugin is None else found | {"plugin": (plugin.where,), "plugin_digest": (plugin.digest,)}


@contextmanager
def blamed() -> Iterator[None]:
    """Turn what a plug-in's code raises into a `ConfigError` that names the line.

    Only for code that sees nothing but public facts: other ranks may hear what it says.
    """
    try:
        yield
    except DpmpiError:
        raise
    except Exception as error:
        place = user_line(error)
        if place is None:
            raise
        raise ConfigError(f"{place}: {one_line(error)}") from error


def user_line(error: BaseException) -> str | None:
    """Return the last line of a plug-in that an error went through, as `FILE, line N`; None if there is none."""
    return last_line(error, {name for plugin in _loaded.values() for name in plugin.files})


def _load(where: str, pinned: str | None = None) -> Plugin:
    """Return a plug-in, loaded once for each source; raise `ConfigError` if its source is not the pinned one."""
    if where == PROMPT:
        if pinned is None or pinned not in _loaded:
            found = "one that was typed at a prompt or into a notebook"
            raise ConfigError(
                f"expected the source of a plug-in, found {found}: write it to a file, give --plugin FILE"
            )
        return _loaded[pinned]
    path = source_file(where)
    digest, source = read_source(path)
    if pinned is not None and digest != pinned:
        raise ConfigError(
            f"expected the plug-in {path} with the SHA-256 {pinned[:12]}..., found {digest[:12]}...: put back the file "
            "as it was, or give it by --plugin FILE"
        )
    name = str(path) if is_file(where) else where
    if digest not in _loaded:
        _loaded[digest] = _plugin(name, digest, run_source(where, path, source, digest))
    if _loaded[digest].where != name:  # the same source, found elsewhere
        _loaded[digest] = replace(_loaded[digest], where=name)
    return _loaded[digest]


def _plugin(where: str, digest: str, module: ModuleType, classes: Sequence[Any] = ()) -> Plugin:
    """Return what a module defines, or these `classes` of it; raise `ConfigError` for what cannot be used."""
    found: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    for cls in classes or list(vars(module).values()):
        if not isinstance(cls, type) or cls.__module__ != module.__name__ or cls.__name__.startswith("_"):
            continue
        for kind, base in KINDS.items():
            if issubclass(cls, base) and getattr(cls, _MADE_BY[kind]) is not getattr(base, _MADE_BY[kind]):
                place = f"{cls.__name__} of the plug-in {where}"
                (_check_hyperparameters if kind == "methods" else _check_numbers)(cls, place)
                if kind == "losses":
                    _check_kinds(cls, place)
                found[kind][_checked_name(cls, place, kind)] = cls
    every = [cls for known in found.values() for cls in known.values()]
    if not every:
        expected = "expected a subclass of dpmpi.Method, Loss or Penalty"
        raise ConfigError(f"{expected} in the plug-in {where}, found none: define one at its top")
    cells = [cell for cls in every for cell in cells_of(cls)]
    return Plugin(where, digest, frozenset([str(getattr(module, "__file__", where)), *cells]), **found)


def _check_kinds(cls: Any, place: str) -> None:
    """Raise `ConfigError` unless a loss says which tasks it is for."""
    kinds: Any = cls.kinds
    if not isinstance(kinds, tuple) or not kinds or not {*kinds} <= {*get_args(TaskKind)}:
        known = ", ".join(map(repr, get_args(TaskKind)))
        raise ConfigError(f"expected kinds = (...) of some of {known} in {place}, found {kinds!r:.80}: correct it")


def _check_numbers(cls: type, place: str) -> None:
    """Raise `ConfigError` unless an object can be made of nothing but numbers that have defaults."""
    own: Any = fields(cls) if is_dataclass(cls) else ()
    if not all(isinstance(f.default, int | float) for f in own):
        raise ConfigError(f"expected fields that are numbers and have a default in {place}, found others: change them")
    try:
        cls()
    except DpmpiError:
        raise
    except Exception as error:
        raise ConfigError(f"expected {place} to be made without arguments, found {one_line(error)}") from error


def _checked_name(cls: type, place: str, kind: str) -> str:
    """Return the name of a class on the command line; raise `ConfigError` for one that cannot be used."""
    name = str(vars(cls).get("name", _WORDS.sub("-", cls.__name__).replace("_", "-").lower()))
    if not _NAME.fullmatch(name):
        raise ConfigError(f"expected a name of small letters, digits and dashes for {place}, found {name!r}")
    if name in _BUILT_IN[kind]:
        raise ConfigError(f"expected a name of its own for {place}, found {name}, which is built in: rename it")
    return name


def _check_hyperparameters(cls: type, place: str) -> None:
    """Raise `ConfigError` unless a method is a frozen dataclass of flags."""
    parameters: Any = getattr(cls, "__dataclass_params__", None)
    annotated = [kind for kind in vars(cls).get("__annotations__", {}).values() if "ClassVar" not in str(kind)]
    forgotten = "__dataclass_fields__" not in vars(cls) and annotated
    if parameters is None or not parameters.frozen or forgotten:
        raise ConfigError(f"expected @dataclass(frozen=True) above {place}, found none: add it")
    types, own = get_type_hints(cls), fields(cls)
    for f in own:
        words = get_origin(types[f.name]) is Literal
        kinds = set(get_args(types[f.name])) or {types[f.name]}
        if not (words or kinds <= {int, float, type(None)}) or not isinstance(f.default, int | float | str | None):
            raise ConfigError(
                f"expected hyperparameters that have a default and are int, float, either of them or None, or Literal "
                f"words, found {f.name} in {place}: change it"
            )


def _offered(group: str, name: str) -> str | None:
    """Return the module that an installed package offers for a name."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and few runs need it

    modules = {entry.module for entry in entry_points(group=group, name=name)}
    if len(modules) > 1:
        found = ", ".join(sorted(modules))
        raise ConfigError(f"expected one package that offers {name}, found {found}: name one of them by --plugin")
    return next(iter(modules), None)


def _registered(cls: type[Any]) -> Plugin:
    """Return the plug-in of a class that is in this process: its file, its module, or what was typed at a prompt."""
    for known in _loaded.values():
        if cls in known.classes:
            return known
    module: Any = sys.modules.get(cls.__module__)
    if getattr(module, cls.__name__, None) is not cls:
        found = "found it inside something, or in a script that was sent to ranks: move it to a file, and import it"
        raise ConfigError(f"expected {cls.__name__} at the top of {getattr(module, '__file__', 'a file')}, {found}")
    file, spec = getattr(module, "__file__", None), getattr(module, "__spec__", None)
    if file is not None and Path(file).is_file():
        where = spec.name if spec is not None and spec.parent else str(Path(file).absolute())
        plugin = _plugin(where, read_source(Path(file))[0], module)
    else:
        plugin = _plugin(PROMPT, hashlib.sha256(typed_source(cls).encode()).hexdigest(), module, [cls])
    if cls not in plugin.classes:
        raise ConfigError(f"expected {cls.__name__} in {plugin.where}, found another class of its name: rename one")
    _loaded[plugin.digest] = plugin
    return plugin
