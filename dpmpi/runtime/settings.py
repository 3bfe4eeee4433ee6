"""What a configuration means: a method, a source, a batch, a noise ... as objects, made in this one place.

`Config` is text, `Settings` are objects. Plan, run, resume, verify, sweep, audit and bench all take them from here, so
that nobody parses a string twice. What `auto` stands for depends on public facts (records, features); `derived.py` puts
it into the configuration itself, hence into config.toml and its digest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpmpi.algorithms import ALGORITHMS
from dpmpi.core import Array, Method
from dpmpi.data import Source, parse_source
from dpmpi.errors import ConfigError
from dpmpi.network.graph import Graph, make_graph
from dpmpi.network.schedule import SampledSchedule, StaticSchedule, make_schedule
from dpmpi.problem.batches import Batch
from dpmpi.problem.local_problem import LocalProblem, MeanProblem, mean_lipschitz
from dpmpi.problem.losses import LOSSES, Loss
from dpmpi.problem.penalties import Regulariser, parse_penalty
from dpmpi.problem.rows import Rows, WithConstant
from dpmpi.rng import PrivateStream
from dpmpi.runtime.config import AUTO, Config
from dpmpi.runtime.messages import Messages, PlainMessages, SharedSums
from dpmpi.runtime.noise import LocalNoise, Noise, SumNoise
from dpmpi.runtime.recovery.interval import Interval

CONSTANT = 0.3
"""The intercept's column for records of norm at most 1: it takes 4% of their norm bound."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run as objects; `config` is the text that they were made of."""

    config: Config
    method: Method
    regulariser: Regulariser | None
    """None while it is still to be derived."""
    batch: Batch | None
    """None while it is still to be derived."""
    noise: Noise
    messages: Messages
    checkpoints: Interval
    loss: Loss | None
    """None for the problem of the mean, which has no scores."""
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
        found = cls(
            config=config,
            method=config.make_method(),
            regulariser=None if config.penalty == AUTO else parse_penalty(config.penalty, config.domain),
            batch=None if config.batch == AUTO else Batch.parse(config.batch),
            noise=_noise(config),
            messages=_messages(config),
            checkpoints=Interval.parse(config.checkpoint_every),
            loss=LOSSES.get(config.loss),
            radius=None if config.loss in LOSSES else getattr(_source(config), "radius", None),
            constant=_constant(config),
        )
        if found.regulariser is None:
            parse_penalty("none", config.domain)  # raises for a domain that is none
        if isinstance(found.noise, SumNoise) and not isinstance(found.messages, SharedSums):
            raise ConfigError("--noise-in sum needs sums in which nobody sees a summand: add --exchange shares")
        if found.checkpoints.seconds is not None and not found.shares_timings:
            raise ConfigError(
                f"expected --checkpoint-every in rounds where timings are kept, found {config.checkpoint_every}: give "
                "rounds, or --timings shared"
            )
        if config.sample_edges is not None and found.method.schedule != "sampled":
            raise ConfigError(f"--sample-edges does not apply to {config.algorithm}; take --algorithm sampled-dda")
        if found.batch is None and config.epsilon is None:
            raise ConfigError("--batch auto is chosen for a privacy target: give --epsilon, or a batch")
        return found

    @cached_property
    def source(self) -> Source:
        """Where the records come from."""
        return self.given or _source(self.config)

    @property
    def shares_timings(self) -> bool:
        """Whether ranks tell each other how long they took and how much memory; it depends on their records."""
        return self.config.timings == "shared" or (self.config.timings is None and not self.source.private)

    @property
    def rounds(self) -> int:
        """How many rounds; raise `ConfigError` while they are still to be derived."""
        return self.config.known_rounds

    @property
    def penalty(self) -> Regulariser:
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
        return self.config.loss in ("hinge", "logistic")

    @property
    def curvature(self) -> tuple[float | None, float]:
        """The largest and the smallest curvature of f_i that hold for all data; None if there is no largest one."""
        if self.loss is None:
            return 1.0, 1.0
        return self.loss.curvature if self.config.normalize else None, 0.0

    def graph(self, ranks: int) -> Graph:
        """Return the graph over the ranks that the run began with."""
        return make_graph(self.config.graph, ranks, self.config.seed)

    def schedule(self, ranks: int, members: Sequence[int] | None = None) -> StaticSchedule | SampledSchedule:
        """Return who talks to whom in which round of a run that began with `ranks` ranks, if `members` are left."""
        config, graph = self.config, self.graph(ranks)
        if members is not None and len(members) < ranks:
            graph = graph.induced(members)
        sampled = self.method.schedule == "sampled"
        return make_schedule(graph, config.weights, (config.sample_edges or 1) if sampled else None, config.seed)

    def lipschitz(self, dimension: int) -> float:
        """Return the norm bound L of one record's gradient."""
        if self.radius is not None:
            return mean_lipschitz(self.radius, dimension)
        if self.config.lipschitz is None:
            raise ConfigError("expected a clipping norm L, found auto, which depends on the loss: derive it first")
        return self.config.lipschitz

    def dimension(self, features: int) -> int:
        """Return the length of the model: one number more than there are features, if there is an intercept."""
        return features + (1 if self.constant else 0)

    def extended(self, rows: Rows) -> Rows | WithConstant:
        """Return records with the constant beside their features, if there is one."""
        return WithConstant(rows, self.constant) if self.constant else rows

    def problem(
        self, rows: Rows, labels: Array, stream: PrivateStream, weight: float = 1.0
    ) -> LocalProblem | MeanProblem:
        """Return the problem of a shard with this weight, whose batches are drawn from `stream`."""
        if self.loss is None:
            return MeanProblem(rows, self.drawn, self.radius or 0.0, stream, weight)
        extended = self.extended(rows)
        lipschitz = self.lipschitz(extended.dimension)
        return LocalProblem(extended, labels, self.loss, self.drawn, lipschitz, stream, weight)

    def with_batch(self, batch: Batch) -> Settings:
        """Return the settings with another batch, in the configuration too."""
        config = dataclasses.replace(self.config, batch=batch.describe())
        return dataclasses.replace(self, config=config, batch=batch)


