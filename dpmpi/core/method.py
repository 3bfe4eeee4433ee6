"""What an algorithm is: frozen hyperparameters, a generator per round, and what it will release and send.

A method knows nothing of MPI, files or keys. Its generator yields what it wants to say (`Mix`, `Gather`, `Sum`) and is
resumed with what it hears.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field, fields, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, get_args

import numpy as np

from dpmpi.core.frozen import frozen
from dpmpi.core.messages import Array, Sampling, Steps
from dpmpi.errors import ConfigError

if TYPE_CHECKING:
    from dpmpi.core.agent import Agent

Audience: TypeAlias = Literal["neighbours", "everyone"]
Asked: TypeAlias = Literal["mix", "neighbour sum", "gather", "sum"]


@frozen
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
    """A bound of the curvature of a mean loss that holds for all data; None if there is none."""
    curvature_floor: float
    """The strong convexity of a mean loss that holds for all data."""
    strong_convexity: float
    """That of the penalty: its l2 weight."""
    l1: float
    """The penalty's l1 weight."""
    bounded: bool
    """Whether the model is confined to a domain."""
    mixing: float
    """How much of a disagreement one mix leaves: the second largest |eigenvalue| of W, for methods that accelerate; 1
    for others, and where edges change."""
    weight: float = 1.0
    """f_i is this many times the mean loss of the rank's records; the mean over the ranks is 1."""
    largest_weight: float = 1.0
    """The largest weight of any rank."""
    scores: int = 1
    """The scores of a record, K: the model has K numbers for each column, side by side."""
    own_penalty: bool = False
    """Whether the penalty is one of the user's own, of which nothing is known but its value and its proximal steps."""
    integrable: bool = True
    """Whether a record's clipped gradient is that of a convex function: not so where K scores are clipped."""

    @property
    def gradient_sensitivity(self) -> float:
        """How far replacing one record moves a gradient: 2 L weight over the (expected) size of its batch."""
        return 2.0 * self.own_lipschitz / self.sampling.expected

    @property
    def own_lipschitz(self) -> float:
        """The norm bound of this rank's gradient."""
        return self.lipschitz * self.weight

    @property
    def own_smoothness(self) -> float | None:
        """A bound of the curvature of this rank's f_i."""
        return None if self.smoothness is None else self.smoothness * self.weight

    @property
    def largest_smoothness(self) -> float | None:
        """A bound of the curvature of every rank's f_i."""
        return None if self.smoothness is None else self.smoothness * self.largest_weight


@frozen
class Facts:
    """The public facts from which a method derives what is not given: on private data nobody can tune."""

    rounds: int
    """Of the run; 0 while they are still to be derived."""
    ranks: int
    share: float
    """The expected fraction of ranks that are active in a round."""
    dimension: int
    lipschitz: float
    flow: float
    """How far to go: the more noise, the less. A gradient of norm 1 moves the model by so much in all rounds."""
    longest_step: float
    """The longest step for which gradient descent cannot overshoot."""
    noise: float
    """L nu: the noise of the mean gradient in every coordinate over sqrt(rounds), if Gaussian; 0 without noise."""
    mechanism: str
    """The kind of noise."""
    max_degree: int
    """Neighbours of the rank that has most; 0 where they change from round to round."""
    scores: int = 1
    """The scores of a record, K, as in `Terms`."""


def rounds_to_go(facts: Facts, step: float, least: int, most: int) -> int:
    """Return the rounds in which steps of this length go as far as `Facts.flow`, within limits."""
    return min(max(math.ceil(facts.flow / step), least), most)


def held_back(steps: float, terms: Terms) -> float:
    """Return how far steps of this length in all go under an l2 penalty of weight l2: never farther than 1/l2."""
    return steps / (1.0 + terms.strong_convexity * steps)


def four_digits(x: float) -> float:
    """Return x to four digits: a setting that people can read, and that unlike machines agree on."""
    return float(f"{x:.4g}")


@frozen
class Planned:
    """A release that a method will make: how far one record can move it, and its noise relative to the run's sigma."""

    sensitivity: float
    """L2, replace-one, for a record that takes part."""
    scale: float = 1.0
    count: int = 1
    """How many such releases follow each other."""
    extra: float = 0.0
    """A pure privacy loss on top, as in `Query`."""
    inside: bool = False
    """Whether the noise is in an objective, as in `Query`."""


@frozen
class Exchanges:
    """Messages that a method will send: to whom, numbers in each, and how many times."""

    audience: Audience
    length: int
    count: int

    def __post_init__(self) -> None:
        if self.audience not in get_args(Audience):
            raise ConfigError(f"expected the audience {' or '.join(get_args(Audience))}, found {self.audience!r}")


