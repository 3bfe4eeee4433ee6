"""What a run will cost, before it runs: noise, epsilon, messages, bytes, mixing. No MPI, no training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from dpmpi.config import Config, from_values, make_parser
from dpmpi.data.base import deal
from dpmpi.errors import ConfigError
from dpmpi.planning import claimed_epsilon, noise_levels, prospect_of, schedule_of, source_of, spent_epsilon, tally
from dpmpi.secrecy import check_shares

EXAMPLES = """\
examples:
  python -m dpmpi plan --ranks 20 --samples-per-rank 20000 --dimension 2000 --rounds 2000 --batch 256 --epsilon 1
  python -m dpmpi plan --config runs/demo/config.toml --ranks 20 --json
"""


def make_plan(
    config: Config, ranks: int, records: Sequence[int], dimension: int | None, radius: float | None = None
) -> dict[str, Any]:
    """Return the plan: figures per rank where ranks differ, null where one does not apply."""
    schedule = schedule_of(config, ranks)
    graph = schedule.graph
    prospect = prospect_of(config, schedule, records, dimension or 1, radius)
    if dimension is None and prospect.kind != "gaussian":
        raise ConfigError(f"{prospect.kind} noise depends on the number of features: give --dimension M")
    config, active = prospect.config, prospect.active
    prospect.check()
    check_shares(prospect)
    sigmas = noise_levels(prospect)
    epsilons = [
        spent_epsilon(tally(prospect.events(terms, sigma)), config.delta)
        for terms, sigma in {(prospect.terms(rank), sigma) for rank, sigma in enumerate(sigmas)}
    ]
    finite = [epsilon for epsilon in epsilons if epsilon is not None]
    messages = sum(prospect.messages(rank) for rank in range(ranks))
    payload = None if dimension is None else sum(prospect.payload_bytes(rank) for rank in range(ranks))
    return {
        "algorithm": config.algorithm,
        "ranks": ranks,
        "rounds": config.rounds,
        "dimension": dimension,
        "graph": {"name": graph.name, "edges": len(graph.edges), "beta": schedule.beta()},
        "batch": config.batch,
        "records": [min(records), max(records)],
        "active_rounds": [min(active), max(active)],
        "sigma": [min(sigmas), max(sigmas)],
        "epsilon": max(finite) if len(finite) == len(epsilons) else None,
        "epsilon_theorem": claimed_epsilon(prospect, min(sigmas)),
        "delta": config.delta,
        "calibration": config.calibration if config.epsilon is not None else None,
        "messages": messages,
        "payload_bytes": payload,
        "bytes": None if payload is None else payload + messages * prospect.message_overhead,
    }


def show(plan: dict[str, Any]) -> str:
    """Return the plan as a table."""

    def span(pair: Sequence[float], form: str) -> str:
        low, high = (format(value, form) for value in pair)
        return low if low == high else f"{low} ... {high}"

    noise = "none: NOT PRIVATE" if plan["sigma"][0] == 0 else span(plan["sigma"], ".4g")
    rows = [
        ("records a rank", span(plan["records"], ",")),
        ("active rounds", span(plan["active_rounds"], ",")),
        ("batch", plan["batch"]),
        ("noise (sigma)", noise),
    ]
    epsilon, claim = math.inf if plan["epsilon"] is None else plan["epsilon"], plan["epsilon_theorem"]
    rows.append(("epsilon", f"{epsilon:.4g} at delta {plan['delta']:g}, certified"))
    if claim is not None:
        trust = "" if epsilon <= claim else "; WARNING: the messages do not keep it"
        rows.append(("theorem claims", f"{claim:.4g}{trust}"))
    rows += [("beta", f"{plan['graph']['beta']:.4f}"), ("messages", f"{plan['messages']:,}")]
    if plan["bytes"] is not None:
        rows.append(("bytes", f"{plan['bytes']:,}"))
    title = f"{plan['algorithm']}, {plan['ranks']} ranks, {plan['graph']['name']}, {plan['rounds']} rounds"
    return "\n".join([title, *(f"  {name:<16} {value}" for name, value in rows)])


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi plan`."""
    parser = make_parser("python -m dpmpi plan", EXAMPLES)
    parser.description = __doc__
    parser.add_argument("--samples-per-rank", type=int, metavar="N", help="records a rank, if there is no data yet")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = vars(parser.parse_args(argv))
    as_json, count = (given.pop(name, None) for name in ("json", "samples_per_rank"))
    config = from_values(given)
    dimension = config.dimension
    ranks = config.ranks or config.loopback
    if ranks is None:
        raise ConfigError("plan needs the number of ranks: --ranks N")
    radius = None
    if count is None or config.loss == "mean":
        source = source_of(config)
        radius = getattr(source, "radius", None)
    if count is None:
        survey = source.survey()
        if survey is None:
            raise ConfigError("plan cannot see the shards: give --samples-per-rank N and --dimension M")
        training = source.training_rows(survey)
        if training < ranks:
            raise ConfigError(f"{training} training rows are too few for {ranks} ranks")
        records = [len(deal(training, rank, ranks)) for rank in range(ranks)]
        dimension = dimension or survey.features
    elif not 1 <= count <= 10**12:
        raise ConfigError(f"--samples-per-rank must lie in 1 ... 10^12, got {count}")
    else:
        records = [count] * ranks
    plan = make_plan(config, ranks, records, dimension, radius)
    print(json.dumps(plan, indent=1) if as_json else show(plan), flush=True)
    return 0
