"""The mean from one noisy local sum and consensus: the baseline that iterative methods for the mean have to beat.

For f_i(x) = c_i |x - d_i|^2 / 2 + constant, with d_i the mean of the records of rank i and weights c_i of mean 1, the
minimiser of F is the prox of h at the mean of the c_i d_i. In round 1 rank i releases c_i d_i, once; from then on all
ranks average:

    v_i(1) = sum_j w_ij (c_j d_j + noise)                                                (1)
    v_i(t) = sum_j w_ij v_j(t-1)                                                         (2)
    model  = argmin_x |x - v_i(t)|^2 / 2 + h(x)                                          (3)

c_i d_i is minus the gradient of f_i at 0, which is how it is asked for: one record moves it by 2 L c_i / b.

Privacy: the data enter through (1) alone, in one release that may spend the whole budget; (2), (3) are post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dpmpi.core import Agent, Array, Method, Mix, Planned, Steps, Terms, public
from dpmpi.errors import ConfigError

WHY_PUBLIC = "a weighted sum of released means"


@dataclass
class State:
    """What an agent carries from round to round."""

    v: Array


@dataclass(frozen=True)
class OneShot(Method):
    """One release, then consensus."""

    usual_rounds: ClassVar[int] = 500
    settles: ClassVar[bool] = False
    adds_up: ClassVar[bool] = True
    state: ClassVar[Any] = State
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian", "laplace", "spherical-laplace")

    def check(self, terms: Terms) -> None:
        """Refuse losses whose gradient at one point does not tell the minimiser."""
        if not terms.curvature_floor == terms.smoothness == 1.0:  # whatever a rank weighs
            raise ConfigError(
                "expected the loss mean for one-shot, found one that one gradient does not determine: "
                "use --loss mean with --data mean:..., or dp-dgd"
            )

    def releases(self, terms: Terms) -> list[Planned]:
        """Return the one release."""
        return [Planned(terms.gradient_sensitivity)] if terms.active_rounds else []

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (1), later (2)."""
        v = state.v
        if t == 1:
            released = agent.release(agent.problem.subgradient(v))
            yield Mix(public(v, because=WHY_PUBLIC), plus=released, times=-1.0, out=v)  # (1)
        else:
            yield Mix(public(v, because=WHY_PUBLIC), out=v)  # (2)

    def model(self, agent: Agent, state: State, t: int, out: Array) -> None:
        """Write (3) to `out`."""
        agent.penalty.prox(state.v, 1.0, out=out)
