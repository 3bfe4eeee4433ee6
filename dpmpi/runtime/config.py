"""The configuration of a run: what was typed, as text and numbers, in one frozen dataclass.

A field here is a flag and a TOML key of the same name (`sample_edges` is `--sample-edges` and `sample-edges = 2`). The
hyperparameters of the methods are flags too; they are read off the methods' own dataclasses, and one that the chosen
method does not have is an error. `flags.py` reads a configuration, `settings.py` says what it means.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import field
from typing import Any, get_args, get_type_hints

from dpmpi.algorithms import ALGORITHMS
from dpmpi.core import Method
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, nearest, shown
from dpmpi.runtime import plugins
from dpmpi.runtime.evaluating import Evaluating
from dpmpi.runtime.options import LONGEST_TEXT, MOST_RANKS, check_size, flag_of, hyperfields, or_auto, toml_text

LONGEST_GRAPH = 10**7
"""Characters of a graph, which may name all its edges."""


def _option(default: Any, text: str, kind: type = str, **more: Any) -> Any:
    """Return a field that is a flag.

    `more` may hold metavar, choices, least (>=), most (<=), above (>), longest (characters of a text), and auto: the
    default None is then written so.
    """
    return field(default=default, metadata={"help": text, "kind": kind, "metavar": None, "choices": ()} | more)


@frozen
class Config:
    """Everything that decides what a run does."""

    algorithm: str = _option("momentum", "the method", choices=tuple(ALGORITHMS))
    plugin: tuple[str, ...] = _option(
        (), "a Python file or module with methods and losses of your own; may be repeated", tuple, metavar="FILE"
    )
    plugin_digest: tuple[str, ...] = _option(
        (), "refuse a plug-in whose source has another SHA-256; in the order of --plugin", tuple, metavar="SHA256"
    )
    rounds: int | None = _option(None, "how many rounds", int, metavar="T", least=1, most=10**7, auto=True)
    seed: int = _option(0, "the shared, public seed: data synthesis, graph, schedule", int, least=0)

    data: str = _option(
        "synthetic",
        "synthetic[:options], adult:DIR, libsvm:PATH, mean[:options] or shards:PATTERN with {rank}",
        metavar="SOURCE",
    )
    samples: int | None = _option(None, "use only N rows in total", int, metavar="N", least=1)
    dimension: int | None = _option(
        None, "the number of features, for shards as text and for plans", int, metavar="M", least=1, most=10**9
    )
    normalize: bool = _option(True, "scale every row to norm at most 1", bool)
    test_fraction: float | None = _option(
        None,
        "rows held out for evaluation (default: 0.1; 0 for mean, and for shards that are not evaluated)",
        float,
        metavar="F",
        least=0,
    )
    person_records: int | None = _option(
        None,
        "the most records of one person, all of whom the noise covers at once (default: what the shards say)",
        int,
        metavar="K",
        least=1,
        most=1000,
    )
    deal: str = _option(
        "even", "who has which rows of public data: even, sorted (by label), dirichlet:ALPHA or sizes:A,B,..."
    )

    graph: str = _option(
        "ring",
        "ring, path, star, grid, torus, complete, erdos-renyi:p=.., random:edges=.., edges:0-1,1-2,.. or file:PATH",
        longest=LONGEST_GRAPH,
    )
    weights: str = _option("metropolis", "mixing weights", choices=("metropolis", "uniform", "laplacian"))
    sample_edges: int | None = _option(None, "gossip on K random disjoint edges a round", int, metavar="K", least=1)

    task: str | None = _option(
        None,
        "what labels are; by default what the data declare, or what the loss is for, or two classes",
        choices=("binary", "multiclass", "regression", "counts"),
    )
    classes: str | None = _option(
        None,
        "the names of the classes in the order of their codes; needed for shards that do not say",
        metavar="A,B,...",
    )
    label_range: str | None = _option(
        None,
        "the range of a number, scaled to [-1, 1] and back, or 0:MOST of a count; needed for shards that do not say",
        metavar="LOW:HIGH",
    )
    class_weights: str | None = _option(
        None, "how much records of these classes count, relative to 1 for the others", metavar="A=1,B=5"
    )
    loss: str | None = _option(
        None,
        "hinge or logistic (two classes), softmax (classes), squared or huber[:DELTA] (numbers), poisson (counts), "
        "mean (mean: data); auto: hinge, softmax, squared, poisson, by the task",
        auto=True,
    )
    penalty: str = _option("auto", "l2:A, l1:A, elastic:L1,L2 or none; auto: what suits the method")
    domain: str | None = _option(None, "box:R or ball:R")
    lipschitz: float | None = _option(
        None, "every record's gradient is clipped to this norm", float, metavar="L", above=0, auto=True
    )
    intercept: str = _option(
        "auto",
        "a constant C beside every record's features, both within the norm bound, or none; auto: 0.3",
        metavar="C",
    )
    weigh: str = _option(
        "auto",
        "what a rank counts in the objective: as many as its records, their square (precision: least noise where every "
        "rank has its own), or 1 (ranks); auto: precision for --epsilon with local noise, else records",
        choices=("auto", "records", "precision", "ranks"),
    )
    smaller_class: float | None = _option(
        None,
        "the share of the smaller class, if it is public: for what to expect, nothing else",
        float,
        metavar="P",
        above=0,
        most=0.5,
    )
    batch: str = _option(
        "full", "full, 1 (one uniform record), B (Poisson of expected size B), fixed:B or auto", metavar="B"
    )

    epsilon: float | None = _option(
        None, "the privacy target; the noise is calibrated to it", float, metavar="EPS", above=0
    )
    delta: float = _option(1e-5, "the delta of (epsilon, delta); 0 for pure noise", float, least=0)
    noise: float | None = _option(
        None, "standard deviation of the noise, instead of --epsilon", float, metavar="SIGMA", least=0
    )
    mechanism: str | None = _option(
        None, "the kind of noise (default: the algorithm's own)", choices=("gaussian", "laplace", "spherical-laplace")
    )
    calibration: str = _option(
        "certified", "certified: by the accountant; theorem: the paper's formula", choices=("certified", "theorem")
    )
    budget: str | None = _option(
        None, "what a rank may spend: an epsilon, or a TOML file with epsilon = X ({rank} in its name: one each)"
    )
    ledger: str | None = _option(
        None, "keep the ledgers in DIR and go on with those that are there: spending adds up over runs", metavar="DIR"
    )
    allow_large_delta: bool = _option(False, "accept a delta of at least 1/records", bool)
    insecure_noise_seed: int | None = _option(
        None, "repeatable noise, for tests: NOT PRIVATE", int, metavar="S", least=0
    )

    exchange: str = _option(
        "plain", "plain messages, or secret shares of sums over all ranks", choices=("plain", "shares")
    )
    wire: str = _option(
        "float64",
        "numbers as they travel; float32 halves the bytes and rounds to 7 digits (plain exchange only)",
        choices=("float64", "float32"),
    )
    share_mode: str = _option(
        "expanded",
        "shares expanded from pairwise secrets (computational) or full ones (information-theoretic)",
        choices=("expanded", "full"),
    )
    masks: str = _option(
        "few",
        "who shares masks, or full shares: few pairs, as many as hide a summand from the colluders, or all",
        choices=("few", "all"),
    )
    route: str = _option(
        "auto",
        "how sums over all ranks travel; auto: by graph and length",
        choices=("auto", "tree", "butterfly", "direct"),
    )
    share_bits: int | None = _option(
        None,
        "fractional bits of shared sums; auto: 40, or 24 in words of 32",
        int,
        metavar="F",
        least=0,
        most=62,
        auto=True,
    )
    share_words: str = _option(
        "64", "bits of a number in a shared sum; 32 halves the bytes (noise in the sum only)", choices=("64", "32")
    )
    seal: bool = _option(False, "encrypt every message for its receiver alone (AES-256-GCM)", bool)
    keys: str | None = _option(
        None, "the folder of roster.toml and of this rank's rank-000.key (python -m dpmpi keys make)", metavar="DIR"
    )
    noise_in: str = _option(
        "local",
        "noise on each rank's value, inside the shared sum, or on values with parts that cancel between neighbours",
        choices=("local", "sum", "pairs"),
    )
    pair_noise: float = _option(
        10.0,
        "with --noise-in pairs: the noise of a pair over a rank's own",
        float,
        metavar="KAPPA",
        least=0.01,
        most=1000.0,
    )
    colluders: int = _option(
        1,
        "ranks that may put together what they know of a shared sum, or of neighbours' noise, and take their parts of "
        "noise off; 0 is against outsiders alone",
        int,
        metavar="C",
        least=0,
    )
    deadline: float = _option(120.0, "seconds to wait for a silent neighbour before giving up", float, above=0)
    checkpoint_every: str | None = _option(
        None, "keep every rank's state after N rounds (200) or seconds (60s), for --resume", metavar="N"
    )
    on_failure: str = _option(
        "shrink",
        "when a rank dies and MPI can tell (mpirun --with-ft ulfm): go on without it, or stop",
        choices=("shrink", "stop"),
    )
    evaluate: str | None = _option(
        None,
        "evaluate every N rounds without noise (default for public data: 20 times a run; 0: never), "
        "or private: held-out rows, at the end, inside of the guarantee (default for shards under noise), or "
        "private:N: also every N rounds",
        metavar="N",
    )
    timings: str | None = _option(
        None,
        "shared: all ranks learn each other's seconds and memory, outside of the guarantee (default for public data); "
        "own: each rank keeps its own (default for shards)",
        choices=("shared", "own"),
    )
    reference: bool = _option(False, "find the optimum first, by a solver on the distributed objective", bool)
    quiet: bool = _option(False, "print nothing but errors and where the results are", bool)
    log_json: bool = _option(
        False, "print one JSON object a line instead of progress and table: start, progress, evaluation, end", bool
    )
    out: str | None = _option(None, "the run directory (default: runs/ALGORITHM-TIME)", metavar="DIR")
    ranks: int | None = _option(
        None, "refuse to run with another number of ranks", int, metavar="N", least=1, most=MOST_RANKS
    )
    loopback: int | None = _option(
        None, "run N agents in this one process, without MPI", int, metavar="N", least=1, most=MOST_RANKS
    )

    options: tuple[tuple[str, Any], ...] = ()
    """Hyperparameters of the algorithm that were given, by name."""

    def check(self) -> None:
        """Raise `ConfigError` for values that cannot work, whatever the data."""
        for f in config_fields():
            choices, value = f.metadata["choices"], getattr(self, f.name)
            if f.name == "algorithm":
                choices = tuple(plugins.methods(self.plugin_digest))
            for one in value if isinstance(value, tuple) else (value,):
                check_size(f.name, one, f.metadata.get("longest", LONGEST_TEXT))
            if choices and value is not None and value not in choices:
                expected = f"{flag_of(f.name)} is one of {', '.join(choices)}"
                raise ConfigError(f"{expected}; got {value!r}{nearest(value, choices)}")
            least, above, most = (f.metadata.get(name) for name in ("least", "above", "most"))
            if value is not None and most is not None and value > most:
                raise ConfigError(f"{flag_of(f.name)} must be at most {most}, got {value}")
            if value is not None and least is not None and value < least:
                raise ConfigError(f"{flag_of(f.name)} must be at least {least}, got {value}")
            if value is not None and above is not None and value <= above:
                raise ConfigError(f"{flag_of(f.name)} must be greater than {above}, got {value}")
        if self.epsilon is not None and self.noise is not None:
            raise ConfigError("give --epsilon (a target) or --noise (a standard deviation), not both")
        if self.evaluate is not None:
            Evaluating.parse(self.evaluate)
        if self.quiet and self.log_json:
            raise ConfigError("give --quiet (no lines at all) or --log-json (a line for everything), not both")
        for name in ("delta", "test_fraction"):
            if (getattr(self, name) or 0) >= 1:
                raise ConfigError(f"{flag_of(name)} must be less than 1, got {getattr(self, name)}")

    @property
    def fraction_bits(self) -> int:
        """The fractional bits of shared sums."""
        return (24 if self.word_bits == 32 else 40) if self.share_bits is None else self.share_bits

    @property
    def word_bits(self) -> int:
        """The bits of a number in a shared sum."""
        return int(self.share_words)

    @property
    def known_rounds(self) -> int:
        """How many rounds; raise `ConfigError` while they are still to be derived."""
        if self.rounds is None:
            raise ConfigError("expected --rounds N, found auto, which depends on the data: give a number")
        return self.rounds

    @classmethod
    def default(cls, name: str) -> Any:
        """Return the default of a field."""
        return cls.__dataclass_fields__[name].default

    @property
    def method_class(self) -> type[Method]:
        """The class of the method."""
        return plugins.methods(self.plugin_digest)[self.algorithm]

    def make_method(self) -> Method:
        """Return the method with its hyperparameters; raise `ConfigError` for one that it does not have."""
        cls = self.method_class
        known = {f.name: f for f in hyperfields(cls)}
        for name, value in self.options:
            if name not in known:
                raise ConfigError(
                    f"{flag_of(name)} does not apply to {self.algorithm}, which takes "
                    f"{', '.join(map(flag_of, known)) or 'no options'}"
                )
            words = get_args(get_type_hints(cls)[name]) if isinstance(value, str) else ()
            if words and value not in words:
                raise ConfigError(f"{self.algorithm} takes {flag_of(name)} {' or '.join(words)}, got {value}")
            least = known[name].metadata.get("minimum")
            # No conversion: integers may be too large for it.
            if value is not None and least is not None and not least <= value < math.inf:
                raise ConfigError(f"{flag_of(name)} must be a finite number of at least {least:g}, got {shown(value)}")
            check_size(name, value)
            most = known[name].metadata.get("maximum")
            if value is not None and most is not None and value > most:
                why = known[name].metadata["beyond"]
                raise ConfigError(f"expected {flag_of(name)} of at most {most:,}, found {value:,}: {why}")
        with plugins.blamed():
            return cls(**dict(self.options))

    def to_toml(self) -> str:
        """Return the whole effective configuration, algorithm's hyperparameters included."""
        values = {f.name: or_auto(f, getattr(self, f.name)) for f in config_fields()}
        method = self.make_method()
        values |= {f.name: or_auto(f, getattr(method, f.name)) for f in hyperfields(type(method))}
        for name in ("loopback", "quiet", "log_json"):  # how it was launched and watched
            del values[name]
        if str(values["evaluate"]).isdecimal():
            values["evaluate"] = int(str(values["evaluate"]))
        given = {name: value for name, value in values.items() if value is not None and value != ()}
        lines = [f"{name.replace('_', '-')} = {toml_text(value)}" for name, value in given.items()]
        return "\n".join(lines) + "\n"

    def digest(self) -> str:
        """Return the SHA-256 of all that decides the result (not where, with which deadline or launcher).

        Where a party keeps its own shard is its own affair.
        """
        data = "shards:" if self.data.startswith("shards:") else self.data
        same = dataclasses.replace(
            self,
            data=data,
            out=None,
            ledger=None,
            keys=None,
            deadline=1.0,
            ranks=None,
            checkpoint_every=None,
            on_failure="stop",
            plugin=(),
        )
        return hashlib.sha256(same.to_toml().encode()).hexdigest()


def config_fields() -> list[dataclasses.Field[Any]]:
    """Return the fields that are flags."""
    return [f for f in dataclasses.fields(Config) if f.name != "options"]
