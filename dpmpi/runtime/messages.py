"""How a run's requests become messages: plain ones, or secret shares of sums, sealed or not.

`PlainMessages` and `SharedSums` say what an exchange costs (to whom, bytes), what it needs (secrets, a graph), and make
it for each rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from dpmpi.core import Audience
from dpmpi.core.frozen import frozen
from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.mask_graph import Pair, circulant, connectivity, partners, stays_connected
from dpmpi.crypto.shares import PairwiseMasks
from dpmpi.errors import ConfigError
from dpmpi.network.channel import TRAILER_BYTES, Exchange, Transport
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.network.exchange.shares import SharesExchange, capacity
from dpmpi.network.graph import Graph
from dpmpi.network.handshake import Secrets, seal
from dpmpi.network.route import Routes
from dpmpi.network.schedule import StaticSchedule
from dpmpi.network.sums import payload_of
from dpmpi.rng import PrivateStream, rank_key
from dpmpi.runtime.config import Config

if TYPE_CHECKING:
    from dpmpi.runtime.plan import Plan

Way: TypeAlias = Literal["neighbours", "sum", "partners"]
"""How an exchange travels: to each neighbour, along the route of sums, or to each rank that shares a mask."""


@frozen
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


@frozen
class PlainMessages(_Messages):
    """Vectors as they are, to the neighbours."""

    wire: str = "float64"
    """Numbers as they travel."""
    name: ClassVar[str] = "plain"
    hides: ClassVar[bool] = False
    """Whether nobody sees a rank's own vector."""
    mode: ClassVar[str | None] = None

    def payload_bytes(self, length: int) -> int:
        """Return the bytes of `length` numbers."""
        return payload_of(length, self.wire)

    def ways(self, audience: Audience) -> tuple[Way, ...]:
        """Return how what a method says to this audience travels, one after the other."""
        return ("sum",) if audience == "everyone" else ("neighbours",)

    def pairs(self, graph: Graph) -> tuple[Pair, ...]:
        """Return which ranks share a mask: none do."""
        return ()

    def check(self, plan: Plan) -> None:
        """Raise `ConfigError` for a route of sums where there are none."""
        if plan.config.route != "auto" and "sum" not in plan.method.asks:
            raise ConfigError(
                f"--route is for sums over all ranks, which {plan.config.algorithm} does not ask for in plain "
                "messages: leave it out"
            )

    def exchange(
        self,
        transport: Transport,
        rank: int,
        secrets: Secrets | None,
        *,
        routes: Routes,
        tail: float = 0.0,
        seed: int | None = None,
    ) -> Exchange:
        """Return the exchange of a rank."""
        return PlainExchange(transport, rank, transport.size, self.wire, routes)


