"""The configuration of a run: one frozen dataclass, filled from a TOML file and from flags (flags win).

A field here is a flag and a TOML key of the same name (`sample_edges` is `--sample-edges` and `sample-edges = 2`). The
hyperparameters of the algorithms are flags too; they are read off the algorithms' own dataclasses, and one that the
chosen algorithm does not have is an error. Unknown keys and flags raise.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from dpmpi.algorithms import ALGORITHMS
from dpmpi.errors import ConfigError, nearest
from dpmpi.methods import Method

EXAMPLES = """\
examples:
  mpirun -n 20 python -m dpmpi.run --algorithm dp-dda --data synthetic --graph ring --rounds 500 \\
         --epsilon 1 --delta 1e-5 --seed 7 --out runs/demo
  mpirun -n 20 python -m dpmpi.run --config runs/demo/config.toml --rounds 100
  mpirun -n 20 python -m dpmpi.run --resume runs/demo
  python -m dpmpi.run --loopback 20 --algorithm dda --rounds 200 --out runs/try
"""


LONGEST_TEXT = 1000
"""Characters of a setting: longer than paths are, and fewer digits than Python makes a number of."""


def _option(default: Any, text: str, kind: type = str, **more: Any) -> Any:
    """Return a field that is a flag; `more` may hold metavar, choices, least (>=), most (<=) and above (>)."""
    return field(default=default, metadata={"help": text, "kind": kind, "metavar": None, "choices": ()} | more)


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run does."""

    algorithm: str = _option("dp-dda", "the method", choices=tuple(ALGORITHMS))
    rounds: int = _option(500, "how many rounds", int, metavar="T", least=1, most=10**8)
    seed: int = _option(0, "the shared, public seed: data synthesis, graph, schedule", int, least=0)

    data: str = _option(
        "synthetic",
        "synthetic[:options], adult:DIR, libsvm:PATH, mean[:options] or shards:PATTERN with {rank}",
        metavar="SOURCE",
    )
    samples: int | None = _option(None, "use only so many rows in total", int, metavar="N", least=1)
    dimension: int | None = _option(
        None, "the number of features, for shards as text and for plans", int, metavar="M", least=1, most=10**9
    )
    normalize: bool = _option(True, "scale every row to norm at most 1", bool)
    test_fraction: float | None = _option(
        None, "rows held out for the accuracy (default: 0.1; 0 for shards and mean)", float, metavar="F", least=0
    )

    graph: str = _option(
        "ring", "ring, path, star, grid, torus, complete, erdos-renyi:p=.., random:edges=.. or file:PATH"
    )
    weights: str = _option("metropolis", "mixing weights", choices=("metropolis", "uniform", "laplacian"))
    sample_edges: int | None = _option(None, "gossip on K random disjoint edges a round", int, metavar="K", least=1)

    loss: str = _option("hinge", "the loss; mean for mean: data", choices=("hinge", "logistic", "squared", "mean"))
    penalty: str = _option("l2:0.0005", "l2:A, l1:A, elastic:L1,L2 or none")
    domain: str | None = _option(None, "box:R or ball:R")
    lipschitz: float = _option(1.0, "every record's gradient is clipped to this norm", float, metavar="L", above=0)
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
    adversary: str = _option(
        "wire", "who the epsilon is for: wire sees all messages, final the model alone (no better bound is known)",
        choices=("wire", "final"),
    )  # fmt: skip
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
        "float64", "numbers as they travel; float32 halves the bytes and rounds to 7 digits (plain exchange only)",
        choices=("float64", "float32"),
    )  # fmt: skip
    share_mode: str = _option(
        "expanded", "shares expanded from pairwise secrets (computational) or full ones (information-theoretic)",
        choices=("expanded", "full"),
    )  # fmt: skip
    share_bits: int = _option(40, "fractional bits of shared sums", int, metavar="F", least=0, most=62)
    seal: bool = _option(False, "encrypt every message for its receiver alone (AES-256-GCM)", bool)
    keys: str | None = _option(
        None, "the folder of roster.toml and of this rank's rank-000.key (python -m dpmpi keys make)", metavar="DIR"
    )
    noise_in: str = _option("local", "noise on each rank's value, or inside the shared sum", choices=("local", "sum"))
    colluders: int = _option(
        1, "ranks that may together take their parts of a sum's noise off again; 0 is against outsiders alone", int,
        metavar="C", least=0,
    )  # fmt: skip
    deadline: float = _option(120.0, "seconds to wait for a silent neighbour before giving up", float, above=0)
    checkpoint_every: str | None = _option(
        None, "keep every rank's state after N rounds (200) or seconds (60s), for --resume", metavar="N"
    )
    on_failure: str = _option(
        "shrink", "when a rank dies and MPI can tell (mpirun --with-ft ulfm): go on without it, or stop",
        choices=("shrink", "stop"),
    )  # fmt: skip
    evaluate: int | None = _option(
        None, "evaluate every N rounds (default: 20 times a run; 0 or --no-evaluate: never; off for shards)", int,
        metavar="N", least=0)  # fmt: skip
    reference: bool = _option(False, "find the optimum first, by a solver on the distributed objective", bool)
    quiet: bool = _option(False, "print nothing but errors and where the results are", bool)
    log_json: bool = _option(
        False, "print one JSON object a line instead of progress and table: start, progress, evaluation, end", bool
    )
    out: str | None = _option(None, "the run directory (default: runs/ALGORITHM-TIME)", metavar="DIR")
    ranks: int | None = _option(None, "refuse to run with another number of ranks", int, metavar="N", least=1)
    loopback: int | None = _option(None, "run N agents in this one process, without MPI", int, metavar="N", least=1)

    options: tuple[tuple[str, Any], ...] = ()
    """Hyperparameters of the algorithm that were given, by name."""

    @property
    def full_shares(self) -> bool:
        """Whether shares themselves travel, before their sums do."""
        return self.exchange == "shares" and self.share_mode == "full"

    @property
    def sealed(self) -> bool:
        """Whether every message is sealed: if asked for, and for shares that travel."""
        return self.seal or self.full_shares

    @property
    def secretive(self) -> bool:
        """Whether ranks agree on secrets: to seal, or to mask."""
        return self.seal or self.exchange == "shares"

    def check(self) -> None:
        """Raise `ConfigError` for values that cannot work, whatever the data."""
        for f in _fields():
            choices, value = f.metadata["choices"], getattr(self, f.name)
            _check_size(f.name, value)
            if choices and value is not None and value not in choices:
                expected = f"{_flag(f.name)} is one of {', '.join(choices)}"
                raise ConfigError(f"{expected}; got {value!r}{nearest(value, choices)}")
            least, above, most = (f.metadata.get(name) for name in ("least", "above", "most"))
            if value is not None and most is not None and value > most:
                raise ConfigError(f"{_flag(f.name)} must be at most {most}, got {value}")
            if value is not None and least is not None and value < least:
                raise ConfigError(f"{_flag(f.name)} must be at least {least}, got {value}")
            if value is not None and above is not None and value <= above:
                raise ConfigError(f"{_flag(f.name)} must be greater than {above}, got {value}")
        if self.epsilon is not None and self.noise is not None:
            raise ConfigError("give --epsilon (a target) or --noise (a standard deviation), not both")
        if self.quiet and self.log_json:
            raise ConfigError("give --quiet (no lines at all) or --log-json (a line for everything), not both")
        for name in ("delta", "test_fraction"):
            if (getattr(self, name) or 0) >= 1:
                raise ConfigError(f"{_flag(name)} must be less than 1, got {getattr(self, name)}")
        mechanisms = ALGORITHMS[self.algorithm].mechanisms
        if self.mechanism is not None and self.mechanism not in mechanisms:
            raise ConfigError(f"{self.algorithm} takes --mechanism {' or '.join(mechanisms)}, got {self.mechanism}")
        if self.delta == 0 and (self.epsilon or self.noise) and (self.mechanism or mechanisms[0]) == "gaussian":
            raise ConfigError("--delta 0 needs pure noise (laplace, spherical-laplace); gaussian noise has a delta")
        sampled = ALGORITHMS[self.algorithm].schedule == "sampled"
        if self.sample_edges is not None and not sampled:
            raise ConfigError(f"--sample-edges does not apply to {self.algorithm}; take --algorithm sampled-dda")
        self._check_secrecy()
        self.make_algorithm()

    def _check_secrecy(self) -> None:
        """Raise `ConfigError` for ways to seal and share that do not fit together."""
        if self.noise_in == "sum" and self.exchange != "shares":
            raise ConfigError("--noise-in sum needs sums in which nobody sees a summand: add --exchange shares")
        if self.noise_in == "sum" and not ALGORITHMS[self.algorithm].adds_up:
            able = ", ".join(name for name, cls in ALGORITHMS.items() if cls.adds_up)
            raise ConfigError(f"--noise-in sum is for methods that need the sum alone ({able}), got {self.algorithm}")
        if self.noise_in == "sum" and self.mechanism is not None:
            raise ConfigError("--noise-in sum is a discrete gaussian: leave --mechanism out")
        if self.noise_in == "sum" and self.epsilon is not None and self.calibration == "theorem":
            raise ConfigError("no theorem prescribes noise inside a sum: use --calibration certified")
        if self.colluders != 1 and self.noise_in != "sum":
            raise ConfigError("--colluders is for noise inside a sum: add --noise-in sum")
        if self.wire != "float64" and self.exchange == "shares":
            raise ConfigError(f"--wire {self.wire} is for plain messages, shares are integers of 64 bits: leave it out")
        if self.keys is not None and not self.secretive:
            raise ConfigError("--keys is for sealed messages: add --seal, or --exchange shares")

    def make_algorithm(self) -> Method:
        """Return the algorithm with its hyperparameters."""
        cls = ALGORITHMS[self.algorithm]
        known = {f.name: f for f in _hyperfields(cls)}
        for name, value in self.options:
            if name not in known:
                raise ConfigError(
                    f"{_flag(name)} does not apply to {self.algorithm}, which takes "
                    f"{', '.join(map(_flag, known)) or 'no options'}"
                )
            words = get_args(get_type_hints(cls)[name]) if isinstance(value, str) else ()
            if words and value not in words:
                raise ConfigError(f"{self.algorithm} takes {_flag(name)} {' or '.join(words)}, got {value}")
            least = known[name].metadata.get("minimum")
            if least is not None and not least <= value < math.inf:  # no conversion: integers may be too large for it
                raise ConfigError(f"{_flag(name)} must be a finite number of at least {least:g}, got {shown(value)}")
            _check_size(name, value)
        return cls(**dict(self.options))

    def to_toml(self) -> str:
        """Return the whole effective configuration, algorithm's hyperparameters included."""
        values = {f.name: getattr(self, f.name) for f in _fields()}
        algorithm = self.make_algorithm()
        values |= {f.name: getattr(algorithm, f.name) for f in _hyperfields(type(algorithm))}
        for name in ("loopback", "quiet", "log_json"):  # how it was launched and watched
            del values[name]
        lines = [f"{name.replace('_', '-')} = {_toml(value)}" for name, value in values.items() if value is not None]
        return "\n".join(lines) + "\n"

    def digest(self) -> str:
        """Return the SHA-256 of all that decides the result (not where, with which deadline or launcher)."""
        same = dataclasses.replace(
            self, out=None, ledger=None, keys=None, deadline=1.0, ranks=None, checkpoint_every=None, on_failure="stop"
        )
        return hashlib.sha256(same.to_toml().encode()).hexdigest()


