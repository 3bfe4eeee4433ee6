"""What the ranks and edges of a run did: privacy, bytes, time, waiting. From their records to a drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from dpmpi.commands.report import drawing
from dpmpi.commands.report.drawing import LIGHT, Axes, Drawing, Entry, blocks, limits, set_ranks, set_scale, tip
from dpmpi.runtime.output.results import Waits

MOST_BARS = 100
MOST_DOTS = 400
WIDE_RATIO = 30.0
"""Epsilons further apart than this are shown on a logarithmic axis."""
PARTS = {"compute": "s0", "noise": "s4", "crypto": "s3", "ledger": "s1", "wait": "mute"}
"""What a rank's seconds are spent on, and the colour of it."""
TURN = {"others' turn": "grid"}
"""What the waiting of ranks that share cores is, as far as sharing them explains it."""
MOST_NODES = 60
"""More than that on one circle cannot be told apart."""
MOST_NUMBERS = 40
"""Of more nodes every other one bears its number."""
BINS = 24
KINDS = ("payload_bytes_sent", "share_bytes_sent", "tag_bytes_sent", "trailer_bytes_sent")
COLUMNS = 64
ROWS = 60
"""Of a time line; of more ranks the means of blocks of them are shown."""
SIDE = 40
"""Rows and columns of the square of pairs, at most."""
SHADES = 8
"""Steps from no waiting to the most."""
ALL_ROWS, TALLEST = 360.0, 11.0
"""Points of all rows of a time line together, and of one, at most."""

Edges: TypeAlias = dict[tuple[int, int], int]


def spent(record: Mapping[str, Any]) -> float:
    """Return a rank's spending of its budget: earlier runs count if they are in the same ledger."""
    total = record.get("epsilon_with_earlier_runs")
    fits = isinstance(total, int | float) and math.isfinite(total)
    return float(total if fits and total is not None else record["epsilon"])


def draw_epsilons(
    ranks: Sequence[dict[str, Any]], target: float | None, delta: float, claim: float | None
) -> Drawing | None:
    """Return every rank's certified epsilon next to what it may spend and to what a theorem claims of the same noise.

    None if nothing is certified. Of very many ranks the worst of each block of neighbouring numbers is shown.
    """
    if any(record["epsilon"] is None for record in ranks):
        return None
    allowed = [target if record["budget"] is None else record["budget"] for record in ranks]
    shown = [max(block, key=lambda i: spent(ranks[i])) for block in blocks(len(ranks), MOST_DOTS)]
    numbers = [*(spent(r) for r in ranks), *(a for a in allowed if a is not None), *([claim] if claim else [])]
    log = min(numbers) > 0 and max(numbers) / min(numbers) > WIDE_RATIO
    ends = limits([np.array(numbers)], True, 0.1) if log else (0.0, 1.12 * max([*numbers, 1e-9]))
    earlier = any(spent(record) != record["epsilon"] for record in ranks)
    entries = [Entry("certified, with earlier runs" if earlier else "certified", "s0", "o", "")]
    if any(limit is not None for limit in allowed):
        own = any(record["budget"] is not None for record in ranks)
        entries.append(Entry("budget" if own else "target (--epsilon)", "ink"))
    if claim is not None:
        entries.append(Entry(f"the paper's theorem: {claim:.3g}", "s1", "", "--"))

    def paint(axes: Axes) -> None:
        axes.set(title=f"epsilon at delta = {delta:g}", xlabel="rank")
        set_ranks(axes, [record["rank"] for record in ranks])
        set_scale(axes, "y", ends, log=log)
        half = 0.35 * len(ranks) / len(shown)
        if claim is not None:
            axes.axhline(claim, color=LIGHT["s1"], linestyle="--")
        for i in shown:
            rank, limit, epsilon = ranks[i]["rank"], allowed[i], spent(ranks[i])
            if limit is not None:
                axes.plot([rank - half, rank + half], [limit, limit], color=LIGHT["ink"])
            said = f"rank {rank}: epsilon {epsilon:.4g}" + (f" of {limit:g}" if limit is not None else "")
            axes.plot(rank, epsilon, "o", color=LIGHT["s0"], markersize=5 if len(shown) <= 60 else 2, gid=tip(said))
        drawing.draw_legend(axes, entries)

    cells = [["" if value is None else value for value in (limit, claim)] for limit in allowed]
    rows = [(record["rank"], spent(record), *more) for record, more in zip(ranks, cells, strict=True)]
    return Drawing(paint, heading=("rank", "epsilon", "budget", "epsilon_theorem"), rows=rows)


