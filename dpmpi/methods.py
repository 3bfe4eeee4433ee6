"""What an algorithm is: frozen hyperparameters, a generator per round, and what it will release and send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from dpmpi.core import Agent, Array, Steps, Terms

__all__ = ["Asked", "Audience", "Exchanges", "Method", "Planned", "Terms"]

Audience: TypeAlias = Literal["neighbours", "everyone"]
Asked: TypeAlias = Literal["mix", "neighbour sum", "gather", "sum"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A release that a method will make: how far one record can move it, and its noise relative to the run's sigma."""

    sensitivity: float
    """L2, replace-one, for a record that takes part."""
    scale: float = 1.0
    count: int = 1
    """How many such releases follow each other."""
    extra: float = 0.0
    """A pure privacy loss on top, as in `Query`."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Messages that a method will send: to whom, numbers in each, and how many times."""

    audience: Audience
    length: int
    count: int


class Method:
    """The base of all algorithms, which are frozen dataclasses of hyperparameters.

    The state is a dataclass of arrays and numbers: all that an agent carries from round to round.
    """

    schedule: ClassVar[Literal["static", "sampled"]] = "static"
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian",)
    """The kinds of noise that the method can use; the first is the default."""

    asks: ClassVar[tuple[Asked, ...]] = ("mix",)
    """What kinds of requests it makes."""
    adds_up: ClassVar[bool] = False
    """Whether releases enter through the sum over all ranks alone, so that noise may be inside of it."""
    testifies: ClassVar[bool] = False
    """Whether the method tells a `Witness` what its outputs gave away."""

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for a graph, loss, penalty or batch that the method cannot work with."""

    def width(self, dimension: int) -> int:
        """Return the length of a released vector; by default that of the model."""
        return dimension

    def releases(self, terms: Terms) -> Iterable[Planned]:
        """Return all releases of an agent in order of time; by default one gradient in every active round."""
        return [Planned(terms.gradient_sensitivity, count=terms.active_rounds)]

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return all messages of an agent, at most; by default a model to the neighbours in every active round."""
        return [Exchanges("neighbours", terms.dimension, terms.active_rounds)]

    def ends_early(self) -> bool:
        """Return whether a run may fall silent before its last round, so that fewer messages are sent."""
        return False

    def start(self, agent: Agent) -> Any:
        """Return the state before round 1."""
        raise NotImplementedError

    def round(self, agent: Agent, state: Any, t: int) -> Steps:
        """Run round t, in which this agent is active."""
        raise NotImplementedError

    def resume(self, state: Any) -> None:
        """Adapt a state that was kept: rounds after it may have been run already, and are run and charged again.

        By default there is nothing to do: a release is charged in the round in which it is made.
        """

    def regroup(self, agent: Agent, state: Any) -> Steps:
        """Adapt the state to a changed neighbourhood: ranks are gone, and `agent.terms` are those of the others.

        By default there is nothing to do: what is mixed stays what it was.
        """
        yield from ()

    def model(self, agent: Agent, state: Any, t: int, out: Array) -> None:
        """Write the model after round t to `out`, without touching the state."""
        raise NotImplementedError
