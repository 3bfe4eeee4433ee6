"""The result of a run: what summary.json holds and what the terminal shows. The names are a contract."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dpmpi import __version__
from dpmpi.errors import ConfigError
from dpmpi.network.launcher import usable_cores
from dpmpi.privacy.events import ReadRows, ReleaseEvent, from_list, to_list
from dpmpi.privacy.filters import filter_epsilon
from dpmpi.privacy.groups import GROUPS, group_epsilon
from dpmpi.privacy.random_weights import laplace_figures
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.privacy.spending import charged_to, largest_known
from dpmpi.runtime.engine import Seat
from dpmpi.runtime.evaluation import Evaluation
from dpmpi.runtime.job import Job
from dpmpi.runtime.verdict import no_better_than_majority, worse_than_nothing

if TYPE_CHECKING:
    from dpmpi.problem.optimum import Optimum


TRAFFIC = (
    *("messages_sent", "payload_bytes_sent", "share_bytes_sent", "tag_bytes_sent", "trailer_bytes_sent"),
    *("bytes_sent", "bytes_received"),
)
"""What is counted of a rank and each of its peers."""
FIGURES = ("objective", "accuracy", "rank_accuracy", "consensus_error", "error", "rank_error")
"""What an evaluation finds."""


PARTS_OF_EPSILON: dict[str, ReadRows] = {"epsilon_training": "training", "epsilon_evaluation": "held-out"}
"""What the rows of each part are charged for; the epsilon of the run is the larger one."""


@runtime_checkable
class Ciphering(Protocol):
    """What seals or shares, and knows how long each rank of this process took for it."""

    crypto_seconds: dict[int, float]


def seconds_spent(job: Job, seat: Seat) -> dict[str, float]:
    """Return an agent's seconds for noise, secrecy and its ledger since the run began."""
    rank, clock = seat.agent.rank, seat.agent.clock
    parts = [part for part in (job.engine.transport, seat.exchange) if isinstance(part, Ciphering)]
    now = {"noise": clock.noise, "crypto": sum(part.crypto_seconds[rank] for part in parts), "ledger": clock.ledger}
    carried = job.past.snapshots
    before = carried[rank].facts.get("seconds", {}) if rank in carried else {}
    return {name: seconds + before.get(name, 0.0) for name, seconds in now.items()}


def rank_record(job: Job, seat: Seat, training_seconds: float, core_seconds: float) -> dict[str, Any]:
    """Return the report of one rank, JSON-ready.

    `spending`, `earlier` and `filter_order` are for the accountant and do not reach the summary; neither does `host`.
    """
    rank = seat.agent.rank
    peers = job.traffic(rank)
    wait = sum(t.wait_seconds for t in peers.values())
    spent = seconds_spent(job, seat)
    compute = max(training_seconds - wait - sum(spent.values()), 0.0)
    unit = 1024 if sys.platform == "linux" else 1  # ru_maxrss counts kilobytes on Linux, bytes on macOS
    account, agent, seconds = job.accounts[rank], seat.agent, {"compute": compute, "wait": wait} | spent
    return {
        "rank": job.names[rank],
        "samples": agent.problem.records,
        **{name: getattr(agent, name) for name in ("active_rounds", "releases", "stopped")},
        **{name: sum(getattr(t, name) for t in peers.values()) for name in TRAFFIC},
        "wait_seconds": round(wait, 6),
        "compute_seconds": round(max(training_seconds - wait, 0.0), 6),
        "training_seconds": round(training_seconds, 6),
        "core_seconds": round(core_seconds, 6),
        "seconds": {name: round(value, 6) for name, value in seconds.items()},
        "sigma": job.sigmas[rank] or None,
        "budget": account.budget,
        "max_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1),
        "neighbours": {
            str(peer): {name: getattr(t, name) for name in TRAFFIC} | {"wait_seconds": round(t.wait_seconds, 6)}
            for peer, t in peers.items()
        },
        "spending": to_list(job.spending_of(rank)),
        "earlier": to_list(account.earlier),
        "filter_order": account.order,
        "host": os.uname().nodename,
    }


