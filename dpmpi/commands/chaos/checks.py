"""What must be true after a failure. Each check returns None, or one line that says what is not.

With V the ranks that died, G the graph and C(S) the largest connected part of G among the ranks S, those who go on are
C(V') for V' the others if all deaths are seen at once, and C(C(...) - ...) if they are seen one after the other; nobody
if so few of those before are alive that they cannot know whether it is they who were cut off, or too few for the noise
in their sum. Which deaths are seen together is a matter of microseconds, so each order is right.                    (1)

While a rank v is stopped in its round r, a rank begins a round t unless it waits in an earlier one, and waits in t if
one of its peers of that round has not begun it:

    begins(j, t) = not waits(j, s) for all s < t;  waits(j, t) = some peer p of j in t with not begins(p, t)         (2)

with begins(v, t) for t < r only. Rounds are not barriers: nobody waits for anything else.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dpmpi.commands.verify import verify
from dpmpi.core import Array
from dpmpi.errors import DpmpiError
from dpmpi.network.channel import Schedule
from dpmpi.network.graph import Graph
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.ledger import recorded_runs, recorded_spending
from dpmpi.runtime.assembly import assemble, open_ledgers
from dpmpi.runtime.budget import ledger_file
from dpmpi.runtime.config import Config
from dpmpi.runtime.evaluation import Evaluator
from dpmpi.runtime.job import Past
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.plan import make_plan
from dpmpi.runtime.recovery.resume import fewest_ranks, quorate
from dpmpi.runtime.settings import Settings

Counts: TypeAlias = Mapping[int, int]
"""Releases by rank."""
REFERENCES = 10
"""Undisturbed runs that an objective is held against."""
SPREADS = 5.0
"""How many of their standard deviations another may be away: Student's for 1 in 1000, 4.78 sqrt(1 + 1/10)."""


def possible_survivors(graph: Graph, dead: Sequence[int], fewest: int = 1) -> set[tuple[int, ...]]:
    """Return who may be left when ranks have died, by (1); the empty group is among them if they may be too few."""

    def after(group: tuple[int, ...], left: frozenset[int]) -> Iterator[tuple[int, ...]]:
        mortal = left.intersection(group)
        if not mortal:
            yield group
        for count in range(1, len(mortal) + 1):
            for together in combinations(sorted(mortal), count):
                rest = [rank for rank in group if rank not in together]
                if not quorate([k for k, rank in enumerate(group) if rank in rest], len(group)):
                    yield ()
                    continue
                part = graph.induced(rest).largest_component()
                if len(part) < fewest:
                    yield ()
                    continue
                yield from after(tuple(rest[k] for k in part), left - set(together))

    return set(after(tuple(range(graph.size)), frozenset(dead)))


def wrong_survivors(summary: Mapping[str, Any], config: Config, ranks: int, dead: Sequence[int]) -> str | None:
    """Check that those went on who should, and that the summary says so."""
    names = tuple(record["rank"] for record in summary["per_rank"])
    settings = Settings.of(config)
    expected = possible_survivors(settings.graph(ranks), dead, fewest_ranks(settings, ranks))
    if names not in expected:
        return f"rank {', '.join(map(str, dead))} died, expected {sorted(expected)} to go on, found {list(names)}"
    if summary["lost"] != sorted(set(range(ranks)) - set(names)) or summary["ranks_at_start"] != ranks:
        return f"summary.json says lost {summary['lost']} of {summary['ranks_at_start']}, but {list(names)} went on"
    return None


def undisturbed(config: Config, ranks: int, names: Sequence[int]) -> tuple[float, Array]:
    """Return the objective and the models of a run to which nothing happens, among some ranks from the beginning.

    It is run in this process, on loopback: the same rounds, the same shards, and for repeatable noise the same bits.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plain = replace(config, out=None, ledger=None, checkpoint_every=None)
        past = Past(ranks, tuple(names), os.urandom(8).hex())
        transport = LoopbackTransport(len(names))
        job = assemble(Settings.of(plain), transport, RunDirectory(folder).ledger, stack, past=past)
        open_ledgers(job, stack)
        job.engine.advance(job.plan.rounds)
        evaluator = Evaluator(job.engine, None, job.settings.penalty, None)
        objective = evaluator.evaluate().objective
        return math.nan if objective is None else objective, np.stack(evaluator.mean_model()[1])


def undisturbed_objectives(config: Config, ranks: int, names: Sequence[int]) -> Iterator[float]:
    """Yield the objectives of undisturbed runs, each with other noise; for repeatable noise the first has the run's."""
    seed = config.insecure_noise_seed
    for k in range(REFERENCES):
        yield undisturbed(replace(config, insecure_noise_seed=None if seed is None else seed + k), ranks, names)[0]


def wrong_objective(found: float, objectives: Iterator[float], within: float) -> tuple[str | None, list[float]]:
    """Check that an objective is that of an undisturbed run, up to a fraction and what noise does to it.

    Return what is wrong, and the undisturbed objectives that were looked at: one if that is near, else `REFERENCES`.
    With their mean m and deviation s, an undisturbed run is outside of m -+ (`SPREADS` s + within m) less than once in
    a thousand times, even without the second term.
    """
    some = [next(objectives)]
    if abs(found - some[0]) <= within * abs(some[0]):
        return None, some
    some += [next(objectives) for _ in range(REFERENCES - 1)]
    mean, spread = float(np.mean(some)), float(np.std(some, ddof=1))
    if abs(found - mean) <= SPREADS * spread + within * abs(mean):
        return None, some
    of = f"{mean:.6g} with deviation {spread:.2g} in {REFERENCES} undisturbed runs"
    return f"the objective is {found:.6g}, but {of}: more than {SPREADS:g} deviations and {within:.0%} away", some


