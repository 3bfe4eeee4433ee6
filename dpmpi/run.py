"""Train: `mpirun -n RANKS python -m dpmpi.run ...`, or `--loopback N` in one process."""

from __future__ import annotations

import os

# One thread per rank: ranks are what fills the cores, and the bits of a product must not depend on how many there are.
# This must be said before numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_name] = "1"

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the modules load: 20 ranks end without 20 tracebacks

import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from dpmpi.agreement import agreed, everyone
from dpmpi.assembly import Job, assemble, is_private
from dpmpi.config import Config, parse
from dpmpi.core import Transport
from dpmpi.errors import ConfigError, DpmpiError
from dpmpi.evaluation import Evaluation, Evaluator
from dpmpi.planning import live_epsilon
from dpmpi.privacy.local import RealisedLosses
from dpmpi.progress import Progress
from dpmpi.rundir import Metrics, RunDirectory
from dpmpi.summary import rank_record, summarise, table
from dpmpi.transport.mpi import launched_as, open_world

INTERRUPTED = 130
SPEAK_FIRST_SECONDS = 5.0
BEFORE_ABORT_SECONDS = 0.5
"""A launcher that is told to abort may drop what a rank has just said: give it time to pass the message on."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    rank, size = launched_as(os.environ)
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
        if config.loopback is not None and size > 1:
            raise ConfigError(f"--loopback runs all agents in one process, found {size}: start it without mpirun")
        transport = open_transport(config)
    except DpmpiError as error:
        if rank != 0:  # a launcher ends all ranks when one fails: let the first one speak before that
            time.sleep(SPEAK_FIRST_SECONDS)
        # All ranks find the same, unless a file is missing on one host only.
        return _refuse(error, rank == 0 or isinstance(error.__cause__, OSError))
    with ExitStack() as stack:
        try:
            signal.signal(signal.SIGINT, _stop)
            signal.signal(signal.SIGTERM, _stop)  # what the ranks get when Open MPI's mpirun is interrupted
            directory = name_directory(config, transport)
            job = assemble(config, transport, directory.ledger, stack, lambda: create(directory, config, transport))
        except DpmpiError as error:
            return _refuse(error, 0 in transport.ranks)
        except BaseException as error:
            return _end_all(transport, error, "while starting", None)
        try:
            return train(job, directory)
        except BaseException as error:
            round_ = max(seat.agent.round for seat in job.engine.seats)
            return _end_all(transport, error, f"round {round_}", directory)


def open_transport(config: Config) -> Transport:
    """Return the loopback transport if asked for, else MPI's."""
    if config.loopback is not None:
        from dpmpi.transport.loopback import LoopbackTransport  # noqa: PLC0415 - not under mpirun

        return LoopbackTransport(config.loopback)
    return open_world(config.deadline)


def name_directory(config: Config, transport: Transport) -> RunDirectory:
    """Return the run directory, not made yet; every rank gets the same path."""
    name = config.out or f"runs/{config.algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
    told = everyone(transport, lambda: [(name, config.digest())] * len(transport.ranks))
    for rank, (_, digest) in enumerate(told):
        if digest != told[0][1]:
            raise ConfigError(f"all ranks must have the same settings, but rank {rank} has others than rank 0")
    return RunDirectory(Path(told[0][0]))


def create(directory: RunDirectory, config: Config, transport: Transport) -> None:
    """Make the run directory, on the first rank."""

    def make() -> None:
        if 0 in transport.ranks:
            kept = directory.create()
            if kept is not None:
                _say(f"{directory.path} was there: kept as {kept}")
            directory.write_text("config.toml", config.to_toml())

    agreed(transport, make)


def train(job: Job, directory: RunDirectory) -> int:
    """Run all rounds, evaluate now and then, write the results; all processes call this together."""
    config, engine, first = job.config, job.engine, 0 in job.meter.ranks
    private = is_private(config, job.sigmas)
    optimum = _reference(job) if config.reference else None
    best, classify = None if optimum is None else optimum.x, config.loss in ("hinge", "logistic")
    evaluator = Evaluator(engine, job.shards, job.penalty, best, classify=classify)
    stops = list(range(job.evaluate_every, config.rounds, job.evaluate_every)) if job.evaluate_every else []
    evaluation: Evaluation | None = None
    started, begin, training = time.time(), time.perf_counter(), 0.0
    with ExitStack() as stack:
        metrics = [stack.enter_context(Metrics(directory.metrics(rank))) for rank in job.meter.ranks]
        progress = stack.enter_context(Progress(config.rounds, shown=first))
        for stop in [*stops, config.rounds]:
            since = time.perf_counter()
            for last in progress.pieces(engine.completed, stop):
                engine.advance(last)
                progress.update(last)
            training += time.perf_counter() - since
            if job.evaluate_every:
                evaluation = evaluator.evaluate()
                progress.note(evaluation, None if optimum is None else optimum.value)
                for ledger, rank, file in zip(job.ledgers, job.meter.ranks, metrics, strict=True):
                    epsilon = live_epsilon(ledger.spending(), config.delta) if private else None
                    file.write(**_metrics(job, rank, evaluation, time.perf_counter() - begin), epsilon=epsilon)
    wall = time.perf_counter() - begin
    for ledger in job.ledgers:
        ledger.close()
    for seat in engine.seats:
        if isinstance(seat.agent.witness, RealisedLosses):
            directory.write_private(seat.agent.rank, _diary(seat.agent.witness))
    records = [rank_record(job, seat, ledger, training) for seat, ledger in zip(engine.seats, job.ledgers, strict=True)]
    told = everyone(job.meter, lambda: records)
    x, models = evaluator.mean_model()
    rows = job.meter.gather(_stacked(models))
    if first and rows is not None:
        summary = summarise(job, told, evaluation, optimum, started, wall)
        directory.write_model(x, rows, config.algorithm, config.digest())
        directory.write_summary(summary)
        _say(table(summary, directory.path))
    job.meter.close()
    return 0


