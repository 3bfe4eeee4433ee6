"""Check a run's ledgers: `python -m dpmpi verify RUN`.

From config.toml and the public facts in the summary the plan is computed anew: schedule, noise, and every release of
every rank. Nothing that the run computed is believed, and no cache is read. The run fails the check if

- a chain is broken, or the run did not close it; a mac is not that of the ledger's key, the last
  line is not signed by the roster's key, or lines are missing that the owner's head or the summary knows;
- config.toml is not the configuration that the ledgers' headers name, or ranks tell their starts differently;
- a charge is not the one that the plan has in its place (noise, scale, sensitivity, sampling, and whether training or
  held-out rows were read), the noise is not what --epsilon asks for, or a ledger charges less than the wire carried;
- the summary says something else than the ledgers' headers (ranks, delta, noise, whether anything is promised) or than
  the schedule (active rounds, messages);
- the summary claims a smaller epsilon than the run's accountant finds for the ledger, or than two neighbouring data
  sets show: `lower`, by a code path of its own (privacy/replay.py). The truth lies between `lower` and `upper`.

What could not be checked, for lack of a key, a roster, another rank's ledger or a lower bound, is named for each rank.
A ledger that is not here is `absent`, not wrong: every party has its own. The last line says which were checked. The
exit code is 0 if all ledgers are here and right, 1 if one is wrong, 3 if none is wrong and some are absent. With --own,
those of other ranks may be absent.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from dpmpi.commands.verify.events import SAME, Facts, check_charges, check_starts
from dpmpi.commands.verify.ledgers import Roster, read_rank
from dpmpi.core.files import parse_toml
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, DpmpiError
from dpmpi.privacy.accountants import rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.privacy.replay import Bounds, replay
from dpmpi.privacy.spending import charged_to
from dpmpi.runtime.budget import ledger_file
from dpmpi.runtime.config import Config
from dpmpi.runtime.flag_parser import Parser
from dpmpi.runtime.flags import from_text
from dpmpi.runtime.output.directory import RunDirectory, nearest_run
from dpmpi.runtime.plan import Plan, make_plan
from dpmpi.runtime.settings import Settings

INCOMPLETE = 3
"""The exit code where nothing is wrong and ledgers are absent."""
TOLERANCE = 0.005
"""A search for noise and an accountant stop within half a percent; a claim may be below the accountant by so much."""


@frozen
class Replay:
    """One rank's ledger, priced again. `bounds` are None if it was not private."""

    rank: int
    charges: int = 0
    epsilon: float | None = None
    """By the run's own accountant, without its cache."""
    rdp: float | None = None
    bounds: Bounds | None = None
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    absent: bool = False
    """Whether the ledger is not here, so that nothing of it was checked."""
    not_private: str | None = None
    """Why the run promises nothing; None if it promises something."""


@frozen
class Pricer:
    """Prices what ranks have spent; equal spending once."""

    delta: float
    width: int
    extra: bool

    def __call__(self, name: int, spending: Counter[ReleaseEvent], *, private: bool) -> Replay:
        """Return a rank's price; there is no epsilon if it was not private."""
        if not private:
            return Replay(name, spending.total())
        epsilon, rdp, bounds = _priced(tuple(spending.items()), self.delta, self.width, self.extra)
        return Replay(name, spending.total(), epsilon, rdp, bounds, unchecked=bounds.missing)


@cache
def _priced(
    spending: tuple[tuple[ReleaseEvent, int], ...], delta: float, width: int, extra: bool
) -> tuple[float | None, float, Bounds]:
    counted = Counter(dict(spending))
    epsilon = spent_epsilon(counted, delta, cached=False)
    try:
        bounds = replay(counted, delta, width, extra=extra)
    except (ArithmeticError, ValueError, MemoryError):
        bounds = Bounds(0.0, math.inf, ("the price: losses are too large to be composed",))
    return epsilon, rdp_epsilon(counted, delta), bounds


