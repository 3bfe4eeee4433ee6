"""What a run will cost, before it runs: noise, epsilon, messages, bytes, mixing, seconds. No MPI, no training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmpi.config import Config, from_values, make_parser
from dpmpi.costs import Fit, Hosts, load, pattern_of, seconds, sizes
from dpmpi.data.base import deal
from dpmpi.errors import ConfigError
from dpmpi.launched import usable_cores
from dpmpi.planning import (
    Prospect,
    claimed_epsilon,
    noise_levels,
    prospect_of,
    schedule_of,
    source_of,
    spent_epsilon,
    tally,
)
from dpmpi.secrecy import check_room, check_shares

EXAMPLES = """\
examples:
  python -m dpmpi plan --ranks 20 --samples-per-rank 20000 --dimension 2000 --rounds 2000 --batch 256 --epsilon 1
  python -m dpmpi plan --config runs/demo/config.toml --ranks 20 --json
  python -m dpmpi plan --ranks 20 --samples-per-rank 20000 --dimension 2000 --rounds 2000 --batch 256 --predict \\
         --cores-per-host 64 --ranks-per-host 64
"""


def make_plan(
    config: Config, ranks: int, records: Sequence[int], dimension: int | None, radius: float | None = None
) -> dict[str, Any]:
    """Return the plan: figures per rank where ranks differ, null where one does not apply."""
    return planned(checked_prospect(config, ranks, records, dimension, radius), dimension)


def checked_prospect(
    config: Config, ranks: int, records: Sequence[int], dimension: int | None, radius: float | None
) -> Prospect:
    """Return the prospect of a run that could be made."""
    prospect = prospect_of(config, schedule_of(config, ranks), records, dimension or 1, radius)
    if dimension is None and prospect.kind != "gaussian":
        raise ConfigError(f"{prospect.kind} noise depends on the number of features: give --dimension M")
    prospect.check()
    check_shares(prospect)
    return prospect


def planned(prospect: Prospect, dimension: int | None) -> dict[str, Any]:
    """Return the plan of a prospect that was checked."""
    config, active, records = prospect.config, prospect.active, prospect.records
    schedule, ranks = prospect.schedule, prospect.schedule.size
    graph, sigmas = schedule.graph, noise_levels(prospect)
    check_room(prospect, max(sigmas))
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


def predicted(
    prospect: Prospect, fitted: Fit | None, cores: int, on_a_host: int | None, work: float | None
) -> dict[str, Any]:
    """Return what the run takes with other numbers of ranks, each of which brings as many records.

    `on_a_host` is None if all ranks are on one. `work` is what a rank computes in a round, in seconds of a core;
    without it, what a gradient over a batch of dense rows, its noise and a step take.
    """
    pattern, rows = pattern_of(prospect), []
    if work is None and fitted is not None:
        noise = bool(prospect.config.epsilon or prospect.config.noise)
        work = fitted.computing(prospect.terms(0).sampling, prospect.dimension, noise=noise)
    for n in sizes(prospect.schedule.size):
        counted = pattern.count(n)
        if counted is None:
            continue
        hosts = Hosts(on_a_host or n, cores)
        taken = None if fitted is None or work is None else seconds(pattern, n, work, fitted, hosts)
        row = {"ranks": n, "messages": counted[0], "bytes": counted[1], "hosts": -(-n // hosts.ranks)}
        rows.append(row | {"seconds": taken})
    return {"cores_per_host": cores, "ranks_per_host": on_a_host, "work_seconds": work, "rows": rows}


def show_predicted(found: dict[str, Any]) -> str:
    """Return the prediction as a table."""
    each = "all ranks on one host" if found["ranks_per_host"] is None else f"{found['ranks_per_host']} ranks a host"
    lines = [f"  with other numbers of ranks: {each}, {found['cores_per_host']} cores"]
    if found["work_seconds"] is not None:
        lines[0] += f", {found['work_seconds'] * 1e3:.3g} ms of a core to compute a round"
    lines.append(f"  {'ranks':>10} {'hosts':>8} {'messages':>18} {'MB':>14} {'seconds':>12}")
    for row in found["rows"]:
        time = "-" if row["seconds"] is None else format(row["seconds"], ".3g" if row["seconds"] < 100 else ",.0f")
        figures = f"{row['ranks']:>10,} {row['hosts']:>8,} {row['messages']:>18,} {row['bytes'] / 1e6:>14,.1f}"
        lines.append(f"  {figures} {time:>12}")
    if all(row["seconds"] is None for row in found["rows"]):
        lines.append("  seconds are not known: mpirun -n 4 python -m dpmpi bench --fit measures this machine")
    return "\n".join(lines)


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
    table = "\n".join([title, *(f"  {name:<16} {value}" for name, value in rows)])
    return f"{table}\n{show_predicted(plan['predicted'])}" if "predicted" in plan else table


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi plan`."""
    parser = make_parser("python -m dpmpi plan", EXAMPLES)
    parser.description = __doc__
    parser.add_argument("--samples-per-rank", type=int, metavar="N", help="records a rank, if there is no data yet")
    parser.add_argument("--json", action="store_true", help="print JSON")
    group = parser.add_argument_group("seconds, and other numbers of ranks")
    group.add_argument("--predict", action="store_true", help="messages, bytes and seconds for 20 ... 10,000 ranks")
    group.add_argument("--costs", type=Path, metavar="FILE", help="what bench --fit FILE measured (default: its own)")
    group.add_argument("--cores-per-host", type=int, metavar="C", help="(default: this machine's)")
    group.add_argument("--ranks-per-host", type=int, metavar="R", help="(default: all ranks on one host)")
    group.add_argument(
        "--work-seconds", type=float, metavar="S",
        help="what a rank computes in a round, in seconds of a core (default: a gradient over a batch of dense rows, "
        "its noise and a step; a run's own is cost.compute_seconds in its summary.json)",
    )  # fmt: skip
    given = vars(parser.parse_args(argv))
    as_json, count = (given.pop(name, None) for name in ("json", "samples_per_rank"))
    names = ("predict", "costs", "cores_per_host", "ranks_per_host", "work_seconds")
    asked = {name: given.pop(name) for name in names if name in given}
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
    prospect = checked_prospect(config, ranks, records, dimension, radius)
    plan = planned(prospect, dimension)
    if asked:
        plan["predicted"] = _prediction(prospect, dimension, **asked)
    print(json.dumps(plan, indent=1) if as_json else show(plan), flush=True)
    return 0


def _prediction(
    prospect: Prospect, dimension: int | None, *, predict: bool = False, costs: Path | None = None,
    cores_per_host: int | None = None, ranks_per_host: int | None = None, work_seconds: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what was asked for beside the plan itself; raise `ConfigError` for flags that do not make sense."""
    if not predict:
        raise ConfigError("--costs, --cores-per-host, --ranks-per-host and --work-seconds are for --predict: add it")
    if dimension is None:
        raise ConfigError("--predict needs the length of messages: give --dimension M")
    for flag, number in (("--cores-per-host", cores_per_host), ("--ranks-per-host", ranks_per_host)):
        if number is not None and not 1 <= number <= 10**6:
            raise ConfigError(f"{flag} must lie in 1 ... 10^6, got {number}")
    if work_seconds is not None and not 0 <= work_seconds < math.inf:
        raise ConfigError(f"--work-seconds must be finite and not negative, got {work_seconds}")
    return predicted(prospect, load(costs), cores_per_host or usable_cores(), ranks_per_host, work_seconds)