def flags_of(argv: Sequence[str]) -> dict[str, Any]:
    """Return the flags of `dpmpi.run` that were given; raise `ConfigError`."""
    parser = make_parser("mpirun -n RANKS python -m dpmpi.run", EXAMPLES, resumable=True)
    given = vars(parser.parse_args(argv))
    if "resume" in given and "config" in given:
        raise ConfigError("--resume goes on with the run's own settings: leave --config out")
    return given


def parse(argv: Sequence[str]) -> Config:
    """Return the configuration given by flags and, with --config, a TOML file; raise `ConfigError`."""
    return from_values(flags_of(argv))


def from_values(given: dict[str, Any]) -> Config:
    """Return the configuration of parsed flags; the file that `config` names fills in what is not given."""
    path = given.pop("config", None)
    _check_size("config", path)
    return _completed((_read_toml(Path(path)) if path is not None else {}) | given)


def from_text(text: str, where: Path, given: dict[str, Any]) -> Config:
    """Return the configuration that the text of a TOML file and parsed flags describe; flags win."""
    return _completed(_read_table(text, where) | given)


def _completed(values: dict[str, Any]) -> Config:
    for name in ("ledger", "out", "budget", "keys"):
        if values.get(name) == "":
            raise ConfigError(f"--{name} is empty: is a variable not set?")
    if values.get("ledger"):
        values["ledger"] = str(Path(values["ledger"]).absolute())
    if str(values.get("data", "")).partition(":")[0] == "mean":  # a problem of its own, without labels
        values = {"loss": "mean", "penalty": "none"} | values
    names = {f.name for f in _fields()}
    options = tuple(sorted((name, value) for name, value in values.items() if name not in names))
    config = Config(**{name: value for name, value in values.items() if name in names}, options=options)
    config.check()
    return config


