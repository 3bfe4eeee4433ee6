"""How the ranks of a run meet: they compare what they are to agree on, and agree on secrets pair by pair.

The first message of every rank is a card: the digest of its settings, the run that it goes on with, who takes part;
with secrets, a hello too, signed over all of that. A rank that finds anything else on another's card refuses to begin.
From then on, with secrets, everything is sealed (`transport/control.py`).

Without a roster, identities are drawn for the run: that keeps out those who listen, not those who can change what is
said at the start. Without secrets nothing is claimed: whoever can change messages can change what ranks agree on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.network.channel import Transport
from dpmpi.network.collective import fail_together, on_all_ranks
from dpmpi.network.launcher import party

if TYPE_CHECKING:
    from dpmpi.crypto.keys import Handshake, Identity, PairKeys, Session


@frozen
class Secrets:
    """What the ranks of this process share with each other rank, and who they are."""

    session: Session
    keys: Mapping[int, Mapping[int, PairKeys]]
    identities: Mapping[int, Identity]
    """Of the ranks in this process, with a roster; else empty: an identity drawn for the run says nothing later on."""


@frozen
class Claim:
    """What all ranks must agree on before they begin."""

    config: str
    """The digest of the settings."""
    names: tuple[int, ...]
    """Who takes part, by their first numbers: rank k is the rank names[k] of the beginning."""
    origin: int
    """The ranks that the run began with."""
    run: str | None = None
    """The name of a run that goes on."""
    secret: bool = False
    """Whether ranks agree on secrets."""
    how: str = ""
    """The flags beside the settings that decide which steps all ranks take together."""
    roster: str | None = None
    """The digest of the roster, found when the ranks meet."""
    plugins: str = ""
    """The digests of the plug-ins' sources."""

    def digest(self) -> str:
        """Return the SHA-256 of all of it."""
        return hashlib.sha256(json.dumps([*vars(self).items()]).encode()).hexdigest()

    def card(self) -> dict[str, Any]:
        """Return the claim as all ranks hear it: a digest stands for the names, so that it is short."""
        return vars(self) | {"names": hashlib.sha256(json.dumps(self.names).encode()).hexdigest()}


@frozen
class Meeting:
    """The ranks of a run as they met."""

    control: Transport
    """On which they agree from now on: sealed if there are secrets."""
    secrets: Secrets | None
    leaders: tuple[int, ...]
    """The first rank of each trust domain."""


def trust_domain() -> str:
    """Return a mark of this host and user, who trust each other: the same on all ranks that they run.

    A party that started on its own is a domain of its own, also beside another one on this host.
    """
    boot = ""
    with suppress(OSError):  # tells hosts apart that have one name
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return hashlib.sha256(f"dpmpi {os.uname().nodename} {os.getuid()} {boot}{party(os.environ)}".encode()).hexdigest()[
        :16
    ]


def meet(world: Transport, claim: Claim, folder: Path | None = None) -> Meeting:
    """Compare claims, and agree on secrets if they are to be; all processes call this together.

    `folder` holds roster.toml and the key of each rank here; None for identities that are drawn for the run.
    """
    hands: dict[int, Handshake] = {}
    roster = None

    def introduce() -> list[Any]:
        nonlocal claim, roster
        claim = replace(claim, roster=roster_digest(folder))
        if claim.secret:
            roster = _say_hello(world, claim, folder, hands)
        return [claim.card() | {"hello": hands[rank].hello.hex() if claim.secret else None} for rank in world.ranks]

    cards = on_all_ranks(world, introduce)
    keys: dict[int, dict[int, PairKeys]] = {}

    def compare() -> None:
        _check_claims(claim, claim.names[world.ranks[0]], cards)
        if claim.secret:
            keys.update(_agree(claim, [card["hello"] for card in cards], roster, hands))

    fail_together(world, compare)
    control, secrets = world, None
    if claim.secret:
        from dpmpi.network.transport.control import SealedControl  # noqa: PLC0415 - brings cryptography

        session = next(iter(hands.values())).session
        known = {rank: hand.identity for rank, hand in hands.items()} if roster is not None else {}
        secrets = Secrets(session, keys, known)
        control = SealedControl(world, session, keys)
    domains = control.collect([trust_domain()] * len(world.ranks))  # whose keys differ from ours is named here
    return Meeting(control, secrets, tuple(domains.index(where) for where in dict.fromkeys(domains)))


