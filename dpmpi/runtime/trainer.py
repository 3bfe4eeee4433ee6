"""The rounds of a run, with its evaluations, and what it leaves behind."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmpi.errors import CheckpointError, ConfigError, Preempted
from dpmpi.network.collective import fail_together, on_all_ranks
from dpmpi.network.launcher import speaks
from dpmpi.privacy.random_weights import RealisedLosses
from dpmpi.privacy.releases import live_epsilon
from dpmpi.runtime.evaluation import Evaluation, Evaluator
from dpmpi.runtime.job import Job
from dpmpi.runtime.live_epsilon import Before, LiveEpsilon
from dpmpi.runtime.output.console import say
from dpmpi.runtime.output.directory import Metrics, RunDirectory
from dpmpi.runtime.output.model_file import link_of, trained_model
from dpmpi.runtime.output.process_figures import merged, own_figures, without_figures
from dpmpi.runtime.output.progress import Listener, Progress, watch
from dpmpi.runtime.output.result_table import closing
from dpmpi.runtime.output.summary import rank_record, seconds_spent, summarise
from dpmpi.runtime.private_evaluation import PrivateEvaluator, figures
from dpmpi.runtime.recovery.snapshot import Snapshot, capture
from dpmpi.runtime.recovery.votes import Votes

if TYPE_CHECKING:
    from dpmpi.runtime.recovery.checkpoint import Manifest

SLACK_SECONDS, SLACK_LOOKS = 0.5, 8
"""How often ranks look around if a death is all that could happen, and how far one may be ahead."""
HASTE_SECONDS, HASTE_LOOKS = 0.1, 3
"""The same for ranks that may be told to stop: a launcher may kill them a second later."""
LOOKS = 50
"""A run has at least this many looks: what a death makes the others repeat, and charge again, is a small part of it."""


class Trainer:
    """Runs the rounds of a job, evaluates now and then, keeps what it takes to go on, and writes the results.

    All processes call `run` together. A rank that has died raises `RankLost` in the others, and `kept` has what each of
    these was after the last rounds at which all ranks looked around.
    """

    def __init__(
        self,
        job: Job,
        directory: RunDirectory,
        told_to_stop: Callable[[], bool] = lambda: False,
        listen: Listener | None = None,
        bar: bool = False,
    ) -> None:
        """Take the job and where its results go; `listen` and `bar` as in `Progress`."""
        self.job = job
        self._directory = directory
        self._told_to_stop = told_to_stop
        self._listen, self._bar = listen, bar
        config, transport = job.config, job.meter
        self._first = speaks(os.environ, transport.ranks)
        self._interval = job.settings.checkpoints
        self._tolerant = config.on_failure == "shrink" and transport.tolerant
        self._votes = self._keeper = None
        if not self._interval.never or self._tolerant:
            seconds, looks = (SLACK_SECONDS, SLACK_LOOKS) if self._interval.never else (HASTE_SECONDS, HASTE_LOOKS)
            most = min(max(1, job.plan.rounds // LOOKS), self._interval.rounds or job.plan.rounds)
            pace = seconds if job.settings.shares_timings else None
            self._votes = Votes(transport, job.engine.completed, pace, looks, most)
        if not self._interval.never:
            from dpmpi.runtime.recovery.checkpoint import Keeper  # noqa: PLC0415 - most runs keep none

            self._keeper = Keeper(directory, transport, self._manifest(), leads=job.leads)
        self.kept = {rank: deque[Snapshot](maxlen=SLACK_LOOKS + 2) for rank in transport.ranks}
        self._facts = {} if self._votes is None else {rank: self._facts_of(rank) for rank in transport.ranks}
        self._evaluation: Evaluation | None = None
        self._quality: dict[str, Any] | None = None
        self._optimum: Any = None
        before = next(iter(job.past.snapshots.values())).facts if job.past.snapshots else {}
        self._counted_before = before.get("evaluations", [])
        self._private: PrivateEvaluator | None = None
        self._before = before.get("wall_seconds", 0.0)
        self._started: float = before.get("started", 0.0)
        self._begin = 0.0
        self._training = before.get("training_seconds", 0.0)
        self._core = before.get("core_seconds", 0.0)
        self._checkpointed = time.monotonic()
        self._asked = False

    def run(self) -> int:
        """Run all rounds and write the results; return the exit code."""
        job, engine, rounds = self.job, self.job.engine, self.job.plan.rounds
        self._optimum = _reference(job) if job.config.reference else None
        best = None if self._optimum is None else self._optimum.x
        tests = [(job.settings.extended(shard.test_rows), shard.test_labels) for shard in job.shards]
        evaluator = Evaluator(
            engine,
            None if job.settings.loss is None else tests,
            job.settings.penalty,
            best,
            task=job.settings.task,
            hide=job.meeting.secrets is not None,
        )
        self._private = private = PrivateEvaluator(job, evaluator, self._counted_before)
        job.meter.begin()
        self._begin = time.perf_counter() - self._before
        self._started = self._started or time.time()
        self._keep()
        with ExitStack() as stack:
            files = [self._directory.metrics(job.names[rank]) for rank in job.meter.ranks]
            own = not job.settings.shares_timings
            metrics = [stack.enter_context(Metrics(file, engine.completed, private=own)) for file in files]
            progress = stack.enter_context(self._progress())
            while engine.completed < rounds:
                stop = self._next_stop()
                since, core = time.perf_counter(), time.process_time()
                for last in progress.pieces(engine.completed, stop):
                    engine.advance(last)
                    progress.update(last)
                    check_promise(job)
                self._training += time.perf_counter() - since
                self._core += (time.process_time() - core) / len(engine.seats)
                every = job.evaluate_every
                if every and (stop % every == 0 or stop == rounds):
                    self._evaluate(evaluator, metrics, progress)
                    if stop == rounds:
                        self._quality = evaluator.quality(link_of(job), wanted=job.leads)
                if private.due:
                    private.evaluate()
                if stop < rounds:
                    self._look_around()
        self._finish(evaluator)
        return 0

    def _progress(self) -> Progress:
        """Return the display of the run's progress."""
        job = self.job

        def own() -> list[Counter[Any]]:
            return [*job.spending().values(), *map(Counter, job.past.lost.values())]

        live = None
        if (self._first or self._listen is not None) and job.private:
            before = [Before(one.earlier, max(one.order, 2), one.budget) for one in job.known]
            live = LiveEpsilon(job.plan, job.sigmas, own, before)
        return watch(
            job.plan,
            shown=self._first,
            completed=job.engine.completed,
            live=live,
            results=str(self._directory.path),
            listen=self._listen,
            bar=self._bar,
            foretold=(job.verdict(), job.fits.line()),
        )

    def _next_stop(self) -> int:
        """Return the next round after which there is more to do than rounds."""
        done, stops = self.job.engine.completed, [self.job.plan.rounds]
        if every := self.job.evaluate_every:
            stops.append((done // every + 1) * every)
        if every := self._interval.rounds or 0:
            stops.append((done // every + 1) * every)
        if self._votes is not None:
            stops.append(self._votes.next)
        held_out = self.job.plan.held_out
        stops += [] if held_out is None else [round_ for round_ in held_out.rounds if round_ > done][:1]
        return min(stops)

    def _evaluate(self, evaluator: Evaluator, metrics: Sequence[Metrics], progress: Progress) -> None:
        job, config = self.job, self.job.config
        self._evaluation = evaluation = evaluator.evaluate()
        progress.note(evaluation, None if self._optimum is None else self._optimum.value)
        for (rank, spent), file in zip(job.spending().items(), metrics, strict=True):
            epsilon = live_epsilon(spent, config.delta) if job.private else None
            file.write(**_metrics(job, rank, evaluation, time.perf_counter() - self._begin), epsilon=epsilon)

    def _look_around(self) -> None:
        """Checkpoint if it is time to, and stop if a rank was told to."""
        done, stop = self.job.engine.completed, False
        due = self._interval.rounds is not None and done % self._interval.rounds == 0
        if self._votes is not None and done == self._votes.next:
            late = self._interval.seconds is not None and self._first and not self._asked
            wish = late and time.monotonic() - self._checkpointed >= (self._interval.seconds or 0.0)
            self._asked |= wish
            told, written = False, 0
            if self._keeper is not None:
                if not self.job.settings.shares_timings:
                    self._keeper.join()  # how fast the disk is would be seen
                told, written = self._told_to_stop(), self._keeper.written
            timely, stopping, lowest = self._votes.look(wish, told, -written)
            due, stop = due or timely > 0.0, stopping > 0.0
            if self._keeper is not None:
                self._keeper.settle(int(-lowest))
            if self._tolerant and not due and not stop:
                self._keep()
        if self._keeper is None or not (due or stop):
            return
        self._checkpointed, self._asked = time.monotonic(), False
        for ledger in self.job.ledgers:
            ledger.settle()
        self._keep()
        self._keeper.keep([kept[-1] for kept in self.kept.values()])
        self._set_blocks()
        if stop:
            round_ = self._keeper.finish()
            raise Preempted(f"told to stop; go on after round {round_} with --resume {self._directory.path}")

    def _keep(self) -> None:
        """Keep a snapshot of every agent here."""
        if self._votes is None:
            return
        if self._keeper is not None and not self.kept[self.job.meter.ranks[0]]:
            self._keeper.announce()
            self._set_blocks()
        for seat, ledger in zip(self.job.engine.seats, self.job.ledgers, strict=True):
            rank, completed = seat.agent.rank, self.job.engine.completed
            kept = self.kept[rank]
            if kept and kept[-1].round == completed:
                kept.pop()  # the ledger was settled since
            facts = self._facts[rank] | {
                "ledger": ledger.mark,
                "evaluations": [] if self._private is None else self._private.to_list(),
                "started": self._started,
                "training_seconds": self._training,
                "core_seconds": self._core,
                "seconds": seconds_spent(self.job, seat),
                "wall_seconds": time.perf_counter() - self._begin,
            }
            traffic = {str(peer): dict(vars(t)) for peer, t in self.job.traffic(rank).items()}
            repeatable = self.job.config.insecure_noise_seed is not None
            kept.append(capture(seat, completed, repeatable=repeatable, traffic=traffic, facts=facts))

    def _set_blocks(self) -> None:
        """Let a ledger reserve no more than the releases until the next checkpoint: a crash may cost that much."""
        job, done = self.job, self.job.engine.completed
        for seat, ledger in zip(job.engine.seats, job.ledgers, strict=True):
            rank = seat.agent.rank
            per_round = job.plan.release_count(rank) / max(1, job.plan.active[rank])
            if self._interval.rounds is not None:
                soon = job.plan.schedule.active_counts(done + 1, done + self._interval.rounds + 1)[rank]
                ledger.block = math.ceil(per_round * soon)

    def _facts_of(self, rank: int) -> dict[str, Any]:
        job = self.job
        shard = job.shards[list(job.meter.ranks).index(rank)]
        return {"run": job.run, "config": job.config.digest(), "rank": job.names[rank], "shard": shard.fingerprint}

    def _manifest(self) -> Manifest:
        """Say whose checkpoints the directory has. What is known of them stays known: survivors go on from memory."""
        from dpmpi.runtime.recovery.checkpoint import Manifest, read_manifest  # noqa: PLC0415

        job, before = self.job, None
        with suppress(CheckpointError):
            before = read_manifest(self._directory)
        round_ = before.round if before is not None and before.run == job.run else 0
        return Manifest(job.run, job.config.digest(), job.past.origin, tuple(job.names), round_)

    def _finish(self, evaluator: Evaluator) -> None:
        """Close the books and write the results."""
        job, directory = self.job, self._directory
        wall = time.perf_counter() - self._begin
        for ledger in job.ledgers:
            ledger.close()
        for seat in job.engine.seats:
            if isinstance(seat.agent.witness, RealisedLosses):
                directory.write_private(job.names[seat.agent.rank], _diary(seat.agent.witness))
        records = [rank_record(job, seat, self._training, self._core) for seat in job.engine.seats]
        for record, rank in zip(records, job.meter.ranks, strict=True):
            record.update({} if self._private is None else self._private.rank_record(rank))
        for record, ledger in zip(records, job.ledgers, strict=True):
            # The hash of one that goes on over runs covers the mark of its shard, and is told to nobody.
            record["ledger"] = ledger.head() if job.config.ledger is None else None
        self._keep_figures(records, wall)
        if not job.settings.shares_timings:
            records = [without_figures(record) for record in records]
        told = on_all_ranks(job.meter, lambda: records)
        x, models = evaluator.mean_model()
        # With shares nobody sees a rank's own vector, and that includes its last one.
        rows = None if job.settings.messages.hides else job.meter.gather(_stacked(models), job.meeting.leaders)
        summary: dict[str, Any] = {}

        def write_model() -> None:
            if job.leads:
                ended = self._evaluation, self._optimum, self._started, wall, self._quality
                summary.update(summarise(job, told, *ended))
                counted = [] if self._private is None else self._private.counted
                summary["private_evaluation"] = figures(job, counted, told)
                directory.write_model(trained_model(job, summary, x, rows))

        def write_summary() -> None:
            if job.leads:
                directory.write_summary(summary)

        # Nobody leaves, or lets go of its checkpoints, before every trust domain has its results.
        fail_together(job.meter, write_model)
        fail_together(job.meter, write_summary)
        if self._first:
            say(closing(merged(summary, directory.path), directory.path, job.config))
        job.meter.close()
        if self._keeper is not None:
            self._keeper.remove()

    def _keep_figures(self, records: Sequence[dict[str, Any]], wall: float) -> None:
        """Write the figures of the processes here; a run that is through does not fail for them."""
        job, directory = self.job, self._directory
        pace = job.plan.rounds / self._training if self._training else 0.0
        run = {"started": self._started, "wall_seconds": wall, "rounds_per_second": pace}
        try:
            for rank, record in zip(job.meter.ranks, records, strict=True):
                directory.write_waits(job.names[rank], job.meter.waits(rank, job.names))
                if not job.settings.shares_timings:
                    directory.write_figures(record["rank"], own_figures(record, run))
        except OSError as error:
            say(f"dpmpi: cannot write {error.filename}: {error.strerror}; the run goes on without it", sys.stderr)


def check_promise(job: Job) -> None:
    """Raise `ConfigError` if a method of the user's own has not released what it foresaw: epsilon was for that.

    Until the end it is only asked whether it releases anything at all: what it foresees of some of its rounds need not
    be what it does in the first ones.
    """
    if not job.config.plugin or not job.private or job.past.goes_on:
        return
    over = job.engine.completed == job.plan.rounds
    for agent in (seat.agent for seat in job.engine.seats if seat.agent.stopped is None):
        foreseen, found = job.plan.release_count(agent.rank, agent.active_rounds), agent.releases
        if (over and found != foreseen) or (foreseen and agent.active_rounds and not found):
            expected = f"expected {foreseen} releases in {agent.active_rounds} rounds of {job.config.algorithm}"
            hint = "correct its `releases`, or what it sends (dpmpi.testing.check_method says more)"
            raise ConfigError(f"{expected}, as it foresees, found {found}: {hint}")


def _diary(witness: RealisedLosses) -> Iterator[dict[str, Any]]:
    """Yield what a rank may know of its own losses, round by round and in all."""
    yield {"note": "realised privacy losses: a function of the data, no guarantee, not to be published"}
    for t, (loss, largest) in enumerate(zip(witness.losses, witness.largest, strict=True), 1):
        yield {"release": t, "realised": loss, "worst": largest}
    yield {"total": True, "realised": sum(witness.losses), "worst": sum(witness.largest)}


def _reference(job: Job) -> Any:
    """Return the optimum of the distributed objective, and what certifies it."""
    from dpmpi.problem.optimum import find_mean, find_optimum  # noqa: PLC0415 - brings scipy

    penalty, loss, dimension = job.settings.penalty, job.settings.loss, job.plan.dimension
    if loss is None:
        problems = [seat.agent.problem for seat in job.engine.seats]
        return find_mean(problems, job.meter.size, penalty, dimension, job.meter.total)
    shards = [(job.settings.extended(shard.rows), shard.labels) for shard in job.shards]
    weights = [job.plan.weights[rank] for rank in job.meter.ranks]
    return find_optimum(shards, job.meter.size, loss, penalty, dimension, job.meter.total, weights=weights)


def _metrics(job: Job, rank: int, evaluation: Evaluation, seconds: float) -> dict[str, Any]:
    traffic = job.traffic(rank).values()
    return {
        "round": evaluation.round,
        "objective": evaluation.objective,
        "accuracy": evaluation.accuracy,
        "rank_accuracy": evaluation.rank_accuracy,
        "consensus_error": evaluation.consensus_error,
        "error": evaluation.error,
        "rank_error": evaluation.rank_error,
        "bytes": sum(t.bytes_sent for t in traffic),
        "messages": sum(t.messages_sent for t in traffic),
        "seconds": round(seconds, 6),
    }


def _stacked(models: Sequence[Any]) -> Any:
    """Return the one model as it is (MPI), or all of them as a matrix (loopback)."""
    return models[0] if len(models) == 1 else np.stack(models)
