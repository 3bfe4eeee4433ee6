"""Runs for the audit: the product itself, again and again, over shards with a canary.

The first rank holds a *gradient canary*: a record u or -u (all coordinates equal, of norm 1). With the squared loss its
label is so large that its clipped gradient is +L u or -L u, whatever the model is; with another loss it is the label of
the steepest slope c at the score 0, so that the gradient is about +c u or -c u, clipped (for K scores, u c' or -u c').
For the mean loss the canary is a corner of the cube or the opposite one. The two signs are two adjacent shards. The
other records are *silent* (gradient 0) or *opposed* (the gradient of the other sign: the worst case of batches of a
fixed size, in which a record that is not drawn leaves its place to another). The other ranks' records are silent.

Everything else is a run: `assemble` and `open_ledgers` calibrate, make mechanisms, agents, exchanges, seals and ledgers
(in a folder that is thrown away), and the engine runs the rounds on the given transport. What the runs are held
against, the *claim*, is computed here, from the settings and public facts alone: not from what a run was told.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpmpi.commands.audit.figures import FigureTap, silence
from dpmpi.commands.audit.listening import VICTIM, Heard, heard, listen
from dpmpi.core import Array, Mechanism
from dpmpi.core.frozen import frozen
from dpmpi.data.source import Shard, Source, SourceOptions, Survey
from dpmpi.errors import ConfigError
from dpmpi.network.channel import Transport
from dpmpi.network.collective import on_first_rank
from dpmpi.network.graph import Graph
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.releases import tally
from dpmpi.problem.losses import Squared
from dpmpi.problem.rows import Csr, Dense, Rows
from dpmpi.rng import fresh_key
from dpmpi.runtime.assembly import assemble, open_ledgers
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.output.progress import Progress
from dpmpi.runtime.plan import make_plan
from dpmpi.runtime.plugins import blamed
from dpmpi.runtime.settings import Settings
from dpmpi.runtime.trainer import Trainer

LABEL = 1e100
"""So large that no model comes near: the clipped gradient has norm L and the sign of -label."""
RADIUS = 1.0
"""Of the cube of the mean loss."""


@frozen
class Bait:
    """The label of all made-up records, and what it does."""

    label: float
    sign: float
    """That of the slope of one score."""
    slope: float
    """The norm of the slopes at the model 0, before clipping."""


def bait(settings: Settings) -> Bait:
    """Return the label of the steepest slope at the model 0; raise `ConfigError` if the loss has none."""
    loss, kind = settings.loss, settings.task.kind
    if loss is None or isinstance(loss, Squared):
        return Bait(-LABEL, 1.0, LABEL)
    labels = np.array([-1.0, 1.0])
    if kind == "multiclass":
        labels = np.arange(float(settings.task.scores))
    elif kind == "counts":
        labels = np.array([0.0, settings.task.high])
    with blamed():
        slopes = loss.slope(np.zeros((len(labels), loss.scores) if loss.scores > 1 else len(labels)), labels)
    slopes = slopes.reshape(len(labels), -1)
    steep = np.linalg.norm(slopes, axis=1)
    k = int(np.argmax(steep))
    if not 0.0 < steep[k] < np.inf:
        raise ConfigError(f"its slope at the score 0 is {steep[k]:g}")
    return Bait(float(labels[k]), 1.0 if loss.scores > 1 or slopes[k, 0] > 0.0 else -1.0, float(steep[k]))


@frozen
class Canary:
    """The shard that is to be told from its neighbour."""

    records: int
    dimension: int = 5
    opposed: bool = False
    sparse: bool = False
    """Whether rows are kept as their nonzeros."""
    leaves: bool = False
    """Whether one world has an empty record in the canary's place, and not the opposite canary."""


