"""Contracts of hooks: a method that leaves one out, or says something else than it does, is found."""

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from dpmpi.algorithms import ALGORITHMS
from dpmpi.algorithms.admm import Admm
from dpmpi.algorithms.dda import DpDda
from dpmpi.algorithms.dgd import DpDgd
from dpmpi.algorithms.ldp_admm import LdpAdmm
from dpmpi.algorithms.r_admm import RAdmm
from dpmpi.algorithms.rcd import Rcd
from dpmpi.core import Array, Exchanges, Method, Mix, NeighbourSum, combine, public
from dpmpi.testing import check_allocations, check_exchanges, check_method, check_regroup, check_releases, check_resume

COMPLETE = {"graph": "complete", "loss": "logistic"}


def without(cls, hook):
    """The method with a hook left out."""
    return type(f"{cls.__name__}Without", (cls,), {hook: getattr(Method, hook)})


@dataclass
class State:
    x: Array
    y: Array
    s: Array
    scratch: Array


@dataclass(frozen=True)
class Tracking(Method):
    """Gradient tracking: y_i <- sum_j w_ij (y_j + s_j - last s_j), x_i <- sum_j w_ij (x_j - eta (y_j + l2 x_j))."""

    def exchanges(self, terms):
        return [Exchanges("neighbours", terms.dimension, 2 * terms.active_rounds)]

    def start(self, agent):
        return State(*(np.zeros(agent.dimension) for _ in range(4)))

    def round(self, agent, state, t):
        x, y, s = state.x, state.y, agent.release(agent.problem.subgradient(state.x)).value
        combine(y, (1.0, y), (1.0, s), (-1.0, state.s))
        np.copyto(state.s, s)
        yield Mix(public(y, because="a sum of releases"), out=y)
        combine(x, (1.0 - 0.2 * agent.terms.strong_convexity, x), (-0.2, y), scratch=state.scratch)
        yield Mix(public(x, because="a sum of releases"), out=x)

    def regroup(self, agent, state):
        np.copyto(state.y, state.s)
        yield from ()

    def model(self, agent, state, t, out):
        np.copyto(out, state.x)


def test_a_method_with_all_its_hooks_passes():
    check_method(Tracking)


# --- exchanges, asks, ends_early -------------------------------------------------------------------------------------


class Longer(DpDda):
    """Sends one number more than foreseen."""

    def round(self, agent, state, t):
        yield from super().round(agent, state, t)
        yield Mix(public(np.zeros(1), because="a constant"))


class Whispering(DpDda):
    """Asks for something else than it says."""

    def round(self, agent, state, t):
        yield from super().round(agent, state, t)
        yield NeighbourSum(public(state.z, because="a sum of releases"))

    def exchanges(self, terms):
        return [Exchanges("neighbours", terms.dimension, 2 * terms.active_rounds)]


class Quitting(DpDda):
    """Falls silent after round 8."""

    def round(self, agent, state, t):
        if t <= 8:
            yield from super().round(agent, state, t)


class Early(Quitting):
    def ends_early(self):
        return True


@pytest.mark.parametrize(
    ("bug", "settings", "message"),
    [
        (without(Tracking, "exchanges"), {}, "correct `exchanges`"),
        (without(Rcd, "exchanges"), COMPLETE, "correct `exchanges`"),
        (without(ALGORITHMS["dp-admm"], "exchanges"), {}, "correct `exchanges`"),
        (Longer, {}, "12 times 1 numbers to 2"),
        (without(Admm, "asks"), {"loss": "logistic"}, "correct `asks`"),
        (Whispering, {}, "correct `asks`"),
        (Quitting, {}, "say so in `ends_early`"),
    ],
)
def test_exchanges_that_were_not_foreseen_are_found(bug, settings, message):
    with pytest.raises(AssertionError, match=message):
        check_exchanges(bug, **settings)


def test_a_method_that_ends_early_may_send_less():
    check_exchanges(Early)


# --- resume ----------------------------------------------------------------------------------------------------------


class Remembering(DpDda):
    """Keeps what it carries from round to round beside the state."""

    def start(self, agent):
        object.__setattr__(self, "mine", {**getattr(self, "mine", {}), agent.rank: np.zeros(agent.dimension)})
        return super().start(agent)

    def round(self, agent, state, t):
        state.z += self.mine[agent.rank]
        yield from super().round(agent, state, t)
        self.mine[agent.rank] += 1e-3


class Touching(DpDda):
    """Changes its state when somebody looks at the model."""

    def model(self, agent, state, t, out):
        state.z *= 0.5
        super().model(agent, state, t, out)


class Bare(DpDda):
    """Has an array for a state."""

    def start(self, agent):
        return np.zeros(agent.dimension)

    def round(self, agent, state, t):
        yield Mix(agent.release(agent.problem.subgradient(state)), out=state)

    def model(self, agent, state, t, out):
        np.copyto(out, state)