def _diary(witness: RealisedLosses) -> Iterator[dict[str, Any]]:
    """Yield what a rank may know of its own losses, round by round and in all."""
    yield {"note": "realised privacy losses: a function of the data, no guarantee, not to be published"}
    for t, (loss, largest) in enumerate(zip(witness.losses, witness.largest, strict=True), 1):
        yield {"release": t, "realised": loss, "worst": largest}
    yield {"total": True, "realised": sum(witness.losses), "worst": sum(witness.largest)}


def _reference(job: Job) -> Any:
    """Return the optimum of the distributed objective, and what certifies it."""
    from dpmpi.losses import LOSSES  # noqa: PLC0415 - with the next import
    from dpmpi.reference import find_mean, find_optimum  # noqa: PLC0415 - brings scipy

    if job.config.loss == "mean":
        problems = [seat.agent.problem for seat in job.engine.seats]
        return find_mean(problems, job.meter.size, job.penalty, job.prospect.dimension, job.meter.total)
    shards = [(shard.rows, shard.labels) for shard in job.shards]
    loss = LOSSES[job.config.loss]
    return find_optimum(shards, job.meter.size, loss, job.penalty, job.prospect.dimension, job.meter.total)


def _metrics(job: Job, rank: int, evaluation: Evaluation, seconds: float) -> dict[str, Any]:
    traffic = job.meter.traffic(rank).values()
    return {
        "round": evaluation.round, "objective": evaluation.objective, "accuracy": evaluation.accuracy,
        "consensus_error": evaluation.consensus_error, "error": evaluation.error, "rank_error": evaluation.rank_error,
        "bytes": sum(t.bytes_sent for t in traffic),
        "messages": sum(t.messages_sent for t in traffic), "seconds": round(seconds, 6),
    }  # fmt: skip


def _stacked(models: Sequence[Any]) -> Any:
    """Return the one model as it is (MPI), or all of them as a matrix (loopback)."""
    import numpy as np  # noqa: PLC0415 - after the thread count

    return models[0] if len(models) == 1 else np.stack(models)


def _refuse(error: DpmpiError, speaker: bool) -> int:
    if speaker:
        _say(f"dpmpi: {error}", sys.stderr)
    return error.exit_code


def _end_all(transport: Transport, error: BaseException, when: str, directory: RunDirectory | None) -> int:
    """Say which rank failed, when and why, and end every rank."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another rank that fails may abort this one while it speaks
    interrupted = isinstance(error, KeyboardInterrupt)
    if interrupted and directory is None and 0 not in transport.ranks:
        os._exit(INTERRUPTED)  # the first rank speaks for all
    where = f"rank {transport.ranks[0]}" if len(transport.ranks) == 1 else "loopback"
    what = "interrupted" if interrupted else str(error)
    if not isinstance(error, DpmpiError | KeyboardInterrupt):
        what = f"{type(error).__name__}: {error}"
        if os.environ.get("DPMPI_TRACEBACK"):
            traceback.print_exception(error)
    text = f"{where}, {when}: {what}"
    # All ranks are interrupted, and a rank that fails takes the others down by signals: who writes first speaks.
    if directory is None or directory.note_end(text):
        _say(f"dpmpi: {text}", sys.stderr)
        if interrupted and "OMPI_COMM_WORLD_RANK" in os.environ:
            _tell_terminal(f"dpmpi: {text}")
    code = INTERRUPTED if interrupted else error.exit_code if isinstance(error, DpmpiError) else 1
    if interrupted and len(transport.ranks) == 1:
        os._exit(code)
    abort = getattr(transport, "abort", None)
    if abort is not None:
        time.sleep(BEFORE_ABORT_SECONDS)
        abort(code)
    return code


def _tell_terminal(text: str) -> None:
    """Write to the terminal itself: Open MPI's mpirun drops what its ranks say once it is interrupted."""
    try:
        with open("/dev/tty", "w", encoding="utf-8") as terminal:
            terminal.write(f"\r{text}\n")
    except OSError:
        pass  # there is none


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str, stream: Any = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)


if __name__ == "__main__":
    sys.exit(main())
