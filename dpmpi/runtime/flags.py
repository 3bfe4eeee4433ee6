"""From flags and TOML files to a checked configuration; flags win over files, and unknown ones of both raise."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from dpmpi.core import Method
from dpmpi.core.files import parse_toml, read_toml
from dpmpi.core.tables import TomlTable
from dpmpi.errors import ConfigError, nearest, shown
from dpmpi.runtime.config import Config, config_fields
from dpmpi.runtime.options import AUTO, check_size, flag_of, hyperfields
from dpmpi.runtime.plugins import KINDS, methods, resolve
from dpmpi.runtime.settings import Settings

EXAMPLES = """\
examples:
  dpmpi run -n 20 --epsilon 1                    starts mpirun itself; -n, and --launcher COMMAND, come first
  mpirun -n 20 python -m dpmpi.run --data libsvm:a9a.bz2 --loss logistic --epsilon 1 --out runs/demo
  mpirun -n 20 python -m dpmpi.run --config runs/demo/config.toml --rounds 100
  mpirun -n 20 python -m dpmpi.run --resume runs/demo
  python -m dpmpi.run --loopback 20 --algorithm dda --rounds 200 --out runs/try
"""

RETIRED = ("adversary",)
"""Keys of older config.toml files that changed nothing: they are read and left out."""


def flags_of(argv: Sequence[str]) -> dict[str, Any]:
    """Return the flags of `dpmpi.run` that were given; raise `ConfigError`."""
    plugins, algorithm = _asked(argv)
    program = "mpirun -n RANKS python -m dpmpi.run"
    try:  # most flags are those of the method that is asked for: to know no others is faster
        only = None if {"-h", "--help"} & {*argv} else algorithm
        given = vars(make_parser(program, EXAMPLES, plugins, only=only, resumable=True).parse_args(argv))
    except ConfigError:
        given = vars(make_parser(program, EXAMPLES, plugins, resumable=True).parse_args(argv))
    if "resume" in given and "config" in given:
        raise ConfigError("--resume goes on with the run's own settings: leave --config out")
    return given


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


def named_plugins(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the digests of the plug-ins that a command line asks for, loaded: their hyperparameters are flags."""
    return _asked(argv)[0]