def make_parser(program: str, epilog: str, *, resumable: bool = False) -> argparse.ArgumentParser:
    """Return the parser of the flags of a run; only flags that were given appear in the result."""
    parser = Parser(
        prog=program, usage=f"{program} [flags]", epilog=epilog, allow_abbrev=False, argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train a model over data that stays where it is; every rank is one agent.",
    )  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="read settings from a TOML file; flags win")
    if resumable:
        parser.add_argument("--resume", metavar="RUN", help="go on with a run that was interrupted, with its settings")
    for f in _fields():
        default = "" if f.default is None else f" (default: {f.default})"
        text = f.metadata["help"].replace("%", "%%") + default
        if f.metadata["kind"] is bool:
            parser.add_argument(_flag(f.name), action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(_flag(f.name), type=f.metadata["kind"], metavar=f.metadata["metavar"], help=text)
    parser.add_argument("--no-evaluate", dest="evaluate", action="store_const", const=0, help=argparse.SUPPRESS)
    group = parser.add_argument_group("hyperparameters of the algorithms")
    for name, (hint, text) in sorted(_hyperparameters().items()):
        choices = get_args(hint) if get_origin(hint) is Literal else None
        kind = str if choices else hint
        group.add_argument(_flag(name), type=kind, choices=choices, help=text.replace("%", "%%"), metavar="X")
    return parser


class Parser(argparse.ArgumentParser):
    """Raises `ConfigError` instead of printing its usage."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse `--flag=--`, of which argparse makes an empty list."""
        words = sys.argv[1:] if args is None else list(args)
        for word in words:
            if word.startswith("--") and word.endswith("=--"):
                self.error(f"argument {word.partition('=')[0]}: expected a value, got --")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Report as we report everything: one line, no usage text."""
        if message.startswith("unrecognized arguments: "):
            unknown = message.removeprefix("unrecognized arguments: ").split(" ")[0][:80]
            flags = [flag for action in self._actions for flag in action.option_strings]
            near, unknown = nearest(unknown.split("=")[0], flags), unknown if unknown.isprintable() else repr(unknown)
            message = f"unknown flag {unknown}{near}; --help lists the flags"
        raise ConfigError(message if len(message) <= 600 else f"{message[:600]}...")


def shown(value: object, most: int = 80) -> str:
    """Return a value as a message may show it: on one line, without control characters, and not a whole file long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}..."


