"""Leaks on purpose, to see that the contract of two worlds catches them: each is put into a running process by name."""

import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np

from dpmpi.core import Agent, Release
from dpmpi.data import shards
from dpmpi.errors import DataError
from dpmpi.problem.local_problem import LocalProblem
from dpmpi.runtime import private_evaluation, settings, trainer
from dpmpi.runtime.recovery.votes import Votes


def planted(name, rank):
    """Plant a leak while the context lasts; None plants nothing."""
    return nullcontext() if name is None else LEAKS[name](rank)


def timing(rank):
    """Put a figure of the process into the summary."""
    summarise = trainer.summarise
    return mock.patch.object(trainer, "summarise", lambda *a, **k: summarise(*a, **k) | {"took": time.process_time()})


def row_error(rank):
    """Refuse records with the number of a row that depends on what the rows hold."""
    make = settings.LocalProblem

    def refuse(rows, *more):
        if rank == 1:
            raise DataError(f"expected a smaller number, found another in row {rows.matrix[:, 0].argmax()}")
        return make(rows, *more)

    return mock.patch.object(settings, "LocalProblem", refuse)


@contextmanager
def vote(rank):
    """Vote by what the records hold."""
    read, look, secret = shards.read_shard, Votes.look, []

    def remember(path):
        found = read(path)
        secret.append(float(found.rows.matrix[0, 0]))
        return found

    def biased(self, *wishes):
        return look(self, *wishes[:-1], wishes[-1] - 1e-9 * (1.0 + secret[-1]))

    with mock.patch.object(shards, "read_shard", remember), mock.patch.object(Votes, "look", biased):
        yield


def unnoised(rank):
    """Let a billionth of each value through beside its noise."""
    release = Agent.release

    def leaky(self, query, scale=1.0, part=0):
        value = query.value.copy()
        said = release(self, query, scale, part)
        np.add(query.value, 1e-9 * value, out=query.value)
        return said

    return mock.patch.object(Agent, "release", leaky)


def work(rank):
    """Go through the records more or less often, by what they hold."""
    subgradient = LocalProblem.subgradient

    def longer(self, x):
        for _ in range(int(8 * abs(self.rows.matrix[0, 0]))):
            self.rows.scores(x)
        return subgradient(self, x)

    return mock.patch.object(LocalProblem, "subgradient", longer)


def evaluation(rank):
    """Let a billionth of the counts of held-out rows through beside their noise."""
    flow = private_evaluation.evaluation

    def leaky(seat, query, round_, out):
        counts, release = query.value.copy(), seat.agent.release
        agent = mock.Mock(release=lambda asked: Release(release(asked).value + 1e-9 * counts))
        return flow(mock.Mock(agent=agent, exchange=seat.exchange), query, round_, out)

    return mock.patch.object(private_evaluation, "evaluation", leaky)


SIXTH = None
"""Knows when the other ranks have come to their sixth exchange."""


def exception(rank):
    """Fail in the sixth round on one rank, when the others wait for it, with a record in the message."""
    subgradient, calls = LocalProblem.subgradient, []

    def fail(self, x):
        calls.append(x)
        if len(calls) < 6:
            return subgradient(self, x)
        SIXTH.wait()
        raise ArithmeticError(f"cannot take {self.rows.matrix[0, 0]!r}")

    return mock.patch.object(LocalProblem, "subgradient", fail) if rank == 1 else nullcontext()


def model(rank):
    """Write a figure of the records into the model file."""
    trained = trainer.trained_model

    def telling(job, *more):
        return replace(trained(job, *more), noise_note=f"{job.shards[0].rows.matrix[0, 0]:.3f}")

    return mock.patch.object(trainer, "trained_model", telling)


LEAKS = {"timing": timing, "row error": row_error, "vote": vote, "unnoised": unnoised, "work": work}
LEAKS |= {"evaluation": evaluation, "exception": exception, "model": model}
