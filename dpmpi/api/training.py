"""Training on arrays: `train` under mpirun, `simulate` in one process, by the same road as the command line.

    keywords --> Config --> the ranks meet --> Settings with the arrays as source --> carry_out --> Result

Keywords have the names of the flags, and are checked as the keys of a configuration file are. Objects among them become
text first (`OBJECTS`): what is not in config.toml cannot be verified later.
"""

from __future__ import annotations

import csv
import io
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.api.result import Result
from dpmpi.core.files import read_text
from dpmpi.core.frozen import frozen
from dpmpi.data.arrays import Arrays, Records
from dpmpi.data.codebook import parse_codebook
from dpmpi.data.dealing import evenly
from dpmpi.data.source import SourceOptions
from dpmpi.data.split import taken
from dpmpi.errors import ConfigError, CutOff
from dpmpi.network.channel import World
from dpmpi.network.collective import fail_together
from dpmpi.network.graph import edges_spec
from dpmpi.network.transport import open_transport
from dpmpi.runtime.config import Config
from dpmpi.runtime.failure import raise_where_known
from dpmpi.runtime.flags import from_values, keyword_values
from dpmpi.runtime.output.console import logged, say
from dpmpi.runtime.output.progress import Listener
from dpmpi.runtime.plugin_source import stop_if_loading
from dpmpi.runtime.plugins import settings_of, settings_of_loss, settings_of_penalty
from dpmpi.runtime.process import Caller, Start, begin, carry_out, go_on, place_of
from dpmpi.runtime.signals import Signals

MANY_AGENTS = 500
"""From here on a simulation says at its start that it takes its time."""


def _listed(words: Iterable[Any]) -> str:
    """Return words as flags list them."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(list(map(str, words)))
    return line.getvalue()


OBJECTS: dict[str, Callable[[Any], Mapping[str, Any]]] = {
    "graph": lambda graph: {"graph": graph if isinstance(graph, str) else edges_spec(graph)},
    "method": settings_of,
    "classes": lambda names: {"classes": names if isinstance(names, str) else _listed(names)},
    "label_range": lambda ends: {
        "label_range": ends if isinstance(ends, str) else ":".join(repr(float(e)) for e in ends)
    },
    "class_weights": lambda w: {
        "class_weights": w if isinstance(w, str) else _listed(f"{k}={v}" for k, v in w.items())
    },
    "loss": settings_of_loss,
    "penalty": settings_of_penalty,
}
"""Settings that may be objects, and what each becomes as text."""


@frozen
class Call:
    """What a call asks for beside its settings."""

    parts: tuple[Records, ...]
    """One for every rank of this process."""
    settings: Mapping[str, Any]
    codebook: str | Path | None = None
    resume: str | Path | None = None
    callback: Listener | None = None
    progress: bool = False
    comm: Any = None
    agents: int | None = None
    """How many there are in this process; None under MPI."""
    temporary: bool = False


def train(
    X: Any,
    y: Any = None,
    *,
    test: tuple[Any, Any] | None = None,
    codebook: str | Path | None = None,
    comm: Any = None,
    resume: str | Path | None = None,
    callback: Listener | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Train on this rank's own arrays, together with all other ranks; return the result on each.

    All ranks of `comm` (an mpi4py communicator, by default that of all ranks) call this together, with the same
    settings and records of their own, of which nothing leaves the rank but releases. `settings` are the flags of
    `dpmpi.run` by name: `epsilon=1.0, sample_edges=2`. `test` are records to evaluate on, if `evaluate` asks for that.
    A table takes the `codebook` that all ranks agreed on. Results and ledgers are in `out`, by default
    runs/ALGORITHM-TIME.

    `callback(kind, figures)` is called with "start", "round" and "evaluation" as they come, and "end"; `progress` shows
    a bar on the first rank. `resume` is the directory of a run to go on with, on the same arrays.

    What all ranks know is raised on all of them, as `ConfigError`, `DataError` ...; a failure of one rank alone ends
    all ranks.
    """
    stop_if_loading()
    call = Call((Records(X, y, test),), settings, codebook, resume, callback, progress, comm)
    signals = Signals()
    with signals.restored() if _in_main_thread() else ExitStack():
        return _run(call, signals)