def check_rank(rank: int, facts: Facts, plan: Plan, price: Pricer) -> Replay:
    """Check and price one rank's ledger against the summary, the schedule and the plan."""
    summary = facts.summary
    record, privacy = summary["per_rank"][rank], summary["privacy"]
    ledger = facts.ledgers[record["rank"]]
    header = ledger.starts[-1].header
    said = {
        "rank": (record["rank"], header["rank"]),
        "ranks": (summary["ranks"], header["ranks"]),
        "delta": (privacy["delta"], header["delta"]),
        "sigma": (record["sigma"] or 0.0, header["sigma"]),
        "samples": (record["samples"], header["records"]),
        "insecure_noise": (privacy["insecure_noise"], header["insecure_noise"]),
        "private": (privacy["private"], bool(header["private"] and privacy["epsilon"] is not None)),
        "configured delta": (privacy["delta"], facts.settings.config.delta),
        "held_out": (record.get("held_out"), header.get("held_out")),
        "evaluation_sigma": (record.get("evaluation_sigma"), header.get("evaluation_sigma")),
        "unit": (privacy.get("unit", "record"), facts.settings.unit),
    }
    rounds = facts.active_rounds(record["rank"])
    said |= {"active_rounds": (record["active_rounds"], len(rounds))}
    whole = not summary["lost"]  # else what was sent depends on when a rank was lost
    if whole and (not plan.method.ends_early() or record["messages_sent"] > plan.messages(rank)):
        said |= {"messages": (record["messages_sent"], plan.messages(rank))}
    problems = [f"the summary says {name} {a}, expected were {b}" for name, (a, b) in said.items() if a != b]
    if record["stopped"] is not None and header["budget"] is None:
        problems.append(f"the summary says that a budget ended in round {record['stopped']}, the ledger has none")
    spending = ledger.spending
    spoke = plan.release_count(rank, sum(t < facts.stopped(record["rank"]) for t in rounds))
    evaluated = sum(count for event, count in spending.items() if event.rows == "held-out")
    if spending.total() - evaluated < spoke:
        problems.append(f"charges {spending.total() - evaluated} releases, but the wire carried {spoke}")
    if plan.held_out is not None and record["evaluated"] and evaluated < plan.held_out.count():
        problems.append(f"charges {evaluated} evaluations, but the wire carried {plan.held_out.count()}")
    private = bool(header["private"]) and all(event.noise != "none" for event in spending)
    found = price(record["rank"], spending, private=private)
    if plan.held_out is not None and private:
        problems += _wrong_parts(record, spending, price)
    return replace(found, problems=(*problems, *_wrong_claim(record["epsilon"], found)))


def _wrong_parts(record: Mapping[str, Any], spending: Counter[ReleaseEvent], price: Pricer) -> list[str]:
    """Return the problems of what a summary claims for training and held-out rows apart, and for both together."""
    parts = {"epsilon_training": charged_to(spending, "training")}
    parts["epsilon_evaluation"] = charged_to(spending, "held-out")
    problems = []
    for name, part in parts.items():
        found = price(record["rank"], part, private=True)
        problems += [f"{name}: {wrong}" for wrong in _wrong_claim(record[name], found)]
    claims = [record[name] for name in parts]
    if None not in claims and record["epsilon"] is not None and record["epsilon"] < max(claims):
        problems.append(f"the summary claims epsilon {record['epsilon']:.4g}, less than one of its parts {claims}")
    return problems


def check_lost(name: int, facts: Facts, price: Pricer) -> Replay:
    """Price the ledger of a rank that was lost on the way against what the others said that it can be at most.

    They cannot know how far it came, so their figure may be above any bound of what it was.
    """
    spending, privacy = facts.ledgers[name].spending, facts.summary["privacy"]
    found = price(name, spending, private=all(event.noise != "none" for event in spending))
    if not privacy["private"] or found.epsilon is None:
        return found
    return replace(found, problems=tuple(_wrong_claim(privacy["epsilon_lost"], replace(found, rdp=None))))


def _wrong_claim(claimed: Any, found: Replay) -> list[str]:
    """Return the problems of an epsilon that a summary claims."""
    if claimed is None:
        return [] if found.epsilon is None else ["the summary claims no epsilon, the replay finds one"]
    if not isinstance(claimed, int | float) or not math.isfinite(claimed) or found.epsilon is None:
        return [f"the summary claims epsilon {claimed}, the replay finds none"]
    problems = []
    if claimed < found.epsilon * (1 - TOLERANCE):
        problems.append(f"the summary claims epsilon {claimed:.4g}, the replay finds {found.epsilon:.4g}")
    if found.bounds is not None and claimed < found.bounds.lower * (1 - SAME):
        problems.append(f"epsilon {claimed:.4g} is below {found.bounds.lower:.4g}, which two data sets show")
    if found.rdp is not None and claimed > found.rdp * (1 + TOLERANCE):
        problems.append(f"epsilon {claimed:.4g} is above the Renyi bound {found.rdp:.4g}: an accountant is wrong")
    return problems