_FACTS = {
    "plugins": "source of the plug-ins",
    "config": "settings",
    "names": "ranks",
    "origin": "number of ranks at the beginning",
    "run": "run to go on with",
    "secret": "settings",
    "roster": "roster",
    "how": "--checkpoint-every and --on-failure, and --out and --ledger given or not,",
}


def roster_digest(folder: Path | None) -> str | None:
    """Return the SHA-256 of the roster's keys; None without a folder."""
    if folder is None:
        return None
    from dpmpi.crypto.keys import load_roster  # noqa: PLC0415 - slow to import, and few runs need it

    return hashlib.sha256(b"".join(load_roster(folder / "roster.toml"))).hexdigest()


def _say_hello(
    world: Transport, claim: Claim, folder: Path | None, hands: dict[int, Handshake]
) -> tuple[bytes, ...] | None:
    """Make the hellos of the ranks here; return the roster."""
    from dpmpi.crypto import keys as crypto  # noqa: PLC0415 - slow to import, and few runs need it

    roster = None if folder is None else crypto.load_roster(folder / "roster.toml")
    session = crypto.Session(bytes.fromhex(claim.digest()), 0)
    for rank in world.ranks:
        identity, name = crypto.Identity(), claim.names[rank]
        if folder is not None and roster is not None:
            identity = crypto.load_identity(folder / f"{crypto.key_name(name)}.key")
            crypto.check_identity(identity, name, claim.origin, roster)
        hands[rank] = crypto.Handshake(session, name, identity)
    return roster


def _agree(
    claim: Claim, hellos: Sequence[Any], roster: tuple[bytes, ...] | None, hands: Mapping[int, Handshake]
) -> dict[int, dict[int, PairKeys]]:
    """Return the keys that the ranks here share with all others, by these hellos."""
    from dpmpi.crypto import keys as crypto  # noqa: PLC0415 - slow to import, and few runs need it

    session = next(iter(hands.values())).session
    greetings = [
        crypto.verify_hello(crypto.hello_bytes(hello, name), session, name, roster)
        for name, hello in zip(claim.names, hellos, strict=True)
    ]
    return {
        rank: {peer: hand.keys(other) for peer, other in enumerate(greetings) if peer != rank}
        for rank, hand in hands.items()
    }


def _check_claims(mine: Claim, name: int, cards: Sequence[Any]) -> None:
    """Raise `ConfigError` if a card says anything else than this rank's own claim."""
    expected = mine.card()
    for rank, facts in enumerate(cards):
        for fact, words in _FACTS.items():
            if not isinstance(facts, dict) or "hello" not in facts or facts.get(fact) != expected[fact]:
                raise ConfigError(
                    f"expected the same {words} on all ranks, found others on rank {mine.names[rank]} than on "
                    f"rank {name}: start all of them alike"
                )


def agree_on_secrets(transport: Transport) -> Secrets:
    """Return secrets of identities that are drawn now, for laboratories; all processes call this together."""
    everybody = Claim("laboratory", tuple(range(transport.size)), transport.size, secret=True)
    secrets = meet(transport, everybody).secrets
    assert secrets is not None  # noqa: S101 - they were asked for
    return secrets


def seal(transport: Transport, secrets: Secrets) -> Transport:
    """Return a transport that seals every message of this one for its receiver alone."""
    from dpmpi.crypto.seal import SealedPair  # noqa: PLC0415 - slow to import, and few runs need it
    from dpmpi.network.transport.sealed import SealedTransport  # noqa: PLC0415 - likewise

    pairs = {
        rank: {peer: SealedPair(secrets.session, rank, peer, keys) for peer, keys in others.items()}
        for rank, others in secrets.keys.items()
    }
    return SealedTransport(transport, pairs)