@pytest.mark.parametrize(
    ("bug", "settings", "message"),
    [
        (Remembering, {}, "keep all that is carried"),
        (Touching, {}, "looking at the model"),
        (Bare, {}, "a dataclass of arrays and numbers"),
        (without(Rcd, "resume"), COMPLETE, "begin a new charge in `resume`"),
    ],
)
def test_a_run_that_cannot_be_resumed_is_found(bug, settings, message):
    with pytest.raises(AssertionError, match=message):
        check_resume(bug, **settings)


# --- regroup ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["ring", "complete"])
@pytest.mark.parametrize("bug", [without(cls, "regroup") for cls in (Tracking, Admm, RAdmm, LdpAdmm)])
def test_what_a_lost_rank_leaves_behind_is_found(bug, graph):
    with pytest.raises(AssertionError, match="undo in `regroup`"):
        check_regroup(bug, graph=graph)


def test_survivors_that_rest_before_they_were_heard_of_are_found():
    """Nobody had moved for a while, but for the notes of a rank at the other end, which have not come yet."""
    settings, options = {"n": 9, "rounds": 88, "at": 9}, {"consensus_rounds": 80, "tolerance": 0.1}
    check_regroup(partial(DpDgd, **options), **settings)
    with pytest.raises(AssertionError, match="undo in `regroup`"):
        check_regroup(partial(without(DpDgd, "regroup"), **options), **settings)


# --- allocations, and what is said of releases -----------------------------------------------------------------------


class Wasteful(DpDda):
    def round(self, agent, state, t):
        state.z[:] = state.z + 0.0
        yield from super().round(agent, state, t)


def test_a_vector_a_round_is_found():
    with pytest.raises(AssertionError, match="allocated in a round"):
        check_allocations(Wasteful)


@pytest.mark.parametrize(
    ("bug", "settings", "message"),
    [
        (type("Wide", (DpDda,), {"width": lambda self, m: m + 1}), {}, "correct `width`"),
        (without(LdpAdmm, "testifies"), {"loss": "logistic"}, "correct `testifies`"),
        (type("Testifies", (DpDda,), {"testifies": True}), {}, "correct `testifies`"),
        (without(RAdmm, "releases"), {"loss": "logistic"}, "correct `releases`"),
    ],
)
def test_releases_other_than_the_hooks_say_are_found(bug, settings, message):
    with pytest.raises(AssertionError, match=message):
        check_releases(bug, **settings)


class Looking(DpDda):
    """Looks at its own release."""

    def round(self, agent, state, t):
        s = agent.release(agent.problem.subgradient(state.x))
        state.z += s.value
        yield Mix(public(state.z, because="a sum of releases"), out=state.z)


def test_a_release_that_is_looked_at_does_not_add_up():
    with pytest.raises(AssertionError, match=r"noise in the sum: .*only the sum may be looked at"):
        check_method(Looking)


# --- the table -------------------------------------------------------------------------------------------------------


class Telling(DpDda):
    """Sends its gradient as it is, beside what it may send."""

    def round(self, agent, state, t):
        query = agent.problem.subgradient(state.x)
        raw = query.value.copy()
        agent.release(query)
        yield Mix(public(raw, because="nobody asks"), out=state.z)


class Unsaid(DpDda):
    """Hands a query to the exchange instead of its release."""

    def round(self, agent, state, t):
        yield Mix(agent.problem.subgradient(state.x))


class Falling(DpDda):
    """Divides by zero in round 2."""

    def round(self, agent, state, t):
        if t == 2:
            1 / 0  # noqa: B018 - the bug
        yield from super().round(agent, state, t)


class Forgetful(DpDda):
    """Is more than its fields say."""

    def __eq__(self, other):
        return self is other

    __hash__ = None


@pytest.mark.parametrize(
    ("bug", "broken", "kept", "words"),
    [
        (Telling, "check_no_leak", "check_settings", "depends on unreleased data"),
        (Unsaid, "check_no_leak", "check_settings", "expected a Release or public"),
        (Falling, "check_exchanges", "check_settings", r"test_hooks.py, line \d+: ZeroDivisionError: division by zero"),
        (Longer, "check_exchanges", "check_no_leak", "correct `exchanges`"),
        (Remembering, "check_resume", "check_releases", "keep all that is carried"),
        (Forgetful, "check_settings", "check_no_leak", "keep all that it is in its fields"),
    ],
)
def test_the_table_says_which_contract_is_broken_and_how(capsys, bug, broken, kept, words):
    with pytest.raises(AssertionError, match=words):
        check_method(bug)
    table = capsys.readouterr().out
    assert re.search(rf"^  BROKEN  {broken} ", table, re.MULTILINE), table
    assert re.search(rf"^  ok      {kept} ", table, re.MULTILINE), table
    assert re.search(words, table)
    assert re.search(r"\d of \d+ contracts kept\n$", table)
