"""The nouns of dpmpi and the seams between its layers.

There is one road from data to the wire:

    data --> Query (value + sensitivity) --> Release (charged, then noised) --> Channel (bytes to the neighbours)

An algorithm is a generator per round. It yields what it wants to say (`Mix`, `Gather`, `Sum`) and is resumed with
what it hears; it knows nothing of MPI, files or keys. Only a `Release`, or a `public` value, can be said.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.errors import BudgetExceeded, LeakError

Array: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]


# --- from data to a release ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the records behind one query were drawn: all of them, by Poisson sampling, or a fixed number."""

    kind: Literal["full", "poisson", "fixed"]
    expected: float
    records: int

    @property
    def rate(self) -> float:
        """The probability that a given record takes part."""
        return self.expected / self.records


@dataclass(frozen=True, slots=True)
class Query:
    """A vector computed from private data, and how far one record can move it.

    `sensitivity` bounds the L2 distance between the values on two shards that differ in one record, given the same
    draw of record positions. The buffer `value` is handed over: `Agent.release` overwrites it with the noised value.
    `extra` is a pure privacy loss on top of what the noise hides, for noise that goes through a minimisation.
    """

    value: Array
    sensitivity: float
    sampling: Sampling
    extra: float = 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """The public facts that an agent's steps and the cost of its releases may depend on."""

    rounds: int
    """Rounds of the run."""
    active_rounds: int
    """Rounds in which the agent is active."""
    size: int
    """Ranks."""
    degree: int
    """Neighbours of the agent; 0 where they change from round to round."""
    max_degree: int
    dimension: int
    lipschitz: float
    """The norm bound L of one record's loss gradient."""
    sampling: Sampling
    """How the records of a gradient are drawn."""
    smoothness: float | None
    """A bound of the curvature of f_i that holds for all data; None if there is none."""
    curvature_floor: float
    """The strong convexity of f_i that holds for all data."""
    strong_convexity: float
    """That of the penalty: its l2 weight."""
    l1: float
    """The penalty's l1 weight."""
    bounded: bool
    """Whether the model is confined to a domain."""

    @property
    def gradient_sensitivity(self) -> float:
        """How far replacing one record moves a gradient: 2 L over the (expected) size of its batch."""
        return 2.0 * self.lipschitz / self.sampling.expected


class Sendable:
    """What may be given to an exchange. Made by `Agent.release` or `public` only."""

    __slots__ = ("value",)

    def __init__(self, value: Array) -> None:
        self.value = value


class Release(Sendable):
    """A query's value after its cost was charged and its noise added."""

    __slots__ = ()


class Public(Sendable):
    """A value that depends on data through earlier releases only, with the reason why."""

    __slots__ = ("because",)

    def __init__(self, value: Array, because: str) -> None:
        self.value = value
        self.because = because


class Hidden(Sendable):
    """A private value and this rank's part of a sum's noise, as integers: it may only go into a sum that hides it."""

    __slots__ = ("noise", "secret")

    def __init__(self, secret: Array, noise: Integers) -> None:
        self.secret = secret
        self.noise = noise

    @property
    def value(self) -> Array:  # type: ignore[override]
        """Nobody may look at it."""
        raise LeakError("the noise of a sum does not cover this rank's value alone: only the sum may be looked at")


def public(value: Array, *, because: str) -> Public:
    """Declare `value` to be post-processing of earlier releases; `because` says why."""
    return Public(value, because)


# --- what an algorithm says ------------------------------------------------------------------------------------------


class Request:
    """Something an algorithm yields: a sendable vector and, if wanted, where to put the answer."""

    __slots__ = ("out", "vector")

    def __init__(self, vector: Sendable, out: Array | None = None) -> None:
        if not isinstance(vector, Sendable):
            raise LeakError(
                f"{type(self).__name__} takes a Release or public(value, because=...), got {type(vector).__name__}: "
                "data leaves a rank only through agent.release(query)"
            )
        if isinstance(vector, Hidden) and not isinstance(self, Sum):
            raise LeakError(f"{type(self).__name__} shows its value, which the noise of a sum does not cover: use Sum")
        self.vector = vector
        self.out = out


