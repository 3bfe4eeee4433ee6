"""Every charge of every ledger against the plan, which is computed anew from the configuration.

A start of the run goes on after a round, with the ranks that were left, and after what each of them had charged. From
that follow its schedule, its noise and the list of its releases in order of time. What a rank charged must be the
beginning of that list: the same noise, scale, sensitivity, sampling and count in the same order. It may be shorter, if
a budget or a crash ended it; that it is not too short is what the schedule says (command.py).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpmpi.commands.verify.ledgers import RankLedger, Start
from dpmpi.core.frozen import frozen
from dpmpi.errors import DpmpiError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.releases import Releases, later_releases
from dpmpi.runtime.held_out import evaluation_levels
from dpmpi.runtime.noise_levels import Spent, noise_levels
from dpmpi.runtime.plan import Plan, make_plan
from dpmpi.runtime.settings import Settings

SAME = 1e-9
"""Two computations of the same number may differ by this fraction."""
SAME_NOISE = 0.01
"""A search for noise ends within half a percent of the target: another library may end elsewhere in it."""


@frozen
class Facts:
    """What the run directory says about the whole run."""

    settings: Settings
    summary: Mapping[str, Any]
    ledgers: Mapping[int, RankLedger]
    """By the ranks' first numbers, lost ones included."""

    @property
    def origin(self) -> int:
        """The number of ranks that the run began with."""
        return int(self.summary["ranks_at_start"])

    def held_out(self, name: int) -> int:
        """Return a rank's held-out rows, a public fact too."""
        told = [one.get("held_out") for one in self.summary["per_rank"] if one["rank"] == name]
        told += [one.header.get("held_out") for one in self.ledgers[name].starts]
        return int(told[0] or 0) if told else 0

    def budget(self, name: int, start: Start) -> float | None:
        """Return a rank's budget in a start, as its ledger says."""
        mine = [one.header.get("budget") for one in self.ledgers[name].starts if one.incarnation == start.incarnation]
        return None if not mine or mine[0] is None else float(mine[0])

    def members(self, start: Start) -> list[int]:
        """Return the ranks that a start went on with."""
        return list(start.header.get("members") or range(self.origin))

    def records(self, name: int) -> int:
        """Return how many records a rank has: a public fact, which the ranks' plans depend on."""
        told = [one["samples"] for one in self.summary["per_rank"] if one["rank"] == name]
        told += [one.header["records"] for one in self.ledgers[name].starts]
        if not told:
            raise LookupError(f"the ledger of rank {name} cannot be read")
        return int(told[0])

    def before(self, name: int, start: Start) -> Counter[ReleaseEvent]:
        """Return a rank's charges for the run before it went on by `start`."""
        if start.incarnation and not self.ledgers[name].starts:
            raise LookupError(f"the ledger of rank {name} cannot be read")
        return self.ledgers[name].before(start.incarnation)

    def stopped(self, name: int) -> float:
        """Return the round from which on a rank released nothing."""
        found = [one["stopped"] for one in self.summary["per_rank"] if one["rank"] == name]
        return math.inf if not found or found[0] is None else found[0]

    def active_rounds(self, name: int, until: Start | None = None) -> list[int]:
        """Return the rounds in which a rank was active: up to where the next start went on, by the ranks of that time.

        With `until`, those that this start kept.
        """
        starts = self.ledgers[name].starts
        if until is not None:
            starts = tuple(one for one in starts if one.incarnation < until.incarnation)
        last = self.settings.rounds if until is None else until.after
        rounds: list[int] = []
        for one, end in zip(starts, [*(later.after for later in starts[1:]), last], strict=True):
            members = self.members(one)
            schedule = self.settings.schedule(self.origin, members)
            found = schedule.rounds(members.index(name), one.after + 1, end + 1)
            rounds = [t for t in rounds if t <= one.after] + [t for t, _ in found]
        return rounds


