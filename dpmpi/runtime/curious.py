"""What curious ranks learn, rank by rank: the figures of `privacy/network_privacy.py` for a plan, if its terms hold.

The certificate of a run stays that of the wire. For a set A of curious ranks and the records of each other rank u there
are two smaller figures, at the run's delta:

    epsilon               covers all that A gets: what it hears in the rounds, and the models at the end        (1)
    epsilon_of_messages   covers what it hears in the rounds alone                                              (2)

Every rank gets the mean model at the end, and every trust domain the model of each rank if messages are plain. If they
are functions of the ranks' last messages, (1) is the theorem with c(T) = 0. If they are means over all rounds, as in
dual averaging, they are sums of all releases that no later noise covers, and (1) is the figure of the wire. Where a
condition of the theorem does not hold both are the wire's, with the reasons. Where more ranks are curious than noise
that ranks share is made for, the wire's figure is not theirs, and nothing is proven. Nothing here is read by what makes
noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmpi.core import Array, Gossip
from dpmpi.errors import ConfigError
from dpmpi.network.graph import Graph, mixing_matrix
from dpmpi.network.schedule import StaticSchedule
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.network_privacy import network_mus
from dpmpi.privacy.releases import spent_epsilon, tally
from dpmpi.runtime.plan import Plan

MODELS = (
    "the models at the end, which every rank gets, are means over all rounds: what they tell is bounded by the wire's "
    "figure alone"
)

UNPROVEN = (
    "{} curious ranks take off their part of the noise that they share with others, which is made for {} "
    "(--colluders): nothing is proven of what they learn"
)


def parse_curious(text: str, ranks: int) -> tuple[int, ...]:
    """Return the curious ranks that a flag names: `3`, or a set that puts together what it hears, `3,4`."""
    words = text.split(",")
    found = sorted({int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 10})
    if len(found) < len(words) or not found or found[-1] >= ranks or len(found) >= ranks:
        raise ConfigError(
            f"expected fewer than {ranks} different ranks from 0 to {ranks - 1} for --curious, found {text!r:.60}: "
            "give one, or several as 3,4"
        )
    return tuple(found)


def reasons(plan: Plan, sigmas: Sequence[float]) -> list[str]:
    """Return why the theorem says nothing about a run; an empty list if it does."""
    settings, config = plan.settings, plan.config
    checks = {
        "messages are not sealed, so that everybody may hear everything (--seal)": settings.messages.sealed,
        "sums over all ranks reach everybody at once (--exchange plain)": settings.messages.name == "plain",
        "rounding on the wire may move points apart (--wire float64)": config.wire == "float64",
        "batches are drawn, and the bound is for all records (--batch full)": settings.drawn.kind == "full",
        "no message has Gaussian noise of its own": settings.noise.place != "sum"
        and settings.noise.kind == "gaussian"
        and min(sigmas) > 0.0,
        "noise that neighbours share comes back to them (--noise-in local)": settings.noise.place != "pairs",
        "the noise is repeatable (--insecure-noise-seed)": config.insecure_noise_seed is None,
        "a rank whose budget is spent speaks without noise (--budget)": config.budget is None,
        "evaluations tell all ranks more than messages (--evaluate 0)": settings.evaluating.kind == "off",
        "clipped gradients are those of no convex function (several scores)": settings.integrable,
        "the reference solver shows ranks sums over records (--reference)": not config.reference,
    }
    found = [why for why, holds in checks.items() if not holds]
    try:
        _gossip(plan)
    except ConfigError as error:
        found.append(str(error))
    return found


def curious_figures(plan: Plan, sigmas: Sequence[float], sets: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return (1) and (2) for every rank against each set of curious ranks, as JSON-ready figures.

    Null stands for a curious rank itself, and for a rank of which nothing is certified.
    """
    delta, ranks, most = plan.config.delta, range(plan.ranks), plan.settings.noise.colluders
    wire = [spent_epsilon(tally(plan.releases(plan.terms(rank), sigmas[rank])), delta) for rank in ranks]
    why = reasons(plan, sigmas)
    models = None
    if not why and not _gossip(plan).ends_with_messages:
        models = MODELS
    found, unproven = [], None
    for curious in sets:
        told: list[list[float | None]] = []
        for at_end in (True, False):
            if most is not None and len(curious) > most:
                unproven = UNPROVEN.format(len(curious), most)
                told.append([None] * plan.ranks)
                continue
            if why or (at_end and models):
                told.append([None if rank in curious else wire[rank] for rank in ranks])
                continue
            mus = network_mus(_matrix(plan), set(curious), *_rounds(plan, sigmas), told_at_end=at_end)
            told.append([_least(mu, wire[rank], delta) for rank, mu in enumerate(mus)])
        figures = {"epsilon": told[0], "epsilon_of_messages": told[1]}
        found.append({"curious": list(curious), "hops": hops(plan.schedule.graph, curious), **figures})
    why += [] if unproven is None else [unproven]
    return {"delta": delta, "wire": wire, "reasons": why, "models": models, "unproven": unproven, "sets": found}


def hops(graph: Graph, curious: Sequence[int]) -> list[int | None]:
    """Return how many hops each rank is from the nearest curious one; None if there is no way."""
    away: list[int | None] = [None] * graph.size
    near, distance = set(curious), 0
    while near:
        for rank in near:
            away[rank] = distance
        near = {peer for rank in near for peer in graph.neighbours(rank) if away[peer] is None}
        distance += 1
    return away


def _gossip(plan: Plan) -> Gossip:
    """Return how messages go on, the same for all ranks; raise `ConfigError` with the reason if not as they need to."""
    found = [plan.method.gossip(terms) for terms in plan.kinds]
    return found[0]


def _matrix(plan: Plan) -> Array:
    """Return the mixing matrix: symmetric, not negative, its rows summing to 1."""
    schedule = plan.schedule
    if not isinstance(schedule, StaticSchedule):
        raise ConfigError("expected all edges in every round, found sampled ones")
    return mixing_matrix(schedule.graph, schedule.weights)


def _rounds(plan: Plan, sigmas: Sequence[float]) -> tuple[Array, Array]:
    """Return b_t and s_j(t) of `network_privacy.py`: a_t times the sensitivity, and the deviation, of each release."""
    moves, deviations = np.empty((plan.ranks, plan.rounds)), np.empty((plan.ranks, plan.rounds))
    for rank, sigma in enumerate(sigmas):
        weights = plan.method.gossip(plan.terms(rank)).weights
        events = [event for event, count in plan.releases(plan.terms(rank), sigma) for _ in range(count)]
        moves[rank] = weights * [event.sensitivity for event in events]
        deviations[rank] = weights * [event.scale for event in events]
    return moves, deviations


def _least(mu: float | None, wire: float | None, delta: float) -> float | None:
    """Return the epsilon of a mu at delta, at most the wire's."""
    if mu is None:
        return None
    epsilon = gdp_epsilon(mu, delta)
    return epsilon if wire is None else min(epsilon, wire)
