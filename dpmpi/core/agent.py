"""One rank as an algorithm sees it, and the seams to what it is made of: problem, penalty, mechanism, ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from dpmpi.core.messages import Array, Hidden, Integers, Query, Release, Sendable
from dpmpi.core.method import Terms
from dpmpi.core.penalty import Penalty
from dpmpi.errors import BudgetExceeded


class Event(Protocol):
    """What one release does to privacy; frozen and serialisable."""

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-ready values."""


class Mechanism(Protocol):
    """Turns a query's value into a noised one."""

    sigma: float

    @property
    def hides(self) -> bool:
        """Whether the noise covers the sum over all ranks, and a value alone must not be seen."""

    @property
    def cancels(self) -> bool:
        """Whether others' noise cancels with this rank's, so that it goes on where nothing else may be released."""

    def part(self, scale: float = 1.0) -> Integers:
        """Return this rank's part of the noise of a sum, for a mechanism that hides."""

    def event(self, query: Query, scale: float = 1.0) -> Event:
        """Return the event of releasing `query` with noise of standard deviation `scale * sigma`."""

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Add the noise to `value`, in place."""

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Overwrite `value` with noise, then with what `solve` makes of it, in place."""

    def prepare(self) -> None:
        """Draw ahead what the next `perturb` will need; called while messages travel."""

    def streams(self) -> Sequence[Draws]:
        """Return the streams that it draws from, with nothing drawn ahead."""


class Charges(Protocol):
    """Where a rank's releases are charged before they are made."""

    def charge(self, event: Event, round_: int) -> None:
        """Record `event` durably; raise `BudgetExceeded` if it does not fit."""


class Problem(Protocol):
    """A rank's own part of the objective: f_i, its weight times the mean loss over its records."""

    records: int
    weight: float

    @property
    def stream(self) -> Draws:
        """What batches are drawn from."""

    def subgradient(self, x: Array) -> Query:
        """Return a subgradient of f_i at x over a freshly drawn batch, each record clipped to L."""

    def value(self, x: Array) -> float:
        """Return f_i(x) over all records."""

    def minimise(self, linear: Array, quadratic: float, smoothness: float, x: Array, tolerance: float) -> None:
        """Write argmin_w f_i(w) + <linear, w> + (quadratic/2) |w|^2 over all records to `x`.

        What is written is at most tolerance / quadratic from the minimiser. `smoothness` bounds the curvature of f_i
        for all data. The number of passes over the records is a function of L and of the three numbers: not of the
        records, nor of `linear`, which may hold noise.
        """


class Draws(Protocol):
    """A rank's own source of randomness, for what must stay secret beside the noise."""

    def uniforms(self, count: int, out: Array | None = None) -> Array:
        """Return `count` uniform numbers from (0, 1), in `out` if it is given."""

    @property
    def position(self) -> list[int]:
        """How far the source has come."""

    def seek(self, position: Sequence[int]) -> None:
        """Go to a position."""


class Witness(Protocol):
    """Keeps, on the rank alone, what the outputs of a method with random weights gave away."""

    def saw(self, output: Array, low: Array, high: Array, scale: float, reach: float) -> None:
        """Note one output.

        Before its Laplace noise of scale `scale`, the output was uniform on [low, high] in each coordinate; one record
        can move it by `reach`.
        """


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
        which protects the others too. Noise that cancels with that of others is added to a zero too: without it, theirs
        would stay in the mean.
        """
        begin = perf_counter()
        admitted = self._admits(query, scale, part)
        charged = perf_counter()
        said: Sendable
        if self.mechanism.hides:
            said = Hidden(query.value, self.mechanism.part(scale))
        else:
            if admitted or self.mechanism.cancels:
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
