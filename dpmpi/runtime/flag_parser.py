"""The flags of a run, and of other commands, by argparse: help, and what is wrong with a flag."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from dpmpi.errors import ConfigError, nearest
from dpmpi.runtime.config import config_fields
from dpmpi.runtime.flags import NAMED, PLUGIN_FIELDS, asked, derived_names, hyperparameters, narrowed, or_auto
from dpmpi.runtime.options import AUTO, flag_of

_UNREADABLE = re.compile(r"argument (--[\w-]+): invalid (int|float) value: (.*)", re.DOTALL)
_NUMBERS = {"int": "a whole number", "float": "a number"}

EXAMPLES = """\
examples:
  dpmpi run -n 20 --epsilon 1                    starts mpirun itself; -n, and --launcher COMMAND, come first
  mpirun -n 20 python -m dpmpi.run --data libsvm:a9a.bz2 --loss logistic --epsilon 1 --out runs/demo
  mpirun -n 20 python -m dpmpi.run --config runs/demo/config.toml --rounds 100
  mpirun -n 20 python -m dpmpi.run --resume runs/demo
  python -m dpmpi.run --loopback 20 --algorithm dda --rounds 200 --out runs/try
"""


def parse_flags(argv: Sequence[str]) -> dict[str, Any]:
    """Return the flags of `dpmpi.run` that were given; raise `ConfigError`."""
    plugins, algorithm = asked(_first_look(argv))
    program = "mpirun -n RANKS python -m dpmpi.run"
    try:  # a method that is asked for has flags of which the others need not be known
        only = None if {"-h", "--help"} & {*argv} else algorithm
        return vars(make_parser(program, EXAMPLES, plugins, only=only, resumable=True).parse_args(argv))
    except ConfigError:
        return vars(make_parser(program, EXAMPLES, plugins, resumable=True).parse_args(argv))


def named_plugins(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the digests of the plug-ins that a command line asks for, loaded: their hyperparameters are flags."""
    return asked(_first_look(argv))[0]


def _first_look(argv: Sequence[str]) -> dict[str, Any]:
    """Return the flags that say which others there are."""
    first = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name in PLUGIN_FIELDS:
        first.add_argument(flag_of(name), action="append")
    for name in NAMED:
        first.add_argument(flag_of(name))
    found: dict[str, Any] = vars(first.parse_known_args(argv)[0])
    return found


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
            kind = or_auto(f.metadata["kind"]) if f.metadata.get("auto") else f.metadata["kind"]
            metavar = f.metadata["metavar"] or "|".join(f.metadata["choices"]) or None
            parser.add_argument(flag_of(f.name), type=kind, metavar=metavar, help=text)
    parser.add_argument("--no-evaluate", dest="evaluate", action="store_const", const="0", help=argparse.SUPPRESS)
    group = parser.add_argument_group("hyperparameters of the algorithms")
    known = narrowed(plugins, only)
    derived = derived_names(known)
    for name, (hint, text) in sorted(hyperparameters(known).items()):
        choices = get_args(hint) if get_origin(hint) is Literal else None
        kind = str if choices else or_auto(hint) if name in derived else hint
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
        elif found := _UNREADABLE.fullmatch(message):
            message = f"expected {_NUMBERS[found[2]]} for {found[1]}, found {found[3]}"
        raise ConfigError(message if len(message) <= 600 else f"{message[:600]}...")