class Mix(Request):
    """Answer: sum_j w_ij (v_j + times_j plus_j) over the neighbours and this rank, added up in rank order.

    With a release as `plus` that only a sum may show, all v_j must be the same and all weights 1/n.
    """

    __slots__ = ("plus", "times")

    def __init__(
        self, vector: Sendable, out: Array | None = None, plus: Sendable | None = None, times: float = 1.0
    ) -> None:
        Request.__init__(self, vector, out)
        if plus is not None and not isinstance(plus, Sendable):
            raise LeakError(f"Mix adds a Release or public(value, because=...), got {type(plus).__name__}")
        self.plus = plus
        self.times = times


class Gather(Request):
    """Answer: {neighbour: its vector}; the vectors are valid until the next request."""

    __slots__ = ()


class NeighbourSum(Request):
    """Answer: the sum of the neighbours' vectors, without this rank's own, added up in rank order."""

    __slots__ = ()


class Sum(Request):
    """Answer: the sum of the vectors of all ranks, added up in rank order."""

    __slots__ = ()


Steps: TypeAlias = Generator[Request, Any, None]


# --- privacy ---------------------------------------------------------------------------------------------------------


class Event(Protocol):
    """What one release does to privacy; frozen and serialisable."""

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-ready values."""
        ...


class Mechanism(Protocol):
    """Turns a query's value into a noised one."""

    sigma: float

    @property
    def hides(self) -> bool:
        """Whether the noise covers the sum over all ranks, and a value alone must not be seen."""
        ...

    def part(self, scale: float = 1.0) -> Integers:
        """Return this rank's part of the noise of a sum, for a mechanism that hides."""
        ...

    def event(self, query: Query, scale: float = 1.0) -> Event:
        """Return what releasing `query` with noise of standard deviation `scale * sigma` costs."""
        ...

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Add the noise to `value`, in place."""
        ...

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Overwrite `value` with noise, then with what `solve` makes of it, in place."""
        ...

    def prepare(self) -> None:
        """Draw ahead what the next `perturb` will need; called while messages travel."""
        ...

    def streams(self) -> Sequence[Draws]:
        """Return what it draws from, with nothing drawn ahead."""
        ...


class Charges(Protocol):
    """Where a rank's releases are charged before they are made."""

    def charge(self, event: Event, round_: int) -> None:
        """Record `event` durably; raise `BudgetExceeded` if it does not fit."""
        ...


# --- the agent -------------------------------------------------------------------------------------------------------


class Problem(Protocol):
    """A rank's own part of the objective: f_i, the mean loss over its records."""

    records: int

    @property
    def stream(self) -> Draws:
        """What batches are drawn from."""
        ...

    def subgradient(self, x: Array) -> Query:
        """Return a subgradient of f_i at x over a freshly drawn batch, each record clipped to L."""
        ...

    def value(self, x: Array) -> float:
        """Return f_i(x) over all records."""
        ...

    def minimise(self, linear: Array, quadratic: float, x: Array, tolerance: float) -> float:
        """Write argmin_w f_i(w) + <linear, w> + (quadratic/2) |w|^2 over all records to `x`, starting from it.

        Return the norm of the gradient there, which is at most `tolerance`.
        """
        ...


class Penalty(Protocol):
    """The shared regulariser h, with its domain."""

    @property
    def l1(self) -> float:
        """The weight of |x|_1."""
        ...

    @property
    def l2(self) -> float:
        """The weight of |x|^2 / 2."""
        ...

    def value(self, x: Array) -> float:
        """Return h(x); infinity outside the domain."""
        ...

    def dual_step(self, z: Array, A: float, gamma: float, out: Array) -> None:
        """Write argmin_x <z, x> + A h(x) + gamma |x|^2 / 2 to `out`."""
        ...

    def add_dual_steps(self, z: Array, a: Array, A: Array, gamma: Array, total: Array, scratch: Array) -> None:
        """Add sum_s a[s] dual_step(z, A[s], gamma[s]) to `total`."""
        ...

    def prox(self, v: Array, step: float, out: Array) -> None:
        """Write argmin_x h(x) + |x - v|^2 / (2 step) to `out`."""
        ...


