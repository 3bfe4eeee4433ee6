"""Where the noise of a run is, and what that means: its mechanism, its price, and the room that it needs.

`LocalNoise` covers each rank's own value. `SumNoise` is inside a sum that nobody sees the summands of: every rank adds
its part, and only the sum is covered. `PairNoise` covers each rank's own value by more than what is left of it in the
mean: neighbours add and take off the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from dpmpi.core import Mechanism, Method
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.network.exchange.shares import capacity
from dpmpi.network.graph import Graph
from dpmpi.privacy.events import ReadRows
from dpmpi.privacy.mechanisms import (
    NoiseMechanism,
    Pricing,
    SumMechanism,
    make_mechanism,
    part_steps,
    pricing,
    sum_pricing,
)
from dpmpi.privacy.pair_noise import (
    LARGEST_DEGREE,
    LEAST_STEPS,
    Gain,
    PairMechanism,
    pair_pricing,
    pair_streams,
    steps,
    worst_gain,
)
from dpmpi.runtime.config import Config
from dpmpi.runtime.plugins import methods

if TYPE_CHECKING:
    from dpmpi.runtime.plan import Plan

NO_GAIN = 0.99
"""The part of the noise that may be left in the mean before noise between neighbours is of no use."""
TAIL_DEVIATIONS = 40.0
"""Noise beyond this many standard deviations has a probability below 2^-1000."""


def condition(colluders: int | None) -> str:
    """Return the words for how many colluders an epsilon under shared noise holds; none for a rank's own noise."""
    if colluders is None:
        return ""
    ranks = {0: "no rank colludes", 1: "at most 1 rank colludes"}.get(colluders, f"at most {colluders} ranks collude")
    return f" if {ranks}"


@frozen
class Pairs:
    """A rank among its neighbours, and the secrets that it has with them."""

    rank: int
    neighbours: tuple[int, ...]
    secrets: Mapping[int, bytes]


@frozen
class _Noise:
    """What noise is unless it says otherwise: of one level on all ranks, drawn alone, the same on every graph."""

    _: KW_ONLY
    records: int = 1
    """The most records of one person, whom the noise is to cover."""
    rows: ReadRows = "all"
    """The part of a shard that releases under this noise read."""

    def on(self, graph: Graph) -> Self:
        """Return the noise on this graph."""
        return self

    def paired(self, mechanism: Mechanism, key: bytes, seat: Pairs | None) -> Mechanism:
        """Return a rank's mechanism with the noise that it shares with its neighbours."""
        return mechanism

    def common(self, levels: Sequence[float]) -> list[float]:
        """Return the noise that each rank uses if these are the levels that they need."""
        return [max(levels)] * len(levels)

    def tail(self, plan: Plan, sigma: float) -> float:
        """Return the bound of the noise of all ranks inside a sum; 0 for noise that is not inside one."""
        return 0.0

    def describe(self) -> dict[str, Any] | None:
        """Return the figures of noise between neighbours, JSON-ready; None for other noise."""
        return None


@frozen
class LocalNoise(_Noise):
    """Noise on each rank's own value."""

    kind: str
    """gaussian, laplace or spherical-laplace"""
    l1_ratio: float | None = None
    """How far a record moves a released vector in L1, over L2, if more is known than its length says."""
    place: ClassVar[str] = "local"
    colluders: ClassVar[int | None] = None

    def price(self, sigma: float, width: int) -> Pricing:
        """Return how releases under noise of standard deviation `sigma` are written down."""
        return replace(pricing(self.kind, sigma, width, self.l1_ratio), records=self.records, rows=self.rows)

    def mechanism(self, sigma: float, key: bytes, width: int, ranks: int, stream: str = "noise") -> Mechanism:
        """Return the mechanism of one of `ranks` ranks, which draws from this stream of its key."""
        kind, price = self.kind if sigma else "none", self.price(sigma, width)
        return make_mechanism(kind, sigma, key, width, price=price, stream=stream)

    def of_sum(self, sigmas: Sequence[float]) -> float:
        """Return the standard deviation of the sum's noise if the ranks have these: they are independent."""
        return math.hypot(*sigmas)

    def deviation(self, sigma: float, ranks: int) -> float:
        """Return the standard deviation of what one rank adds to each coordinate: its own noise."""
        return sigma

    def common(self, levels: Sequence[float]) -> list[float]:
        """Return the noise that each rank uses if these are the levels that they need: its own."""
        return list(levels)

    def check_room(self, plan: Plan, sigma: float) -> None:
        """Accept: noise that is not part of a sum needs no room in it."""

    def mean_deviation(self, levels: Sequence[float]) -> float:
        """Return the deviation of the mean over the ranks, if these are the levels that they need."""
        return math.hypot(*levels) / len(levels)