def check_charges(facts: Facts, name: int) -> tuple[list[str], list[str]]:
    """Return the problems of a rank's charges, and what could not be checked."""
    problems: list[str] = []
    unchecked: list[str] = []
    for start in facts.ledgers[name].starts:
        where = f"start {start.incarnation}: " if start.incarnation else ""
        try:
            plan, spent = _plan_of(facts, start)
            rank = facts.members(start).index(name)
            sigma = _expected_noise(plan, spent, facts)[rank]
            if not _near(start.header["sigma"], sigma, SAME_NOISE if facts.settings.config.epsilon else SAME):
                problems.append(
                    f"{where}expected noise {sigma:.6g} by the configuration, found {start.header['sigma']}"
                )
            planned = later_releases(plan.releases(plan.terms(rank), start.header["sigma"]), spent[rank].made)
            evaluations, training = _apart(start.charged)
            problems += [where + wrong for wrong in compare(training, planned)]
            problems += [where + wrong for wrong in _evaluations(facts, start, plan, spent, rank, evaluations)]
        except (DpmpiError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            unchecked.append(f"{where}the plan cannot be computed: {error!s:.120}")
    return problems, unchecked


def _apart(charged: Releases) -> tuple[Releases, Releases]:
    """Return the charges for held-out rows, and all others."""
    held_out = [(event, count) for event, count in charged if event.rows == "held-out"]
    return held_out, [(event, count) for event, count in charged if event.rows != "held-out"]


def _evaluations(
    facts: Facts, start: Start, plan: Plan, spent: Sequence[Spent], rank: int, charged: Releases
) -> Iterable[str]:
    """Yield what is wrong with the charges of private evaluations."""
    if plan.held_out is None:
        yield from compare(charged, [])
        return
    found = start.header["evaluation_sigma"]
    repeatable = facts.settings.config.insecure_noise_seed is not None
    budgets = [facts.budget(name, start) for name in facts.members(start)]
    trained, before = noise_levels(plan, cached=False), () if repeatable else spent
    expected = evaluation_levels(plan, trained, budgets, before, after=start.after, cached=False)[rank]
    if not _near(found, expected, SAME_NOISE):
        yield f"expected noise {expected:.6g} of evaluations by the configuration, found {found}"
    yield from compare(charged, plan.held_out.releases(rank, found, start.after))


def _plan_of(facts: Facts, start: Start) -> tuple[Plan, list[Spent]]:
    """Return the plan of a start, and what each of its ranks had charged and made by then."""
    members = facts.members(start)
    charged = [facts.before(name, start) for name in members]
    records = [facts.records(name) for name in members]
    schedule = facts.settings.schedule(facts.origin, members)
    done = [facts.active_rounds(name, start) if start.after else [] for name in members]
    counts = [len(rounds) for rounds in done]
    dimension = int(facts.summary["dimension"])
    held_out = [facts.held_out(name) for name in members]
    plan = make_plan(facts.settings, schedule, records, dimension, done=counts, since=start.after, held_out=held_out)
    made = [
        plan.release_count(rank, sum(t < facts.stopped(name) for t in done[rank])) if done[rank] else 0
        for rank, name in enumerate(members)
    ]
    return plan, [Spent(*pair) for pair in zip(charged, made, strict=True)]


def _expected_noise(plan: Plan, spent: Sequence[Spent], facts: Facts) -> list[float]:
    """Return the noise that the configuration asks for, found anew: no cache, and nothing that the run says."""
    repeatable = facts.settings.config.insecure_noise_seed is not None
    before = spent if any(one.charged for one in spent) and not repeatable else ()
    return noise_levels(plan, before, cached=False)


def compare(charged: Releases, planned: Releases) -> Iterable[str]:
    """Yield the first difference between what was charged and the beginning of what was planned."""
    left = deque(planned)
    made = 0
    for event, count in charged:
        need = count
        while need:
            if not left:
                yield f"charges {need} releases more than the {made} that were planned"
                return
            expected, room = left.popleft()
            wrong = _difference(event, expected) if room else None
            if wrong is not None:
                yield f"charge {made + 1}: {wrong}"
                return
            step = min(need, room)
            made, need = made + step, need - step
            if room > step:
                left.appendleft((expected, room - step))


def _difference(found: ReleaseEvent, expected: ReleaseEvent) -> str | None:
    mine, theirs = found.to_dict(), expected.to_dict()
    for name in sorted(mine.keys() | theirs.keys()):
        a, b = mine.get(name), theirs.get(name)
        numbers = isinstance(a, int | float) and isinstance(b, int | float)
        if not (_near(a, b, SAME) if numbers else a == b):
            return f"expected {name} {b} by the plan, found {a}"
    return None


def _near(a: Any, b: Any, tolerance: float) -> bool:
    return bool(abs(a - b) <= tolerance * max(abs(a), abs(b)))


def check_starts(facts: Facts) -> dict[int, list[str]]:
    """Return, by ranks, the starts in which they do not agree with the others.

    Ranks may miss a start that failed before all had begun, but what two of them say about the same one is the same,
    and those who are left were all in the last one.
    """
    told: dict[int, tuple[int, dict[str, Any]]] = {}
    problems: dict[int, list[str]] = {name: [] for name in facts.ledgers}
    last = int(facts.summary["starts"]) - 1
    for name, ledger in facts.ledgers.items():
        for start in ledger.starts:
            members = facts.members(start)
            mine = {key: start.header.get(key) for key in ("after_round", "config", "ranks", "private", "algorithm")}
            mine |= {"members": members}
            other, theirs = told.setdefault(start.incarnation, (name, mine))
            wrong = [key for key, value in mine.items() if value != theirs[key]]
            if wrong:
                problems[name].append(f"start {start.incarnation}: another {wrong[0]} than rank {other} has")
            if name not in members:
                problems[name].append(f"start {start.incarnation}: the rank is not among its members")
        if name not in facts.summary["lost"] and ledger.starts and ledger.starts[-1].incarnation != last:
            problems[name].append(f"expected start {last} as the last one, found {ledger.starts[-1].incarnation}")
    return problems
