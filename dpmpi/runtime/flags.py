"""From flags and TOML files to a checked configuration; flags win over files, and unknown ones of both raise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dpmpi.core import Method
from dpmpi.core.files import parse_toml, read_toml
from dpmpi.core.tables import TomlTable
from dpmpi.errors import ConfigError, shown
from dpmpi.runtime.config import Config, config_fields
from dpmpi.runtime.options import AUTO, check_size, hyperfields
from dpmpi.runtime.plugins import KINDS, methods, resolve
from dpmpi.runtime.settings import Settings

PLUGIN_FIELDS = ("plugin", "plugin_digest")
"""Fields that are given more than once."""
NAMED = ("algorithm", "loss", "penalty", "config")
"""Flags that say which method's hyperparameters are flags, besides the plug-ins."""
RETIRED = ("adversary",)
"""Keys of older config.toml files that changed nothing: they are read and left out."""


def flags_of(argv: Sequence[str]) -> dict[str, Any]:
    """Return the flags of `dpmpi.run` that were given; raise `ConfigError`.

    Every rank reads them. Flags as they should be are read here; help and mistakes are argparse's, which takes longer
    to import than all this to run.
    """
    given = read_plainly(argv)
    if given is None:
        from dpmpi.runtime.flag_parser import parse_flags  # noqa: PLC0415

        given = parse_flags(argv)
    if "resume" in given and "config" in given:
        raise ConfigError("--resume goes on with the run's own settings: leave --config out")
    return given


def read_plainly(argv: Sequence[str]) -> dict[str, Any] | None:
    """Return the flags that were given; None if there is one that argparse should look at."""
    switches = _switches()
    pairs = _pairs(argv, switches)
    if pairs is None:
        return None
    named: dict[str, Any] = {flag: text for flag, text in pairs if flag in NAMED}
    for name in PLUGIN_FIELDS:
        if found := [text for flag, text in pairs if flag == name.replace("_", "-")]:
            named[name] = found
    readers = _readers(*asked(named))
    given: dict[str, Any] = {}
    for flag, text in pairs:
        if text is None:
            name, value = switches[flag]
        elif flag not in readers:
            return None
        else:
            name, read = readers[flag]
            try:
                value = read(text)
            except (TypeError, ValueError):
                return None
        given[name] = [*given.get(name, []), value] if name in PLUGIN_FIELDS else value
    return given


def _pairs(argv: Sequence[str], switches: Collection[str]) -> list[tuple[str, str | None]] | None:
    """Return each flag, without its dashes, and its text, None for a switch; None for what is not plainly that."""
    pairs: list[tuple[str, str | None]] = []
    words = iter(argv)
    for word in words:
        flag, equals, text = word[2:].partition("=")
        if not word.startswith("--") or (equals and (flag in switches or text in ("", "--"))):
            return None
        if flag in switches:
            pairs.append((flag, None))
            continue
        if not equals:
            text = next(words, "-")
            if text.startswith("-"):
                return None
        pairs.append((flag, text))
    return pairs


def _switches() -> dict[str, tuple[str, Any]]:
    """Return flag -> (field, value) for the flags that take no text."""
    switches: dict[str, tuple[str, Any]] = {"no-evaluate": ("evaluate", "0")}
    for f in config_fields():
        if f.metadata["kind"] is bool:
            flag = f.name.replace("_", "-")
            switches |= {flag: (f.name, True), f"no-{flag}": (f.name, False)}
    return switches


def _readers(plugins: Sequence[str], algorithm: str) -> dict[str, tuple[str, Callable[[str], Any]]]:
    """Return flag -> (field, what reads its text) for the other flags, of one method if it is known."""
    known = narrowed(plugins, algorithm)
    derived = derived_names(known)
    kinds: dict[str, Any] = {"config": str, "resume": str}
    kinds |= {f.name: str if f.metadata["kind"] is tuple else f.metadata["kind"] for f in config_fields()}
    kinds |= {name: hint for name, (hint, _) in hyperparameters(known).items()}
    readers = {}
    for name, kind in kinds.items():
        read = _one_of(get_args(kind)) if get_origin(kind) is Literal else or_auto(kind) if name in derived else kind
        readers[name.replace("_", "-")] = (name, read)
    return readers


