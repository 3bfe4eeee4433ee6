"""Coordinate descent: all ranks hold the same model and change a few of its coordinates in a round.

Let M^ bound the curvature of every f_i along the coordinates. In round t, with B_t the block of coordinates whose turn
it is, which everybody knows, every rank i does

    s_i    = gradient of f_i at x, coordinates B_t, + noise                                         (1)
    x[B_t] = prox of h/M^ at  x[B_t] - (1/n) sum_j s_j / M^                                         (2)

starting from x = 0; the other coordinates stay. With blocks of one coordinate a rank sends one number a round. (1),
(2) are Eq. (72) of [XYD], Appendix K, for n ranks that combine as in its proof of Theorem 4.1: each steps from the
common point, and the next one is their mean. Noise of standard deviation sigma on the iterate is M^ sigma in (1).
h must be separable, so domains are not allowed.

Privacy: the data enter only through (1); sums of releases are post-processing. Take two shards that differ in one
record, (a, y) or (a', y'). A record's clipped gradient is c a with |c| <= L/|a| at *every* point x, so that the two
shards' gradients over b records differ in coordinate l, wherever they are taken, by at most

    Delta_l = (L/b) (|a_l|/|a| + |a'_l|/|a'|),    sum_l Delta_l^2 <= (2L/b)^2                       (3)

by the triangle inequality for the two unit vectors of absolute values. (For the mean loss, Delta = |d - d'|/b.) The
Delta_l are constants of the pair of shards. Hence a pass, in which every coordinate is released once, costs no more
than one Gaussian release of a vector that moves by Delta in all coordinates at once, although x changes between its
parts: under adaptive composition the parts make up mu^2 = sum_l Delta_l^2 / sigma^2. So a pass is charged as one
release of L2 sensitivity 2L/b, when it begins.

Without passes, the j-th visits of all coordinates are the parts of a j-th vector, and sum_l A_l Delta_l^2 <=
max_l A_l (2L/b)^2 for A_l visits: there is a charge whenever a coordinate is visited more often than any was before.
Coordinates in turn need rounds/blocks charges, random ones more.

Settings from public facts. A pass of steps 1/M^ goes 1/M^ far. With tau = `Facts.flow`, how far to go, there are

    clip(tau M^, 10, 200) passes, of 10 blocks unless their size is given                           (4)

Of a loss of K scores a record's gradient is the matrix a c' with |c| <= L/|a|. Its rows, of norm |a_l| |c|, obey (3);
its entries do not, as c turns from point to point. So a block must hold whole rows: all K numbers of its columns.

This holds for the full batch. Parts over fresh random batches do not compose to a sampled vector, so they are refused.

Corrected: [XYD] draws coordinates at random and bounds A_l by a Chernoff bound that fails with some probability; the
visits are public, so here they are counted. Its constant in sigma^2 drops the log(1/delta); the ledger does not.

[XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import (
    Agent,
    Array,
    Asked,
    Exchanges,
    Facts,
    Method,
    Planned,
    Query,
    Steps,
    Sum,
    Terms,
    held_back,
    hyperparameter,
    rounds_to_go,
)
from dpmpi.errors import ConfigError


@dataclass
class State:
    """What an agent carries from round to round."""

    x: Array
    visits: NDArray[np.int64]
    """How often each block was released."""
    charged: int
    """The largest number of visits, each of which was charged."""
    part: Array
    scratch: Array


@dataclass(frozen=True)
class Rcd(Method):
    """Coordinate descent on the sum of all ranks' derivatives, Appendix K of [XYD]."""

    asks: ClassVar[tuple[Asked, ...]] = ("sum",)

    coordinates: int | None = hyperparameter(
        None, "how many coordinates a round changes; auto: a tenth of them", minimum=1
    )
    coordinate_order: Literal["cyclic", "random"] = hyperparameter(
        "cyclic", "blocks in turn, or drawn by a public hash of the round"
    )
    curvature: float | None = hyperparameter(
        None, "M^: a step is 1/M^ long; derived: the smoothness, which is always enough", minimum=0.0
    )

    def fitting_rounds(self, facts: Facts) -> int:
        """Return (4), in rounds."""
        passes = rounds_to_go(facts, 1.0 / self.curvature if self.curvature else facts.longest_step / 2.0, 10, 200)
        return passes * -(-facts.dimension // self.fitted(facts).block(facts.dimension))

    def fitted(self, facts: Facts) -> Self:
        """Return the method with blocks of whole rows of several scores, if their size is not given."""
        if facts.scores == 1 or self.coordinates is not None:
            return self
        return replace(self, coordinates=facts.scores * -(-self.block(facts.dimension) // facts.scores))

    def block(self, dimension: int) -> int:
        """Return how many coordinates a round changes."""
        return -(-dimension // 10) if self.coordinates is None else min(self.coordinates, dimension)

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for random batches, domains, and losses without curvature."""
        if terms.sampling.kind != "full":
            raise ConfigError(f"expected all records in a pass of rcd, found {terms.sampling.kind}: use --batch full")
        if terms.own_penalty:  # it may not be a sum over coordinates
            raise ConfigError("expected a penalty l2, l1, elastic or none for rcd, found one of your own: use dp-dda")
        if terms.bounded:
            raise ConfigError("expected no --domain for rcd, which moves coordinates one by one, found one: drop it")
        if self.curvature is None and terms.smoothness is None:
            raise ConfigError(
                "expected a bound of the loss's curvature, from which rcd derives its step, found none: use --loss "
                "logistic with normalized rows, or set --curvature"
            )
        if self.block(terms.dimension) % terms.scores:
            raise ConfigError(
                f"expected blocks of whole rows of {terms.scores} scores, found --coordinates {self.coordinates}: take "
                f"--coordinates {terms.scores} or a multiple"
            )
        if self.curvature == 0.0:
            raise ConfigError("expected --curvature > 0, found 0: leave it out for the default")

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return M^, if it is derived."""
        return {"curvature": self._curvature(terms)} if self.curvature is None else {}

    def flow(self, terms: Terms) -> float:
        """Return how far the passes go, each 1/M^."""
        return held_back(terms.active_rounds / (self._blocks(terms) * self._curvature(terms)), terms)

    def releases(self, terms: Terms) -> Iterable[Planned]:
        """Return one release of a whole gradient for as many times as the coordinate visited most often is visited."""
        visits = np.zeros(self._blocks(terms), np.int64)
        if self.coordinate_order == "cyclic":
            return [Planned(terms.gradient_sensitivity, count=-(-terms.active_rounds // len(visits)))]
        for t in range(1, terms.active_rounds + 1):
            visits[self._turn(len(visits), t)] += 1
        return [Planned(terms.gradient_sensitivity, count=int(visits.max()))]

    def width(self, dimension: int) -> int:
        """Return the length of a block; the last one is filled up with zeros."""
        return self.block(dimension)

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return a block to everyone in every round."""
        return [Exchanges("everyone", self.width(terms.dimension), terms.active_rounds)]

    def start(self, agent: Agent) -> State:
        """Return x = 0 and no visits."""
        visits = np.zeros(self._blocks(agent.terms), np.int64)
        part, scratch = (np.zeros(self.width(agent.dimension)) for _ in range(2))
        return State(np.zeros(agent.dimension), visits, 0, part, scratch)

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run steps (1) and (2)."""
        turn = self._turn(len(state.visits), t)
        width = self.block(agent.dimension)
        x = state.x[turn * width : (turn + 1) * width]
        gradient = agent.problem.subgradient(state.x)
        state.part.fill(0.0)
        state.part[: x.size] = gradient.value[turn * width : (turn + 1) * width]
        state.visits[turn] += 1
        further = int(state.visits[turn] <= state.charged)  # a part of a vector that was charged before, by (3)
        state.charged += 1 - further
        s = agent.release(Query(state.part, gradient.sensitivity, gradient.sampling), part=further)  # (1)
        yield Sum(s, out=state.scratch)
        M = self._curvature(agent.terms)
        state.scratch /= -M * agent.size
        np.add(x, state.scratch[: x.size], out=state.part[: x.size])
        agent.penalty.prox(state.part[: x.size], 1.0 / M, out=x)  # (2)

    def resume(self, state: State) -> None:
        """Charge anew: the parts that come next are not those of the vector that was charged last."""
        state.visits.fill(0)
        state.charged = 0

    def _curvature(self, terms: Terms) -> float:
        return self.curvature or terms.smoothness or 1.0

    def _blocks(self, terms: Terms) -> int:
        return -(-terms.dimension // self.block(terms.dimension))

    def _turn(self, blocks: int, t: int) -> int:
        """Return the block of round t: in turn, or by a hash of t (SplitMix64)."""
        if self.coordinate_order == "cyclic":
            return (t - 1) % blocks
        word = t * 0x9E3779B97F4A7C15 % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            word = (word ^ word >> shift) * factor % 2**64
        return (word ^ word >> 31) % blocks
