"""What a configuration means: a method, a source, a batch, a noise ... as objects, made in this one place.

`Config` is text, `Settings` are objects. Plan, run, resume, verify, sweep, audit and bench all take them from here, so
that nobody parses a string twice. What `auto` stands for depends on public facts (records, features); `derived.py` puts
it into the configuration itself, hence into config.toml and its digest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dpmpi.core import Array, Method, Penalty
from dpmpi.core.frozen import frozen
from dpmpi.data import SOURCES, Source, parse_source
from dpmpi.errors import ConfigError
from dpmpi.model.histogram import Statistics
from dpmpi.model.model import LINKS
from dpmpi.network.graph import Graph, make_graph
from dpmpi.network.schedule import SampledSchedule, StaticSchedule, SumSchedule, make_schedule
from dpmpi.problem.batches import Batch
from dpmpi.problem.intercept import WithConstant
from dpmpi.problem.local_problem import LocalProblem, MeanProblem, mean_lipschitz
from dpmpi.problem.losses import LOSSES, MEAN, USUAL_LOSS, Loss, weighted
from dpmpi.problem.penalties import parse_penalty
from dpmpi.problem.rows import Positions, Rows
from dpmpi.problem.task import Declared, Task, TaskKind, parse_weights
from dpmpi.rng import PrivateStream
from dpmpi.runtime.config import Config
from dpmpi.runtime.evaluating import HELD_OUT, Evaluating
from dpmpi.runtime.messages import Messages, SharedSums, make_messages
from dpmpi.runtime.noise import Noise, SumNoise, make_noise
from dpmpi.runtime.options import AUTO, flag_of
from dpmpi.runtime.plugins import loss_of, penalty_of
from dpmpi.runtime.recovery.interval import Interval

CONSTANT = 0.3
"""The intercept's column for records of norm at most 1: it takes 4% of their norm bound."""