def _check_size(name: str, value: object) -> None:
    """Raise `ConfigError` for text or numbers beyond what any file or array can take, whatever the setting."""
    if isinstance(value, str) and not (value.isprintable() and len(value) <= LONGEST_TEXT):
        expected = f"{_flag(name)} must be one line of at most {LONGEST_TEXT} printable characters"
        raise ConfigError(f"{expected}, got {shown(value, 40)} with {len(value)}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(f"{_flag(name)} must be less than 2^63, got {shown(value, 40)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{_flag(name)} must be a finite number, got {value}")


def _fields() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(Config) if f.name != "options"]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _hyperparameters() -> dict[str, tuple[Any, str]]:
    """Return name -> (type, help) over all algorithms: what the flag means to which of them, with which default."""
    hints: dict[str, Any] = {}
    meanings: dict[str, dict[str, list[str]]] = {}
    for name, cls in ALGORITHMS.items():
        types = get_type_hints(cls)
        for f in _hyperfields(cls):
            hint = next((part for part in get_args(types[f.name]) if part in (int, float)), types[f.name])  # X | None
            if get_origin(hint) is Literal and f.name in hints:  # each algorithm checks its own words
                words = dict.fromkeys((*get_args(hints[f.name]), *get_args(hint)))
                hint = Literal[tuple(words)]
            hints[f.name] = hint
            default = "derived" if f.default is None else f.default
            meanings.setdefault(f.name, {}).setdefault(f.metadata["help"], []).append(f"{name}: {default}")
    return {
        name: (hint, "; ".join(f"{text} ({', '.join(owners)})" for text, owners in meanings[name].items()))
        for name, hint in hints.items()
    }


def _hyperfields(cls: type[Method]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of an algorithm: its hyperparameters."""
    return dataclasses.fields(cls)  # type: ignore[arg-type]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error!s:.200}") from error
    return _read_table(text, path)


def _read_table(text: str, path: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only where there is a file

    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # broken TOML or UTF-8, endless digits, brackets without end
        raise ConfigError(f"{path} is not TOML: {error!s:.200}") from error
    hints = {f.name: f.metadata["kind"] for f in _fields()} | {n: h for n, (h, _) in _hyperparameters().items()}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in hints:
            near = nearest(key[:80], [n.replace("_", "-") for n in hints])
            raise ConfigError(f"{path}: unknown key {shown(key)}{near}")
        values[name] = _from_toml(f"{path}: {key}", value, hints[name])
    return values


def _from_toml(where: str, value: Any, hint: Any) -> Any:
    """Return the value as the hinted type; an integer serves as a float, a number as text."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{where} is one of {', '.join(get_args(hint))}; got {shown(value)}")
        return value
    accepted = {bool: bool, int: int, float: int | float, str: str | int | float}[hint]
    if not isinstance(value, accepted) or isinstance(value, bool) != (hint is bool):
        raise ConfigError(f"{where} must be {hint.__name__}, got {shown(value)}")
    try:
        return hint(value)
    except (OverflowError, ValueError):  # an integer beyond all floats, or beyond what Python prints
        raise ConfigError(f"{where} is too large") from None


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value)).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