def wrong_bits(run: Path, expected: Array) -> str | None:
    """Check that the models are those of an undisturbed run, bit for bit."""
    with np.load(run / "model.npz", allow_pickle=False) as found:
        models = found["x_rank"]
    if models.shape == expected.shape and bool((models == expected).all()):
        return None
    return f"the models differ from the undisturbed ones, by up to {np.abs(models - expected).max():.3g}"


def wrong_agreement(summary: Mapping[str, Any]) -> str | None:
    """Check that all ranks ended with the same model, up to rounding: else some used a sum that others did not."""
    found = summary["consensus_error"]
    return None if found < 1e-9 else f"the ranks' models differ by {found:.3g}: a sum was used by some only"


def wrong_crowd(run: Path, config: Config, ranks: int) -> str | None:
    """Check that no start of a run added up over fewer ranks than noise in the sum may have."""
    fewest = fewest_ranks(Settings.of(config), ranks)
    for name in range(ranks):
        path = ledger_file(config, RunDirectory(run).ledger, name)
        for header, _, _ in recorded_runs(path) if path.exists() else ():
            if header["ranks"] < fewest:
                return f"rank {name} began a sum of {header['ranks']} ranks, expected at least {fewest} of {ranks}"
    return None


def wrong_ledgers(run: Path) -> str | None:
    """Check the ledgers of a finished run, those of lost ranks included, with the independent accountant."""
    try:
        found = verify(run)
    except DpmpiError as error:
        return str(error)
    bad = [f"rank {one.rank}: {'; '.join(one.problems) or 'no ledger'}" for one in found if one.problems or one.absent]
    return bad[0] if bad else None


def wrong_counts(run: Path, config: Config, carried: Counts, most: Counts | None = None) -> str | None:
    """Check that no ledger charges less than the wire carried, nor more than `most` of each rank in vain."""
    for name, releases in carried.items():
        path = ledger_file(config, RunDirectory(run).ledger, name)
        try:
            charges = recorded_spending(path).total() if path.exists() else 0
        except DpmpiError as error:
            return str(error)
        if charges < releases:
            return f"rank {name} charged {charges} releases, but the wire carried {releases}"
        if most is not None and charges > releases + most[name]:
            return f"rank {name} charged {charges} releases for {releases} on the wire, {most[name]} may be in vain"
    return None


def releases_of_an_interval(config: Config, ranks: int, summary: Mapping[str, Any]) -> dict[int, int] | None:
    """Return the most releases that each rank makes from one checkpoint to the next; None if they come by the clock."""
    settings = Settings.of(replace(config, batch=summary["batch"]))
    interval, schedule = settings.checkpoints.rounds, settings.schedule(ranks)
    if interval is None:
        return None
    plan = make_plan(settings, schedule, [record["samples"] for record in summary["per_rank"]], summary["dimension"])
    found = {}
    for rank in range(ranks):
        active = [t for t, _ in schedule.rounds(rank, 1, config.known_rounds + 1)]
        blocks = [sum(t <= k + interval for t in active if t > k) for k in range(0, config.known_rounds, interval)]
        per_round = plan.release_count(rank) / max(1, len(active))
        found[rank] = int(np.ceil(per_round * max(blocks)))
    return found


def reach(schedule: Schedule, rounds: int, stopped: int, stuck: int, barriers: int) -> dict[int, int]:
    """Return the last round >= `stuck` that each rank begins by (2) while one is stopped; 0 if there is none.

    Nobody gets beyond the next multiple of `barriers` either, where all ranks evaluate; 0 if they never do.
    """
    end = min(rounds, -(-stuck // barriers) * barriers) if barriers else rounds
    active: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for rank in range(schedule.size):
        for t, near in schedule.rounds(rank, stuck, end + 1):
            active.setdefault(t, []).append((rank, near.peers))
    begun, waiting = dict.fromkeys(range(schedule.size), 0), {stopped}
    for t in sorted(active):
        begun |= {rank: t for rank, _ in active[t] if rank not in waiting}
        waiting |= {rank for rank, peers in active[t] if not waiting.isdisjoint(peers)}
    return begun


def idle_ranks(schedule: Schedule, rounds: int, stopped: int, pause: Mapping[int, int], barriers: int) -> str | None:
    """Check that at the end of a pause all ranks had begun what they could; `pause` says in which round each was."""
    for rank, expected in reach(schedule, rounds, stopped, pause[stopped], barriers).items():
        if rank != stopped and pause[rank] < expected:
            return (
                f"rank {stopped} stood still in round {pause[stopped]}: rank {rank} could begin round {expected} "
                f"meanwhile and was in {pause[rank]}"
            )
    return None


def most_waited_for(summary: Mapping[str, Any]) -> int:
    """Return the rank for which the others waited longest, all together."""
    waits: defaultdict[str, float] = defaultdict(float)
    for record in summary["per_rank"]:
        for peer, traffic in record["neighbours"].items():
            waits[peer] += traffic["wait_seconds"]
    return int(max(waits, key=waits.__getitem__))