@frozen
class Settings:
    """The settings of a run as objects; `config` is the text that they were made of."""

    config: Config
    method: Method
    regulariser: Penalty | None
    """None while it is still to be derived."""
    batch: Batch | None
    """None while it is still to be derived."""
    noise: Noise
    messages: Messages
    checkpoints: Interval
    loss: Loss | None
    """None for the problem of the mean, which has no scores."""
    known_task: Task | None
    """What labels are; None while only the data say it."""
    radius: float | None
    """The bound of the records of the mean problem; None for other problems."""
    constant: float
    """The constant beside every record's features; 0 for none."""
    given: Source | None = None
    """A source as an object, for laboratories, instead of the one that the configuration names."""
    typed: Config | None = None
    """The configuration as it was before `auto` was derived; None while it is still to be done."""

    @classmethod
    def of(cls, config: Config) -> Settings:
        """Return the settings of a configuration; raise `ConfigError` for those that do not fit together."""
        declared = declared_labels(config)
        weighs = config.class_weights is not None and bool(parse_weights(config.class_weights))
        sure = declared.known() if declared.classes or not weighs else None  # weights are by name
        found = cls(
            config=config,
            method=config.make_method(),
            regulariser=None
            if config.penalty == AUTO
            else penalty_of(config.penalty, config.domain, config.plugin_digest),
            batch=None if config.batch == AUTO else Batch.parse(config.batch),
            noise=make_noise(config),
            messages=make_messages(config),
            checkpoints=Interval.parse(config.checkpoint_every),
            loss=None if _without_labels(config) else _loss(config, declared.kind or "binary", sure),
            known_task=_labels(config, declared),
            radius=getattr(_source(config), "radius", None) if _without_labels(config) else None,
            constant=_constant(config),
        )
        if found.regulariser is None:
            parse_penalty("none", config.domain)  # raises for a domain that cannot be parsed
        if isinstance(found.noise, SumNoise) and not isinstance(found.messages, SharedSums):
            raise ConfigError("--noise-in sum needs sums in which nobody sees a summand: add --exchange shares")
        if found.checkpoints.seconds is not None and not found.shares_timings:
            raise ConfigError(
                f"expected --checkpoint-every in rounds where timings are kept, found {config.checkpoint_every}: give "
                "rounds, or --timings shared"
            )
        if config.sample_edges is not None and found.method.schedule != "sampled":
            raise ConfigError(f"--sample-edges does not apply to {config.algorithm}; take --algorithm sampled-dda")
        if config.evaluate is not None and found.evaluating.kind == "private":
            if not (config.epsilon or config.noise):
                raise ConfigError("--evaluate private adds noise for a privacy target: give --epsilon, or --evaluate N")
            if found.loss is None or config.test_fraction == 0:
                raise ConfigError(
                    f"--evaluate private needs labels and held-out rows, found --data {config.data} and "
                    f"--test-fraction {config.test_fraction}: take other data, or hold rows out"
                )
        if found.batch is None and config.epsilon is None:
            raise ConfigError("--batch auto is chosen for a privacy target: give --epsilon, or a batch")
        return found

    @cached_property
    def source(self) -> Source:
        """Where the records come from."""
        return self.given or _source(self.config)

    @property
    def evaluating(self) -> Evaluating:
        """What the run evaluates; without --evaluate, private shards under noise privately."""
        return _evaluating(self.config, _kind(self.config) if self.given is None else type(self.given))

    @property
    def statistics(self) -> Statistics:
        """What a private evaluation counts."""
        return Statistics(self.task, probable=LINKS.get(self.loss_name.partition(":")[0], "none") != "none")

    @property
    def unit(self) -> str:
        """What the guarantee is about."""
        most = self.noise.records
        return "record" if most == 1 else f"person, at most {most} records"

    @property
    def shares_timings(self) -> bool:
        """Whether ranks tell each other how long they took and how much memory; it depends on their records."""
        return self.config.timings == "shared" or (self.config.timings is None and not self.source.private)

    @property
    def rounds(self) -> int:
        """How many rounds; raise `ConfigError` while they are still to be derived."""
        return self.config.known_rounds

    @property
    def penalty(self) -> Penalty:
        """The penalty, with its domain; raise `ConfigError` while it is still to be derived."""
        if self.regulariser is None:
            raise ConfigError("expected a penalty, found auto, which depends on the data: derive it first")
        return self.regulariser

    @property
    def drawn(self) -> Batch:
        """The batch; raise `ConfigError` while it is still to be derived."""
        if self.batch is None:
            raise ConfigError("expected a batch, found auto, which depends on the records: derive it first")
        return self.batch

    @property
    def classifies(self) -> bool:
        """Whether labels are classes, so that there is an accuracy."""
        return self.loss is not None and self.task.classifies

    @property
    def task(self) -> Task:
        """What labels are; raise `ConfigError` while only the data say it."""
        if self.known_task is None:
            kind = self.config.task or "this loss"
            raise ConfigError(
                f"expected the labels' declaration for {kind}, found none: give --classes a,b,... or --label-range "
                "low:high"
            )
        return self.known_task

    def with_task(self, task: Task | None) -> Settings:
        """Return the settings for what the data declare their labels to be; None if they do not."""
        if task is None or self.loss is None:
            return self
        return dataclasses.replace(self, known_task=task, loss=_loss(self.config, task.kind, task))

    @property
    def loss_name(self) -> str:
        """The loss as `--loss` has it."""
        if self.config.loss is not None:
            return self.config.loss
        return MEAN if self.loss is None else USUAL_LOSS[self.task.kind]

    @property
    def curvature(self) -> tuple[float | None, float]:
        """The largest and the smallest curvature of f_i that hold for all data; None if there is no largest one."""
        if self.loss is None:
            return 1.0, 1.0
        return self.loss.smoothness(self.config.lipschitz or self.loss.clip) if self.config.normalize else None, 0.0

    @property
    def scores(self) -> int:
        """The scores of a record, K; raise `ConfigError` while only the data say it."""
        return 1 if self.loss is None else self.loss.scores or self.task.scores

    @property
    def integrable(self) -> bool:
        """Whether a record's clipped gradient is that of a convex function."""
        if self.loss is None or self.scores == 1:
            return True
        steepest, L = self.loss.steepest, self.config.lipschitz or self.loss.clip
        return self.config.normalize and steepest is not None and steepest < L

    def graph(self, ranks: int) -> Graph:
        """Return the graph over the ranks that the run began with."""
        return make_graph(self.config.graph, ranks, self.config.seed)

    def schedule(self, ranks: int, members: Sequence[int] | None = None) -> StaticSchedule | SampledSchedule:
        """Return who talks to whom in which round of a run that began with `ranks` ranks, if `members` are left.

        Sums in which nobody sees a summand are over all ranks, whatever the graph that they travel along.
        """
        config, graph = self.config, self.graph(ranks)
        if members is not None and len(members) < ranks:
            graph = graph.induced(members)
        sampled = self.method.schedule == "sampled"
        if self.messages.hides and not sampled:
            return SumSchedule(graph)
        return make_schedule(graph, config.weights, (config.sample_edges or 1) if sampled else None, config.seed)

    def lipschitz(self, dimension: int) -> float:
        """Return the norm bound L of one record's gradient."""
        if self.radius is not None:
            return mean_lipschitz(self.radius, dimension)
        if self.config.lipschitz is None:
            raise ConfigError("expected a clipping norm L, found auto, which depends on the loss: derive it first")
        return self.config.lipschitz

    def dimension(self, features: int) -> int:
        """Return the length of the model: K numbers for every feature, and for the intercept if there is one."""
        return (features + (1 if self.constant else 0)) * self.scores

    def extended(self, rows: Rows) -> Rows | WithConstant:
        """Return records with the constant beside their features, if there is one."""
        return WithConstant(rows, self.constant) if self.constant else rows

    def problem(
        self, rows: Rows, labels: Array, stream: PrivateStream, weight: float = 1.0, persons: Positions | None = None
    ) -> LocalProblem | MeanProblem:
        """Return the problem of a shard with this weight, whose batches are drawn from `stream`, whole persons each."""
        if self.loss is None:
            return MeanProblem(rows, self.drawn, self.radius or 0.0, stream, weight, persons)
        extended = self.extended(rows)
        lipschitz = self.lipschitz(extended.dimension * self.scores)
        return LocalProblem(extended, labels, self.loss, self.drawn, lipschitz, stream, weight, persons)

    def with_persons(self, most: int) -> Settings:
        """Return the settings for persons of at most `most` records, in the configuration too."""
        if most == 1:
            return self
        config = dataclasses.replace(self.config, person_records=most)
        noise = dataclasses.replace(self.noise, records=most)
        return dataclasses.replace(self, config=config, noise=noise, typed=self.typed or self.config)

    def with_share_bits(self, bits: int) -> Settings:
        """Return the settings with so many fractional bits in sums, in the configuration too."""
        config = dataclasses.replace(self.config, share_bits=bits)
        noise, messages = make_noise(config), make_messages(config)
        return dataclasses.replace(self, config=config, noise=noise, messages=messages, typed=self.typed or self.config)

    def with_batch(self, batch: Batch) -> Settings:
        """Return the settings with another batch, in the configuration too."""
        config = dataclasses.replace(self.config, batch=batch.describe())
        return dataclasses.replace(self, config=config, batch=batch)


