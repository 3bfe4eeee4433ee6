"""From data to what may be said: queries, releases, and the requests of an algorithm.

There is one road from data to the wire:

    data --> Query (value + sensitivity) --> Release (charged, then noised) --> Channel (bytes to the neighbours)

Only a `Release`, or a `public` value, can be said.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.errors import LeakError

Array: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]


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
    `extra` is a pure privacy loss on top of what the noise hides, for noise that goes through a minimisation. `inside`
    says that the noise itself is in the objective, so that how far a record moves the value may depend on it.
    """

    value: Array
    sensitivity: float
    sampling: Sampling
    extra: float = 0.0
    inside: bool = False


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


class Request:
    """Something an algorithm yields: a sendable vector and, if wanted, where to put the answer."""

    __slots__ = ("out", "vector")

    def __init__(self, vector: Sendable, out: Array | None = None) -> None:
        if not isinstance(vector, Sendable):
            raise LeakError(
                f"expected a Release or public(value, because=...) in {type(self).__name__}, found "
                f"{type(vector).__name__}: data leaves a rank only through agent.release(query)"
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
            raise LeakError(
                f"expected a Release or public(value, because=...) to add in Mix, found {type(plus).__name__}"
            )
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
