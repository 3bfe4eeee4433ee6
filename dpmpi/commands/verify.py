"""Check a run's ledgers: `python -m dpmpi verify RUN`.

The chain of every ledger is followed, and what it charges is priced again without the run's own code and without its
cache: by the PLD accountant of `dp_accounting`, straight from the recorded events, and by Renyi divergences. The run
fails the check if

- a chain is broken, a ledger is missing, or the run did not close it;
- the summary says something else than the ledgers' headers (ranks, delta, noise, whether anything is promised) or than
  the schedule, which is computed anew from the configuration (active rounds, messages);
- a ledger charges less than the wire carried: fewer releases than rounds in which the rank spoke with data;
- the summary claims a smaller epsilon than the replay finds, for a rank, for the ranks that were lost, or for the run.

Fixed-size batches have no replace-one PLD in the library; there Renyi divergences alone stand against the run's figure.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from dpmpi.errors import ConfigError, DpmpiError, LedgerError
from dpmpi.privacy.accountants import rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import recorded_runs
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.runtime.budget import ledger_file
from dpmpi.runtime.config import Config
from dpmpi.runtime.flags import Parser, from_values
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.plan import Plan, make_plan
from dpmpi.runtime.settings import Settings

TOLERANCE = 0.005
"""Two accountants discretise differently; a claim may be below the replay by this fraction."""

Start: TypeAlias = tuple[dict[str, Any], Counter[ReleaseEvent], bool]
"""Header, spending, and whether the ledger was closed."""


@dataclass(frozen=True)
class Replay:
    """One rank's ledger, priced again. `pld` is None where the library has no such accountant."""

    rank: int
    charges: int = 0
    epsilon: float | None = None
    pld: float | None = None
    rdp: float | None = None
    problems: tuple[str, ...] = ()

    @classmethod
    def price(cls, rank: int, spending: Counter[ReleaseEvent], delta: float, *, private: bool) -> Replay:
        """Price a rank's spending with all accountants; there is no epsilon if it was not private."""
        if not private:
            return cls(rank, spending.total())
        epsilon, pld = spent_epsilon(spending, delta, cached=False), pld_epsilon(spending, delta)
        return cls(rank, spending.total(), epsilon, pld, rdp_epsilon(spending, delta))

    @property
    def spent(self) -> float | None:
        """The larger epsilon of the two tight accountants."""
        return max((value for value in (self.pld, self.epsilon) if value is not None), default=None)


def pld_epsilon(spending: Counter[ReleaseEvent], delta: float) -> float | None:
    """Return the epsilon that the library's PLD accountant finds for Gaussian events; None for what it cannot do."""
    import dp_accounting  # noqa: PLC0415 - slow
    from dp_accounting.pld import PLDAccountant  # noqa: PLC0415

    if not spending:
        return 0.0
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    try:
        for event, count in spending.items():
            if event.noise != "gaussian" or event.sampling.kind == "fixed":
                return None
            # The library takes noise over the norm of ONE record and doubles it itself for replace-one.
            gaussian = dp_accounting.GaussianDpEvent(2 * event.scale / event.sensitivity)
            if event.sampling.kind == "poisson":
                gaussian = dp_accounting.PoissonSampledDpEvent(event.sampling.rate, gaussian)
            accountant.compose(gaussian, count)
        epsilon = float(accountant.get_epsilon(delta))
    except (ArithmeticError, ValueError, MemoryError):
        return None
    return epsilon if math.isfinite(epsilon) else None


def starts_of(path: Path, summary: dict[str, Any]) -> list[Start]:
    """Return every start of the run in a ledger; raise `LedgerError` if none fits."""
    if not path.exists():
        raise LedgerError(f"no ledger at {path}")
    found = [start for start in recorded_runs(path) if start[0].get("run") == summary["run"]]
    if not 1 <= len(found) <= summary["starts"]:
        raise LedgerError(f"{path} holds {len(found)} starts of the run, the summary says {summary['starts']}")
    return found


def active_rounds(starts: Sequence[Start], summary: dict[str, Any], settings: Settings) -> list[int]:
    """Return the rounds in which a rank was active: up to where the next start went on, by the ranks of that time."""
    rounds: list[int] = []
    ends = [header["after_round"] for header, _, _ in starts[1:]] + [settings.config.rounds]
    for (header, _, _), end in zip(starts, ends, strict=True):
        members = header.get("members") or list(range(summary["ranks_at_start"]))
        schedule = settings.schedule(summary["ranks_at_start"], members)
        found = schedule.rounds(members.index(header["rank"]), header["after_round"] + 1, end + 1)
        rounds = [t for t in rounds if t <= header["after_round"]] + [t for t, _ in found]
    return rounds


def replay(rank: int, starts: Sequence[Start], summary: dict[str, Any], plan: Plan) -> Replay:
    """Check and price one rank's ledger against the summary and the schedule."""
    record, privacy, problems = summary["per_rank"][rank], summary["privacy"], []
    header, _, closed = starts[-1]
    spending = _total(starts)
    if not closed:
        problems.append("the ledger was not closed: the run ended early, the last reservation counts in full")
    said = {
        "rank": (record["rank"], header["rank"]),
        "ranks": (summary["ranks"], header["ranks"]),
        "delta": (privacy["delta"], header["delta"]),
        "sigma": (record["sigma"] or 0.0, header["sigma"]),
        "samples": (record["samples"], header["records"]),
        "insecure_noise": (privacy["insecure_noise"], header["insecure_noise"]),
    }
    rounds = active_rounds(starts, summary, plan.settings)
    said |= {"active_rounds": (record["active_rounds"], len(rounds))}
    whole = not summary["lost"]  # else what was sent depends on when a rank was lost
    if whole and (not plan.method.ends_early() or record["messages_sent"] > plan.messages(rank)):
        said |= {"messages": (record["messages_sent"], plan.messages(rank))}
    problems += [f"the summary says {name} {a}, expected were {b}" for name, (a, b) in said.items() if a != b]
    stopped = math.inf if record["stopped"] is None else record["stopped"]
    spoke = plan.release_count(rank, sum(t < stopped for t in rounds))
    if spending.total() < spoke:
        problems.append(f"charges {spending.total()} releases, but the wire carried {spoke}")
    private = bool(header["private"]) and all(event.noise != "none" for event in spending)
    found = Replay.price(record["rank"], spending, header["delta"], private=private)
    return replace(found, problems=(*problems, *_wrong_claim(record["epsilon"], found)))