class Draws(Protocol):
    """A rank's own source of randomness, for what must stay secret beside the noise."""

    def uniforms(self, count: int) -> Array:
        """Return `count` uniform numbers from (0, 1)."""
        ...

    @property
    def position(self) -> list[int]:
        """How far the source has come."""
        ...

    def seek(self, position: Sequence[int]) -> None:
        """Go to a position."""
        ...


class Witness(Protocol):
    """Keeps, on the rank alone, what the outputs of a method with random weights gave away."""

    def saw(self, output: Array, low: Array, high: Array, scale: float, reach: float) -> None:
        """Note one output.

        Before its Laplace noise of scale `scale`, the output was uniform on [low, high] in each coordinate; one record
        can move it by `reach`.
        """
        ...


@dataclass(slots=True)
class Clock:
    """Seconds that a rank's releases took."""

    ledger: float = 0.0
    noise: float = 0.0
    """What was drawn ahead included."""


@dataclass(slots=True)
class Agent:
    """One rank as an algorithm sees it."""

    rank: int
    share: float
    """The expected fraction of ranks that are active in a round (iota)."""
    terms: Terms
    problem: Problem
    penalty: Penalty
    mechanism: Mechanism
    charges: Charges
    stream: Draws
    witness: Witness | None = None
    round: int = 0
    active_rounds: int = 0
    releases: int = 0
    """How many were made, or would have been but for the budget; the parts of one count as one."""
    stopped: int | None = None
    """The first round in which the budget did not allow a release."""
    admitted: bool = True
    """Whether the budget allowed the last one."""
    clock: Clock = field(default_factory=Clock)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.terms.size

    @property
    def dimension(self) -> int:
        """The length of the model."""
        return self.terms.dimension

    def release(self, query: Query, scale: float = 1.0, part: int = 0) -> Sendable:
        """Charge the query to this rank's ledger, then add noise to its value, in place.

        Queries with part = 0, 1, 2, ... are parts of one vector that together have the declared sensitivity: the first
        is charged for all. When the budget does not allow it, the release is zero: free of data, so the rank goes on
        mixing and nobody else notices. The decision depends on public parameters alone.

        With noise inside the sum the value is `Hidden` in it, zero or not, together with this rank's part of the noise,
        which protects the others too.
        """
        begin = perf_counter()
        admitted = self._admits(query, scale, part)
        charged = perf_counter()
        said: Sendable
        if self.mechanism.hides:
            said = Hidden(query.value, self.mechanism.part(scale))
        else:
            if admitted:
                self.mechanism.perturb(query.value, scale)
            said = Release(query.value)
        self.clock.ledger += charged - begin
        self.clock.noise += perf_counter() - charged
        return said

    def release_inside(self, query: Query, solve: Callable[[Array], None], scale: float = 1.0) -> Release:
        """Charge the query, then return what `solve` makes of noise, in the query's buffer.

        For noise inside an objective: `query` is the objective's gradient at some public point, which one record moves
        by at most its sensitivity at every point, and `solve` overwrites the noise with the minimiser.
        """
        begin, solving = perf_counter(), 0.0

        def timed(value: Array) -> None:
            nonlocal solving
            since = perf_counter()
            solve(value)
            solving += perf_counter() - since

        admitted = self._admits(query, scale, 0)
        charged = perf_counter()
        if admitted:
            self.mechanism.through(query.value, timed, scale)
        self.clock.ledger += charged - begin
        self.clock.noise += perf_counter() - charged - solving
        return Release(query.value)

    def _admits(self, query: Query, scale: float, part: int) -> bool:
        """Charge, and return True; or empty the buffer and return False."""
        if part == 0:
            self.releases += 1
            try:
                self.charges.charge(self.mechanism.event(query, scale), self.round)
                self.admitted = True
            except BudgetExceeded:
                self.stopped = self.stopped or self.round
                self.admitted = False
        if not self.admitted:
            query.value.fill(0.0)
        return self.admitted
