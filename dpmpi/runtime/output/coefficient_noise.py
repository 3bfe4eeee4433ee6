"""How much of a model's coefficients is noise, from public facts alone.

For a method that is `linear`, with gradients taken as fixed and a quadratic penalty or none, the mean of all ranks'
models depends on the noise n_i(t) that rank i adds to its release of round t by

    x = x_0 + sum_t k_t (1/n) sum_{i active in t} n_i(t)                                                        (1)

with weights k_t that follow from the method alone. W is doubly stochastic, so that means over all ranks go as a single
agent does: one that is alone, has no data, and whose noise of round t is the t-th unit vector of R^T, ends with the
model (k_1, ..., k_T). With standard deviations s_i(t) = sigma_i scale_i(t), each coordinate of x has the deviation

    sigma_x = (1/n) sqrt( sum_t k_t^2 sum_{i active in t} s_i(t)^2 )                                            (2)

For more than `MOST_EXACT` rounds the agent's noise is `DRAWS` independent public draws of the noise of (2) instead, and
sigma_x the root mean square of what it ends with, to about 2%.

It is the noise that releases bring in directly, with gradients held fixed. Gradients of later rounds react to the noise
of earlier ones and take part of it back; how much depends on the records and is not in (2), and neither is the draw of
batches. So a coefficient has at most about this noise, and may have a fifth of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpmpi.core import Array, Draws, Event, Integers, Mix, Query, Sampling
from dpmpi.errors import ConfigError
from dpmpi.problem.penalties import Regulariser
from dpmpi.rng import public_generator
from dpmpi.runtime.assembly import build_agent
from dpmpi.runtime.job import Job
from dpmpi.runtime.plan import Plan

MOST_EXACT = 2000
DRAWS = 2000
WHAT = (
    "at most about this standard deviation in each coefficient: what the noise of releases brings in with gradients "
    "held fixed; later rounds take part of it back, how much depends on the records"
)
ADVICE = "a coefficient above twice it is hardly noise alone, one below may be either"


def coefficient_noise(job: Job, stopped: bool) -> tuple[tuple[float, float] | None, str]:
    """Return the deviation of a coefficient and of an intercept, in scores, and what it is or why it is not known.

    `stopped`: whether a rank ran out of its budget, so that it added no noise from then on.
    """
    plan, settings = job.plan, job.settings
    if not any(job.sigmas):
        return (0.0, 0.0), "none was added"
    why = _unknown(plan)
    if job.past.lost or job.incarnation or stopped:
        why = "a rank was lost, ran out of its budget, or the run was resumed"
    if why is not None:
        return None, f"not known: {why}"
    try:
        sigma = mean_model_noise(plan, job.sigmas)
    except ConfigError as error:  # of a plug-in; a run that is through does not fail for it
        return None, f"not known: {error}"
    scale = 1.0 / math.hypot(1.0, settings.constant)
    return (scale * sigma, scale * settings.constant * sigma), f"{WHAT}; {ADVICE}"


def _unknown(plan: Plan) -> str | None:
    """Return why (1) does not hold; None if it does."""
    penalty = plan.settings.penalty
    if not plan.method.linear:
        return f"{plan.config.algorithm} is not a linear function of its releases"
    if type(penalty) is not Regulariser or penalty.l1 or penalty.domain is not None:
        return "with another penalty than l2, or a domain, the model is not a linear function of the releases"
    return None


def mean_model_noise(plan: Plan, sigmas: Sequence[float]) -> float:
    """Return (2)."""
    variances = release_variances(plan, sigmas)
    if plan.rounds <= MOST_EXACT:
        k = _alone(plan, plan.rounds, lambda t: np.eye(1, plan.rounds, t - 1)[0])
        return math.sqrt(float(np.sum(k * k * variances)))
    draw = public_generator(0, "coefficient noise")
    drawn = _alone(plan, DRAWS, lambda t: math.sqrt(variances[t - 1]) * draw.standard_normal(DRAWS))
    return math.sqrt(float(np.mean(drawn * drawn)))


def release_variances(plan: Plan, sigmas: Sequence[float]) -> Array:
    """Return for every round t the variance of (1/n) times the sum of the noise of all ranks, in each coordinate."""
    found, n = np.zeros(plan.rounds), plan.ranks
    for rank, sigma in enumerate(sigmas):
        each = plan.settings.noise.deviation(sigma, n)
        planned = plan.method.releases(plan.terms(rank))
        scales = np.concatenate([np.full(release.count, release.scale) for release in planned] or [np.zeros(0)])
        rounds = [t - 1 for t, _ in plan.schedule.rounds(rank, 1, plan.rounds + 1)][: len(scales)]
        found[rounds] += (each * scales[: len(rounds)] / n) ** 2
    return found


def _alone(plan: Plan, width: int, noise: Callable[[int], Array]) -> Array:
    """Return the model of an agent that is alone, has no data, and adds `noise(t)` in round t."""
    plan = replace(plan, dimension=width, active=(plan.rounds,) * plan.ranks)
    mechanism = _Given(np.zeros(width))
    sampling = plan.terms(0).sampling
    agent = build_agent(plan, 0, bytes(32), _NoData(width, sampling), mechanism, charges=_Free())
    method, state = plan.method, plan.method.start(agent)
    for t in range(1, plan.rounds + 1):
        agent.round, mechanism.noise = t, noise(t)
        for request in method.round(agent, state, t):
            if not isinstance(request, Mix) or request.out is None:
                raise ConfigError(f"expected a linear method to mix in place, found {type(request).__name__}")
            mixed = request.vector.value + (0.0 if request.plus is None else request.times * request.plus.value)
            np.copyto(request.out, mixed)
    found = np.zeros(width)
    method.model(agent, state, plan.rounds, found)
    return found


@dataclass
class _NoData:
    """A problem whose gradient is 0 everywhere."""

    dimension: int
    sampling: Sampling
    records: int = 1
    weight: float = 1.0

    @property
    def stream(self) -> Draws:
        raise NotImplementedError

    def subgradient(self, x: Array) -> Query:
        return Query(np.zeros(self.dimension), 0.0, self.sampling)

    def value(self, x: Array) -> float:
        return 0.0

    def minimise(self, linear: Array, quadratic: float, smoothness: float, x: Array, tolerance: float) -> None:
        np.divide(linear, -quadratic, out=x)


@dataclass
class _Given:
    """A mechanism that adds what it is given."""

    noise: Array
    sigma: float = 1.0
    hides: bool = False
    cancels: bool = False

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        value += self.noise

    def event(self, query: Query, scale: float = 1.0) -> Event:
        return _NOTHING

    def part(self, scale: float = 1.0) -> Integers:
        raise NotImplementedError

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        pass

    def streams(self) -> Sequence[Draws]:
        return ()


class _Nothing:
    def to_dict(self) -> dict[str, str]:
        return {}


class _Free:
    """Charges of an agent without data: there are none."""

    def charge(self, event: Event, round_: int) -> None:
        pass


_NOTHING = _Nothing()
