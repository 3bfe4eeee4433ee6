"""Check a run's ledgers: `python -m dpmpi verify RUN`.

The chain of every ledger is followed, and what it charges is priced again without the run's own code: by the PLD
accountant of `dp_accounting`, straight from the recorded events, and by Renyi divergences. The run fails the check if

- a chain is broken, a ledger is missing or was not closed;
- a ledger charges less than the wire carried: fewer releases than rounds in which the rank spoke with data;
- the summary claims a smaller epsilon than the replay finds.

Fixed-size batches have no replace-one PLD in the library; there RDP alone stands against the figure of the run.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmpi.config import from_values
from dpmpi.errors import ConfigError, LedgerError
from dpmpi.planning import planned_releases, spent_epsilon
from dpmpi.privacy.accountants import rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import read_ledger
from dpmpi.rundir import RunDirectory

TOLERANCE = 0.005
"""Two accountants discretise differently; a claim may be below the replay by this fraction."""


@dataclass(frozen=True)
class Replay:
    """One rank's ledger, priced again. `pld` is None where the library has no such accountant."""

    rank: int
    charges: int
    epsilon: float | None
    pld: float | None
    rdp: float | None
    problems: tuple[str, ...]


def run_spending(path: Path, run: str) -> tuple[Counter[ReleaseEvent], bool]:
    """Return what one run charged to a ledger, and whether it closed it; other runs' entries are skipped."""
    spent: Counter[ReleaseEvent] = Counter()
    event: ReleaseEvent | None = None
    closed, ours = False, False
    for entry in read_ledger(path):
        if entry["type"] == "header":
            ours, event = entry.get("run") == run, None
        elif ours and entry["type"] == "reserve":
            event, closed = ReleaseEvent.from_dict(entry["event"]), False
            spent[event] += int(entry["count"])
        elif ours and entry["type"] == "close":
            if event is not None:
                spent[event] -= int(entry["unused"])
            event, closed = None, True
    return +spent, closed


def pld_epsilon(spending: Counter[ReleaseEvent], delta: float) -> float | None:
    """Return the epsilon that the library's PLD accountant finds for Gaussian events; None for what it cannot do."""
    import dp_accounting  # noqa: PLC0415 - slow
    from dp_accounting.pld import PLDAccountant  # noqa: PLC0415

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    for event, count in spending.items():
        if event.noise != "gaussian" or event.sampling.kind == "fixed":
            return None
        # The library takes noise over the norm of ONE record and doubles it itself for replace-one.
        gaussian = dp_accounting.GaussianDpEvent(2 * event.scale / event.sensitivity)
        if event.sampling.kind == "poisson":
            gaussian = dp_accounting.PoissonSampledDpEvent(event.sampling.rate, gaussian)
        accountant.compose(gaussian, count)
    return float(accountant.get_epsilon(delta)) if spending else 0.0


def replay(rank: int, path: Path, summary: dict[str, Any], per_round: float) -> Replay:
    """Check and price one rank's ledger against the summary."""
    try:
        spending, closed = run_spending(path, summary["run"])
    except LedgerError as error:
        return Replay(rank, 0, None, None, None, (str(error),))
    problems = [] if closed else ["the ledger was not closed: the run ended early, the last reservation counts in full"]
    record, delta = summary["per_rank"][rank], summary["privacy"]["delta"]
    spoke = record["active_rounds"] if record["stopped"] is None else _rounds_with_data(record)
    charges = spending.total()
    if charges < math.floor(spoke * per_round):
        problems.append(f"charges {charges} releases, but the wire carried {spoke} rounds with data")
    private = all(event.noise != "none" for event in spending)
    pld = pld_epsilon(spending, delta) if private else None
    rdp = rdp_epsilon(spending, delta) if private else None
    epsilon = spent_epsilon(spending, delta) if private else None
    claimed = record["epsilon"]
    if claimed is not None:
        judges = [value for value in (pld, epsilon) if value is not None]
        if not judges or claimed < max(judges) * (1 - TOLERANCE):
            problems.append(f"the summary claims epsilon {claimed:.4g}, the replay finds {judges or 'infinity'}")
        if rdp is not None and claimed > rdp * (1 + TOLERANCE):
            problems.append(f"epsilon {claimed:.4g} is above the RDP bound {rdp:.4g}: one of the accountants is wrong")
    return Replay(rank, charges, epsilon, pld, rdp, tuple(problems))


def _rounds_with_data(record: dict[str, Any]) -> int:
    """Return the active rounds before the budget was spent; with node sampling at most that many."""
    return min(int(record["active_rounds"]), int(record["stopped"]) - 1) if record["stopped"] else 0


def verify(path: Path) -> list[Replay]:
    """Return the replay of every rank of a run; raise `ConfigError` if it is not a run directory."""
    directory = RunDirectory(path)
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        config = from_values({"config": str(path / "config.toml")})
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not a finished run: {error}") from error
    per_round = planned_releases(config, 1000) / 1000
    found = []
    for rank in range(summary["ranks"]):
        ledger = directory.ledger(rank) if config.ledger is None else Path(config.ledger) / f"rank-{rank:03d}.jsonl"
        if not ledger.exists():
            found.append(Replay(rank, 0, None, None, None, (f"no ledger at {ledger}",)))
            continue
        found.append(replay(rank, ledger, summary, per_round))
    return found


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi verify`; return 1 if a rank's ledger does not check out."""
    parser = argparse.ArgumentParser(
        prog="python -m dpmpi verify", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog="example: python -m dpmpi verify runs/demo",
    )  # fmt: skip
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
