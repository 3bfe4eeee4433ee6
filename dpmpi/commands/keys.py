"""Make identities for sealed messages: `python -m dpmpi keys make 20 keys/`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpmpi.crypto.keys import key_name, make_identities, make_identity
from dpmpi.errors import ConfigError
from dpmpi.runtime.flag_parser import Parser


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi keys`."""
    parser = Parser(prog="python -m dpmpi keys", allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Make what --keys DIR of a run reads: roster.toml for all, rank-000.key for one rank each."
    parser.epilog = (
        "examples: python -m dpmpi keys make 20 keys/\n"
        "          python -m dpmpi keys one 3 keys/    for rank 3 alone; its line goes into everybody's roster"
    )
    parser.add_argument("action", choices=("make", "one"), help="make: keys for N ranks; one: the key of rank N alone")
    parser.add_argument("number", type=int, metavar="N")
    parser.add_argument("folder", type=Path, metavar="DIR")
    flags = parser.parse_args(argv)
    if flags.action == "make":
        roster = make_identities(flags.number, flags.folder)
        print(f"{len(roster)} keys and roster.toml in {flags.folder}: give each rank its own key file and the roster")
        return 0
    if flags.number < 0:
        raise ConfigError(f"expected a rank of at least 0, found {flags.number}")
    identity = make_identity(flags.folder / f"{key_name(flags.number)}.key")
    print(f'{key_name(flags.number)} = "{identity.public.hex()}"')
    return 0
