"""Contracts of a method's releases: no other way out, not even by its work; as sensitive as declared; all foreseen."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from dpmpi.core import Array, Method
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.mechanisms import pricing
from dpmpi.problem.rows import Coefficient, Dense, Positions
from dpmpi.testing.simulation import (
    Asked,
    Listening,
    Tap,
    deaf,
    labels_of,
    models,
    noisy,
    random_shards,
    simulate,
    task_of,
)

Make = Callable[[], Method]


def check_no_leak(make: Make, *, n: int = 5, rounds: int = 12, **settings: Any) -> None:
    """Raise AssertionError if a byte on the wire, or a model, depends on the data other than through a release.

    The mechanism is deaf, so releases carry nothing. Whatever still differs between two unrelated data sets got out by
    another way. Models are looked at half way too: a private evaluation gives their mean to all ranks. `settings` are
    those of `simulate`; for noise inside a sum they hold a `SumMechanism` and `DeafAgent`.
    """
    settings, task = {"mechanism": deaf} | settings, task_of(settings)

    def seen(seed: int) -> tuple[list[tuple[int, int, int, bytes]], list[bytes]]:
        tap = Tap(LoopbackTransport(n))
        shards = random_shards(n, 30, 7, seed, task)
        engine = simulate(make(), shards, rounds, transport=tap, stop=rounds // 2, **settings)
        half_way = models(engine).tobytes()
        engine.advance(rounds)
        return sorted(tap.heard), [half_way, models(engine).tobytes()]

    (first, mine), (second, yours) = seen(1), seen(2)
    if len(first) != len(second):
        raise AssertionError(f"the number of messages depends on the data: {len(first)} and {len(second)}")
    for one, other in zip(first, second, strict=True):
        if one != other:
            rank, round_, hop, _ = one
            raise AssertionError(f"what rank {rank} sends in round {round_}, hop {hop} depends on unreleased data")
    for where, one_model, other_model in zip(("half way", "at the end"), mine, yours, strict=True):
        if one_model != other_model:
            raise AssertionError(f"a model {where} depends on unreleased data: write what was released to `out`")


class _Counted(Dense):
    """Records that write down every pass over them, and over how many of them."""

    def __init__(self, matrix: Array) -> None:
        super().__init__(matrix)
        self.passes: list[int] = []

    def scores(self, x: Array) -> Array:
        self.passes.append(self.count)
        return super().scores(x)

    def fold(self, x: Array, chosen: Positions | None, coefficient: Coefficient, out: Array) -> None:
        self.passes.append(self.count if chosen is None else len(chosen))
        super().fold(x, chosen, coefficient, out)


def check_work(make: Make, *, n: int = 3, rounds: int = 6, **settings: Any) -> None:
    """Raise AssertionError if the number of passes over the records, or of the records in one, depends on the data.

    Who can measure a rank's time learns it. The data sets are unrelated, among them records that are all the same and
    all zero. Batches and noise are drawn alike for all of them. `settings` are those of `simulate`.
    """
    settings, task = {"mechanism": noisy(make().mechanisms[0])} | settings, task_of(settings)
    first_label, *_, last_label = labels_of(task)

    def work(change: Callable[[Array, Array], tuple[Array, Array]]) -> list[list[int]]:
        shards: list[tuple[_Counted, Array]] = []
        for rows, labels in random_shards(n, 30, 7, 1, task):
            X, y = change(rows.matrix, labels)  # type: ignore[union-attr]
            shards.append((_Counted(X), y))
        simulate(make(), shards, rounds, **settings)
        return [rows.passes for rows, _ in shards]

    first = work(lambda X, y: (X, y))
    for change in (
        lambda X, y: (X, np.full_like(y, last_label)),
        lambda X, y: (np.tile(X[:1], (len(y), 1)), y),
        lambda X, y: (y[:, None] * X[:1] / max(1.0, last_label), y),
        lambda X, y: (np.zeros_like(X), y),
        lambda X, y: (1e-9 * X, first_label + last_label - y),
    ):
        for rank, (one, two) in enumerate(zip(first, work(change), strict=True)):
            if one != two:
                raise AssertionError(
                    f"rank {rank} passes over its records {len(one)} and {len(two)} times, over {sum(one)} and "
                    f"{sum(two)} records in all, for unrelated data: take a number of steps that is fixed in advance"
                )


def check_sensitivity(
    make: Make, *, n: int = 3, rounds: int = 6, lipschitz: float = 1.0, most: int = 1, **settings: Any
) -> None:
    """Raise AssertionError if replacing one record moves a query further than it declared.

    With `most` > 1, all records of a person who has so many are replaced at once, and the value must not move further
    than what was charged for it.

    The neighbouring records are adversarial: opposite, huge, zero and aligned with each other. The mechanism is deaf,
    so both runs are at the same point when they ask, and the batches hold the same positions. `settings` are those of
    `simulate`. Methods that rely on a bound of the rows' norm are shown rows scaled to it.
    """
    m, victim = 7, 1
    extreme = [scale * np.eye(m)[0] for scale in (1.0, -1.0, 1e6, 0.0)] + [np.full(m, 1e3)]
    if settings.pop("normalized", False):
        extreme = [row / max(1.0, float(np.linalg.norm(row))) for row in extreme]
    task = task_of(settings)
    records = [(row, label) for row in extreme for label in labels_of(task)[[0, -1]].tolist()]

    # The records of a person lie apart: those of the first are 0, 4, 8 ..., as many as there may be.
    count = max(10, 4 * most)
    whose = np.arange(count)
    whose[::4][:most] = 0
    if most > 1:
        settings |= {"persons": [whose] * n, "most": most}

    def queries(positions: Positions, row: Array, label: float) -> list[Asked]:
        shards = random_shards(n, count, m, 3, task)
        X = shards[victim][0].matrix.copy()  # type: ignore[union-attr]
        y = shards[victim][1].copy()
        X[positions], y[positions] = row, label
        shards[victim] = (Dense(X), y)
        engine = simulate(make(), shards, rounds, mechanism=deaf, lipschitz=lipschitz, make_agent=Listening, **settings)
        agent: Any = engine.seats[victim].agent
        asked: list[Asked] = agent.asked
        for one, (_, event) in zip(asked, agent.charges.charged, strict=True):
            if most > 1:
                one.sensitivity = event.sensitivity
        return asked

    for position in (0, count - 1):
        moving = np.flatnonzero(whose == whose[position])
        runs = [queries(moving, row, label) for row, label in records]
        for (i, one), (j, other) in combinations(enumerate(runs), 2):
            for k, (mine, yours) in enumerate(zip(one, other, strict=True)):
                parts = zip(mine.parts, yours.parts, strict=True)
                moved = math.hypot(*(float(np.linalg.norm(a - b)) for a, b in parts))
                if moved > mine.sensitivity * (1 + 1e-9):
                    raise AssertionError(
                        f"query {k} moved by {moved:.6g}, but declares a sensitivity of {mine.sensitivity:.6g}: "
                        f"{len(moving)} records from {position} on were {records[i]} and {records[j]}"
                    )


def check_releases(make: Make, *, n: int = 5, rounds: int = 12, **settings: Any) -> None:
    """Raise AssertionError if a run charges other events, or in another order, than the method foresaw.

    Noise is calibrated to, and ledgers are written ahead by, what `releases` says. Every kind of noise in `mechanisms`
    is tried, released vectors must have the length `width`, and a `Witness` is told something by one that `testifies`.
    """
    shards, settings = random_shards(n, 30, 7, 1, task_of(settings)), {"make_agent": Listening} | settings
    algorithm = make()
    for seat in simulate(algorithm, shards, rounds, **settings).seats:
        quiet: Any = seat.agent
        width = algorithm.width(quiet.dimension)
        found = {part.size for asked in quiet.asked for part in asked.parts} - {width}
        if found:
            raise AssertionError(f"expected releases of length {width}, found {sorted(found)}: correct `width`")
        if bool(quiet.told) != algorithm.testifies:
            raise AssertionError(
                f"expected a witness to be told {'something' if algorithm.testifies else 'nothing'}, found "
                f"{quiet.told} times: correct `testifies`"
            )
    for kind in algorithm.mechanisms:
        price = pricing(kind, 0.3, width)
        for seat in simulate(make(), shards, rounds, **settings, mechanism=noisy(kind)).seats:
            agent: Any = seat.agent
            foreseen = [
                price.event(
                    planned.sensitivity, agent.terms.sampling, planned.scale, planned.extra, inside=planned.inside
                )
                for planned in algorithm.releases(agent.terms)
                for _ in range(planned.count)
            ]
            charged = [event for _, event in agent.charges.charged]
            if charged != foreseen:
                first = next(k for k in range(10**9) if charged[k : k + 1] != foreseen[k : k + 1])
                raise AssertionError(
                    f"rank {agent.rank} charged {len(charged)} releases, foreseen were {len(foreseen)}; number {first} "
                    f"is {charged[first : first + 1]}, foreseen was {foreseen[first : first + 1]}: correct `releases`"
                )
