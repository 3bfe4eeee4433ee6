"""How a run's requests become messages: plain ones, or secret shares of sums, sealed or not.

`PlainMessages` and `SharedSums` say what an exchange costs (hops, bytes), what it needs (secrets, a graph), and make
it for each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.exposure import exposed
from dpmpi.crypto.shares import PairwiseMasks
from dpmpi.errors import ConfigError
from dpmpi.network.channel import TRAILER_BYTES, Exchange, Transport
from dpmpi.network.exchange.plain import PlainExchange, payload_bytes
from dpmpi.network.exchange.shares import SharesExchange, capacity, even
from dpmpi.network.handshake import Secrets, seal
from dpmpi.network.schedule import StaticSchedule
from dpmpi.rng import PrivateStream, rank_key

if TYPE_CHECKING:
    from dpmpi.runtime.plan import Plan


@dataclass(frozen=True)
class _Messages:
    """What both kinds of messages have."""

    asked_to_seal: bool = False
    keys: Path | None = None
    """The folder of the roster and of the ranks' keys; None for identities that are drawn for the run."""

    @property
    def sealed(self) -> bool:
        """Whether every message is sealed for its receiver."""
        return self.asked_to_seal

    @property
    def secret(self) -> bool:
        """Whether ranks agree on secrets: to seal, or to mask."""
        return self.sealed

    @property
    def identities(self) -> str | None:
        """Who the secrets are agreed with; None if there are none."""
        if not self.secret:
            return None
        return "roster" if self.keys is not None else "drawn for the run: against listeners only"

    @property
    def overhead(self) -> int:
        """The bytes of a message beside its numbers: the trailer, and the seal if there is one."""
        return TRAILER_BYTES + (SEAL_BYTES if self.sealed else 0)

    def carrier(self, transport: Transport, secrets: Secrets | None) -> Transport:
        """Return the transport, sealed if messages are to be."""
        return seal(transport, secrets) if self.sealed and secrets is not None else transport


@dataclass(frozen=True)
class PlainMessages(_Messages):
    """Vectors as they are, to the neighbours."""

    wire: str = "float64"
    """Numbers as they travel."""
    name: ClassVar[str] = "plain"
    hides: ClassVar[bool] = False
    """Whether nobody sees a rank's own vector."""
    mode: ClassVar[str | None] = None
    hops: ClassVar[int] = 1

    def payload_bytes(self, length: int) -> int:
        """Return the bytes of `length` numbers."""
        return payload_bytes(length, self.wire)

    def check(self, plan: Plan) -> None:
        """Accept: every method can be served."""

    def exchange(
        self, transport: Transport, rank: int, secrets: Secrets | None, *, tail: float = 0.0, seed: int | None = None
    ) -> Exchange:
        """Return the exchange of a rank."""
        return PlainExchange(transport, rank, transport.size, self.wire)


@dataclass(frozen=True)
class SharedSums(_Messages):
    """Sums over all ranks in which nobody sees a summand."""

    full: bool = False
    """Information-theoretic shares, which travel before their sums do; else masks from pairwise secrets."""
    bits: int = 40
    """Fractional bits."""
    name: ClassVar[str] = "shares"
    hides: ClassVar[bool] = True

    @property
    def mode(self) -> str:
        """The kind of shares."""
        return "full" if self.full else "expanded"

    @property
    def hops(self) -> int:
        """Messages to each peer for a sum: full shares travel before their sums do."""
        return 2 if self.full else 1

    @property
    def sealed(self) -> bool:
        """Whether every message is sealed: shares that travel always are."""
        return self.asked_to_seal or self.full

    @property
    def secret(self) -> bool:
        """Ranks agree on secrets."""
        return True

    def payload_bytes(self, length: int) -> int:
        """Return the bytes of `length` numbers."""
        return payload_bytes(length)

    def check(self, plan: Plan) -> None:
        """Raise `ConfigError` where shares would give away more than the sum of all ranks."""
        method, schedule, n, algorithm = plan.method, plan.schedule, plan.ranks, plan.config.algorithm
        if n < 3:
            raise ConfigError(
                f"expected at least 3 ranks for shares, which hide a summand among the others', found {n}: start more, "
                "or use --seal"
            )
        if (plan.settings.noise.colluders or 0) > n - 2:
            raise ConfigError(
                f"expected --colluders to leave 2 honest ranks of {n}, found {plan.settings.noise.colluders}"
            )
        capacity(n, self.bits)
        if method.asks == ("sum",):
            return
        if "gather" in method.asks:
            raise ConfigError(
                f"{algorithm} looks at each neighbour's vector, which shares are to hide: use --exchange plain"
            )
        if not isinstance(schedule, StaticSchedule):
            raise ConfigError(
                f"{algorithm} mixes pairs of ranks, and who knows one half of a sum of two knows the other: "
                "use --exchange plain"
            )
        graph = schedule.graph
        if len(graph.edges) < n * (n - 1) // 2:
            own = "mix" in method.asks
            groups = [{*graph.neighbours(rank), *([rank] if own else [])} for rank in range(n)]
            seen = len(exposed(groups, n))
            what = f"expose the vectors of {seen} of {n} ranks at once" if seen else "add up to more over the rounds"
            raise ConfigError(
                f"shares are for sums over all ranks; sums over the neighbourhoods of {graph.name} would {what}: "
                "use --graph complete, or --exchange plain"
            )
        if "mix" in method.asks and not even(schedule.neighbourhood(0)):
            raise ConfigError(
                f"expected equal weights 1/n for shares, found --weights {plan.config.weights}: use metropolis"
            )

    def exchange(
        self, transport: Transport, rank: int, secrets: Secrets | None, *, tail: float = 0.0, seed: int | None = None
    ) -> Exchange:
        """Return the exchange of a rank; `tail` bounds the noise inside a sum, `seed` makes full shares repeatable."""
        if secrets is None:
            raise ConfigError("expected secrets to share with, found none: agree on them first")
        masks, n = None, transport.size
        if not self.full:
            masks = PairwiseMasks(rank, n, {peer: pair.masks for peer, pair in secrets.keys[rank].items()})
        stream = PrivateStream(rank_key(seed, rank), "shares")
        return SharesExchange(transport, rank, n, bits=self.bits, stream=stream, masks=masks, noise_tail=tail)


Messages: TypeAlias = PlainMessages | SharedSums
