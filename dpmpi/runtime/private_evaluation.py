"""Private evaluations: the held-out rows of all ranks, through one noisy histogram, inside of the guarantee.

After the rounds that `HeldOut` names, rank i takes the mean model x over all ranks, which is made of releases, and

    c_i = (counts of its held-out rows under x) / N                      a query of sensitivity D/N                 (1)
    r_i = c_i + noise                                                    charged to its held-out rows, then noised  (2)
    r   = sum over the ranks of r_i                                      by the exchange of the run                 (3)

(3) is the same on all ranks; what it says about the model is computed from it alone (model/histogram.py).

Privacy: no training step reads a held-out row, and x depends on training rows only through releases. So to replace a
training row changes (1) only through releases that are charged to training rows, and to replace a held-out one changes
(2) only: that is (1) of privacy/spending.py. A rank whose budget allows no release sends zeros, or its part of a sum's
noise alone, and counts no rows; the summary says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmpi.core import Agent, Array, Query, Sum
from dpmpi.core.frozen import frozen
from dpmpi.network.channel import Flow, Neighbourhood
from dpmpi.rng import rank_key
from dpmpi.runtime.engine import Seat

if TYPE_CHECKING:
    from dpmpi.runtime.evaluation import Evaluator
    from dpmpi.runtime.held_out import HeldOut
    from dpmpi.runtime.job import Job

BEYOND_HOPS = 1 << 31
"""Messages of an evaluation come after all hops of the last round, of which inactive ranks have counted others."""
NOBODY = Neighbourhood((), (), 1.0)
"""A sum goes to all ranks, whoever the neighbours are."""


@frozen
class Counted:
    """The noisy counts of one evaluation, (3), the same on all ranks."""

    round: int
    shares: Array


class PrivateEvaluator:
    """Evaluates the mean model of a job on the held-out rows; all processes call `evaluate` together."""

    def __init__(self, job: Job, evaluator: Evaluator, before: Sequence[Any] = ()) -> None:
        """Take the model from `evaluator`; a run that goes on had these evaluations `before`, as `to_list` says."""
        self._job, self._evaluator = job, evaluator
        self._keys = [rank_key(job.config.insecure_noise_seed, job.names[rank]) for rank in job.meter.ranks]
        self.counted = [Counted(round_, np.array(shares)) for round_, shares in before]
        self.admitted = dict.fromkeys(job.meter.ranks, True)
        """Whether the last release of a rank here was allowed by its budget."""

    @property
    def due(self) -> bool:
        """Whether there is an evaluation after the completed rounds."""
        held_out = self._job.plan.held_out
        return held_out is not None and self._job.engine.completed in held_out.rounds

    def to_list(self) -> list[Any]:
        """Return the evaluations so far, JSON-ready."""
        return [[one.round, one.shares.tolist()] for one in self.counted]

    def rank_record(self, rank: int) -> dict[str, Any]:
        """Return the public figures of a rank's evaluation."""
        held_out = self._job.plan.held_out
        if held_out is None:
            return {"held_out": None, "evaluated": None, "evaluation_sigma": None}
        sigma = self._job.evaluation_sigmas[rank]
        return {"held_out": held_out.rows[rank], "evaluated": self.admitted[rank], "evaluation_sigma": sigma}

    def evaluate(self) -> None:
        """Evaluate the mean model after the completed rounds."""
        job, held_out = self._job, self._job.plan.held_out
        if held_out is None:
            return
        x, _ = self._evaluator.mean_model()
        table = x if job.settings.scores == 1 else x.reshape(-1, job.settings.scores)
        agents, flows, sums = [], [], []
        for seat, shard, key in zip(job.engine.seats, job.shards, self._keys, strict=True):
            scores = job.settings.extended(shard.test_rows).scores(table)
            counts = held_out.statistics.sums(scores, shard.test_labels) / held_out.total  # (1)
            agent = self._agent(seat.agent, held_out, key)
            out = np.zeros(held_out.width)
            query = Query(counts, held_out.sensitivity, held_out.sampling(seat.agent.rank))
            flows.append(evaluation(replace(seat, agent=agent), query, job.engine.completed, out))
            agents.append(agent)
            sums.append(out)
        job.engine.drive(flows)
        for agent in agents:
            self.admitted[agent.rank] = agent.admitted
        self.counted.append(Counted(job.engine.completed, sums[0]))

    def _agent(self, agent: Agent, held_out: HeldOut, key: bytes) -> Agent:
        """Return the rank as an evaluation sees it: noise and counters of its own, the same ledger."""
        job, completed = self._job, self._job.engine.completed
        noise = held_out.noise.mechanism(
            job.evaluation_sigmas[agent.rank], key, held_out.width, job.plan.ranks, stream=f"evaluation {completed}"
        )
        return replace(agent, mechanism=noise, witness=None, round=completed, releases=0, stopped=None, admitted=True)


def evaluation(seat: Seat, query: Query, round_: int, out: Array) -> Flow:
    """Release the query of one agent, and write the sum over all ranks to `out`."""
    release = seat.agent.release(query)  # (2)
    seat.exchange.go_to(round_, BEYOND_HOPS)
    yield from seat.exchange.serve(Sum(release, out), NOBODY, round_)  # (3)


def figures(job: Job, counted: Sequence[Counted], told: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the summary's section on private evaluations; None if there were none.

    `told` are the records of all ranks: `held_out` rows, and whether they were `evaluated`.
    """
    held_out = job.plan.held_out
    if held_out is None or not counted:
        return None
    took_part = [record["evaluated"] for record in told]
    rows = sum(record["held_out"] for record in told if record["evaluated"])
    local = held_out.noise.place == "local"
    sigmas = [sigma if took or not local else 0.0 for sigma, took in zip(job.evaluation_sigmas, took_part, strict=True)]
    deviation = held_out.noise.of_sum(sigmas) * held_out.total
    found: dict[str, Any] = {
        "rows": rows,
        "ranks": sum(took_part),
        "model": "mean over the ranks",
        "noise": deviation,
        "sensitivity": held_out.statistics.sensitivity * held_out.noise.records,
    }
    if not rows:
        return found | {"metrics": None, "history": []}
    each = [held_out.statistics.figures(one.shares * held_out.total, rows, deviation) for one in counted]
    history = [{"round": one.round, **said["metrics"]} for one, said in zip(counted, each, strict=True)]
    counts = (counted[-1].shares * held_out.total).tolist()
    return found | each[-1] | {"counts": counts, "history": history}