def replay_lost(name: int, starts: Sequence[Start], summary: dict[str, Any]) -> Replay:
    """Price the ledger of a rank that was lost on the way against what the others said that it can be at most."""
    spending, privacy, most = _total(starts), summary["privacy"], summary["privacy"]["epsilon_lost"]
    private = all(event.noise != "none" for event in spending)
    found = Replay.price(name, spending, privacy["delta"], private=private)
    if not privacy["private"] or found.spent is None or found.spent * (1 - TOLERANCE) <= most:
        return found
    wrong = f"the summary claims at most {most:.4g} for ranks that were lost, it was {found.spent:.4g}"
    return replace(found, problems=(wrong,))


def _total(starts: Sequence[Start]) -> Counter[ReleaseEvent]:
    return sum((spent for _, spent, _ in starts), Counter[ReleaseEvent]())


def _wrong_claim(claimed: Any, found: Replay) -> list[str]:
    """Return the problems of an epsilon that a summary claims."""
    if claimed is None:
        return [] if found.spent is None else ["the summary claims no epsilon, the replay finds one"]
    if not isinstance(claimed, int | float) or not math.isfinite(claimed) or found.spent is None:
        return [f"the summary claims epsilon {claimed}, the replay finds none"]
    problems, rdp = [], found.rdp
    if claimed < found.spent * (1 - TOLERANCE):
        problems.append(f"the summary claims epsilon {claimed:.4g}, the replay finds {found.spent:.4g}")
    if rdp is not None and claimed > rdp * (1 + TOLERANCE):
        problems.append(f"epsilon {claimed:.4g} is above the Renyi bound {rdp:.4g}: one of the accountants is wrong")
    return problems


def verify(path: Path) -> list[Replay]:
    """Return the replay of every rank of a run; raise `ConfigError` if it is not a finished run."""
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        config = from_values({"config": str(path / "config.toml")})
        return _verify(RunDirectory(path), summary, config)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        if isinstance(error, DpmpiError):
            raise
        why = "no summary.json" if isinstance(error, FileNotFoundError) else f"one that is damaged ({error!r:.200})"
        raise ConfigError(f"{path} is not a finished run: expected its summary, found {why}") from error


def _verify(directory: RunDirectory, summary: dict[str, Any], config: Config) -> list[Replay]:
    if len(summary["per_rank"]) != summary["ranks"] or summary["ranks"] < 1 or summary["rounds"] != config.rounds:
        raise ConfigError(f"{directory.path}: the summary does not fit its own figures or the configuration")
    if summary["batch"] != config.batch:
        config = from_values({"config": str(directory.path / "config.toml"), "batch": str(summary["batch"])})
    names = [record["rank"] for record in summary["per_rank"]]
    if names != sorted(names) or sorted([*names, *summary["lost"]]) != list(range(summary["ranks_at_start"])):
        raise ConfigError(f"{directory.path}: expected every rank once in the summary, as a rank or as lost")
    settings, records = Settings.of(config), [record["samples"] for record in summary["per_rank"]]
    schedule = settings.schedule(summary["ranks_at_start"], names)
    plan = make_plan(settings, schedule, records, summary["dimension"])
    found = []
    for rank, name in [*enumerate(names), *((-1, name) for name in summary["lost"])]:
        try:
            starts = starts_of(ledger_file(config, directory.ledger, name), summary)
        except DpmpiError as error:
            found.append(Replay(name, problems=(str(error),)))
            continue
        found.append(replay_lost(name, starts, summary) if rank < 0 else replay(rank, starts, summary, plan))
    claims, total = [record["epsilon"] for record in summary["per_rank"]], summary["privacy"]["epsilon"]
    claims += [summary["privacy"]["epsilon_lost"]] if summary["lost"] else []
    if total != (None if None in claims else max(claims)):
        wrong = f"the summary claims epsilon {total} for the run, its ranks have {claims}"
        found[0] = replace(found[0], problems=(*found[0].problems, wrong))
    return found


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi verify`; return 1 if a rank's ledger does not check out."""
    example, form = "example: python -m dpmpi verify runs/demo", argparse.RawDescriptionHelpFormatter
    parser = Parser("python -m dpmpi verify", None, __doc__, example, formatter_class=form, allow_abbrev=False)
    parser.add_argument("run", type=Path)
    flags = parser.parse_args(argv)
    ranks = verify(flags.run)
    print(f"{'rank':>4} {'charges':>8} {'epsilon':>9} {'PLD':>9} {'RDP':>9}")
    for rank in ranks:
        figures = " ".join("-".rjust(9) if x is None else f"{x:9.4g}" for x in (rank.epsilon, rank.pld, rank.rdp))
        print(f"{rank.rank:>4} {rank.charges:>8} {figures}  {'; '.join(rank.problems) or 'ok'}")
    failed = [rank for rank in ranks if rank.problems]
    print(f"{len(ranks) - len(failed)} of {len(ranks)} ledgers check out")
    return 1 if failed else 0