def draw_times(everybody: Sequence[dict[str, Any]], crowding: float = 0.0) -> Drawing | None:
    """Return where every rank's seconds went, as stacked bars; of very many ranks the means of blocks of them.

    Where ranks share cores, `crowding` is the share of the time that belongs to others: waiting up to that is shown as
    their turn. Ranks that keep their seconds to themselves are left out; None if all do.
    """
    ranks = [record for record in everybody if record["compute_seconds"] is not None]
    if not ranks:
        return None
    table = np.array([[seconds(record)[part] for part in PARTS] for record in ranks])
    if not np.isfinite(table).all():
        raise ValueError("expected finite seconds of each rank, found others")
    turn = np.minimum(table[:, -1], crowding * table.sum(axis=1))
    parts = np.column_stack([table[:, :-1], table[:, -1] - turn, turn])
    groups = blocks(len(ranks), MOST_BARS)
    means = np.array([parts[list(block)].mean(axis=0) for block in groups])
    ends = [(ranks[block[0]]["rank"], ranks[block[-1]]["rank"]) for block in groups]
    names = [f"rank {first}" if first == last else f"ranks {first} to {last}, mean" for first, last in ends]

    def paint(axes: Axes) -> None:
        axes.set(title="seconds of training", xlabel="rank")
        set_ranks(axes, [record["rank"] for record in ranks])
        set_scale(axes, "y", (0.0, 1.05 * max(float(means.sum(axis=1).max()), 1e-9)))
        entries, middles = [], [(first + last) / 2 for first, last in ends]
        for k, (part, tone) in enumerate((PARTS | TURN).items()):
            if means[:, k].any():
                entries.append(Entry(part, tone, width=7))
                wide, below = 0.72 * len(ranks) / len(groups), means[:, :k].sum(axis=1)
                bars = axes.bar(middles, means[:, k], wide, below, color=LIGHT[tone])
                for bar, name in zip(bars, names, strict=True):
                    bar.set_gid(tip(f"{name}: {part} {bar.get_height():.3g} s"))
        drawing.draw_legend(axes, entries)

    rows = [(record["rank"], *map(float, row)) for record, row in zip(ranks, table, strict=True)]
    return Drawing(paint, heading=("rank", *(f"{part}_seconds" for part in PARTS)), rows=rows)


def seconds(record: dict[str, Any]) -> dict[str, float]:
    """Return the parts of a rank's seconds of training; a run of an older version knows two alone."""
    old = {"compute": record["compute_seconds"], "wait": record["wait_seconds"]}
    return dict.fromkeys(PARTS, 0.0) | (record.get("seconds") or old)


def edge_bytes(ranks: Sequence[dict[str, Any]], key: str = "bytes_sent") -> Edges:
    """Return the bytes on each edge, both directions together, from the ranks' own counts of what they sent."""
    edges: Edges = {}
    for record in ranks:
        for peer, traffic in record["neighbours"].items():
            pair = (min(record["rank"], int(peer)), max(record["rank"], int(peer)))
            edges[pair] = edges.get(pair, 0) + traffic.get(key, 0)
    return edges


def draw_traffic(ranks: Sequence[dict[str, Any]]) -> Drawing | None:
    """Return the bytes on every edge as a drawing; None if nobody has a neighbour."""
    edges = edge_bytes(ranks)
    if not edges:
        return None
    there = {record["rank"] for record in ranks}
    paint = _circle(there, edges) if len(ranks) <= MOST_NODES else _distribution(edges)
    known = [key for key in KINDS if any(key in t for r in ranks for t in r["neighbours"].values())]
    parts = [edge_bytes(ranks, key) for key in known]
    rows = [(*pair, count, *(part[pair] for part in parts)) for pair, count in sorted(edges.items())]
    heading = ("rank", "other", "bytes", *(key.removesuffix("_sent") for key in known))
    return Drawing(paint, drawing.WIDTH if len(ranks) <= MOST_NODES else drawing.HEIGHT, heading=heading, rows=rows)


