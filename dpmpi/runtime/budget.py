"""What a rank may spend: its budget, its ledger, and what earlier runs have charged to it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from dpmpi.core.files import read_toml
from dpmpi.core.frozen import frozen
from dpmpi.core.tables import TomlTable
from dpmpi.data import Shard
from dpmpi.errors import ConfigError, LedgerError, shown
from dpmpi.network.channel import Transport
from dpmpi.network.collective import in_each_domain, on_all_ranks
from dpmpi.privacy import accountants, filters
from dpmpi.privacy.events import ReadRows, ReleaseEvent, from_list, to_list
from dpmpi.privacy.ledger import recorded_runs
from dpmpi.privacy.releases import Releases, cache_file, first_releases, later_releases, tally
from dpmpi.privacy.spending import charged_to, for_persons, to_all_rows
from dpmpi.runtime.config import Config
from dpmpi.runtime.ledger_owner import check_ledger, first_order, known_mark, lock_ledger, read_split, training_mark
from dpmpi.runtime.plan import Plan

LARGEST_BUDGET = 1e300
"""Beyond it an epsilon promises nothing, and integers are no floats any more."""


@frozen
class Account:
    """Where a rank charges, what it may spend in all, and how many charges of this run that leaves."""

    path: Path
    earlier: Mapping[ReleaseEvent, int]
    budget: float | None
    allowance: int | None
    order: int
    """The Renyi order of the filter, for a ledger that goes on over runs."""
    owner: str | None
    """The shard's mark in such a ledger."""
    own: Mapping[ReleaseEvent, int] = field(default_factory=dict)
    """What this very run has charged before it was interrupted."""
    starts: int = 0
    """How often this run was started before."""
    lines: int | None = None
    """How many lines the ledger had when it was read for this."""
    evaluations: int | None = None
    """How many private evaluations what it may spend allows."""


def ledger_file(config: Config, ledger_path: Callable[[int], Path], name: int) -> Path:
    """Return where a rank's charges go: into the run directory, or to where those of earlier runs are."""
    return ledger_path(name) if config.ledger is None else Path(config.ledger) / f"rank-{name:03d}.jsonl"


def open_accounts(
    config: Config,
    transport: Transport,
    ledger_path: Callable[[int], Path],
    shards: Sequence[Shard],
    stack: ExitStack,
    names: Sequence[int],
    run: str | None = None,
) -> tuple[dict[int, Account], list[Account]]:
    """Return the accounts of the ranks in this process, and what all ranks may know of everybody's.

    They hold the budgets and what was charged by earlier runs, and by `run` itself before it was interrupted. How many
    charges that leaves is said by `set_allowances`.
    """
    accounts: dict[int, Account] = {}

    def read() -> list[Any]:
        told = []
        for rank, shard in zip(transport.ranks, shards, strict=True):
            with _of_rank(names[rank]):
                told.append(read_account(rank, shard))
        return told

    def read_account(rank: int, shard: Shard) -> list[Any]:
        path, starts = ledger_file(config, ledger_path, names[rank]), 0
        earlier: Counter[ReleaseEvent] = Counter()
        own: Counter[ReleaseEvent] = Counter()
        budget, owner, order, lines = read_budget(config, names[rank]), None, None, None
        if config.ledger is not None:
            stack.enter_context(lock_ledger(path))
            owner = known_mark(path, shard)
        if path.exists() and (config.ledger is not None or run is not None):
            lines = check_ledger(path, shard if config.ledger is not None else None)
            split, training = split_of(config, names[rank], shard), training_mark(path, shard)
            for header, spent, _ in recorded_runs(path):
                if run is not None and header.get("run") == run:
                    own, starts = own + spent, starts + 1
                    began = header.get("training") if config.ledger is not None else read_split(path)
                    if began not in (None, training):
                        raise _other_rows(names[rank])
                else:
                    cut = header.get("shard"), header.get("split"), header.get("training")
                    counted = spent if cut == (owner, split, training) else to_all_rows(spent)
                    earlier += charged_for_persons(counted, header, config.person_records or 1)
            order = first_order(path) if config.ledger is not None else None
        accounts[rank] = Account(path, earlier, budget, None, order or 0, owner, own, starts, lines)
        return [budget, order or 0, to_list(earlier), to_list(own), starts]

    known = [
        Account(Path(), from_list(earlier), budget, None, order, None, from_list(own), starts)
        for budget, order, earlier, own, starts in on_all_ranks(transport, read)
    ]
    return accounts, known


