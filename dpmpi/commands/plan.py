"""What a run will cost, before it runs: noise, epsilon, messages, bytes, mixing, seconds. No MPI, no training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmpi.core.files import read_toml
from dpmpi.data.source import held_out
from dpmpi.errors import ConfigError
from dpmpi.network.launcher import usable_cores
from dpmpi.privacy.groups import GROUPS, group_epsilon
from dpmpi.privacy.releases import spent_epsilon, tally
from dpmpi.privacy.spending import largest_known
from dpmpi.runtime.cost.dry_run import Hosts
from dpmpi.runtime.cost.fit import CONSTANTS, Fit, load
from dpmpi.runtime.cost.model import Link, pattern_of, seconds, sizes
from dpmpi.runtime.curious import curious_figures, parse_curious
from dpmpi.runtime.expectation import expected
from dpmpi.runtime.flag_parser import make_parser, named_plugins
from dpmpi.runtime.flags import from_values
from dpmpi.runtime.held_out import evaluation_levels
from dpmpi.runtime.noise import condition
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.options import flag_of
from dpmpi.runtime.plan import Plan, make_plan
from dpmpi.runtime.settings import Settings

EXAMPLES = """\
examples:
  python -m dpmpi plan --ranks 20 --samples-per-rank 20000 --dimension 2000 --rounds 2000 --batch 256 --epsilon 1
  python -m dpmpi plan --config runs/demo/config.toml --ranks 20 --json
  python -m dpmpi plan --ranks 20 --samples-per-rank 20000 --dimension 2000 --rounds 2000 --batch 256 --predict \\
         --cores-per-host 64 --ranks-per-host 64
  python -m dpmpi plan --ranks 20 --samples-per-rank 20000 --dimension 2000 --algorithm dgd --loss logistic \\
         --batch full --rounds 500 --step-decay constant --epsilon 1 --seal --evaluate 0 --curious 3
"""


def figures(plan: Plan, dimension: int | None, curious: str | None = None) -> dict[str, Any]:
    """Return the plan as JSON-ready figures: a range where ranks differ, null where one does not apply.

    If `curious` names ranks, what they learn is among them.
    """
    config, active, records = plan.config, plan.active, plan.records
    graph, sigmas = plan.schedule.graph, noise_levels(plan)
    plan.settings.noise.check_room(plan, max(sigmas))
    kinds = {(plan.terms(rank), sigma) for rank, sigma in enumerate(sigmas)}
    epsilons = [spent_epsilon(tally(plan.releases(*kind)), config.delta) for kind in kinds]
    groups = {k: [group_epsilon(tally(plan.releases(*kind)), config.delta, k) for kind in kinds] for k in GROUPS}
    payload = None if dimension is None else sum(plan.payload_bytes(rank) for rank in range(plan.ranks))
    return {
        "algorithm": config.algorithm,
        "ranks": plan.ranks,
        "rounds": plan.rounds,
        "dimension": dimension,
        "graph": {"name": graph.name, "edges": len(graph.edges), "beta": plan.schedule.beta()},
        "batch": config.batch,
        "records": [min(records), max(records)],
        "active_rounds": [min(active), max(active)],
        "sigma": [min(sigmas), max(sigmas)],
        "epsilon": largest_known(epsilons),
        "unit": plan.settings.unit,
        "evaluation": _evaluation(plan, sigmas),
        "epsilon_groups": {str(k): largest_known(found) for k, found in groups.items()},
        "epsilon_theorem": plan.claimed_epsilon(min(sigmas)),
        "delta": config.delta,
        "calibration": config.calibration if config.epsilon is not None else None,
        "messages": sum(plan.messages(rank) for rank in range(plan.ranks)),
        "payload_bytes": payload,
        "bytes": None if payload is None else plan.bytes(),
        "derived": plan.derivation(),
        "pair_noise": plan.settings.noise.describe(),
        "colluders": plan.settings.noise.colluders,
        "verdict": None if dimension is None or (told := expected(plan, sigmas)) is None else told.line,
    } | ({} if curious is None else {"curious": curious_figures(plan, sigmas, [parse_curious(curious, plan.ranks)])})


def _evaluation(plan: Plan, sigmas: Sequence[float]) -> dict[str, Any] | None:
    """Return the rows, noise and epsilon of private evaluations; None if there are none."""
    apart, delta = plan.held_out, plan.config.delta
    if apart is None:
        return None
    levels = evaluation_levels(plan, sigmas, [None] * plan.ranks)
    each = [spent_epsilon(tally(apart.releases(rank, sigma)), delta) for rank, sigma in enumerate(levels)]
    return {
        "rows": apart.total,
        "times": apart.count(),
        "noise": apart.noise.of_sum(levels) * apart.total,
        "epsilon": None if None in each else max(epsilon for epsilon in each if epsilon is not None),
    }


def predicted(
    plan: Plan, fitted: Fit | None, cores: int, on_a_host: int | None, work: float | None, link: Link | None = None
) -> dict[str, Any]:
    """Return the cost of the run with other numbers of ranks, each of which brings as many records.

    `on_a_host` is None if all ranks are on one. `work` is what a rank computes in a round, in seconds of a core;
    without it, what a gradient over a batch of dense rows, its noise and a step take. Over a `link`, computing and
    talking cost nothing where this machine was never measured: hosts that are far apart wait for the network.
    """
    pattern, rows = pattern_of(plan), []
    if link is not None and fitted is None:
        fitted = Fit(*[0.0] * len(CONSTANTS))
    if work is None and fitted is not None:
        noise = bool(plan.config.epsilon or plan.config.noise)
        work = fitted.computing(plan.terms(0).sampling, plan.dimension, noise=noise)
    for n in sizes(plan.schedule.size):
        counted = pattern.count(n)
        if counted is None:
            continue
        hosts = Hosts(on_a_host or n, cores)
        taken = None if fitted is None or work is None else seconds(pattern, n, work, fitted, hosts, link)
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


def show_curious(found: dict[str, Any]) -> str:
    """Return a table of the epsilons of all ranks' records against the curious ranks."""
    lines = []
    for one in found["sets"]:
        who = ("rank " if len(one["curious"]) == 1 else "ranks ") + ", ".join(map(str, one["curious"]))
        lines.append(f"  {who} curious: epsilon at delta {found['delta']:g} of each rank's records")
        if found["unproven"]:
            lines.append(f"    {found['unproven']}")
        else:
            lines += [f"    the wire's figure, because {why}" for why in found["reasons"]]
        lines += (
            [f"    covering the models at the end is the wire's figure: {found['models']}"] if found["models"] else []
        )
        lines.append(f"  {'rank':>10} {'hops':>6} {'wire':>10} {'messages':>10} {'with models':>11}")
        for rank, away in enumerate(one["hops"]):
            if rank in one["curious"]:
                continue
            numbers = (found["wire"][rank], one["epsilon_of_messages"][rank], one["epsilon"][rank])
            texts = ["-" if number is None else format(number, ".4g") for number in numbers]
            cells = f"{texts[0]:>10} {texts[1]:>10} {texts[2]:>11}"
            lines.append(f"  {rank:>10} {'-' if away is None else away:>6} {cells}")
    lines.append("  proven for real numbers; the certificate of the run is the wire's")
    return "\n".join(lines)


