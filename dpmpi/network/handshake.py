"""Ranks that agree on secrets pair by pair, and seal what they say.

All ranks say hello and derive keys from each other's hellos. Without a roster, identities are drawn for the run: that
keeps out those who listen, not those who can change what is said at the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpmpi.network.channel import Transport
from dpmpi.network.collective import fail_together, on_all_ranks

if TYPE_CHECKING:
    from dpmpi.crypto.keys import Handshake, PairKeys, Session


@dataclass(frozen=True)
class Secrets:
    """What the ranks of this process share with each other rank."""

    session: Session
    keys: Mapping[int, Mapping[int, PairKeys]]


def agree_on_secrets(
    transport: Transport, run: str, incarnation: int = 0, names: Sequence[int] | None = None, folder: Path | None = None
) -> Secrets:
    """Return the secrets that the ranks agree on; all processes call this together.

    `names` are the ranks' places in the roster, where they are not their own numbers. `folder` holds roster.toml and
    the key of each rank here; None for identities that are drawn for the run.
    """
    from dpmpi.crypto import keys as crypto  # noqa: PLC0415 - slow to import, and few runs need it

    session = crypto.Session(bytes.fromhex(run), incarnation)
    names = range(transport.size) if names is None else names
    hands: dict[int, Handshake] = {}
    keys: dict[int, dict[int, PairKeys]] = {}
    roster = None

    def say_hello() -> list[str]:
        nonlocal roster
        roster = None if folder is None else crypto.load_roster(folder / "roster.toml")
        for rank in transport.ranks:
            identity = crypto.Identity()
            if folder is not None and roster is not None:
                identity = crypto.load_identity(folder / f"{crypto.key_name(names[rank])}.key")
                crypto.check_identity(identity, names[rank], max(transport.size, max(names) + 1), roster)
            hands[rank] = crypto.Handshake(session, names[rank], identity)
        return [hands[rank].hello.hex() for rank in transport.ranks]

    hellos = on_all_ranks(transport, say_hello)

    def listen() -> None:
        said = zip(names, map(bytes.fromhex, hellos), strict=True)
        greetings = [crypto.verify_hello(hello, session, name, roster) for name, hello in said]
        for rank in transport.ranks:
            keys[rank] = {peer: hands[rank].keys(other) for peer, other in enumerate(greetings) if peer != rank}

    fail_together(transport, listen)
    return Secrets(session, keys)


def seal(transport: Transport, secrets: Secrets) -> Transport:
    """Return a transport that seals every message of this one for its receiver alone."""
    from dpmpi.crypto.seal import SealedPair  # noqa: PLC0415 - slow to import, and few runs need it
    from dpmpi.network.transport.sealed import SealedTransport  # noqa: PLC0415 - likewise

    pairs = {
        rank: {peer: SealedPair(secrets.session, rank, peer, keys) for peer, keys in others.items()}
        for rank, others in secrets.keys.items()
    }
    return SealedTransport(transport, pairs)