def _constant(config: Config) -> float:
    """Return the constant beside every record's features; 0 for none."""
    if _without_labels(config):
        if config.intercept not in (AUTO, "none"):
            raise ConfigError(f"expected no --intercept for points without labels, found {config.intercept}: drop it")
        return 0.0
    if config.intercept in (AUTO, "none"):
        return CONSTANT if config.intercept == AUTO else 0.0
    try:
        value = float(config.intercept)
    except ValueError:
        value = math.nan
    if not 0.0 < value < 1e6:
        expected = "expected --intercept auto, none or a number above 0"
        raise ConfigError(f"{expected}, found {config.intercept!r}: 0.3 is usual")
    return value


def _without_labels(config: Config) -> bool:
    """Return whether the problem is that of the mean."""
    return config.loss == MEAN or (config.loss is None and config.data.partition(":")[0] == MEAN)


def declared_labels(config: Config) -> Declared:
    """Return the labels' declaration in the configuration; the loss implies the kind if no flag says it."""
    if _without_labels(config):
        for name in ("task", "classes", "label_range", "class_weights"):
            if getattr(config, name) is not None:
                raise ConfigError(f"expected no {flag_of(name)} for points without labels, found one: drop it")
        return Declared()
    kind: Any = config.task
    if kind is None and config.loss is not None:
        kind = loss_of(config.loss, config.plugin_digest).kinds[0]
    return Declared.parse(kind, config.classes, config.label_range)


def _labels(config: Config, declared: Declared) -> Task | None:
    """Return the task that flags declare; points without labels, and numbers in no range, are in [-1, 1]."""
    if _without_labels(config) or (declared.kind == "regression" and declared.span is None):
        return Task("regression", ())
    return declared.known()


def _loss(config: Config, kind: TaskKind, task: Task | None) -> Loss:
    """Return the loss for labels of this kind; raise `ConfigError` for one that is not for them."""
    loss = loss_of(config.loss or USUAL_LOSS[kind], config.plugin_digest)
    if kind not in loss.kinds:
        able = ", ".join(name for name, known in LOSSES.items() if kind in known.kinds)
        raise ConfigError(f"expected a loss for --task {kind} ({able}), found {config.loss}: leave it out")
    if task is None:
        return loss
    loss = loss.for_task(task)
    return loss if config.class_weights is None else weighted(loss, parse_weights(config.class_weights), task)


def _evaluating(config: Config, source: type[Source]) -> Evaluating:
    """Return how a run on such a source is evaluated."""
    if config.evaluate is not None:
        return Evaluating.parse(config.evaluate)
    if not source.private:
        return Evaluating("open", given=False)
    able = source.holds_out and not _without_labels(config) and config.test_fraction != 0
    return Evaluating("private" if able and (config.epsilon or config.noise) else "off", given=False)


def _kind(config: Config) -> type[Source]:
    """Return the kind of source that the configuration names."""
    return SOURCES.get(config.data.partition(":")[0], Source)


def _source(config: Config) -> Source:
    kind = _kind(config)
    held_out = kind.private and _evaluating(config, kind).kind == "private"
    return parse_source(
        config.data,
        samples=config.samples,
        normalize=config.normalize,
        test_fraction=HELD_OUT if held_out and config.test_fraction is None else config.test_fraction,
        seed=config.seed,
        loss=config.loss,
        dimension=config.dimension,
        deal=config.deal,
        declared=declared_labels(config),
    )