def show(plan: dict[str, Any]) -> str:
    """Return the plan as a table."""

    def span(pair: Sequence[float], form: str) -> str:
        low, high = (format(value, form) for value in pair)
        return low if low == high else f"{low} ... {high}"

    epsilon, claim = math.inf if plan["epsilon"] is None else plan["epsilon"], plan["epsilon_theorem"]
    rows = {} if plan["data"] is None else {"data": plan["data"]}
    rows |= {
        "records a rank": span(plan["records"], ","),
        "active rounds": span(plan["active_rounds"], ","),
        "batch": plan["batch"],
        "noise (sigma)": "none: NOT PRIVATE" if plan["sigma"][0] == 0 else span(plan["sigma"], ".4g"),
        "epsilon": f"{epsilon:.4g} at delta {plan['delta']:g}, certified{condition(plan['colluders'])}",
    }
    if plan["pair_noise"] is not None:
        rows["noise of pairs"] = plan["pair_noise"]["line"]
    if plan["unit"] != "record":
        rows["unit"] = plan["unit"]
    if (found := plan["evaluation"]) is not None:
        rows["evaluation"] = (
            f"epsilon {found['epsilon']:.4g} on {found['rows']:,} other rows, noise of {found['noise']:.3g} rows a cell"
        )
    groups = {k: value for k, value in plan["epsilon_groups"].items() if value is not None}
    if groups:
        rows["of one person"] = ", ".join(f"{k} records: epsilon {value:.3g}" for k, value in groups.items())
    if plan["derived"] is not None:
        rows["derived"] = plan["derived"]
    if plan["verdict"] is not None:
        rows["verdict"] = plan["verdict"]
    if claim is not None:
        trust = "" if epsilon <= claim else "; WARNING: the messages do not keep it"
        rows["theorem claims"] = f"{claim:.4g}{trust}"
    rows |= {"graph's beta": f"{plan['graph']['beta']:.4f}", "messages": f"{plan['messages']:,}"}
    if plan["bytes"] is not None:
        rows["bytes"] = f"{plan['bytes']:,}"
    title = f"{plan['algorithm']}, {plan['ranks']} ranks, {plan['graph']['name']}, {plan['rounds']} rounds"
    table = "\n".join([title, *(f"  {name:<16} {value}" for name, value in rows.items())])
    more = [show_curious(plan["curious"])] if "curious" in plan else []
    more += [show_predicted(plan["predicted"])] if "predicted" in plan else []
    return "\n".join([table, *more])


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi plan`."""
    parser = make_parser("python -m dpmpi plan", EXAMPLES, named_plugins(argv))
    parser.description = __doc__
    parser.add_argument("--samples-per-rank", type=int, metavar="N", help="records a rank, if there is no data yet")
    parser.add_argument("--json", action="store_true", help="print JSON")
    text = "what rank 3, or ranks 3 and 4 together, learn of the records of every other rank from what they hear"
    parser.add_argument("--curious", metavar="3,4", help=text)
    group = parser.add_argument_group("seconds, and other numbers of ranks")
    group.add_argument("--predict", action="store_true", help="messages, bytes and seconds for 20 ... 10,000 ranks")
    group.add_argument("--costs", type=Path, metavar="FILE", help="what bench --fit FILE measured (default: its own)")
    group.add_argument("--cores-per-host", type=int, metavar="C", help="(default: this machine's)")
    group.add_argument("--ranks-per-host", type=int, metavar="R", help="(default: all ranks on one host)")
    text = "what a rank computes in a round, in seconds of a core (default: a gradient over a batch of dense rows, its "
    text += "noise and a step; a run's own is cost.compute_seconds in its summary.json)"
    group.add_argument("--work-seconds", type=float, metavar="S", help=text)
    text = "between hosts that are far apart, one way (default: that of this machine)"
    group.add_argument("--latency", type=float, metavar="S", help=f"seconds {text}")
    group.add_argument("--bandwidth", type=float, metavar="B", help="bytes a second that leave a host (default: any)")
    given = vars(parser.parse_args(argv))
    as_json, count, curious = (given.pop(name, None) for name in ("json", "samples_per_rank", "curious"))
    names = ("predict", "costs", "cores_per_host", "ranks_per_host", "work_seconds", "latency", "bandwidth")
    asked = {name: given.pop(name, None) for name in names}
    assumed = _assumed(given)
    settings = Settings.of(from_values(given))
    ranks = settings.config.ranks or settings.config.loopback
    if ranks is None:
        raise ConfigError("plan needs the number of ranks: --ranks N")
    apart = count and settings.evaluating.kind == "private"
    tests = held_out(count, settings.source.options.test_fraction) if apart else 0
    records, dimension, held = [(count or 0) - tests] * ranks, settings.config.dimension, [tests] * ranks
    if count is None:
        settings, records, dimension, held = _surveyed(settings, ranks)
    elif not 1 <= count <= 10**12:
        raise ConfigError(f"--samples-per-rank must lie in 1 ... 10^12, got {count}")
    if dimension is None and settings.noise.kind != "gaussian":
        raise ConfigError(f"{settings.noise.kind} noise depends on the number of features: give --dimension M")
    width = settings.dimension(dimension or 1)
    plan = make_plan(settings, settings.schedule(ranks), records, width, held_out=held)
    plan.check()
    found = figures(plan, dimension, curious) | {"data": None if count is not None else settings.config.data + assumed}
    if any(value is not None for value in asked.values()):
        _check(asked, dimension)
        cores = asked["cores_per_host"] or usable_cores()
        on_a_host, work = asked["ranks_per_host"], asked["work_seconds"]
        link = None
        if asked["latency"] is not None or asked["bandwidth"] is not None:
            link, on_a_host = Link(asked["latency"] or 0.0, asked["bandwidth"] or math.inf), on_a_host or 1
        found["predicted"] = predicted(plan, load(asked["costs"]), cores, on_a_host, work, link)
    print(json.dumps(found, indent=1) if as_json else show(found), flush=True)
    return 0


def _assumed(given: Mapping[str, Any]) -> str:
    """Return a remark if neither flags nor the file that they name say which data to plan with."""
    path = given.get("config")
    named = "data" in given or (path is not None and "data" in read_toml(Path(path), "the configuration"))
    return "" if named else ", as none were named: --data, or --samples-per-rank N and --dimension M"


def _surveyed(settings: Settings, ranks: int) -> tuple[Settings, list[int], int, list[int]]:
    """Return the settings for the data's labels, every rank's records, the features, and every rank's held-out rows."""
    source = settings.source
    survey = source.survey()
    if survey is None:
        raise ConfigError("plan cannot see the shards: give --samples-per-rank N and --dimension M")
    settings, features = settings.with_task(source.declared_task(survey)), settings.config.dimension or survey.features
    return settings, source.shard_sizes(survey, ranks), features, source.test_sizes(survey, ranks)


def _check(asked: Mapping[str, Any], dimension: int | None) -> None:
    """Raise `ConfigError` for flags of a prediction that do not make sense."""
    if not asked["predict"]:
        raise ConfigError(
            "--costs, --cores-per-host, --ranks-per-host, --work-seconds, --latency and --bandwidth are for --predict: "
            "add it"
        )
    if dimension is None:
        raise ConfigError("--predict needs the length of messages: give --dimension M")
    for name, number in asked.items():
        if name.endswith("_per_host") and number is not None and not 1 <= number <= 10**6:
            raise ConfigError(f"{flag_of(name)} must lie in 1 ... 10^6, got {number}")
    for name, least in (("latency", 0.0), ("bandwidth", 1.0)):
        if asked[name] is not None and not least <= asked[name] < math.inf:
            raise ConfigError(f"{flag_of(name)} must be finite and at least {least:g}, got {asked[name]}")
    if not 0 <= (asked["work_seconds"] or 0) < math.inf:
        raise ConfigError(f"--work-seconds must be finite and not negative, got {asked['work_seconds']}")
