"""Where the parties meet: an address, or a file in which rank 0 writes the one at which it listens."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dpmpi.core.files import write_file
from dpmpi.errors import ConfigError
from dpmpi.network.rendezvous.papers import format_address, parse_address

LONGEST_ADDRESS = 300


def check_meeting_point(meet: str) -> None:
    """Raise `ConfigError` for what is neither an address nor the name of a file."""
    host, _, port = meet.rpartition(":")
    if meet.startswith("tcp:") or "://" in meet or (host and port.isdigit() and "/" not in meet):
        parse_address(meet)


def listening_at(meet: str) -> tuple[str, int]:
    """Return where rank 0 listens: at the address, or at any port of this host if its name is to be in a file."""
    return parse_address(meet) if meet.startswith("tcp://") else (os.uname().nodename, 0)


def announce(meet: str, where: tuple[str, int]) -> None:
    """Write the address to the file, if it is one; raise `ConfigError` if there is a file with anything else in it."""
    if meet.startswith("tcp://"):
        return
    path = Path(meet)
    try:
        where_to(meet)
    except (ConfigError, OSError) as error:
        raise ConfigError(
            f"expected no file at {path}, or one with an earlier address, found another: give another --meet"
        ) from error
    write_file(path, f"{format_address(*where)}\n", error=ConfigError)


def where_to(meet: str) -> tuple[str, int] | None:
    """Return the address at which rank 0 listens; None while the file is not there."""
    if meet.startswith("tcp://"):
        return parse_address(meet)
    try:  # not blocking, so that a pipe in the place of the file does not hang the rank
        handle = os.open(meet, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ConfigError(f"expected a file with rank 0's address at {meet}, found something else: check --meet")
        return parse_address(os.read(handle, LONGEST_ADDRESS).decode(errors="replace").strip())
    finally:
        os.close(handle)
