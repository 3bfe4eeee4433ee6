"""From a plan and its noise to the figures of a verdict: signal against noise in what the method releases.

Rank i makes releases k that a record moves by D_k at most, under noise of deviation s_k in a coordinate: that of the
plan, whatever the mechanism, the batch and the place of the noise. What they tell about a mean gradient, which a record
moves by 2 L w_i / b, is told as well by one of noise

    e_i = (2 L w_i / b) / sqrt(sum_k (D_k / s_k)^2),                                                      (1)

as precisions add up, and a release (a gradient, a step, a minimiser) is as far below its noise as the gradient behind
it. The mean over the ranks has the noise L nu by the place of the noise. For Gaussian releases of all records this is
nu of `derived.py`; spherical Laplace noise, whose radius grows with the columns, and small batches have more.

A clip L above the usual one, L', adds noise and no signal. One below it keeps steps from getting anywhere: with tau how
far they go,

    nu max(1, L / L')      and      tau min(1, L / L')                                                    (2)

are what is compared, where rows have norm 1 at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpmpi.core import Terms
from dpmpi.runtime.derived import FARTHEST_MOMENTUM, flow_time, noise_rate
from dpmpi.runtime.plan import Plan
from dpmpi.runtime.verdict import Figures, Verdict, verdict


def expected(plan: Plan, sigmas: Sequence[float], fits: float = 1.0) -> Verdict | None:
    """Return the verdict if this part of the releases fits the budgets; None without noise or labels."""
    settings, config, loss = plan.settings, plan.config, plan.settings.loss
    nu = released_noise(plan, sigmas)
    if not nu or loss is None:
        return None
    L, numbers = plan.lipschitz, not settings.classifies
    ratio = L / loss.clip if config.normalize else 1.0
    flows = [plan.method.flow(terms) for terms in plan.kinds]
    flow = max((flow for flow in flows if flow is not None), default=None)
    seen = nu * max(1.0, ratio)  # (2)
    usual = noise_rate(settings, plan.records, L) if config.epsilon is not None else nu
    return verdict(
        Figures(
            ranks=plan.ranks,
            records=sum(plan.records),
            smallest=min(plan.records),
            dimension=plan.dimension // settings.scores,
            clip=L,
            nu=seen,
            usual=usual * max(1.0, ratio),
            share=None if numbers else config.smaller_class,
            classes=max(2, settings.scores),
            numbers=numbers,
            flow=None if flow is None else flow * min(1.0, ratio),
            advised=min(flow_time(settings, seen, plan.dimension, L / ratio), FARTHEST_MOMENTUM),
            clip_ratio=ratio,
            epsilon=config.epsilon,
            delta=config.delta or 1e-5,
            fits=fits,
        )
    )


def released_noise(plan: Plan, sigmas: Sequence[float]) -> float:
    """Return nu: the noise (1) of the mean gradient over L; 0 without noise."""

    def told(terms: Terms) -> float:
        unit = terms.gradient_sensitivity
        found = math.hypot(
            *(math.sqrt(r.count) * (r.sensitivity / unit / r.scale) for r in plan.method.releases(terms))
        )
        return 1.0 / found if found else 0.0

    each = [sigma * ratio for sigma, ratio in zip(sigmas, plan.of_ranks(told), strict=True)]
    return plan.settings.noise.mean_deviation(each) / plan.lipschitz
