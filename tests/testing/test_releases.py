"""Contracts of releases: a method that leaks, understates or does not foresee is found."""

from dataclasses import dataclass

import numpy as np
import pytest

from dpmpi.algorithms.dda import DpDda, State
from dpmpi.core import Agent, Method, Mix, NeighbourSum, Planned, Query, Steps, public
from dpmpi.errors import LeakError
from dpmpi.testing import check_no_leak, check_releases, check_sensitivity, check_work


@dataclass(frozen=True)
class Leaky(DpDda):
    """Declares a point to be public that was computed from an unreleased gradient."""

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        query = agent.problem.subgradient(state.x)
        state.z += query.value
        state.z[:] = yield Mix(public(state.z, because="it is not"))


def test_no_leak_finds_the_leaky():
    with pytest.raises(AssertionError, match="unreleased data"):
        check_no_leak(Leaky)


@dataclass(frozen=True)
class Hoarding(DpDda):
    """Sends nothing but releases, and shows a point after a step of its own: only the end is clean."""

    def model(self, agent: Agent, state: State, t: int, out: np.ndarray) -> None:
        super().model(agent, state, t, out)
        if t < agent.terms.rounds:
            out -= agent.problem.subgradient(out.copy()).value


def test_no_leak_looks_at_models_half_way():
    with pytest.raises(AssertionError, match="a model half way depends on unreleased data"):
        check_no_leak(Hoarding)


@dataclass(frozen=True)
class Impatient(DpDda):
    """Looks at the records once more where the first gradient is not small: a solver that stops when it is done."""

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        if np.linalg.norm(agent.problem.subgradient(state.x).value) > 1e-3:
            agent.problem.subgradient(state.x)
        yield from super().round(agent, state, t)


def test_work_finds_the_impatient():
    with pytest.raises(AssertionError, match="fixed in advance"):
        check_work(Impatient)
    check_work(DpDda, batch="5")


@dataclass(frozen=True)
class Understated(DpDda):
    """Declares half of the sensitivity."""

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        problem = agent.problem
        steps = super().round(agent, state, t)
        query = problem.subgradient(state.x)
        object.__setattr__(query, "sensitivity", 1.0 * problem.lipschitz / query.sampling.expected)
        yield from steps


def test_sensitivity_finds_the_understated():
    with pytest.raises(AssertionError, match="declares a sensitivity"):
        check_sensitivity(Understated)


def test_an_exchange_takes_nothing_but_releases():
    with pytest.raises(LeakError, match=r"agent\.release"):
        Mix(np.zeros(3))


@dataclass(frozen=True)
class Descent(Method):
    """Gradient steps on the released gradients, around the neighbours' mean."""

    foreseen: float = 1.0

    def start(self, agent):
        return np.zeros(agent.dimension)

    def round(self, agent, state, t):
        s = agent.release(agent.problem.subgradient(state))
        heard = yield NeighbourSum(public(state, because="a function of releases"))
        state *= 0.5
        state += heard * (0.5 / agent.terms.degree) - 0.1 * s.value

    def model(self, agent, state, t, out):
        out[:] = state

    def releases(self, terms):
        return [Planned(self.foreseen * terms.gradient_sensitivity, count=terms.active_rounds)]


class Pieces(Descent):
    """Sends the gradient coordinate by coordinate, each as a part of one vector; `foreseen` scales what it declares."""

    def width(self, dimension):
        return 1

    def round(self, agent, state, t):
        part = (t - 1) % agent.dimension
        value = agent.problem.subgradient(state).value[part : part + 1].copy()
        declared = self.foreseen * agent.terms.gradient_sensitivity
        released = agent.release(Query(value, declared, agent.terms.sampling), part=part)
        heard = yield NeighbourSum(released)
        state[part] -= 0.1 * float(heard[0])


def test_the_checks_pass_a_method_that_says_what_it_does():
    for loss in ("hinge", "mean"):
        check_no_leak(Descent, loss=loss)
        check_sensitivity(Descent, loss=loss)
        check_releases(Descent, loss=loss, graph="star")


def test_releases_that_were_not_foreseen_are_found():
    with pytest.raises(AssertionError, match="foreseen"):
        check_releases(lambda: Descent(foreseen=0.5))


def test_the_parts_of_a_vector_count_together():
    check_sensitivity(Pieces, rounds=14)
    with pytest.raises(AssertionError, match="sensitivity"):
        check_sensitivity(lambda: Pieces(foreseen=0.5), rounds=14)