@frozen
class CanaryShards(Source):
    """Shards that are made up: the canary, and records that are silent or opposed to it."""

    name: ClassVar[str] = "canary"
    private: ClassVar[bool] = True
    canary: Canary
    sign: int
    """The world: +1 or -1."""
    bait: Bait | None
    """None for points whose mean is looked for, without labels."""

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Return the shard of a rank; of the first one, with the canary as its first record."""
        canary, sign = self.canary, self.sign
        X, y = np.zeros((canary.records, canary.dimension)), _silent(self.bait, canary.records)
        if rank == VICTIM:
            signs = np.full(canary.records, -1.0 if canary.opposed else 0.0)
            signs[0] = 0.0 if canary.leaves and sign < 0 else sign
            if self.bait is None:
                X[:] = -RADIUS * signs[:, None]  # the gradient of a point d is x - d
            else:
                X[:] = self.bait.sign * canary.dimension**-0.5 * signs[:, None]
                y[signs != 0.0] = self.bait.label
        return _shard(X, y, sparse=canary.sparse)


@frozen
class ManyCanaries(Source):
    """Shards with a canary in each of the first coordinates of the victim's, of the given signs."""

    name: ClassVar[str] = "canaries"
    private: ClassVar[bool] = True
    records: int
    signs: tuple[float, ...]
    bait: Bait

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Return the shard of a rank."""
        k = len(self.signs)
        X, y = np.zeros((self.records, k)), _silent(self.bait, self.records)
        if rank == VICTIM:
            X[:k], y[:k] = np.diag(self.bait.sign * np.array(self.signs)), self.bait.label
        return _shard(X, y)


def _silent(bait: Bait | None, records: int) -> Array:
    """Return labels of records without features, which any label leaves silent: one that the loss takes."""
    return np.full(records, 0.0 if bait is None or abs(bait.label) == LABEL else bait.label)


def _shard(X: Array, y: Array, *, sparse: bool = False) -> Shard:
    rows: Rows = Dense(X)
    if sparse:
        where = np.nonzero(X)
        indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(X, axis=1))])
        rows = Csr(indptr, where[1], X[where], X.shape[1])
    return Shard(rows, y, Dense(np.zeros((0, X.shape[1]))), np.zeros(0))


class Weakened:
    """Noise of which a part is missing, although the ledger is told of all of it: for trying out the audit."""

    def __init__(self, honest: Any, factor: float) -> None:
        self._honest, self._factor = honest, factor

    def mechanism(self, sigma: float, key: bytes, width: int, ranks: int) -> Mechanism:
        """Return a mechanism that says sigma, and adds sigma/factor."""
        return WeakMechanism(
            self._honest.mechanism(sigma, key, width, ranks),
            self._honest.mechanism(sigma / self._factor, key, width, ranks),
        )

    def paired(self, mechanism: Any, key: bytes, seat: Any) -> Mechanism:
        """Return the same with the noise that a rank shares with its neighbours, if it does."""
        says, does = (self._honest.paired(one, key, seat) for one in (mechanism.says, mechanism.does))
        return WeakMechanism(says, does)

    def on(self, graph: Graph) -> Weakened:
        """Return the noise on this graph, as weak."""
        return Weakened(self._honest.on(graph), self._factor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)


class WeakMechanism:
    """A mechanism that charges like one and adds noise like another."""

    def __init__(self, says: Any, does: Any) -> None:
        self.sigma, self.event = says.sigma, says.event
        self.says, self.does = says, does

    def __getattr__(self, name: str) -> Any:
        return getattr(self.does, name)


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that is thrown away, in memory where there is one: its ledgers and heads outlive nothing."""
    memory = Path("/dev/shm")  # noqa: S108 - only as the parent of a folder with a random name
    before = os.environ.get("DPMPI_HEADS")
    with tempfile.TemporaryDirectory(prefix="dpmpi-audit-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        os.environ["DPMPI_HEADS"] = f"{name}/heads"
        try:
            yield Path(name)
        finally:
            os.environ.pop("DPMPI_HEADS")
            if before is not None:
                os.environ["DPMPI_HEADS"] = before


Plant = Callable[[Settings], Settings]
"""Changes the settings of the runs, not those of the claim: a bug that the audit is to find."""


def weaken(factor: float) -> Plant:
    """Return a planted bug: noise that is `factor` times too small."""
    return lambda settings: replace(settings, noise=Weakened(settings.noise, factor))  # type: ignore[arg-type]


def honest(settings: Settings) -> Settings:
    """Return the settings as they are."""
    return settings


class Laboratory:
    """Runs the product over made-up shards, and listens; all processes do the same together."""

    def __init__(self, settings: Settings, transport: Transport, canary: Canary, plant: Plant = honest) -> None:
        n = transport.size
        if n < 2:
            raise ConfigError("the audit reads a wire: start it as mpirun -n 4 python -m dpmpi audit, or --loopback 4")
        self.transport, self.canary, self.plant = transport, canary, plant
        settings = replace(settings, constant=0.0)  # an intercept would take a part of the canary's norm
        plan = make_plan(settings, settings.schedule(n), [canary.records] * n, settings.dimension(canary.dimension))
        self.bait = None if settings.loss is None else bait(settings)
        plan.check()
        if plan.active[VICTIM] == 0:
            raise ConfigError(f"rank {VICTIM} never speaks in {plan.rounds} rounds: give --rounds more")
        self.plan, self.settings, self.config = plan, plan.settings, plan.config
        terms = plan.terms(VICTIM)
        self.sigma = float(on_first_rank(transport, lambda: noise_levels(plan))[VICTIM])
        self.claim: Counter[ReleaseEvent] = tally(plan.releases(terms, self.sigma))
        """What the victim may release, by its own reckoning."""
        self.rate = terms.sampling.rate if terms.sampling.kind != "full" else 1.0
        self.charged: Counter[Any] = Counter()
        """What the victim's first run charged to its ledger."""
        self.listens = VICTIM in transport.ranks
        self.progress = Progress(0, shown=False)
        self.runs = 0

    def seed(self) -> int:
        """Return a seed for runs that may be repeated, the same on all ranks and another in every audit."""
        given = self.config.insecure_noise_seed
        if given is not None:
            return 1_000_000 * (given + 1)
        return int(on_first_rank(self.transport, lambda: int.from_bytes(fresh_key()[:6], "little")))

    def world(self, sign: int) -> Source:
        """Return the shards of one of the two worlds."""
        return CanaryShards(SourceOptions(), self.canary, sign, self.bait)

    def settings_of(self, source: Source, seed: int | None) -> Settings:
        """Return the settings of a run over these shards; without a seed its keys are fresh, as always."""
        config = replace(self.config, insecure_noise_seed=seed)
        return self.plant(replace(self.settings, config=config, given=source))

    def run(self, source: Source, seed: int | None) -> Heard:
        """Run all rounds over these shards; return what was heard, where the victim is."""
        settings = self.settings_of(source, seed)
        with ExitStack() as stack:
            folder = stack.enter_context(scratch())
            job = assemble(settings, self.transport, lambda rank: folder / f"rank-{rank}.jsonl", stack)
            open_ledgers(job, stack)
            tap = listen(job)
            for last in self.progress.pieces(0, self.plan.rounds):
                job.engine.advance(last)
                self.progress.update(self.runs * self.plan.rounds + last)
            self.runs += 1
            if self.listens and not self.charged:
                self.charged = job.spending()[VICTIM]
            return heard(job, tap)

    def run_whole(self, source: Source) -> dict[str, float]:
        """Run a job over these shards from its start to its closing; return the figures that the victim handed over."""
        tap = FigureTap(self.transport)
        settings = self.settings_of(source, self.config.insecure_noise_seed)
        with ExitStack() as stack:
            directory = RunDirectory(stack.enter_context(scratch()))
            stack.enter_context(silence())
            job = assemble(settings, tap, directory.ledger, stack)
            open_ledgers(job, stack)
            Trainer(job, directory, lambda: False).run()
        self.runs += 1
        return tap.heard
