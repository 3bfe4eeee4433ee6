"""Who may read what: from the configuration to sealed transports and shared sums.

With `--seal`, and for full shares, all ranks say hello, agree on keys pair by pair, and seal every message. Masks of
expanded shares come from the same handshake. Without `--keys` identities are drawn for the run: that keeps out those
who listen, not those who can change what is said at the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpmpi.agreement import agreed, everyone
from dpmpi.config import Config
from dpmpi.crypto.exposure import exposed
from dpmpi.crypto.shares import PairwiseMasks
from dpmpi.errors import ConfigError
from dpmpi.exchange.plain import PlainExchange
from dpmpi.exchange.shares import SharesExchange, capacity, even
from dpmpi.planning import Prospect
from dpmpi.rng import PrivateStream, rank_key
from dpmpi.schedules import StaticSchedule
from dpmpi.wire import Exchange, Transport

if TYPE_CHECKING:
    from dpmpi.crypto.keys import Handshake, PairKeys, Session

TAIL_DEVIATIONS = 40.0
"""Noise beyond so many standard deviations has a probability below 2^-1000."""


@dataclass(frozen=True)
class Secrets:
    """What the ranks of this process share with each other rank; empty if nothing is to be kept from anybody."""

    session: Session
    keys: Mapping[int, Mapping[int, PairKeys]]


def check_shares(prospect: Prospect) -> None:
    """Raise `ConfigError` where shares would give away more than the sum of all ranks."""
    config, method, schedule, n = prospect.config, prospect.method, prospect.schedule, prospect.schedule.size
    if config.exchange != "shares":
        return
    if n < 3:
        raise ConfigError(
            f"shares hide a summand among the others' and need at least 3 ranks, found {n}: start more, or use --seal"
        )
    if config.colluders > n - 2:
        raise ConfigError(f"--colluders must leave 2 honest ranks of {n}, got {config.colluders}")
    capacity(n, config.share_bits)
    if method.asks == ("sum",):
        return
    if "gather" in method.asks:
        raise ConfigError(
            f"{config.algorithm} looks at each neighbour's vector, which shares are to hide: use --exchange plain"
        )
    if not isinstance(schedule, StaticSchedule):
        raise ConfigError(
            f"{config.algorithm} mixes pairs of ranks, and who knows one half of a sum of two knows the other: "
            "use --exchange plain"
        )
    graph = schedule.graph
    if len(graph.edges) < n * (n - 1) // 2:
        own = "mix" in method.asks
        groups = [{*graph.neighbours(rank), *([rank] if own else [])} for rank in range(n)]
        known = exposed(groups, n)
        what = f"expose the vectors of {len(known)} of {n} ranks at once" if known else "add up to more over the rounds"
        raise ConfigError(
            f"shares are for sums over all ranks; sums over the neighbourhoods of {graph.name} would {what}: "
            "use --graph complete, or --exchange plain"
        )
    if "mix" in method.asks and not even(schedule.neighbourhood(0)):
        raise ConfigError(f"shares mix with equal weights 1/n, found --weights {config.weights}: use metropolis")


def check_room(prospect: Prospect, sigma: float) -> None:
    """Raise `ConfigError` if a vector under the noise of a sum could be too long for it.

    Refused when it is, it would tell something about the records without noise.
    """
    config, n = prospect.config, prospect.schedule.size
    if config.noise_in != "sum":
        return
    drawn = [prospect.terms(rank).sampling for rank in range(n)]
    most = max(s.records / s.expected if s.kind == "poisson" else 1.0 for s in drawn)  # a batch may hold all records
    longest, room = prospect.lipschitz * most, capacity(n, config.share_bits, _tail(config, n, sigma))
    if longest >= room:
        raise ConfigError(
            f"gradients may reach {longest:.3g} in a shared sum that holds less than {room:.3g}: use fewer "
            "--share-bits, a smaller --lipschitz or a larger --batch"
        )


def _tail(config: Config, n: int, sigma: float) -> float:
    """Return what the noise inside a sum stays below."""
    return TAIL_DEVIATIONS * sigma * n if config.noise_in == "sum" else 0.0


def agree_on_secrets(
    config: Config, transport: Transport, run: str, incarnation: int = 0, names: Sequence[int] | None = None
) -> Secrets | None:
    """Return what the ranks agree on, all processes together; None if the configuration keeps nothing secret.

    `names` are the ranks' places in the roster, where they are not their own numbers.
    """
    if not config.secretive:
        return None
    from dpmpi.crypto.keys import (  # noqa: PLC0415 - slow to import, and few runs need it
        Handshake,
        Identity,
        Session,
        check_identity,
        key_name,
        load_identity,
        load_roster,
        verify_hello,
    )

    session = Session(bytes.fromhex(run), incarnation)
    names = range(transport.size) if names is None else names
    hands: dict[int, Handshake] = {}
    keys: dict[int, dict[int, PairKeys]] = {}
    roster = None

    def say_hello() -> list[str]:
        nonlocal roster
        roster = None if config.keys is None else load_roster(Path(config.keys) / "roster.toml")
        for rank in transport.ranks:
            identity = Identity()
            if roster is not None:
                identity = load_identity(Path(str(config.keys)) / f"{key_name(names[rank])}.key")
                check_identity(identity, names[rank], max(transport.size, max(names) + 1), roster)
            hands[rank] = Handshake(session, names[rank], identity)
        return [hands[rank].hello.hex() for rank in transport.ranks]

    hellos = everyone(transport, say_hello)

    def listen() -> None:
        greetings = [
            verify_hello(bytes.fromhex(hello), session, name, roster) for name, hello in zip(names, hellos, strict=True)
        ]
        for rank in transport.ranks:
            keys[rank] = {peer: hands[rank].keys(said) for peer, said in enumerate(greetings) if peer != rank}

    agreed(transport, listen)
    return Secrets(session, keys)


def sealed(config: Config, transport: Transport, secrets: Secrets | None) -> Transport:
    """Return the transport, sealed if messages are to be."""
    if secrets is None or not config.sealed:
        return transport
    from dpmpi.crypto.seal import SealedPair  # noqa: PLC0415 - slow to import, and few runs need it
    from dpmpi.transport.sealed import SealedTransport  # noqa: PLC0415 - likewise

    pairs = {
        rank: {peer: SealedPair(secrets.session, rank, peer, keys) for peer, keys in others.items()}
        for rank, others in secrets.keys.items()
    }
    return SealedTransport(transport, pairs)


def make_exchange(config: Config, transport: Transport, rank: int, secrets: Secrets | None, sigma: float) -> Exchange:
    """Return how a rank's requests become messages; `sigma` is the noise inside a sum."""
    if config.exchange == "plain" or secrets is None:
        return PlainExchange(transport, rank, transport.size, config.wire)
    masks = None
    if config.share_mode == "expanded":
        masks = PairwiseMasks(rank, transport.size, {peer: pair.masks for peer, pair in secrets.keys[rank].items()})
    stream = PrivateStream(rank_key(config.insecure_noise_seed, rank), "shares")
    tail = _tail(config, transport.size, sigma)
    return SharesExchange(
        transport, rank, transport.size, bits=config.share_bits, stream=stream, masks=masks, noise_tail=tail
    )