@frozen
class SumNoise(_Noise):
    """Discrete Gaussian noise inside a sum over all ranks, of which `colluders` may take their parts off again."""

    colluders: int
    bits: int
    """Fractional bits of the sum."""
    word: int = 64
    """Bits of its words."""
    place: ClassVar[str] = "sum"
    kind: ClassVar[str] = "discrete-gaussian"

    def price(self, sigma: float, width: int) -> Pricing:
        """Return how releases under noise of standard deviation `sigma` are written down."""
        return replace(sum_pricing(sigma, self.bits, width), records=self.records, rows=self.rows)

    def mechanism(self, sigma: float, key: bytes, width: int, ranks: int, stream: str = "noise") -> Mechanism:
        """Return the mechanism of one of `ranks` ranks, its part of the noise, from this stream of its key."""
        if not sigma:
            return make_mechanism("none", 0.0, key, width)
        price = self.price(sigma, width)
        return SumMechanism(sigma, ranks - self.colluders, self.bits, key, width, price=price, stream=stream)

    def of_sum(self, sigmas: Sequence[float]) -> float:
        """Return the standard deviation of the sum's noise: more than `sigma`, as colluders add their parts too."""
        return max(sigmas) * math.sqrt(len(sigmas) / (len(sigmas) - self.colluders))

    def deviation(self, sigma: float, ranks: int) -> float:
        """Return the standard deviation of what one rank adds to each coordinate: its part."""
        return sigma / math.sqrt(ranks - self.colluders)

    def mean_deviation(self, levels: Sequence[float]) -> float:
        """Return the deviation of the mean over the ranks, if these are the levels that they need."""
        n = len(levels)
        return max(levels) * math.sqrt(n / max(1, n - self.colluders)) / n

    def tail(self, plan: Plan, sigma: float) -> float:
        """Return the bound of the noise of all ranks inside a sum, in any round or evaluation.

        The sum of n parts of variance sigma^2/(n - c) has the deviation sigma sqrt(n/(n - c)), and tails no heavier
        than a Gaussian's, like each of its parts (Canonne, Kamath, Steinke 2020).
        """
        n = plan.ranks
        return TAIL_DEVIATIONS * sigma * max(1.0, plan.noise_scales[1]) * math.sqrt(n / (n - self.colluders))

    def check_room(self, plan: Plan, sigma: float) -> None:
        """Raise `ConfigError` if a vector under this noise could be too long for the sum, or noise of some round unfit.

        Refused when it is, it would tell something about the records without noise.
        """
        n = plan.ranks
        for scale in plan.noise_scales if sigma else ():
            part_steps(sigma * scale, n - self.colluders, self.bits)
        longest = max(map(plan.longest_release, range(n)))
        what = "gradients"
        if plan.held_out is not None and plan.held_out.largest > longest:
            longest, what = plan.held_out.largest, "shares of held-out rows"

        def room(bits: int) -> float:
            try:
                return max(0.0, capacity(n, bits, replace(self, bits=bits).tail(plan, sigma), self.word))
            except ConfigError:
                return 0.0

        if longest >= room(self.bits):
            fitting = [bits for bits in range(self.bits) if longest < room(bits)]
            advice = [f"at most {max(fitting)} --share-bits"] if fitting else []
            advice += ["a smaller --lipschitz", "a larger --batch", *(["--share-words 64"] if self.word < 64 else [])]
            raise ConfigError(
                f"expected {what} below {room(self.bits):.3g} in a shared sum of {n} ranks with {self.bits} fractional "
                f"bits in words of {self.word}, found that they may reach {longest:.3g}: use {' or '.join(advice)}"
            )