def verify(
    path: Path, roster: Path | None = None, plugins: Sequence[str] = (), ledger: Path | None = None
) -> list[Replay]:
    """Check the ledgers of a run and return what each rank has spent, and what is wrong; raise if nothing can be read.

    `roster` is the file of the ranks' public keys, by default the one that the run used; `plugins` say where the source
    of its plug-ins is now, `ledger` in which folder the ledgers are now.
    """
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        text = (path / "config.toml").read_text(encoding="utf-8")
        given = {"plugin": tuple(plugins)} if plugins else {}
        if not plugins:
            _refuse_carried_plugins(text, path)
        config = from_text(text, path / "config.toml", given)
        if summary["batch"] != config.batch:
            config = from_text(text, path / "config.toml", given | {"batch": str(summary["batch"])})
        return _verify(RunDirectory(path), summary, config, roster, ledger)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        if isinstance(error, DpmpiError):
            raise
        why = f"one that is damaged ({error!r:.200})"
        if isinstance(error, NotADirectoryError):
            why = "a file: name the directory"
        if isinstance(error, FileNotFoundError):
            why = "no summary.json" if path.exists() else f"no such folder{nearest_run(path)}"
        raise ConfigError(f"{path} is not a finished run: expected its summary, found {why}") from error


def _refuse_carried_plugins(text: str, path: Path) -> None:
    """Raise `ConfigError` for a plug-in that lies in the run directory, which may be a stranger's: it would be run."""
    named = parse_toml(text, str(path / "config.toml")).get("plugin", [])
    for one in [named] if isinstance(named, str) else named:
        if Path(str(one)).resolve().is_relative_to(path.resolve()):
            raise ConfigError(
                f"{path} brings its own plug-in {one}, whose code would be run here: read it, then give --plugin FILE"
            )


def _verify(
    directory: RunDirectory, summary: dict[str, Any], config: Config, keys: Path | None, folder: Path | None
) -> list[Replay]:
    if len(summary["per_rank"]) != summary["ranks"] or summary["ranks"] < 1 or summary["rounds"] != config.known_rounds:
        raise ConfigError(f"{directory.path}: the summary does not fit its own figures or the configuration")
    names = [record["rank"] for record in summary["per_rank"]]
    if names != sorted(names) or sorted([*names, *summary["lost"]]) != list(range(summary["ranks_at_start"])):
        raise ConfigError(f"{directory.path}: expected every rank once in the summary, as a rank or as lost")
    settings, records = Settings.of(config), [record["samples"] for record in summary["per_rank"]]
    held_out = [record.get("held_out") or 0 for record in summary["per_rank"]]
    schedule = settings.schedule(summary["ranks_at_start"], names)
    plan = make_plan(settings, schedule, records, summary["dimension"], held_out=held_out)
    roster, everyone = _roster(config, keys), [*names, *summary["lost"]]
    where = config if folder is None else replace(config, ledger=str(folder))
    ledgers = {name: read_rank(ledger_file(where, directory.ledger, name), name, summary, roster) for name in everyone}
    facts = Facts(settings, summary, ledgers)
    starts = check_starts(facts)
    extra = any(release.extra for release in plan.method.releases(plan.terms(0)))
    price = Pricer(summary["privacy"]["delta"], plan.width, extra)
    found = []
    for rank, name in [*enumerate(names), *((-1, name) for name in summary["lost"])]:
        ledger = ledgers[name]
        if not ledger.starts:
            found.append(Replay(name, problems=ledger.problems, unchecked=ledger.unchecked, absent=ledger.absent))
            continue
        one = check_lost(name, facts, price) if rank < 0 else check_rank(rank, facts, plan, price)
        problems, unchecked = check_charges(facts, name)
        digests = {start.header.get("config") for start in ledger.starts}
        other = "expected the config.toml that the ledger names, found another: it was edited, or is another run's"
        problems = [*ledger.problems, *([other] if digests != {config.digest()} else []), *starts[name], *problems]
        unchecked = [*ledger.unchecked, *unchecked]
        found.append(replace(one, problems=(*problems, *one.problems), unchecked=(*unchecked, *one.unchecked)))
    claims, total = [record["epsilon"] for record in summary["per_rank"]], summary["privacy"]["epsilon"]
    claims += [summary["privacy"]["epsilon_lost"]] if summary["lost"] else []
    if total != (None if None in claims else max(claims)):
        wrong = f"the summary claims epsilon {total} for the run, its ranks have {claims}"
        found[0] = replace(found[0], problems=(*found[0].problems, wrong))
    why = _not_private(config, summary, found)
    return [replace(one, not_private=why) for one in found]


