"""The result of a run: what summary.json holds and what the terminal shows. The names are a contract."""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dpmpi import __version__
from dpmpi.errors import ConfigError
from dpmpi.network.launcher import usable_cores
from dpmpi.privacy.events import ReadRows, ReleaseEvent, from_list, to_list
from dpmpi.privacy.filters import filter_epsilon
from dpmpi.privacy.groups import GROUPS, group_epsilon
from dpmpi.privacy.random_weights import laplace_figures
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.privacy.spending import charged_to
from dpmpi.runtime.assembly import Job
from dpmpi.runtime.config import Config
from dpmpi.runtime.cost.dry_run import Hosts
from dpmpi.runtime.cost.fit import load
from dpmpi.runtime.cost.model import own_cost, pattern_of
from dpmpi.runtime.engine import Seat
from dpmpi.runtime.evaluation import Evaluation
from dpmpi.runtime.verdict import worse_than_nothing

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
        "verdict": _verdict(job, evaluation),
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
            **{name: _largest([record[name] for record in ranks]) for name in PARTS_OF_EPSILON},
            "unit": job.settings.unit,
            "epsilon_lost": epsilon_lost,
            "epsilon_groups": {str(k): _largest(each) for k, each in groups.items()} if not job.past.lost else None,
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
    }


def _largest(values: Sequence[float | None]) -> float | None:
    """Return the largest value; None if one is not known."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


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
    try:
        fitted = load()
    except ConfigError:  # a run that is through does not fail for a file that is not its own
        fitted = None
    hosts = Hosts(on_a_host, usable_cores()) if job.config.loopback is None else None
    return own_cost(pattern_of(job.plan), ranks, hosts, training, fitted)


def _verdict(job: Job, evaluation: Evaluation | None) -> dict[str, Any] | None:
    """Return what was to be expected, and whether the model turned out worse than none at all."""
    expected = job.verdict()
    zero = None if job.settings.loss is None else job.settings.loss.at_zero
    worse = None if evaluation is None else worse_than_nothing(zero, evaluation.objective)
    if job.fits.nothing_fits and not job.past.goes_on:
        worse = "no budget was left for training: the model holds nothing of the records"
    if expected is None:
        return None if worse is None else {"word": None, "line": None, "afterwards": worse}
    return expected.figures | {"line": expected.line, "afterwards": worse}


def closing(summary: dict[str, Any], directory: Path, config: Config) -> str:
    """Return the last output of a run: the table, only where the results are, or a JSON object.

    `summary` has the figures of this rank's own process.
    """
    if config.quiet:
        return str(directory)
    if not config.log_json:
        return table(summary, directory)
    names = ("algorithm", "ranks", "rounds", "objective", "suboptimality", "accuracy", "rounds_per_second")
    told = {name: summary[name] for name in names}
    privacy, sent = summary["privacy"], summary["communication"]
    told |= {name: privacy[name] for name in ("private", "epsilon", "budget", "delta")}
    told["epsilon_with_earlier_runs"] = (_spent_most(summary["per_rank"]) or {}).get("epsilon_with_earlier_runs")
    told |= {"messages": sent["messages"], "bytes": sent["bytes"], "seconds": summary["wall_seconds"]}
    return json.dumps({"type": "end", **told, "results": str(directory)})


def table(summary: dict[str, Any], directory: Path) -> str:
    """Return the one table that a run ends with."""
    privacy, communication = summary["privacy"], summary["communication"]
    rows = [
        ("objective", _number(summary["objective"], ".6g")),
        ("suboptimality", _number(summary["suboptimality"], ".3e")),
        ("accuracy", _number(summary["accuracy"], ".4f")),
        ("ranks' own", _number(summary["rank_accuracy"], ".4f")),
        ("metrics", _metrics(summary.get("metrics"), "mean")),
        ("worst rank", _metrics(summary.get("metrics"), "ranks_worst")),
        ("optimum", _metrics(summary.get("metrics"), "reference")),
        *_privately(summary.get("private_evaluation")),
        ("expected", _expected(summary["verdict"])),
        ("WARNING", (summary["verdict"] or {}).get("afterwards")),
        ("relative error", _number(summary["error"], ".3e")),
        ("consensus error", _number(summary["consensus_error"], ".3e")),
        ("privacy", _privacy(privacy)),
        ("with earlier runs", _all_runs(summary["per_rank"])),
        ("secrecy", _secrecy(summary["secrecy"])),
        ("counted otherwise", _otherwise(privacy["laplace"])),
        ("budgets", _budgets(summary)),
        ("messages", f"{communication['messages']:,}"),
        ("bytes", f"{communication['bytes']:,}"),
        ("seconds", f"{summary['wall_seconds']:.2f} ({summary['rounds_per_second']:.0f} rounds/s)"),
        ("lost", _lost(summary["lost"])),
        ("results", str(directory)),
    ]
    title = (
        f"{summary['algorithm']}, {summary['ranks']} ranks, {summary['graph']['name']}, {summary['rounds']} rounds, "
        f"dimension {summary['dimension']}"
    )
    lines = [f"  {name:<17} {value}" for name, value in rows if value is not None]
    return "\n".join([title, *lines])


SHOWN = ("majority", "balanced_accuracy", "auc", "f1", "log_loss", "rmse", "mae", "r2", "deviance")
"""The metrics that the table at the end shows."""
NOISE = "not told from noise"
"""A figure of a private evaluation that is null."""


def _metrics(found: Mapping[str, Any] | None, whose: str) -> str | None:
    """Return the metrics of a model in one line; None if there are none."""
    known = (found or {}).get(whose) or {}
    shown = ("accuracy", *SHOWN) if whose != "mean" else SHOWN
    told = [f"{name.replace('_', ' ')} {known[name]:.4g}" for name in shown if known.get(name) is not None]
    return ", ".join(told) or None


def _privately(found: Mapping[str, Any] | None) -> list[tuple[str, str | None]]:
    """Return the rows of a private evaluation, with error bars."""
    if found is None:
        return []
    if found["metrics"] is None:
        return [("held-out rows", "not evaluated: no budget is left for it")]
    told = {name: found["metrics"].get(name) for name in ("accuracy", *SHOWN)}
    rows: list[tuple[str, str | None]] = [
        (name.replace("_", " "), with_error(one)) for name, one in told.items() if one is not None
    ]
    return [*rows, ("held-out rows", f"{found['rows']:,}, evaluated privately")]


def with_error(one: Mapping[str, float | None], form: str = ".4f") -> str:
    """Return a figure of a private evaluation and its error, in words if it is null."""
    value, error = one["value"], one["error"]
    return NOISE if value is None or error is None else f"{value:{form}} +- {error:{form}}"


def _expected(told: Mapping[str, Any] | None) -> str | None:
    """Return what was to be expected, where it is not a good model."""
    return None if told is None or told["word"] in (None, "good") else str(told["line"]).removeprefix("expect ")


def _lost(ranks: Sequence[int]) -> str | None:
    """Return who died, or could not be reached any more by the others."""
    return f"rank {', '.join(map(str, ranks))}: the others went on without" if ranks else None


def _spent_most(ranks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the rank that has spent most in all runs of its ledger; None if there was none before this one."""
    known = [record for record in ranks if record.get("epsilon_with_earlier_runs") is not None]
    return max(known, key=lambda record: float(record["epsilon_with_earlier_runs"]), default=None)