@frozen
class PairNoise(_Noise):
    """Gaussian noise on each rank's value, of which neighbours' parts cancel; `colluders` tell theirs to everybody.

    Its sigma is what a rank hides behind, `gain` times the deviation of its own noise (`privacy/pair_noise.py`).
    """

    kappa: float
    """The deviation of a pair's noise over that of a rank's own."""
    colluders: int
    gain: Gain | None = None
    """None until the graph is known."""
    place: ClassVar[str] = "pairs"
    kind: ClassVar[str] = "gaussian"

    def on(self, graph: Graph) -> Self:
        """Return the noise on this graph."""
        n, edges = graph.size, tuple((int(i), int(j)) for i, j in graph.edges)
        if self.colluders > n - 2:
            raise ConfigError(
                f"expected --colluders to leave 2 honest ranks of {n}, found {self.colluders}: "
                + (f"use {n - 2} at most" if n > 2 else "start more ranks")
            )
        if max(graph.degrees, default=0) > LARGEST_DEGREE:
            raise ConfigError(f"expected at most {LARGEST_DEGREE} neighbours for --noise-in pairs, found more")
        return replace(self, gain=worst_gain(edges, n, self.kappa, self.colluders))

    @property
    def known_gain(self) -> float:
        """The gain; raise `ConfigError` while the graph is not known."""
        if self.gain is None:
            raise ConfigError("expected a graph for noise between neighbours, found none yet: make a plan first")
        return self.gain.value

    def describe(self) -> dict[str, Any] | None:
        """Return the figures of noise between neighbours, JSON-ready; None until the graph is known."""
        if self.gain is None:
            return None
        n, left = self.colluders, 1.0 / self.gain.value
        who = {0: "against outsiders", 1: "whichever rank colludes"}.get(n, f"whichever {n} ranks collude")
        search = "every set" if self.gain.exact else "a bound by the least degree"
        line = f"cancels in the mean: {left:.2g} of local noise there, {who} ({search})"
        if left > NO_GAIN:
            line += ": nothing is gained, take another --graph or fewer --colluders"
        return {"kappa": self.kappa, "colluders": n, "gain": self.gain.value, "search": search, "line": line}

    def price(self, sigma: float, width: int) -> Pricing:
        """Return how releases behind noise of standard deviation `sigma` are written down."""
        found = pair_pricing(sigma, sigma / self.known_gain, width) if sigma else pricing("none", 0.0, width)
        return replace(found, records=self.records, rows=self.rows)

    def mechanism(self, sigma: float, key: bytes, width: int, ranks: int, stream: str = "noise") -> Mechanism:
        """Return a rank's own noise, without its neighbours': for laboratories that have no neighbours."""
        kind, price = "gaussian" if sigma else "none", replace(pricing("gaussian", sigma, width), records=self.records)
        own = make_mechanism(kind, sigma, key, width, price=replace(price, rows=self.rows), stream=stream)
        return self.paired(own, key, None)

    def of_sum(self, sigmas: Sequence[float]) -> float:
        """Return the standard deviation of the sum's noise: that of the ranks' own, as the rest cancels."""
        return math.hypot(*(sigma / self.known_gain for sigma in sigmas))

    def paired(self, mechanism: Mechanism, key: bytes, seat: Pairs | None) -> Mechanism:
        """Return the mechanism with the noise that a rank shares with its neighbours; as it is without any."""
        if not mechanism.sigma or seat is None:
            return mechanism
        assert isinstance(mechanism, NoiseMechanism)  # noqa: S101 - there is noise
        streams, width = pair_streams(seat.rank, seat.neighbours, seat.secrets), mechanism.noise.dimension
        found = PairMechanism(mechanism.sigma, self.known_gain, self.kappa, key, width, streams)
        found.price = self.price(mechanism.sigma, width)
        return found

    def deviation(self, sigma: float, ranks: int) -> float:
        """Return the standard deviation of what is left of one rank's noise where its neighbours' is taken off."""
        return sigma / self.known_gain

    def mean_deviation(self, levels: Sequence[float]) -> float:
        """Return the deviation of the mean over the ranks, if these are the levels that they need."""
        return max(levels) / (self.known_gain * math.sqrt(len(levels)))

    def check_room(self, plan: Plan, sigma: float) -> None:
        """Raise `ConfigError` for a method whose noise is not on a value that all ranks release at the same time."""
        for terms in plan.kinds:
            if any(release.inside or release.extra for release in plan.method.releases(terms)):
                raise ConfigError("expected noise on values for --noise-in pairs, found noise inside an objective")
        if len({plan.release_count(rank) for rank in range(plan.ranks)}) > 1:
            raise ConfigError("expected as many releases of all ranks for --noise-in pairs, found different numbers")
        found = steps(self.kappa, max(plan.schedule.graph.degrees), plan.noise_scales[0])
        if found < LEAST_STEPS:
            raise ConfigError(
                f"expected noise between neighbours of {LEAST_STEPS:g} steps of its grid in every round, found "
                f"{found:.3g} in some: let the noise fall less, or run fewer --rounds"
            )
        each = {tuple((r.scale, r.count) for r in plan.method.releases(terms)) for terms in plan.kinds}
        if len(each) > 1:  # both ends of an edge draw the same: (1) of pair_noise.py
            raise ConfigError(
                "expected noise of the same size on all ranks for --noise-in pairs, found others by degree or weight: "
                "use --inner-noise each, or another method"
            )


