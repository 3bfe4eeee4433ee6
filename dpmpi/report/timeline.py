"""Who waited for whom, and when: a row per rank, time to the right, the fuller the more of it was spent waiting.

Every rank left buckets of its own width: the seconds that it waited for each peer between two times. They are dealt
out to the columns of the drawing in proportion to the overlap,

    w(column, peer) = sum over buckets b of  w_b(peer) |b and column| / |b|,                                    (1)

which keeps their sum, and a column's shade is

    sum over peers of w(column, peer) / |column|.                                                               (2)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

from dpmpi.report.axes import Axis, blocks, draw_frame
from dpmpi.report.drawing import LINE, Drawing
from dpmpi.report.plots import Picture
from dpmpi.results import Waits

COLUMNS = 64
ROWS = 60
HEIGHT, TALLEST = 480.0, 15.0
"""Of all rows together, and of one row, at most."""
SHADES = 8
"""Steps from no waiting to nothing but waiting: neighbours of one shade become one rectangle."""

Seconds: TypeAlias = dict[int, float]
"""By peer."""


def columns(waits: Waits, begin: float, width: float, count: int) -> list[Seconds]:
    """Return the seconds waited for each peer in every column of a common time axis, by (1)."""
    found: list[Seconds] = [{} for _ in range(count)]
    for k, bucket in enumerate(waits.buckets):
        left = (waits.started - begin + k * waits.width) / width
        right = left + waits.width / width
        for column in range(max(int(left), 0), min(int(right) + 1, count)):
            # What rounding pushes out at the end belongs to the last column.
            end = right if column == count - 1 else min(right, column + 1)
            share = (end - max(left, column)) / (right - left)
            if share > 0:
                _add(found[column], {peer: share * seconds for peer, seconds in bucket.items()})
    return found


def draw_waits(waits: Sequence[Waits]) -> Picture | None:
    """Return the time line of all ranks; None if no rank left one. Many ranks are shown as means over blocks."""
    if not any(rank.buckets for rank in waits):
        return None
    begin = min(rank.started for rank in waits)
    total = max(rank.started - begin + rank.width * len(rank.buckets) for rank in waits)
    count = min(COLUMNS, max(round(total / min(rank.width for rank in waits)), 1))
    width = total / count
    groups = [[waits[i] for i in block] for block in blocks(len(waits), ROWS)]
    names = [str(g[0].rank) if len(g) == 1 else f"{g[0].rank}-{g[-1].rank}" for g in groups]
    height = min(HEIGHT / len(groups), TALLEST)
    step = math.ceil(LINE / height - 0.1)  # the numbers of neighbouring rows must not touch
    y = Axis((len(groups), 0.0), "rank", ticks=[(r + 0.5, name) for r, name in enumerate(names)][::step], grid=False)
    x = Axis((0.0, total), "seconds since the first round began", grid=False)
    drawing, rows = Drawing(0), list[tuple[Any, ...]]()
    frame = draw_frame(drawing, "", x, y, height * len(groups))
    for row, (group, name) in enumerate(zip(groups, names, strict=True)):
        together: list[Seconds] = [{} for _ in range(count)]
        for rank in group:
            for k, peers in enumerate(columns(rank, begin, width, count)):
                _add(together[k], peers)
                rows += [(rank.rank, k * width, (k + 1) * width, peer, s) for peer, s in sorted(peers.items())]
        shares = [sum(peers.values()) / (width * len(group)) for peers in together]  # (2)
        looks = [
            (min(round(SHADES * share), SHADES), _most(peers)) for share, peers in zip(shares, together, strict=True)
        ]
        for (shade, peer), same in groupby(range(count), key=looks.__getitem__):
            if shade > 0:
                places = list(same)
                first, behind = places[0], places[-1] + 1
                waited = sum(together[k][peer] for k in places)
                part = sum(shares[first:behind]) / len(places)
                said = (
                    f"rank {name}, {first * width:.3g} to {behind * width:.3g} s: {min(part, 1.0):.0%} waiting, "
                    f"most for rank {peer} ({waited:.2g} s)"
                )
                x0, x1 = frame.x(first * width), frame.x(behind * width)
                drawing.rect(x0, frame.y(row) + 0.5, x1 - x0, height - 1, "s1", opacity=shade / SHADES, title=said)
    _key(drawing, frame.bottom + 2)
    return Picture(drawing, ("rank", "from_seconds", "to_seconds", "waited_for", "seconds"), tuple(rows))


def longest(ranks: Sequence[dict[str, Any]], most: int) -> list[tuple[int, int, float, float]]:
    """Return the pairs with the longest waits: who, for whom, seconds, share of the waiting rank's training."""
    pairs = [
        (record["rank"], int(peer), traffic["wait_seconds"], traffic["wait_seconds"] / record["training_seconds"])
        for record in ranks
        for peer, traffic in record["neighbours"].items()
        if traffic["wait_seconds"] > 0
    ]
    return sorted(pairs, key=lambda pair: -pair[2])[:most]


def _add(sums: Seconds, more: Seconds) -> None:
    for peer, seconds in more.items():
        sums[peer] = sums.get(peer, 0.0) + seconds


def _most(peers: Seconds) -> int:
    return max(peers, key=peers.__getitem__, default=-1)


def _key(drawing: Drawing, top: float) -> None:
    drawing.text(0, top + 12, "0%", "soft")
    for shade in range(1, SHADES + 1):
        drawing.rect(14 + 16 * shade, top + 2, 16, 12, "s1", opacity=shade / SHADES)
    drawing.text(36 + 16 * SHADES, top + 12, "100% waiting", "soft")
    drawing.height = top + 20