def _all_runs(ranks: Sequence[dict[str, Any]]) -> str | None:
    """Return what was spent in all runs of the ledgers, and of which budget."""
    most = _spent_most(ranks)
    if most is None:
        return None
    of = "" if most["budget"] is None else f" of the budget {most['budget']:g}"
    return f"epsilon {most['epsilon_with_earlier_runs']:.4g}{of}, on the rank that has spent most"


def _budgets(summary: Mapping[str, Any]) -> str | None:
    if all(record["budget"] is None for record in summary["per_rank"]):
        return None
    ended = budget_ended(summary)
    return f"{ended}; they went on without data" if ended else "kept by all ranks"


def budget_ended(summary: Mapping[str, Any]) -> str:
    """Return in which round budgets ended training, and on how many ranks; nothing if they did not."""
    ranks = summary["per_rank"]
    stopped = [record["stopped"] for record in ranks if record["stopped"] is not None]
    if not stopped or all(record["budget"] is None for record in ranks):
        return ""
    first, last = min(stopped), max(stopped)
    when = f"round {first}" if first == last else f"rounds {first} to {last}"
    return f"the budget ended training in {when} of {summary['rounds']}, on {len(stopped)} of {len(ranks)} ranks"


def _secrecy(secrecy: dict[str, Any]) -> str | None:
    if secrecy["identities"] is None:
        return None
    parts = [f"{secrecy['shares']} shares"] if secrecy["shares"] else []
    parts += ["sealed messages"] if secrecy["sealed"] else []
    known = "keys of the roster" if secrecy["identities"] == "roster" else "keys without a roster: listeners only"
    return ", ".join([*parts, known])


def _pure(event: ReleaseEvent) -> bool:
    return event.noise == "laplace" and event.sampling.kind == "full"


def _finite(value: float) -> float | None:
    """Return null for what a delta of 0 has no bound for."""
    return value if math.isfinite(value) else None


def _otherwise(figures: dict[str, float | None] | None) -> str | None:
    if figures is None:
        return None
    names = {"worst_case": "pure, worst case", "l1": "pure, L1", "zcdp": "zCDP", "pld": "PLD (even shifts, no bound)"}
    return ", ".join(f"{name} {figures[key]:.3g}" for key, name in names.items() if figures[key] is not None)


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _privacy(privacy: dict[str, Any]) -> str:
    if privacy["insecure_noise"]:
        return "NOT PRIVATE: repeatable noise (--insecure-noise-seed)"
    if not privacy["private"]:
        return "NOT PRIVATE: no noise (--epsilon or --noise adds it)"
    if privacy["epsilon"] is None:
        return "NOT PRIVATE: no finite epsilon can be certified for so little noise"
    text = f"epsilon {privacy['epsilon']:.4g} at delta {privacy['delta']:g}, certified"
    if privacy["unit"] != "record":
        text += f"; unit: {privacy['unit']}"
    if privacy["epsilon_evaluation"] is not None:
        training, evaluation = privacy["epsilon_training"], privacy["epsilon_evaluation"]
        text += f"; training {training:.4g}, evaluation {evaluation:.4g} on other rows"
    if privacy["calibration"] == "theorem":
        claim = privacy["epsilon_theorem"]
        if claim is None or privacy["epsilon"] > claim:
            text += f"; WARNING: the paper's theorem claims {claim}, do not rely on it"
        else:
            text += f"; the paper's theorem claims {claim:.4g}"
    return text + ("; evaluation is outside of it" if privacy["evaluation_outside_guarantee"] else "")