@frozen
class SharedSums(_Messages):
    """Sums over all ranks in which nobody sees a summand."""

    full: bool = False
    """Information-theoretic shares, which travel before their sums do; else masks from pairwise secrets."""
    bits: int = 40
    """Fractional bits."""
    word: int = 64
    """Bits of a number."""
    colluders: int = 1
    """Ranks from which, together, a summand is hidden; from three at least, where there are as many."""
    all_pairs: bool = False
    """Whether all ranks share masks, and not only as many as it takes."""
    name: ClassVar[str] = "shares"
    hides: ClassVar[bool] = True

    @property
    def mode(self) -> str:
        """The kind of shares."""
        return "full" if self.full else "expanded"

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
        return payload_of(length, f"uint{self.word}")

    def ways(self, audience: Audience) -> tuple[Way, ...]:
        """Return how what a method says travels, whoever it is for: full shares before their sums."""
        return ("partners", "sum") if self.full else ("sum",)

    def pairs(self, graph: Graph) -> tuple[Pair, ...]:
        """Return which ranks share a mask; full shares travel, so that these are neighbours."""
        k = self.connectivity(graph)
        return graph.edges if k is None else circulant(graph.size, k)

    def connectivity(self, graph: Graph) -> int | None:
        """Return the connectivity of the pairs that share masks; None where all neighbours do."""
        if self.full and not graph.complete:
            return None
        return graph.size - 1 if self.all_pairs else connectivity(graph.size, self.colluders)

    def check(self, plan: Plan) -> None:
        """Raise `ConfigError` where shares would give away more than the sum of all ranks."""
        method, schedule, n, algorithm = plan.method, plan.schedule, plan.ranks, plan.config.algorithm
        if n < 3:
            raise ConfigError(
                f"expected at least 3 ranks for shares, which hide a summand among the others', found {n}: start more, "
                "or use --seal"
            )
        if self.colluders > n - 2:
            raise ConfigError(f"expected --colluders to leave 2 honest ranks of {n}, found {self.colluders}")
        capacity(n, self.bits, word=self.word)
        self._check_bounds(plan)
        self._check_pairs(schedule.graph)
        if "gather" in method.asks:
            raise ConfigError(
                f"{algorithm} looks at each neighbour's vector, which shares are to hide: use --exchange plain"
            )
        if not isinstance(schedule, StaticSchedule):
            raise ConfigError(
                f"{algorithm} mixes pairs of ranks, and who knows one half of a sum of two knows the other: "
                "use --exchange plain"
            )
        if "mix" in method.asks and plan.config.weights == "laplacian":
            raise ConfigError("expected equal weights 1/n for shares, found --weights laplacian: leave it out")

    def _check_bounds(self, plan: Plan) -> None:
        """Raise `ConfigError` if summands that are no releases, and have no known bound, would go into short words."""
        exchanged = sum(part.count for part in plan.method.exchanges(plan.terms(0)))
        if self.word < 64 and exchanged > plan.release_count(0):
            raise ConfigError(
                f"expected nothing but releases in words of {self.word} bits, found that {plan.config.algorithm} adds "
                f"up {exchanged} vectors for {plan.release_count(0)} releases, the others without a known bound: use "
                "--share-words 64"
            )

    def _check_pairs(self, graph: Graph) -> None:
        """Raise `ConfigError` if the pairs that share masks do not hide a summand from the colluders."""
        if not self.full or graph.complete:
            return
        if self.all_pairs:
            raise ConfigError(
                f"expected --graph complete for full shares to all ranks, found {graph.name}: leave out --masks all, "
                "or use --share-mode expanded"
            )
        if not stays_connected(graph.size, graph.edges, self.colluders):
            raise ConfigError(
                f"expected a graph that stays connected without any {self.colluders} ranks for full shares, which go "
                f"along its edges, found {graph.name}: those ranks would learn the sum of each part; use --share-mode "
                "expanded, another --graph or fewer --colluders"
            )

    def exchange(
        self,
        transport: Transport,
        rank: int,
        secrets: Secrets | None,
        *,
        routes: Routes,
        tail: float = 0.0,
        seed: int | None = None,
    ) -> Exchange:
        """Return the exchange of a rank; `tail` bounds the noise inside a sum, `seed` makes full shares repeatable."""
        if secrets is None:
            raise ConfigError("expected secrets to share with, found none: agree on them first")
        others = partners(self.pairs(routes.graph), rank)
        hide: Any = (PrivateStream(rank_key(seed, rank), "shares"), others)
        if not self.full:
            hide = PairwiseMasks(rank, {peer: secrets.keys[rank][peer].masks for peer in others})
        return SharesExchange(transport, rank, routes, bits=self.bits, hide=hide, noise_tail=tail, word=self.word)


Messages: TypeAlias = PlainMessages | SharedSums


def make_messages(config: Config) -> Messages:
    """Return how requests become messages; raise `ConfigError` for flags that do not go with it."""
    keys = None if config.keys is None else Path(config.keys)
    if config.exchange == "shares":
        if config.word_bits == 32 and config.noise_in != "sum":
            raise ConfigError(
                "expected summands of a known bound in words of 32 bits, found --noise-in local, whose values have "
                "none: use --noise-in sum, or --share-words 64"
            )
        if config.wire != "float64":
            raise ConfigError(
                f"--wire {config.wire} is for plain messages, shares are integers: leave it out, or use "
                "--share-words 32"
            )
        return SharedSums(
            config.seal,
            keys,
            full=config.share_mode == "full",
            bits=config.fraction_bits,
            word=config.word_bits,
            colluders=config.colluders,
            all_pairs=config.masks == "all",
        )
    if config.word_bits != 64:
        raise ConfigError("--share-words is for sums in which nobody sees a summand: add --exchange shares")
    if config.share_mode != config.default("share_mode"):
        raise ConfigError("--share-mode is for sums in which nobody sees a summand: add --exchange shares")
    if config.share_bits not in (None, 40):  # 40 was the default that older config.toml files state
        raise ConfigError("--share-bits is for sums in which nobody sees a summand: add --exchange shares")
    if config.masks != "few":
        raise ConfigError("--masks is for sums in which nobody sees a summand: add --exchange shares")
    if keys is not None and not config.seal:
        raise ConfigError("--keys is for sealed messages: add --seal, or --exchange shares")
    return PlainMessages(config.seal, keys, config.wire)
