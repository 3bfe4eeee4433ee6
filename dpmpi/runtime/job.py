"""One run as its processes have it: where it comes from, and all that this process needs for its part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpmpi.core.frozen import frozen
from dpmpi.data import Shard
from dpmpi.network.handshake import Meeting
from dpmpi.network.transport.meter import Meter, Traffic
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import Ledger
from dpmpi.privacy.releases import later_releases, tally
from dpmpi.runtime.budget import Account, Fits
from dpmpi.runtime.config import Config
from dpmpi.runtime.engine import Engine
from dpmpi.runtime.expectation import expected
from dpmpi.runtime.plan import Plan
from dpmpi.runtime.recovery.snapshot import Snapshot
from dpmpi.runtime.settings import Settings
from dpmpi.runtime.verdict import Verdict


@frozen
class Past:
    """What a run that goes on brings with it; that of a run which begins is empty."""

    origin: int
    """The ranks that the run began with."""
    names: tuple[int, ...]
    """Those that are left, by their first numbers: rank k of now is the rank names[k] of then."""
    run: str | None = None
    """The run's random name; None if it begins."""
    round: int = 0
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict)
    """Of the ranks in this process, by their numbers now; empty if the run begins, or begins again."""
    shards: Sequence[Shard] | None = None
    """Those of the same ranks, if they are at hand."""
    floor: int = 0
    """The incarnation is not below this one."""
    charged: Mapping[int, Mapping[ReleaseEvent, int]] = field(default_factory=dict)
    """The most that ranks can have charged, by their names; of those that are lost if they ever charged anything."""

    @classmethod
    def none(cls, ranks: int) -> Past:
        """Return the past of a run that begins with `ranks` ranks."""
        return cls(ranks, tuple(range(ranks)))

    @property
    def goes_on(self) -> bool:
        """Whether the run was started before."""
        return self.run is not None

    @property
    def lost(self) -> dict[int, Mapping[ReleaseEvent, int]]:
        """The most that ranks which were lost can have charged, by their names."""
        return {name: self.charged.get(name, {}) for name in range(self.origin) if name not in self.names}

    def progress(self, rank: int) -> tuple[int, int]:
        """Return in how many rounds an agent here was active, and how many releases it made."""
        if rank not in self.snapshots:
            return 0, 0
        agent = self.snapshots[rank].agent
        return agent["active_rounds"], agent["releases"]


@dataclass
class Job:
    """What this process needs for its part of a run."""

    run: str
    """A random name, the same on all ranks."""
    plan: Plan
    past: Past
    engine: Engine
    meter: Meter
    shards: Sequence[Shard]
    accounts: Mapping[int, Account]
    """Of the ranks here."""
    known: Sequence[Account]
    """What is known of every rank's account, not only of those here: what was charged before, and how often."""
    sigmas: Sequence[float]
    """The noise's standard deviation of every rank, not only of those here."""
    evaluation_sigmas: Sequence[float]
    """That of private evaluations; empty if there are none."""
    incarnation: int
    """How often the run was started, or regrouped, before."""
    made: Sequence[int]
    """How many of its planned releases every rank had made when the run went on."""
    meeting: Meeting
    fits: Fits
    """How many of the planned releases the budgets allow, known where results are written."""
    ledgers: list[Ledger] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return self.plan.settings

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.plan.config

    @property
    def names(self) -> Sequence[int]:
        """The ranks by their first numbers."""
        return self.past.names

    @property
    def leads(self) -> bool:
        """Whether the first rank of a trust domain is in this process: it writes the domain's results."""
        return any(rank in self.meeting.leaders for rank in self.meter.ranks)

    @property
    def evaluate_every(self) -> int:
        """The rounds between two evaluations without noise; 0 for never."""
        evaluating = self.settings.evaluating
        if evaluating.kind != "open":
            return 0
        return evaluating.every or max(1, self.plan.rounds // 20)

    def verdict(self) -> Verdict | None:
        """Return the verdict on the run within its budgets."""
        return expected(self.plan, self.sigmas, self.fits.share(self.plan.records))

    @property
    def private(self) -> bool:
        """Whether the run promises anything: noise everywhere, from secret keys."""
        return self.config.insecure_noise_seed is None and all(sigma > 0 for sigma in self.sigmas)

    def planned(self, rank: int) -> list[tuple[ReleaseEvent, int]]:
        """Return the releases that a rank has still to make."""
        releases = self.plan.releases(self.plan.terms(rank), self.sigmas[rank])
        return list(later_releases(releases, self.made[rank]))

    def evaluations(self, rank: int) -> list[tuple[ReleaseEvent, int]]:
        """Return the releases that a rank has still to make for private evaluations."""
        held_out = self.plan.held_out
        return [] if held_out is None else held_out.releases(rank, self.evaluation_sigmas[rank], self.past.round)

    def most_charged(self) -> dict[int, Mapping[ReleaseEvent, int]]:
        """Return the most that every rank can charge from the beginning of the run to its end, lost ones included."""
        found = self.past.lost
        for rank, name in enumerate(self.names):
            found[name] = Counter(self.known[rank].own) + tally(self.planned(rank)) + tally(self.evaluations(rank))
        return found

    def spending(self) -> dict[int, Counter[Any]]:
        """Return the charges of the ranks here for this run so far."""
        return {rank: self.spending_of(rank) for rank in self.meter.ranks}

    def spending_of(self, rank: int) -> Counter[Any]:
        """Return the charges of one of the ranks here."""
        found = Counter[Any](self.ledgers[list(self.meter.ranks).index(rank)].spending())
        found.update(self.accounts[rank].own)
        return found

    def traffic(self, rank: int) -> dict[int, Traffic]:
        """Return the traffic between `rank` and each of its peers, by their names, since the run began."""
        found = {self.names[peer]: traffic for peer, traffic in self.meter.traffic(rank).items()}
        if rank in self.past.snapshots:
            for name, before in self.past.snapshots[rank].traffic.items():
                found.setdefault(int(name), Traffic()).add(Traffic(**before))  # type: ignore[arg-type]
        return dict(sorted(found.items()))