def summarise(
    job: Job,
    ranks: Sequence[dict[str, Any]],
    evaluation: Evaluation | None,
    optimum: Optimum | None,
    started: float,
    wall: float,
    metrics: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return summary.json: the figures of the whole run, null where one does not apply.

    `started` is the first round's beginning in seconds since 1970, `wall` the seconds from there to the end.
    """
    config, private, messages = job.config, job.private, job.settings.messages
    figures: dict[str, float] | None = None
    shared = job.settings.shares_timings
    groups: dict[int, list[float | None]] = {k: [] for k in GROUPS}
    hosts = Counter(record["host"] for record in ranks) if shared else None
    for record in ranks:
        record.pop("host", None)
        spending, earlier = from_list(record.pop("spending")), from_list(record.pop("earlier"))
        record["epsilon"] = spent_epsilon(spending, config.delta) if private else None
        for name, part in PARTS_OF_EPSILON.items():
            apart = private and job.plan.held_out is not None
            record[name] = spent_epsilon(charged_to(spending, part), config.delta) if apart else None
        training = charged_to(spending, "training")
        if private and training and all(_pure(event) for event in training):
            found = laplace_figures(training, config.delta)
            figures = max(figures or found, found, key=lambda each: each["l1"])
        add_up = private and bool(earlier)
        order = record.pop("filter_order")
        record["epsilon_with_earlier_runs"] = (
            filter_epsilon(spending + earlier, config.delta, order) if add_up else None
        )
        for k, each in groups.items():
            each.append(group_epsilon(spending, config.delta, k) if private else None)
    epsilon_lost = _of_the_lost(job) if private and job.past.lost else None
    epsilons = [record["epsilon"] for record in ranks] + ([epsilon_lost] if job.past.lost else [])
    best = None if optimum is None else optimum.value
    seconds = max(record["training_seconds"] for record in ranks) if shared else None
    schedule = job.plan.schedule
    graph = schedule.graph
    return {
        "dpmpi": __version__,
        "run": job.run,
        "algorithm": config.algorithm,
        "derived": job.plan.derivation(),
        "verdict": _verdict(job, evaluation, metrics),
        "asked": (job.settings.typed or config).digest(),
        "ranks": len(ranks),
        "rounds": job.plan.rounds,
        "dimension": job.plan.dimension,
        "batch": config.batch,
        "graph": {"name": graph.name, "edges": len(graph.edges), "beta": schedule.beta()},
        **{name: getattr(evaluation, name, None) for name in FIGURES},
        "optimum": best,
        "optimum_gap": None if optimum is None else optimum.gap,
        "suboptimality": None if evaluation is None else evaluation.above(best),
        "started": started if shared else None,
        "wall_seconds": wall if shared else None,
        "rounds_per_second": None if seconds is None else job.plan.rounds / seconds,
        "privacy": {
            "private": private and None not in epsilons,
            "calibration": config.calibration if config.epsilon is not None else None,
            "adversary": "wire",
            "noise_in": job.settings.noise.place,
            "colluders": job.settings.noise.colluders,
            "pair_noise": job.settings.noise.describe(),
            "delta": config.delta,
            "epsilon": None if None in epsilons else max(epsilons),
            **{name: largest_known([record[name] for record in ranks]) for name in PARTS_OF_EPSILON},
            "unit": job.settings.unit,
            "epsilon_lost": epsilon_lost,
            "epsilon_groups": {str(k): largest_known(each) for k, each in groups.items()}
            if not job.past.lost
            else None,
            "epsilon_theorem": job.plan.claimed_epsilon(min(job.sigmas)),
            "laplace": figures and {name: _finite(value) for name, value in figures.items()},
            "budget": config.epsilon,
            "evaluation_outside_guarantee": job.evaluate_every > 0 or config.reference,
            "insecure_noise": config.insecure_noise_seed is not None,
        },
        "communication": {
            name.removesuffix("_sent"): sum(record[name] for record in ranks)
            for name in TRAFFIC
            if name.endswith("_sent")
        },
        "secrecy": {
            "exchange": messages.name,
            "shares": messages.mode,
            "sealed": messages.sealed,
            "identities": messages.identities,
        },
        "cost": None if hosts is None or seconds is None else _cost(job, ranks, max(hosts.values()), seconds),
        "timings": "shared" if shared else "own",
        "starts": job.incarnation + 1,
        "ranks_at_start": job.past.origin,
        "lost": sorted(job.past.lost),
        "per_rank": list(ranks),
        "metrics": metrics,
    }


def _of_the_lost(job: Job) -> float | None:
    """Return the most that lost ranks can have spent; None if it cannot be bounded."""
    config, most = job.config, 0.0
    certified = config.epsilon if config.calibration == "certified" else None  # beyond its target a rank says nothing
    for charged in job.past.lost.values():
        epsilon = spent_epsilon(charged, config.delta)
        bounds = [bound for bound in (epsilon, certified) if bound is not None]
        if not bounds:
            return None
        most = max(most, min(bounds))
    return most


def _cost(job: Job, ranks: Sequence[dict[str, Any]], on_a_host: int, training: float) -> dict[str, Any]:
    """Return the run's own measurements, for predictions; agents in one process say nothing about processes."""
    from dpmpi.runtime.cost.dry_run import Hosts  # noqa: PLC0415 - for whoever writes the summary
    from dpmpi.runtime.cost.fit import load  # noqa: PLC0415
    from dpmpi.runtime.cost.model import own_cost, pattern_of  # noqa: PLC0415

    try:
        fitted = load()
    except ConfigError:  # a run that is through does not fail for a file that is not its own
        fitted = None
    hosts = Hosts(on_a_host, usable_cores()) if job.config.loopback is None else None
    return own_cost(pattern_of(job.plan), ranks, hosts, training, fitted)


def _verdict(job: Job, evaluation: Evaluation | None, metrics: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the verdict before the run, and whether the model turned out no better than none at all."""
    expected = job.verdict()
    zero = None if job.settings.loss is None else job.settings.loss.at_zero
    worse = None if evaluation is None else worse_than_nothing(zero, evaluation.objective)
    worse = "; ".join(filter(None, (worse, no_better_than_majority(metrics)))) or None
    if job.fits.nothing_fits and not job.past.goes_on:
        worse = "no budget was left for training: the model holds nothing of the records"
    if expected is None:
        return None if worse is None else {"word": None, "line": None, "afterwards": worse}
    return expected.figures | {"line": expected.line, "afterwards": worse}


def _pure(event: ReleaseEvent) -> bool:
    return event.noise == "laplace" and event.sampling.kind == "full"


def _finite(value: float) -> float | None:
    """Return null for what a delta of 0 has no bound for."""
    return value if math.isfinite(value) else None