Noise: TypeAlias = LocalNoise | SumNoise | PairNoise


def _needs_sums_alone(cls: type[Method]) -> bool:
    """Return whether the sum of all ranks is all that a method needs of the others."""
    return cls.adds_up and cls.schedule == "static"


def make_noise(config: Config) -> Noise:
    """Return where the noise is; raise `ConfigError` for flags that do not go with it."""
    mechanisms, records = config.method_class.mechanisms, config.person_records or 1
    if config.noise_in == "sum":
        if not _needs_sums_alone(config.method_class):
            able = [name for name, cls in methods(config.plugin_digest).items() if _needs_sums_alone(cls)]
            raise ConfigError(
                f"--noise-in sum is for methods that need the sum of all ranks alone ({', '.join(able)}), got "
                f"{config.algorithm}"
            )
        if config.mechanism is not None:
            raise ConfigError("--noise-in sum is a discrete gaussian: leave --mechanism out")
        if config.epsilon is not None and config.calibration == "theorem":
            raise ConfigError("no theorem prescribes noise inside a sum: use --calibration certified")
        kind = "gaussian"
        noise: Noise = SumNoise(config.colluders, config.fraction_bits, config.word_bits, records=records)
    elif config.noise_in == "pairs":
        kind = "gaussian"
        noise = replace(_pair_noise(config), records=records)
    else:
        if config.mechanism is not None and config.mechanism not in mechanisms:
            raise ConfigError(f"{config.algorithm} takes --mechanism {' or '.join(mechanisms)}, got {config.mechanism}")
        if config.colluders != 1 and config.exchange != "shares":
            raise ConfigError(
                "--colluders is for shared sums, or noise between neighbours: add --exchange shares or --noise-in pairs"
            )
        kind = config.mechanism or mechanisms[0]
        noise = LocalNoise(kind, records=records)
    if config.noise_in != "pairs" and config.pair_noise != config.default("pair_noise"):
        raise ConfigError("--pair-noise is for noise that cancels between neighbours: add --noise-in pairs --seal")
    if records > 1 and config.epsilon is not None and config.calibration == "theorem":
        raise ConfigError("no theorem covers persons with several records: use --calibration certified")
    if config.delta == 0 and (config.epsilon or config.noise) and kind == "gaussian":
        raise ConfigError("--delta 0 needs pure noise (laplace, spherical-laplace); gaussian noise has a delta")
    return noise


def _pair_noise(config: Config) -> PairNoise:
    """Return noise that cancels between neighbours; raise `ConfigError` for settings that it does not go with."""
    if "gaussian" not in config.method_class.mechanisms or config.mechanism not in (None, "gaussian"):
        raise ConfigError(
            f"expected Gaussian noise for --noise-in pairs, found that of {config.algorithm}: leave --mechanism out, "
            "or take momentum"
        )
    if config.method_class.schedule == "sampled":
        raise ConfigError(f"expected neighbours that stay for --noise-in pairs, found {config.algorithm}: use dp-dda")
    if config.exchange == "shares":
        raise ConfigError("--noise-in pairs is for plain messages: with --exchange shares use --noise-in sum")
    if not config.seal:
        raise ConfigError("--noise-in pairs draws noise from secrets between neighbours: add --seal")
    if config.epsilon is not None and config.calibration == "theorem":
        raise ConfigError("no theorem prescribes noise between neighbours: use --calibration certified")
    return PairNoise(config.pair_noise, config.colluders)