def _one_of(words: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return read


def or_auto(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the type of a flag that takes `auto`, which is None, or what `kind` takes."""

    def read(text: str) -> Any:
        return None if text == AUTO else kind(text)

    read.__name__ = kind.__name__  # argparse names it in its messages
    return read


def parse(argv: Sequence[str]) -> Config:
    """Return the configuration given by flags and, with --config, a TOML file; raise `ConfigError`."""
    return from_values(flags_of(argv))


def from_values(given: dict[str, Any]) -> Config:
    """Return the configuration of parsed flags; the file that `config` names fills in what is not given.

    A plug-in that is given replaces those of the file, whatever its source.
    """
    path = given.pop("config", None)
    check_size("config", path)
    content = {} if path is None else read_toml(Path(path), "the configuration")
    if "plugin" in given:
        content = {key: value for key, value in content.items() if _field(key) != "plugin_digest"}
    return _completed(content, path, given)


def from_text(text: str, where: Path, given: dict[str, Any]) -> Config:
    """Return the configuration of a run, by the text of its config.toml and parsed flags; flags win.

    A plug-in that is given must have the source that the run had: it says where that is now.
    """
    return _completed(parse_toml(text, str(where)), where, given)


def asked(named: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the digests of the plug-ins that flags ask for, loaded, and the name of the method."""
    path = named.pop("config", None)
    content = {} if path is None else read_toml(Path(path), "the configuration")
    if "plugin" in named:
        content.pop("plugin-digest", None)
    return tuple(_with_plugins(content, path, named)["plugin_digest"]), _method_name(content, named)


def _method_name(content: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return the method that a file's content and flags ask for."""
    return str(given.get("algorithm", content.get("algorithm", Config.default("algorithm"))))


def _with_plugins(content: dict[str, Any], path: Path | str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings `plugin` and `plugin_digest` of a file and of flags, loaded."""
    keys = (*PLUGIN_FIELDS, *NAMED[:3])
    values = {_field(key): value for key, value in content.items() if _field(key) in keys}
    for key in PLUGIN_FIELDS:
        values[key] = tuple(given[key]) if key in given else _texts(values.get(key, ()), key, path)
    names = (given.get(key, values.get(key)) for key in keys[2:])
    asked = (name if isinstance(name, str) and name != AUTO else None for name in names)
    found = resolve(values["plugin"], values["plugin_digest"], dict(zip(KINDS, asked, strict=True)))
    return {"plugin": tuple(one.where for one in found), "plugin_digest": tuple(one.digest for one in found)}


def _texts(value: Any, key: str, path: Path | str | None) -> tuple[str, ...]:
    """Return the text, or the list of texts, of a TOML file."""
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else (None,)
    if not all(isinstance(one, str) for one in found):
        raise ConfigError(f'{path}: expected {key.replace("_", "-")} = "TEXT" or ["TEXT", ...], found {shown(value)}')
    return found


def _field(key: str) -> str:
    """Return the field of a key of a TOML file."""
    return key.replace("-", "_")


def keyword_values(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the keywords of a Python call as parsed flags; None is as good as not given."""
    content = {name: _plain(value) for name, value in given.items() if value is not None}
    loaded = _with_plugins(content, where, {})
    found = _values(content, Path(where), loaded["plugin_digest"], _method_name(content, {}))
    return found | (loaded if "plugin" in content else {})


def _plain(value: Any) -> Any:
    """Return numpy's numbers as Python's, and paths as text."""
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0 else value


def _completed(content: dict[str, Any], path: Path | str | None, given: dict[str, Any]) -> Config:
    """Return the configuration of a file's content and of flags, which win; with its plug-ins loaded."""
    loaded = _with_plugins(content, path, given)
    values: dict[str, Any] = {}
    if path is not None:
        values = _values(content, Path(path), loaded["plugin_digest"], _method_name(content, given))
    values |= given | loaded
    for name in ("ledger", "out", "budget", "keys"):
        if values.get(name) == "":
            raise ConfigError(f"--{name} is empty: is a variable not set?")
    if values.get("ledger"):
        values["ledger"] = str(Path(values["ledger"]).absolute())
    if str(values.get("data", "")).partition(":")[0] == "mean":  # a problem of its own, without labels
        values = {"loss": "mean", "penalty": "none"} | values
    names = {f.name for f in config_fields()}
    options = tuple(sorted((name, value) for name, value in values.items() if name not in names))
    config = Config(**{name: value for name, value in values.items() if name in names}, options=options)
    config.check()
    Settings.of(config)  # raises for what does not fit together
    return config


_known_types: dict[type[Method], dict[str, Any]] = {}


def _types(cls: type[Method]) -> dict[str, Any]:
    """Return the types of a method's fields, evaluated once: that takes a millisecond."""
    if cls not in _known_types:
        _known_types[cls] = get_type_hints(cls)
    return _known_types[cls]


def narrowed(plugins: Sequence[str], only: str | None) -> Mapping[str, type[Method]]:
    """Return the methods, or the one that is asked for; plug-ins are held against all methods."""
    known = methods(plugins)
    return {only: known[only]} if only is not None and only in known and not plugins else known


def derived_names(known: Mapping[str, type[Method]]) -> set[str]:
    """Return the names of settings that take `auto` for None."""
    names = {f.name for f in config_fields() if f.metadata.get("auto")}
    for cls in known.values():
        types = _types(cls)
        names |= {f.name for f in hyperfields(cls) if type(None) in get_args(types[f.name])}
    return names


def hyperparameters(known: Mapping[str, type[Method]]) -> dict[str, tuple[Any, str]]:
    """Return name -> (type, help) over all algorithms: what the flag means to which of them, with which default."""
    taken = {f.name for f in config_fields()} | {"config", "resume", "options"}
    hints: dict[str, Any] = {}
    meanings: dict[str, dict[str, list[str]]] = {}
    for name, cls in known.items():
        types = _types(cls)
        for f in hyperfields(cls):
            hint = next((part for part in get_args(types[f.name]) if part in (int, float)), types[f.name])  # X | None
            before = hints.get(f.name, hint)
            if get_origin(hint) is Literal is get_origin(before):  # each algorithm checks its own words
                hint = before = Literal[tuple(dict.fromkeys((*get_args(before), *get_args(hint))))]
            if f.name in taken or before != hint:
                also = "is a setting of every run" if f.name in taken else "has another type in another method"
                raise ConfigError(f"expected flags of its own in {name}, found {f.name}, which {also}: rename it")
            hints[f.name] = hint
            default = AUTO if f.default is None else f.default
            meanings.setdefault(f.name, {}).setdefault(f.metadata.get("help", ""), []).append(f"{name}: {default}")
    return {
        name: (hint, "; ".join(f"{text} ({', '.join(owners)})" for text, owners in meanings[name].items()))
        for name, hint in hints.items()
    }


def _values(content: dict[str, Any], path: Path, plugins: Sequence[str], algorithm: str) -> dict[str, Any]:
    """Return the settings of a TOML file by field, as their types; raise `ConfigError` for unknown keys."""
    dashed = {key.replace("_", "-"): value for key, value in content.items()}
    known = narrowed(plugins, algorithm)
    kinds = _kinds(known)
    if not {*dashed} <= {*kinds, *RETIRED}:
        known = narrowed(plugins, None)
        kinds = _kinds(known)
    table = TomlTable(
        {key: _as_text(value) if kinds.get(key) is str else value for key, value in dashed.items()}, str(path)
    )
    table.only(*kinds, *RETIRED)
    derived = {name.replace("_", "-") for name in derived_names(known)}
    return {
        key.replace("-", "_"): None if key in derived and value == AUTO else table.get(key, kinds[key])
        for key, value in dashed.items()
        if key not in RETIRED and kinds[key] is not tuple
    }


def _kinds(known: Mapping[str, type[Method]]) -> dict[str, Any]:
    """Return the type of every key of a TOML file, the words of those that choose among some."""
    hints = {f.name: f.metadata["kind"] for f in config_fields()}
    hints |= {name: hint for name, (hint, _) in hyperparameters(known).items()}
    return {name.replace("_", "-"): get_args(h) if get_origin(h) is Literal else h for name, h in hints.items()}


def _as_text(value: Any) -> Any:
    """Return a number as the text that a flag would have been, as in `batch = 20`."""
    return shown(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