def simulate(
    shards: Sequence[tuple[Any, Any]],
    *more: Any,
    test: tuple[Any, Any] | Sequence[tuple[Any, Any]] | None = None,
    codebook: str | Path | None = None,
    resume: str | Path | None = None,
    callback: Listener | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Train with one agent per shard in this process, without MPI; return the result.

    A shard is (X, y), or a table, as `train` takes them; `split` deals them out. With `insecure_noise_seed` the bits
    are those of `train` with as many ranks; without it keys and noise are real. `test` is one pair, dealt out evenly to
    the agents, or a pair for each. Without `out` the run directory is temporary: `Result.save` keeps it. The other
    arguments are those of `train`.
    """
    stop_if_loading()
    if more or hasattr(shards, "shape"):
        raise ConfigError("expected a list of shards (X, y), found arrays: simulate(dpmpi.split(X, y, agents), ...)")
    parts = [_pair(shard) for shard in shards]
    if not parts:
        raise ConfigError("expected at least one shard, found none: dpmpi.split deals records out to agents")
    tests = _tests(test, len(parts))
    if resume is None and codebook is None:
        settings = _named(parts) | settings if _has_two_classes(settings) else settings
    records = tuple(Records(*part, found) for part, found in zip(parts, tests, strict=True))
    call = Call(records, settings, codebook, resume, callback, progress, agents=len(parts))
    if resume is not None or settings.get("out") is not None:
        return _run(call, None)
    folder = tempfile.mkdtemp(prefix="dpmpi-")
    try:
        return _run(replace(call, settings=settings | {"out": str(Path(folder) / "run")}, temporary=True), None)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _has_two_classes(settings: Mapping[str, Any]) -> bool:
    """Return whether labels are two classes, as far as settings tell."""
    declared = any(settings.get(name) is not None for name in ("task", "classes", "label_range", "config"))
    return not declared and settings.get("loss", "hinge") in ("hinge", "logistic")


def _named(parts: Sequence[tuple[Any, Any]]) -> dict[str, str]:
    """Return the names of the classes where all labels are 0 and 1: those, not the -1 and 1 that losses take.

    All labels are at hand here. Under `train` a rank has its own alone, and what it says of them would tell something.
    """
    labels = {value for _, y in parts if y is not None for value in np.unique(np.asarray(y)).tolist()}
    return {"classes": "0,1"} if labels == {0, 1} else {}


def _run(call: Call, signals: Signals | None) -> Result:
    with logged(), _one_thread():
        given, refused = _understood(call)
        deadline = (refused is None and given.get("deadline")) or Config.deadline
        world = open_transport(call.agents, deadline, call.comm)

        def refuse() -> None:
            if refused is not None:
                raise refused

        try:
            fail_together(world, refuse)
            if signals is not None and _in_main_thread():
                signals.end_runs()
            start = _met(world, call, given)
        except BaseException as error:
            raise_where_known(world, error, place_of(world, "while starting"))
            raise
        if signals is not None and _in_main_thread() and not start.settings.checkpoints.never:
            signals.stop_runs()
        rank = world.ranks[0]
        result = Result(start.directory.path, start.past.names[rank], temporary=call.temporary)
        if call.agents is not None and call.agents >= MANY_AGENTS and not call.progress:
            slow = "on a ring a round takes about one exchange for each agent, and a run minutes"
            advice = "progress=True shows a bar, graph='complete' mixes at once"
            say(f"{call.agents} agents in one process: {slow}; {advice}", sys.stderr)
        caller = Caller(listen=_numbered(call.callback, rank), bar=call.progress, end=raise_where_known)
        carry_out(world, start, signals or Signals(), caller)
        if not (result.path / "summary.json").is_file():
            raise CutOff(f"expected the results in {result.path}, found none: the others went on without this rank")
        if not world.tolerant:
            world.release()
        if caller.listen is not None:
            caller.listen("end", _closing(result))
        return result


def _understood(call: Call) -> tuple[dict[str, Any], ConfigError | None]:
    """Return the settings as parsed flags, and why they are refused; all ranks must hear of that."""
    try:
        settings = dict(call.settings)
        for name in ("data", "loopback", "deal", "samples"):
            if settings.get(name) is not None:
                raise ConfigError(f"expected arrays and settings beside them, found {name}=: leave it out")
        sources: dict[str, tuple[str, ...]] = {"plugin": (), "plugin_digest": ()}
        for name, as_text in OBJECTS.items():
            if settings.get(name) is not None:
                found = dict(as_text(settings.pop(name)))
                for key in sources.keys() & found.keys():
                    sources[key] += found.pop(key)
                if twice := sorted(found.keys() & settings.keys()):
                    raise ConfigError(f"expected {twice[0]} from {name}= alone, found it given too: leave one out")
                settings |= found
        if sources["plugin"] and settings.get("plugin") is not None:
            raise ConfigError("expected plug-ins as objects or by plugin=, found both: leave one out")
        settings |= sources if sources["plugin"] else {}
        if not settings.get("log_json"):
            settings.setdefault("quiet", True)
        given = keyword_values(settings, "settings")
        if call.agents is not None:
            given["loopback"] = call.agents
        if call.resume is None:
            given["data"] = _source(call).spec
            from_values(dict(given))
        return given, None
    except ConfigError as error:
        return {}, error


def _source(call: Call) -> Arrays:
    """Return the arrays as a source, whose options are not known yet."""
    text = "" if call.codebook is None else read_text(Path(call.codebook), "the codebook")
    if text:
        parse_codebook(text, str(call.codebook))  # raises if it is not a codebook
    return Arrays(SourceOptions(), call.parts, text)


def _met(world: World, call: Call, given: dict[str, Any]) -> Start:
    """Let the ranks meet, and put the arrays in the place of the source that the settings name."""
    start = begin(world, from_values(dict(given))) if call.resume is None else go_on(world, Path(call.resume), given)
    found, named = list[Arrays](), start.settings.config.data

    def check() -> None:  # a run that goes on may have begun with something else
        source = _source(call)
        if named != source.spec:
            raise ConfigError(f"expected the data of the run, {named}, found {source.spec}: hand over the same")
        found.append(replace(source, options=start.settings.source.options))

    fail_together(start.meeting.control, check)
    return replace(start, settings=replace(start.settings, given=found[0]))


def _pair(shard: Any) -> tuple[Any, Any]:
    """Return X and y of a shard, which may be a table with its labels."""
    return (shard[0], shard[1]) if isinstance(shard, tuple | list) and len(shard) == 2 else (shard, None)


def _tests(test: Any, agents: int) -> list[tuple[Any, Any] | None]:
    """Return every agent's test records."""
    if test is None:
        return [None] * agents
    if isinstance(test, tuple) and len(test) == 2 and not isinstance(test[0], tuple):
        count = test[0].shape[0] if hasattr(test[0], "shape") else len(test[0])
        parts = [evenly(count, agent, agents) for agent in range(agents)]
        return [(taken(test[0], slice(p.start, p.stop)), taken(test[1], slice(p.start, p.stop))) for p in parts]
    if len(test) != agents:
        raise ConfigError(f"expected test records (X, y), or a pair for each of {agents} agents, found {len(test)}")
    return [_pair(one) for one in test]


def _numbered(callback: Listener | None, rank: int) -> Listener | None:
    """Return a callback that is told the rank too."""
    if callback is None:
        return None
    return lambda kind, figures: callback(kind, {"rank": rank, **figures})


def _closing(result: Result) -> dict[str, Any]:
    """Return the figures that a run ends with."""
    summary = result.summary
    names = ("algorithm", "ranks", "rounds", "objective", "suboptimality", "accuracy", "consensus_error")
    told = {name: summary[name] for name in names}
    told |= {name: summary["privacy"][name] for name in ("private", "epsilon", "delta")}
    told |= {"messages": summary["communication"]["messages"], "bytes": summary["communication"]["bytes"]}
    return told | {"seconds": summary["wall_seconds"], "results": str(result.path)}


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let matrix products use one thread: ranks are what fills the cores, and bits must not depend on how many."""
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - the command line sets its threads otherwise

    with threadpool_limits(1, "blas"):
        yield