def _asked(argv: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the digests of the plug-ins that a command line asks for, loaded, and the name of the method."""
    first = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in ("plugin", "plugin_digest"):
        first.add_argument(flag_of(name), action="append")
    for name in ("algorithm", "loss", "penalty", "config"):
        first.add_argument(flag_of(name))
    given = vars(first.parse_known_args(argv)[0])
    path = given.pop("config", None)
    content = {} if path is None else read_toml(Path(path), "the configuration")
    if "plugin" in given:
        content.pop("plugin-digest", None)
    return tuple(_with_plugins(content, path, given)["plugin_digest"]), _method_name(content, given)


def _method_name(content: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return the method that a file's content and flags ask for."""
    return str(given.get("algorithm", content.get("algorithm", Config.default("algorithm"))))


def _with_plugins(content: dict[str, Any], path: Path | str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings `plugin` and `plugin_digest` of a file and of flags, loaded."""
    keys = ("plugin", "plugin_digest", "algorithm", "loss", "penalty")
    values = {_field(key): value for key, value in content.items() if _field(key) in keys}
    for key in keys[:2]:
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


def make_parser(
    program: str, epilog: str, plugins: Sequence[str] = (), *, only: str | None = None, resumable: bool = False
) -> argparse.ArgumentParser:
    """Return the parser of the flags of a run; only flags that were given appear in the result.

    `plugins` are the digests of plug-ins whose hyperparameters are flags, too; `only` names the one method whose
    hyperparameters are.
    """
    parser = Parser(
        prog=program,
        usage=f"{program} [flags]",
        epilog=epilog,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train a model over data that stays where it is; every rank is one agent.",
    )
    parser.add_argument("--config", metavar="FILE", help="read settings from a TOML file; flags win")
    if resumable:
        parser.add_argument("--resume", metavar="RUN", help="go on with a run that was interrupted, with its settings")
    for f in config_fields():
        known = AUTO if f.metadata.get("auto") else f.default
        default = "" if known is None else f" (default: {known})"
        text = f.metadata["help"].replace("%", "%%") + default
        if f.metadata["kind"] is bool:
            parser.add_argument(flag_of(f.name), action=argparse.BooleanOptionalAction, help=text)
        elif f.metadata["kind"] is tuple:
            metavar = f.metadata["metavar"]
            parser.add_argument(flag_of(f.name), action="append", metavar=metavar, help=f.metadata["help"])
        else:
            kind = _or_auto(f.metadata["kind"]) if f.metadata.get("auto") else f.metadata["kind"]
            parser.add_argument(flag_of(f.name), type=kind, metavar=f.metadata["metavar"], help=text)
    parser.add_argument("--no-evaluate", dest="evaluate", action="store_const", const="0", help=argparse.SUPPRESS)
    group = parser.add_argument_group("hyperparameters of the algorithms")
    known = _narrowed(plugins, only)
    derived = _derived_names(known)
    for name, (hint, text) in sorted(_hyperparameters(known).items()):
        choices = get_args(hint) if get_origin(hint) is Literal else None
        kind = str if choices else _or_auto(hint) if name in derived else hint
        group.add_argument(flag_of(name), type=kind, choices=choices, help=text.replace("%", "%%"), metavar="X")
    return parser


class Parser(argparse.ArgumentParser):
    """Raises `ConfigError` instead of printing its usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse `--flag=--`, of which argparse makes an empty list."""
        words = sys.argv[1:] if args is None else list(args)
        for word in words:
            if word.startswith("--") and word.endswith("=--"):
                self.error(f"argument {word.partition('=')[0]}: expected a value, got --")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Report as we report everything: one line, no usage text."""
        if message.startswith("unrecognized arguments: "):
            unknown = message.removeprefix("unrecognized arguments: ").split(" ")[0][:80]
            flags = [flag for action in self._actions for flag in action.option_strings]
            near, unknown = nearest(unknown.split("=")[0], flags), unknown if unknown.isprintable() else repr(unknown)
            message = f"unknown flag {unknown}{near}; --help lists the flags"
        raise ConfigError(message if len(message) <= 600 else f"{message[:600]}...")


def _or_auto(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the type of a flag that takes `auto`, which is None, or what `kind` takes."""

    def convert(text: str) -> Any:
        return None if text == AUTO else kind(text)

    convert.__name__ = kind.__name__  # argparse names it in its messages
    return convert


_known_types: dict[type[Method], dict[str, Any]] = {}


def _types(cls: type[Method]) -> dict[str, Any]:
    """Return the types of a method's fields, evaluated once: that takes a millisecond."""
    if cls not in _known_types:
        _known_types[cls] = get_type_hints(cls)
    return _known_types[cls]


def _narrowed(plugins: Sequence[str], only: str | None) -> Mapping[str, type[Method]]:
    """Return the methods, or the one that is asked for; plug-ins are held against all methods."""
    known = methods(plugins)
    return {only: known[only]} if only is not None and only in known and not plugins else known


def _derived_names(known: Mapping[str, type[Method]]) -> set[str]:
    """Return the names of settings that take `auto` for None."""
    names = {f.name for f in config_fields() if f.metadata.get("auto")}
    for cls in known.values():
        types = _types(cls)
        names |= {f.name for f in hyperfields(cls) if type(None) in get_args(types[f.name])}
    return names


def _hyperparameters(known: Mapping[str, type[Method]]) -> dict[str, tuple[Any, str]]:
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
    known = _narrowed(plugins, algorithm)
    kinds = _kinds(known)
    if not {*dashed} <= {*kinds, *RETIRED}:
        known = _narrowed(plugins, None)
        kinds = _kinds(known)
    table = TomlTable(
        {key: _as_text(value) if kinds.get(key) is str else value for key, value in dashed.items()}, str(path)
    )
    table.only(*kinds, *RETIRED)
    derived = {name.replace("_", "-") for name in _derived_names(known)}
    return {
        key.replace("-", "_"): None if key in derived and value == AUTO else table.get(key, kinds[key])
        for key, value in dashed.items()
        if key not in RETIRED and kinds[key] is not tuple
    }


def _kinds(known: Mapping[str, type[Method]]) -> dict[str, Any]:
    """Return the type of every key of a TOML file, the words of those that choose among some."""
    hints = {f.name: f.metadata["kind"] for f in config_fields()}
    hints |= {name: hint for name, (hint, _) in _hyperparameters(known).items()}
    return {name.replace("_", "-"): get_args(h) if get_origin(h) is Literal else h for name, h in hints.items()}


def _as_text(value: Any) -> Any:
    """Return a number as the text that a flag would have been, as in `batch = 20`."""
    return shown(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
