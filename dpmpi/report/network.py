"""The graph of a run with what its edges carried: drawn on a circle, or, of many ranks, as a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmpi.report.axes import Axis, by_thousands, draw_frame
from dpmpi.report.drawing import LINE, WIDTH, Drawing
from dpmpi.report.plots import Picture

MOST_NODES = 60
"""More than that on one circle cannot be told apart."""
MOST_NUMBERS = 40
"""Of more nodes every other one bears its number."""
BINS = 24
HEIGHT = 210.0
KINDS = ("payload_bytes_sent", "share_bytes_sent", "tag_bytes_sent", "trailer_bytes_sent")


def edge_bytes(ranks: Sequence[dict[str, Any]], key: str = "bytes_sent") -> dict[tuple[int, int], int]:
    """Return what each edge carried, both directions together, from the ranks' own counts of what they sent."""
    edges: dict[tuple[int, int], int] = {}
    for record in ranks:
        for peer, traffic in record["neighbours"].items():
            pair = (min(record["rank"], int(peer)), max(record["rank"], int(peer)))
            edges[pair] = edges.get(pair, 0) + traffic.get(key, 0)
    return edges


def draw_traffic(ranks: Sequence[dict[str, Any]]) -> Picture | None:
    """Return the bytes on every edge as a drawing; None if nobody has a neighbour."""
    edges = edge_bytes(ranks)
    if not edges:
        return None
    drawing = _circle(ranks, edges) if len(ranks) <= MOST_NODES else _distribution(edges)
    known = [key for key in KINDS if any(key in t for r in ranks for t in r["neighbours"].values())]
    parts = [edge_bytes(ranks, key) for key in known]
    rows = [(*pair, count, *(part[pair] for part in parts)) for pair, count in sorted(edges.items())]
    return Picture(drawing, ("rank", "other", "bytes", *(key.removesuffix("_sent") for key in known)), tuple(rows))


def _circle(ranks: Sequence[dict[str, Any]], edges: dict[tuple[int, int], int]) -> Drawing:
    """Return the graph; ranks that were lost on the way, which only their neighbours tell of, are pale."""
    drawing, there = Drawing(0), {record["rank"] for record in ranks}
    numbers = sorted(there.union(*edges))
    middle, radius = WIDTH / 2, WIDTH / 2 - 22
    angles = [2 * math.pi * i / len(numbers) - math.pi / 2 for i in range(len(numbers))]
    at = {rank: (math.cos(angle), math.sin(angle)) for rank, angle in zip(numbers, angles, strict=True)}
    thickest = 6.0 if len(edges) <= 80 else 3.0 if len(edges) <= 400 else 1.5
    most = max(edges.values())

    def stroke(count: int) -> tuple[float, float]:
        share = count / most if most else 0.0
        return max(thickest * share, 0.6), 0.3 + 0.7 * share

    for (one, other), count in sorted(edges.items(), key=lambda edge: edge[1]):
        ends = [(middle + radius * x, middle + radius * y) for x, y in (at[one], at[other])]
        width, opacity = stroke(count)
        drawing.line(ends, "s5", width, opacity=opacity, title=f"{one} and {other}: {count:,} bytes")
    node = 5.0 if len(numbers) <= 30 else 3.5
    for position, (rank, (x, y)) in enumerate(at.items()):
        tone, said = ("s0", f"rank {rank}") if rank in there else ("mute", f"rank {rank}, lost on the way")
        drawing.mark("circle", middle + radius * x, middle + radius * y, tone, node, title=said)
        if len(numbers) <= MOST_NUMBERS or position % 2 == 0:
            drawing.text(middle + (radius + 14) * x, middle + (radius + 14) * y + 4, str(rank), "soft", "middle")
    top = 2 * middle + 4
    # Three widths tell how to read the others; of equal edges there is but one.
    counts = sorted({min(edges.values()), sorted(edges.values())[len(edges) // 2], most})
    for count in counts:
        width, opacity = stroke(count)
        drawing.line([(0, top + 8), (40, top + 8)], "s5", width, opacity=opacity)
        drawing.text(48, top + 12, by_thousands(count, "B") + (" on every edge" if len(counts) == 1 else ""))
        top += LINE + 2
    drawing.height = top + 4
    return drawing


def _distribution(edges: dict[tuple[int, int], int]) -> Drawing:
    """Return a histogram of the bytes an edge carried."""
    values = np.array(list(edges.values()), float)
    low, high = float(values.min()), float(values.max())
    span = (low, high) if high > low else (0.5 * low, 1.5 * high or 1.0)
    counts, borders = np.histogram(values, BINS, span)
    drawing = Drawing(0)
    x = Axis(span, "bytes on an edge, both directions", unit="B", grid=False)
    y = Axis((0.0, 1.05 * float(counts.max())), f"edges, of {len(values):,}, by the bytes that they carried")
    frame = draw_frame(drawing, "", x, y, HEIGHT)
    for count, left, right in zip(counts.tolist(), borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        if count:
            x0, x1, top = frame.x(left), frame.x(right), frame.y(count)
            said = f"{count:,} edges: {by_thousands(left, 'B')} to {by_thousands(right, 'B')}"
            drawing.rect(x0 + 0.5, top, max(x1 - x0 - 1, 1), frame.y(0) - top, "s0", title=said)
    return drawing