def _not_private(config: Config, summary: Mapping[str, Any], found: Sequence[Replay]) -> str | None:
    """Return why a run promises nothing, whatever its ledgers charge; None if it promises something."""
    if config.insecure_noise_seed is not None or summary["privacy"]["insecure_noise"]:
        return "whoever knows insecure_noise_seed can subtract the noise"
    if not summary["privacy"]["private"] or any(one.charges and one.epsilon is None for one in found):
        return "the ledgers charge releases without an epsilon"
    return None


def _roster(config: Config, given: Path | None) -> Roster:
    """Return the ranks' public keys; the run's own roster is where its configuration says, if that is here."""
    if given is None and config.keys is None:
        return Roster(None, "the run had no identities")
    from dpmpi.crypto.keys import load_roster  # noqa: PLC0415 - slow, and few runs need it

    path = Path(config.keys or "") / "roster.toml" if given is None else given
    if given is None and not path.exists():
        return Roster(None, f"no roster at {path}, give --roster")
    return Roster(load_roster(path), "")


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi verify`; return 1 if a rank's ledger is wrong, 3 if nothing is and some are absent."""
    example, form = "example: python -m dpmpi verify runs/demo", argparse.RawDescriptionHelpFormatter
    parser = Parser("python -m dpmpi verify", None, __doc__, example, formatter_class=form, allow_abbrev=False)
    parser.add_argument("run", type=Path)
    what = "the ranks' public keys, got by another way than the run directory (default: the run's own)"
    parser.add_argument("--roster", type=Path, metavar="FILE", help=what)
    what = "where the source of the run's plug-in is now (default: where it was); may be repeated"
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help=what)
    what = "the folder in which the ledgers are now (default: the run directory's, or that of the run's --ledger)"
    parser.add_argument("--ledger", type=Path, metavar="DIR", help=what)
    what = "the ranks whose ledgers must be here, such as 2 or 2,3: those of others may be absent (default: all)"
    parser.add_argument("--own", type=_ranks, metavar="RANKS", help=what)
    flags = parser.parse_args(argv)
    if flags.ledger is not None and not flags.ledger.is_dir():
        raise ConfigError(f"expected a folder with ledgers for --ledger, found none at {flags.ledger}")
    ranks = verify(flags.run, flags.roster, flags.plugin, flags.ledger)
    if flags.own is not None and (unknown := flags.own - {rank.rank for rank in ranks}):
        last = max(rank.rank for rank in ranks)
        raise ConfigError(f"expected ranks from 0 to {last} for --own, found {', '.join(map(str, sorted(unknown)))}")
    print(f"{'rank':>4} {'charges':>8} {'epsilon':>9} {'lower':>9} {'upper':>9}  {'verdict':<10} could not be checked")
    for rank in ranks:
        bounds = (None, None) if rank.bounds is None else (rank.bounds.lower, rank.bounds.upper)
        figures = " ".join("-".rjust(9) if x is None else f"{x:9.4g}" for x in (rank.epsilon, *bounds))
        verdict = "WRONG" if rank.problems else "absent" if rank.absent else "ok"
        print(f"{rank.rank:>4} {rank.charges:>8} {figures}  {verdict:<10} {'; '.join(rank.unchecked) or '-'}")
        for problem in rank.problems:
            print(f"{'':>4} {problem}")
    print(conclusion(ranks, flags.own))
    if any(rank.problems for rank in ranks):
        return 1
    return INCOMPLETE if _missing(ranks, flags.own) else 0


def _ranks(text: str) -> frozenset[int]:
    """Return the ranks that a flag lists."""
    try:
        return frozenset(int(one) for one in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected ranks such as 0 or 1,2, found {text!r:.40}") from None


def _missing(ranks: Sequence[Replay], own: frozenset[int] | None) -> list[int]:
    """Return the ranks whose ledgers are not here and should be."""
    return [rank.rank for rank in ranks if rank.absent and (own is None or rank.rank in own)]


def conclusion(ranks: Sequence[Replay], own: frozenset[int] | None = None) -> str:
    """Return the line that says which ledgers check out, how many are not here, and whether anything is promised."""
    absent = sum(rank.absent for rank in ranks)
    right = [rank.rank for rank in ranks if not (rank.problems or rank.absent)]
    told = f"{len(right)} of {len(ranks)} ledgers check out"
    if right and absent:
        told += f" ({'rank' if len(right) == 1 else 'ranks'} {', '.join(map(str, right))})"
    if absent:
        told += f", {absent} {'is' if absent == 1 else 'are'} not here"
    if _missing(ranks, own):
        told += ": the check is not complete"
    why = ranks[0].not_private
    return told if why is None else f"{told}; NOT PRIVATE: {why}"