@contextmanager
def _of_rank(name: int) -> Iterator[None]:
    """Let errors name the rank whose ledger or budget they are about: all ranks hear of them."""
    try:
        yield
    except (ConfigError, LedgerError) as error:
        if re.search(r"\brank[ -]\d", str(error)):
            raise
        raise type(error)(f"rank {name}: {error}") from error


def split_of(config: Config, name: int, shard: Shard) -> str:
    """Return which rows of a shard are held out: a public function of what is said here, and of the shard.

    Two runs over the same shard, with the same split, hold out the same rows: what one part was charged for by the
    first costs the other part nothing in the second. After another split, or for another shard, a row may have been in
    either part, and what both were charged for counts for all rows.
    """
    unit = "rows" if shard.persons is None else "rows by person"
    count = shard.test_rows.count
    return f"seed {config.seed}, rank {name}, {count} of {count + shard.rows.count} {unit}"


def charged_for_persons(spent: Counter[ReleaseEvent], header: Mapping[str, Any], most: int) -> Counter[ReleaseEvent]:
    """Return what a run was charged for, if a person has `most` records now, not those that its header says."""
    records = header.get("person_records", 1)
    more = most / (max(1, records) if isinstance(records, int) else 1)
    return for_persons(spent, more) if more > 1.0 else spent


def _other_rows(name: int) -> ConfigError:
    return ConfigError(
        f"expected the rows that rank {name} began the run with, found others: some that were trained on may be held "
        "out now, or the other way round; put the shard back, or start a new run"
    )


@frozen
class Ahead:
    """The noise of all ranks, and what they have done when a run goes on; nothing if it begins."""

    sigmas: Sequence[float]
    made: Sequence[int]
    """How many of the planned releases."""
    evaluation_sigmas: Sequence[float] = ()
    after: int = 0
    """The last round."""


@frozen
class Fits:
    """How many of the planned releases of training the budgets allow: (allowed, planned) of each rank.

    Budgets and what was charged before are known to all ranks, so this is public. Empty where nothing limits the run,
    and in processes that do not lead a trust domain.
    """

    each: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def all_fit(self) -> bool:
        """Whether no rank will stop."""
        return all(allowed >= planned for allowed, planned in self.each.values())

    @property
    def nothing_fits(self) -> bool:
        """Whether no rank can release anything."""
        return not self.all_fit and not any(allowed for allowed, _ in self.each.values())

    def share(self, records: Sequence[int]) -> float:
        """Return which part of the planned releases fits, ranks weighed by their records."""
        planned = sum(records[rank] * count for rank, (_, count) in self.each.items())
        return sum(records[rank] * allowed for rank, (allowed, _) in self.each.items()) / planned if planned else 1.0

    def line(self) -> str | None:
        """Return a line on how many releases fit; None if all do."""
        if self.all_fit:
            return None
        short = [(allowed, planned) for allowed, planned in self.each.values() if allowed < planned]
        few, many = min(short), max(short)
        count = f"{few[0]:,}" if few[0] == many[0] else f"{few[0]:,} to {many[0]:,}"
        who = f"{len(short)} of {len(self.each)} ranks"
        return f"budget: {count} of {many[1]:,} planned releases fit, on {who}; after them they go on without data"


