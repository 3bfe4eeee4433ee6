"""The rounds of a run, with its evaluations, and what it leaves behind."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from dpmpi.agreement import everyone
from dpmpi.assembly import Job, is_private
from dpmpi.evaluation import Evaluation, Evaluator
from dpmpi.planning import live_epsilon
from dpmpi.privacy.local import RealisedLosses
from dpmpi.progress import Progress
from dpmpi.rundir import Metrics, RunDirectory
from dpmpi.summary import rank_record, summarise, table


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
        print(table(summary, directory.path), flush=True)
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
    return models[0] if len(models) == 1 else np.stack(models)
