"""The flags of `dpmpi join`: who this party is and where all meet; the others are those of a run."""

from __future__ import annotations

import argparse
import hashlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmpi.core.files import write_file
from dpmpi.core.frozen import frozen
from dpmpi.crypto.keys import check_identity, key_name, load_identity, load_names, load_roster
from dpmpi.errors import ConfigError, nearest
from dpmpi.network.meeting_point import check_meeting_point
from dpmpi.network.rendezvous.papers import Papers, Patience, Place
from dpmpi.runtime.config import Config
from dpmpi.runtime.flag_parser import Parser
from dpmpi.runtime.flags import flags_of, from_text, from_values
from dpmpi.runtime.output.directory import settings_of_run

EXAMPLES = """\
examples, one at each party, in any order:
  dpmpi join --rank 0 --of 3 --meet tcp://10.0.0.1:7000 --keys keys --config agreed.toml --data 'shards:{rank}.npz'
  dpmpi join --rank 1 --of 3 --meet tcp://10.0.0.1:7000 --keys keys --config agreed.toml --data 'shards:{rank}.npz'
  dpmpi join --rank 1 --of 3 --meet tcp://10.0.0.1:7000 --keys keys --resume runs/first
all other flags are those of a run: python -m dpmpi run --help
"""
ARRIVAL_SECONDS = 600.0
LONGEST_WAIT = 1e6
"""Seconds that every clock and timer of the system can take."""


@frozen
class Joining:
    """What a party was told: its ranks, where to meet, and the flags of the run."""

    rank: int
    ranks: int
    of: int
    meet: str
    wait: float
    interface: str | None
    ports: str | None
    run: tuple[str, ...]
    keys: Path
    config: Config
    begins: str
    """What is agreed on before the ranks meet: a run that begins, or which one goes on."""

    def place(self, number: int) -> Place:
        """Return the seat of one of this party's ranks."""
        return Place(self.rank + number, self.rank, self.ranks, self.of)

    def papers(self, number: int) -> Papers:
        """Return the credentials of one of this party's ranks."""
        rank, roster = self.rank + number, load_roster(self.keys / "roster.toml")
        identity = load_identity(self.keys / f"{key_name(rank)}.key")
        check_identity(identity, rank, self.of, roster)
        keys = hashlib.sha256(b"".join(roster)).hexdigest()
        digest = hashlib.sha256(f"{self.config.digest()} {keys} {self.begins}".encode()).hexdigest()
        return Papers(identity, roster, load_names(self.keys / "roster.toml"), digest)

    @property
    def patience(self) -> Patience:
        """How long to wait for the others."""
        return Patience(min(self.wait, LONGEST_WAIT), min(self.config.deadline, LONGEST_WAIT))


def parse(argv: Sequence[str]) -> Joining:
    """Return the parsed flags; raise `ConfigError` for those that do not fit together."""
    parser = Parser(
        prog="dpmpi join",
        usage="dpmpi join --rank K --of N --meet ADDRESS --keys DIR [flags of a run]",
        description="Take part in a run with this party's own rank; every party starts its own, in any order.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--rank", type=int, metavar="K", required=True, help="this party's (first) rank, from 0")
    parser.add_argument("--of", type=int, metavar="N", required=True, help="how many ranks there are in all")
    parser.add_argument("-n", type=int, metavar="R", default=1, dest="ranks", help="this party's ranks (default: 1)")
    parser.add_argument(
        "--meet",
        required=True,
        metavar="ADDRESS",
        help="where rank 0 listens, tcp://host:port; or a file that rank 0 writes and the others can read",
    )
    parser.add_argument("--roster", type=Path, metavar="FILE", help="the roster (default: roster.toml of --keys)")
    parser.add_argument("--wait", type=float, default=ARRIVAL_SECONDS, metavar="S", help="seconds for all to come")
    parser.add_argument("--interface", metavar="NAME", help="the network interface to use, such as wg0 (default: any)")
    parser.add_argument("--ports", metavar="LOW-HIGH", help="ports at which this party may be reached (default: any)")
    flags, rest = parser.parse_known_args(argv)
    given = flags_of(rest)
    if "keys" not in given:
        raise ConfigError("expected --keys DIR with roster.toml and this party's key, found none: see dpmpi keys")
    if given.get("seal") is False or "loopback" in given:
        raise ConfigError("expected sealed messages between parties, found --no-seal or --loopback: leave it out")
    check_meeting_point(flags.meet)
    if not flags.wait > 0:
        raise ConfigError(f"expected --wait of more than 0 seconds, found {flags.wait:g}")
    _check_interface(flags.interface)
    keys = Path(given["keys"])
    if flags.roster is not None:
        _install(flags.roster, keys / "roster.toml")
    path = given.pop("resume", None)
    run = [*rest, "--seal"] if path is None else [*rest]
    config, begins = _config({**given, "seal": True}, path)
    if path is None and "data" not in given and config.data == config.default("data"):
        raise ConfigError("expected --data 'shards:FILE' with the records of this party, found none: name them")
    if config.ranks not in (None, flags.of):
        raise ConfigError(f"expected --of {config.ranks}, as the settings say, found {flags.of}")
    found = Joining(
        flags.rank,
        flags.ranks,
        flags.of,
        flags.meet,
        flags.wait,
        flags.interface,
        _port_range(flags.ports),
        tuple(run),
        keys,
        config,
        begins,
    )
    found.place(0).check()
    return found


def _config(given: dict[str, Any], path: str | None) -> tuple[Config, str]:
    """Return the settings, and whether the run begins or goes on."""
    if path is None:
        return from_values(given), "begins"
    file = Path(path) / "config.toml"
    del given["seal"]
    config = from_text(settings_of_run(file.parent), file, given)
    if not config.seal:
        raise ConfigError(f"expected a run with sealed messages in {path}, found none: start it again")
    return config, "goes on"


def _install(roster: Path, place: Path) -> None:
    """Put the roster beside the key; refuse another one than is there."""
    try:
        text = roster.read_bytes()
        if not place.exists():
            write_file(place, text.decode(), exclusive=True, error=ConfigError)
        if place.read_bytes() != text:
            raise ConfigError(f"expected the roster {roster} in {place}, found another one there: remove the wrong one")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"expected a roster at {roster}, found none that can be read ({error})") from error


def _check_interface(name: str | None) -> None:
    """Raise `ConfigError` for a network interface that this machine does not have."""
    known = [one for _, one in socket.if_nameindex()]
    if name is not None and name not in known:
        raise ConfigError(f"expected --interface among {', '.join(known)}, found {name!r:.40}{nearest(name, known)}")


def _port_range(text: str | None) -> str | None:
    """Return a range of ports as it was given; raise `ConfigError` for anything else."""
    if text is None:
        return None
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit() and 0 < int(low) <= int(high) < 1 << 16):
        raise ConfigError(f"expected --ports LOW-HIGH such as 7001-7010, found {text!r:.40}")
    return text