def set_allowances(
    plan: Plan,
    transport: Transport,
    leaders: Sequence[int],
    accounts: Mapping[int, Account],
    known: Sequence[Account],
    ahead: Ahead,
) -> tuple[dict[int, Account], Fits]:
    """Return the accounts with what they leave for the run, and how many of the releases to be made they allow.

    A budget limits what this run and earlier ones charge. The target limits this run alone, and a run that goes on may
    have charged more than it planned: if that leaves too little of the target for all the rest, even under more noise,
    the ranks end it without data rather than beyond the target. Evaluations have an allowance of their own: what
    training rows are charged for does not count for them, nor the other way round.
    """
    config, target = plan.config, None
    if config.calibration == "certified" and config.insecure_noise_seed is None and any(one.own for one in known):
        target = config.epsilon
    if config.ledger is None and target is None and all(one.budget is None for one in known):
        return {rank: replace(account, order=2) for rank, account in accounts.items()}, Fits()

    def find(rank: int) -> tuple[int | None, int, int | None, int]:
        account = known[rank]
        planned = later_releases(plan.releases(plan.terms(rank), ahead.sigmas[rank]), ahead.made[rank])
        order = account.order or filter_order(planned, account.budget or config.epsilon or 1.0, config.delta)
        evaluations = None
        if plan.held_out is not None:
            later = plan.held_out.releases(rank, ahead.evaluation_sigmas[rank], ahead.after)
            evaluations = within_limits(account, later, "held-out", order)
        count = sum(times for _, times in planned)
        return within_limits(account, planned, "training", order), order, evaluations, count

    def within_limits(account: Account, planned: Releases, part: ReadRows, order: int) -> int | None:
        nothing: Mapping[ReleaseEvent, int] = {}
        limits = [(target, nothing), (account.budget, account.earlier)]
        allowed = [
            allowance(planned, charged_to(earlier, part), limit, config.delta, order, charged_to(account.own, part))
            for limit, earlier in limits
            if limit is not None
        ]
        return min(allowed, default=None)

    # Each rank finds its own; the first one of a trust domain those of all, which its accountant keeps for the others.
    lead = any(rank in leaders for rank in transport.ranks)
    mine = range(transport.size) if lead else transport.ranks
    found = in_each_domain(transport, leaders, lambda: {rank: find(rank) for rank in mine})
    each = {}
    for rank, (allowed, _, _, planned) in found.items():
        # A run that goes on has made some: those that were charged, not those of rounds without data.
        made = ahead.made[rank]
        charged = min(made, sum(charged_to(known[rank].own, "training").values()))
        each[rank] = charged + (planned if allowed is None else allowed), made + planned
    return {
        rank: replace(
            account,
            budget=target if account.budget is None else account.budget,
            allowance=allowed,
            order=order,
            evaluations=evaluations,
        )
        for rank, account in accounts.items()
        for allowed, order, evaluations, _ in [found[rank]]
    }, Fits(each if lead else {})


def read_budget(config: Config, rank: int) -> float | None:
    """Return a rank's budget: from --budget itself, or from a TOML file that may be the rank's own."""
    if config.budget is None:
        return None
    try:
        value = float(config.budget)
    except ValueError:
        path = Path(config.budget.replace("{rank}", str(rank)))
        value = TomlTable(read_toml(path, "--budget: a number, or the file"), str(path)).get("epsilon", float)
    if not 0 <= value <= LARGEST_BUDGET:
        raise ConfigError(
            f"expected a budget from 0 to {LARGEST_BUDGET:g} for rank {rank}, found {shown(value)}: give an epsilon"
        )
    return value


def filter_order(planned: Sequence[tuple[ReleaseEvent, int]], budget: float, delta: float) -> int:
    """Return the Renyi order for a ledger that is to go on over runs: fixed by the first of them, once and for all."""
    if not planned or any(event.noise == "none" for event, _ in planned):
        return 2
    return max(2, math.ceil(filters.best_order(tally(planned), budget, delta)))


def allowance(
    planned: Sequence[tuple[ReleaseEvent, int]],
    earlier: Mapping[ReleaseEvent, int],
    budget: float,
    delta: float,
    order: int,
    own: Mapping[ReleaseEvent, int] | None = None,
) -> int:
    """Return how many of the planned releases, in their order, a budget allows.

    `own` is what this very run has charged before a failure: fixed by it and by the plan, so it composes with it. On a
    fresh ledger everything is fixed before the run, so the certified accountant decides. After earlier runs, whose
    results may have led to this one, composition is adaptive and a filter decides: Gaussian where all releases are
    unsampled Gaussian ones, else Renyi at the order that the ledger fixed when it began.
    """
    own = own or {}
    events = [event for event, _ in planned] + [*earlier, *own]
    if not planned or any(event.noise == "none" for event in events):
        return 0  # what was said without noise has spent every budget
    if not earlier:
        low, high = 0, sum(count for _, count in planned)
        while low < high:
            middle = (low + high + 1) // 2
            charges = tally(first_releases(planned, middle)) + Counter(own)
            fits = accountants.certified_epsilon(charges, delta, cache=cache_file()) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
    gaussian = all("gaussian" in event.noise and event.sampling.kind == "full" for event in events)
    filter_ = filters.GaussianFilter(budget, delta) if gaussian else filters.RdpFilter(budget, delta, float(order))
    left = filter_.budget - sum(filter_.cost(e, count) for e, count in (*earlier.items(), *own.items()))
    allowed = 0
    for event, count in planned:
        cost = filter_.cost(event)
        fitting = min(count, math.floor(left / cost)) if left > 0 and 0 < cost < math.inf else 0
        allowed, left = allowed + fitting, left - fitting * cost
        if fitting < count:
            break
    return allowed