def _constant(config: Config) -> float:
    """Return the constant beside every record's features; 0 for none."""
    if config.loss not in LOSSES:
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


def _source(config: Config) -> Source:
    return parse_source(
        config.data,
        samples=config.samples,
        normalize=config.normalize,
        test_fraction=config.test_fraction,
        seed=config.seed,
        loss=config.loss,
        dimension=config.dimension,
        deal=config.deal,
    )


def _noise(config: Config) -> Noise:
    """Return where the noise is; raise `ConfigError` for flags that do not go with it."""
    mechanisms = ALGORITHMS[config.algorithm].mechanisms
    if config.noise_in == "sum":
        if not ALGORITHMS[config.algorithm].adds_up:
            able = ", ".join(name for name, cls in ALGORITHMS.items() if cls.adds_up)
            raise ConfigError(f"--noise-in sum is for methods that need the sum alone ({able}), got {config.algorithm}")
        if config.mechanism is not None:
            raise ConfigError("--noise-in sum is a discrete gaussian: leave --mechanism out")
        if config.epsilon is not None and config.calibration == "theorem":
            raise ConfigError("no theorem prescribes noise inside a sum: use --calibration certified")
        kind = "gaussian"
        noise: Noise = SumNoise(config.colluders, config.share_bits)
    else:
        if config.mechanism is not None and config.mechanism not in mechanisms:
            raise ConfigError(f"{config.algorithm} takes --mechanism {' or '.join(mechanisms)}, got {config.mechanism}")
        if config.colluders != 1:
            raise ConfigError("--colluders is for noise inside a sum: add --noise-in sum")
        kind = config.mechanism or mechanisms[0]
        noise = LocalNoise(kind)
    if config.delta == 0 and (config.epsilon or config.noise) and kind == "gaussian":
        raise ConfigError("--delta 0 needs pure noise (laplace, spherical-laplace); gaussian noise has a delta")
    return noise


def _messages(config: Config) -> Messages:
    """Return how requests become messages; raise `ConfigError` for flags that do not go with it."""
    keys = None if config.keys is None else Path(config.keys)
    if config.exchange == "shares":
        if config.wire != "float64":
            raise ConfigError(
                f"--wire {config.wire} is for plain messages, shares are integers of 64 bits: leave it out"
            )
        return SharedSums(config.seal, keys, config.share_mode == "full", config.share_bits)
    if keys is not None and not config.seal:
        raise ConfigError("--keys is for sealed messages: add --seal, or --exchange shares")
    return PlainMessages(config.seal, keys, config.wire)