def _circle(there: set[int], edges: Edges) -> drawing.Paint:
    """Return the graph; ranks that were lost on the way, which only their neighbours tell of, are pale."""
    numbers = sorted(there.union(*edges))
    angles = [2 * math.pi * i / len(numbers) for i in range(len(numbers))]
    at = {rank: (math.sin(angle), math.cos(angle)) for rank, angle in zip(numbers, angles, strict=True)}
    thickest = 4.5 if len(edges) <= 40 else 2.0 if len(edges) <= 200 else 1.0
    # Three widths tell how to read the others; of equal edges there is but one.
    most = max(edges.values())
    told = sorted({min(edges.values()), sorted(edges.values())[len(edges) // 2], most})

    def look(count: int) -> Entry:
        text = drawing.by_thousands(count, "B") + (" on every edge" if len(told) == 1 else "")
        share = count / most if most else 0.0
        return Entry(text, "s5", width=max(thickest * share, 0.45), alpha=0.3 + 0.7 * share)

    def paint(axes: Axes) -> None:
        axes.set_axis_off()
        axes.set(aspect="equal", xlim=(-1.12, 1.12), ylim=(-1.12, 1.12))
        for (one, other), count in sorted(edges.items(), key=lambda edge: edge[1]):
            (x, y), (u, v), look_ = at[one], at[other], look(count)
            said = tip(f"{one} and {other}: {count:,} bytes")
            axes.plot((x, u), (y, v), color=LIGHT["s5"], linewidth=look_.width, alpha=look_.alpha, gid=said)
        for position, (rank, (x, y)) in enumerate(at.items()):
            tone, said = ("s0", f"rank {rank}") if rank in there else ("mute", f"rank {rank}, lost on the way")
            axes.plot(x, y, "o", color=LIGHT[tone], markersize=7.5 if len(numbers) <= 30 else 5, gid=tip(said))
            if len(numbers) <= MOST_NUMBERS or position % 2 == 0:
                axes.text(1.1 * x, 1.1 * y, str(rank), ha="center", va="center_baseline", color=LIGHT["soft"])
        drawing.draw_legend(axes, [look(count) for count in told])

    return paint


def _distribution(edges: Edges) -> drawing.Paint:
    """Return a histogram of the bytes an edge carried."""

    def paint(axes: Axes) -> None:
        axes.set(title=f"edges, of {len(edges):,}", xlabel="bytes on an edge, both directions")
        counts, borders, bars = axes.hist(list(edges.values()), BINS, color=LIGHT["s0"], rwidth=0.95)
        set_scale(axes, "x", (borders[0], borders[-1]), unit="B")
        for bar, count, (left, right) in zip(bars, counts, pairwise(borders), strict=True):
            ends = " to ".join(drawing.by_thousands(end, "B") for end in (left, right))
            bar.set_gid(tip(f"{count:.0f} edges: {ends}"))

    return paint


def columns(waits: Waits, begin: float, width: float, count: int) -> list[dict[int, float]]:
    """Return the seconds waited for each peer in every column of a common time axis.

    Every rank left buckets of its own width: the seconds that it waited for each peer between two times. They are dealt
    out to the columns in proportion to the overlap, which keeps their sum:

        w(column, peer) = sum over buckets b of  w_b(peer) |b and column| / |b|                                 (1)
    """
    found: list[dict[int, float]] = [{} for _ in range(count)]
    for k, bucket in enumerate(waits.buckets):
        left = (waits.started - begin + k * waits.width) / width
        right = left + waits.width / width
        for column in range(max(int(left), 0), min(int(right) + 1, count)):
            # What rounding pushes out at the end belongs to the last column.
            end = right if column == count - 1 else min(right, column + 1)
            share = (end - max(left, column)) / (right - left)
            if share > 0:
                for peer, seconds in bucket.items():
                    found[column][peer] = found[column].get(peer, 0.0) + share * seconds
    return found


def draw_pairs(ranks: Sequence[dict[str, Any]]) -> Drawing | None:
    """Return who waited for whom as a square of shades, many ranks in blocks; None if nobody waited."""
    told = [(r["rank"], int(peer), t["wait_seconds"]) for r in ranks for peer, t in r["neighbours"].items()]
    pairs = {(rank, peer): seconds for rank, peer, seconds in told if seconds is not None}
    total = sum(pairs.values())
    if not total > 0:
        return None
    numbers = sorted({rank for pair in pairs for rank in pair})
    groups = [[numbers[i] for i in block] for block in blocks(len(numbers), SIDE)]
    place = {rank: k for k, group in enumerate(groups) for rank in group}
    sums: dict[tuple[int, int], float] = {}
    blamed = dict.fromkeys(numbers, 0.0)
    for (who, whom), seconds in pairs.items():
        sums[place[who], place[whom]] = sums.get((place[who], place[whom]), 0.0) + seconds
        blamed[whom] += seconds
    most = max(sums.values())

    def paint(axes: Axes) -> None:
        from matplotlib.patches import Rectangle  # noqa: PLC0415 - an extra

        for side in "xy":
            set_ranks(axes, numbers, side)
        axes.set(aspect="equal", title="rank that waited", xlabel="rank that it waited for")
        for (row, column), seconds in sums.items():
            down, across = groups[row], groups[column]
            corner, size = (across[0] - 0.5, down[0] - 0.5), (across[-1] - across[0] + 1, down[-1] - down[0] + 1)
            alpha = math.ceil(SHADES * seconds / most) / SHADES
            said = tip(f"{_name(down)} waited {seconds:.3g} s for {_name(across)}")
            axes.add_patch(Rectangle(corner, *size, color=LIGHT["s0"], alpha=alpha, linewidth=0, gid=said))
        drawing.draw_legend(axes, [Entry(f"{k * most:.2g} s", "s0", width=7, alpha=k) for k in (0.25, 0.5, 1.0)])

    worst, (who, whom) = max(blamed, key=blamed.__getitem__), max(pairs, key=pairs.__getitem__)
    even = sum(peer == worst for _, peer in pairs) / len(pairs)
    note = (
        f"Rank {worst} was waited for most: {blamed[worst] / total:.0%} of all waiting, where {even:.0%} is its even "
        f"share. The longest wait: rank {who} for rank {whom}, {pairs[who, whom]:.3g} s."
    )
    rows = [(*pair, seconds) for pair, seconds in sorted(pairs.items())]
    return Drawing(paint, drawing.WIDTH, note, ("rank", "waited_for", "seconds"), rows)


def draw_waits(waits: Sequence[Waits], crowding: float = 0.0) -> Drawing | None:
    """Return the time line of all ranks, a row for each, time to the right; None if no rank left one.

    A column's shade grows with the share of it that was spent waiting,

        sum over peers of w(column, peer) / |column|.                                                           (2)

    Where ranks share cores, `crowding` is the share of the time that belongs to others: shades begin there.
    """
    if not any(rank.buckets for rank in waits):
        return None
    begin = min(rank.started for rank in waits)
    total = max(rank.started - begin + rank.width * len(rank.buckets) for rank in waits)
    count = min(COLUMNS, max(round(total / min(rank.width for rank in waits)), 1))
    width, groups = total / count, blocks(len(waits), ROWS)
    found = [columns(rank, begin, width, count) for rank in waits]
    table = np.array([[sum(peers.values()) / width for peers in line] for line in found])
    shares = np.array([table[list(block)].mean(axis=0) for block in groups])  # (2)
    shades = np.clip(np.ceil(SHADES * (shares - crowding) / (1 - crowding) - 0.5), 0, SHADES)
    ends = [(waits[block[0]].rank - 0.5, waits[block[-1]].rank + 0.5) for block in groups]

    def paint(axes: Axes) -> None:
        from matplotlib.patches import PathPatch  # noqa: PLC0415 - an extra
        from matplotlib.path import Path  # noqa: PLC0415

        set_ranks(axes, [rank.rank for rank in waits], "y")
        set_scale(axes, "x", (0.0, total))
        axes.set(title="rank", xlabel="seconds since the first round began")
        axes.grid(False)
        for shade in range(1, SHADES + 1):  # cells of one shade are one path: a page has room for many time lines
            cells = [(k * width, (k + 1) * width, *ends[row]) for row, k in np.argwhere(shades == shade).tolist()]
            corners = [at for a, b, c, d in cells for at in ((a, c), (b, c), (b, d), (a, d), (math.nan, math.nan))]
            if cells:
                axes.add_patch(PathPatch(Path(corners), color=LIGHT["s0"], alpha=shade / SHADES, linewidth=0))
        told = [(k, f"{crowding + (1 - crowding) * k:.0%}") for k in (1 / SHADES, 0.5, 1.0)]
        drawing.draw_legend(axes, [Entry(text, "s0", width=7, alpha=k) for k, text in told])

    rows = [
        (rank.rank, k * width, (k + 1) * width, peer, seconds)
        for rank, line in zip(waits, found, strict=True)
        for k, peers in enumerate(line)
        for peer, seconds in sorted(peers.items())
    ]
    height = min(ALL_ROWS / len(groups), TALLEST) * len(groups) + 4 * drawing.LINE
    return Drawing(paint, height, "", ("rank", "from_seconds", "to_seconds", "waited_for", "seconds"), rows)


def _name(group: Sequence[int]) -> str:
    return f"rank {group[0]}" if len(group) == 1 else f"ranks {group[0]} to {group[-1]}"