@frozen
class Gossip:
    """How messages go on from round to round: what bounds of what a curious rank hears need to know.

    In round t = 1 ... T rank j says m_j(t) = F_jt(sum_k w_jk m_k(t-1)) + a_t (the noise of its release of the round) to
    its neighbours and nothing else, where F_jt moves no two points apart, and m_k(0) = 0.
    """

    weights: Array
    """a_1 ... a_T."""
    ends_with_messages: bool
    """Whether the models at the end are functions of the last messages m_j(T) of all ranks."""


def hyperparameter(
    default: Any, text: str, minimum: float | None = None, maximum: float | None = None, beyond: str = "lower it"
) -> Any:
    """Return a field of a method: a flag and a TOML key with this help text, at least `minimum`, at most `maximum`.

    `beyond` tells someone who asks for more than that why it is refused, and what to do.
    """
    limits = {"minimum": minimum, "maximum": maximum, "beyond": beyond}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    return field(default=default, metadata={"help": text} | given)


@cache
def _of_vectors(names: tuple[str, ...]) -> Any:
    """Return a dataclass of vectors."""
    return make_dataclass("State", [(name, Array) for name in names])


class Method:
    """The base of all algorithms, which are frozen dataclasses of hyperparameters.

    The state is a dataclass of arrays and numbers: all that an agent carries from round to round.
    """

    vectors: ClassVar[tuple[str, ...]] = ("x",)
    """What the state holds, by name: vectors of the model's length that begin with zeros."""
    state: ClassVar[Any] = None
    """The dataclass of the state, for a method that wants one of its own; if of other things, with a `start`."""
    schedule: ClassVar[Literal["static", "sampled"]] = "static"
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian",)
    """The kinds of noise that the method can use; the first is the default."""

    asks: ClassVar[tuple[Asked, ...]] = ("mix",)
    """What kinds of requests it makes."""
    adds_up: ClassVar[bool] = False
    """Whether releases enter through the sum over all ranks alone, so that noise may be inside of it."""
    usual_rounds: ClassVar[int] = 100
    """How many rounds to run, if nobody says."""
    settles: ClassVar[bool] = True
    """Whether it goes to the optimum, and not only as far as its steps are meant to."""
    linear: ClassVar[bool] = False
    """Whether, for fixed gradients and a quadratic penalty, the mean of all ranks' models is a linear function of the
    mean over the ranks of their releases: one a round, each mixed in place."""
    testifies: ClassVar[bool] = False
    """Whether the method tells a `Witness` what its outputs gave away."""

    def accelerates(self) -> bool:
        """Return whether its steps depend on how fast the graph mixes (`Terms.mixing`), which takes time to find."""
        return False

    def fitting_rounds(self, facts: Facts) -> int:
        """Return how many rounds to run, if nobody says."""
        return self.usual_rounds

    def fitting_penalty(self, facts: Facts) -> str:
        """Return the penalty, if nobody says.

        None for a method that stops on its way, as far as the noise allows. One that settles at the optimum is held
        back by an l2 weight of 1/flow: gradient flow for so long, and the optimum under that weight, are alike.
        """
        return f"l2:{four_digits(1.0 / facts.flow):g}" if self.settles else "none"

    def fitted(self, facts: Facts) -> Self:
        """Return the method with hyperparameters that are not given derived; by default it derives them as it goes."""
        return self

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return the numbers that it finds by rules of its own, by name: for people who ask what was derived.

        They follow from the ranks and the graph, so that they are found again when a rank is lost.
        """
        return {}

    def flow(self, terms: Terms) -> float | None:
        """Return how far the rounds go, as `Facts.flow`: `held_back` of all steps; None where that cannot be said."""
        return None

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

    def gossip(self, terms: Terms) -> Gossip:
        """Return how messages go on; raise `ConfigError` with the reason if not as `Gossip` says."""
        raise ConfigError("the messages of the method are not known to be noised steps that move no two points apart")

    def ends_early(self) -> bool:
        """Return whether a run may fall silent before its last round, so that fewer messages are sent."""
        return False

    def start(self, agent: Agent) -> Any:
        """Return the state before round 1; by default zeros."""
        kind = self.state or _of_vectors(self.vectors)
        return kind(*(np.zeros(agent.dimension) for _ in fields(kind)))

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
        """Write the model after round t to `out`, without touching the state; by default the state's x."""
        np.copyto(out, state.x)
