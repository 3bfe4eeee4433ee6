"""Drawings: where numbers land, and that nothing is lost on the way to the paper."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpmpi.report import drawing, figures
from dpmpi.report.axes import Axis, Scale, blocks, by_thousands, draw_frame, labels, limits, ticks
from dpmpi.report.charts import Chart, Curve, Panel
from dpmpi.report.drawing import Drawing, colour, marker, text_width, wrap
from dpmpi.report.network import BINS, MOST_NODES, draw_traffic, edge_bytes
from dpmpi.report.timeline import COLUMNS, ROWS, SHADES, columns, draw_waits, longest
from dpmpi.results import Waits

FINITE = st.floats(-1e12, 1e12)


def elements(picture, tag):
    """The elements of a drawing by tag, as dictionaries with their title."""
    root = ElementTree.fromstring(picture.standalone())
    return [
        {**one.attrib, "title": one.findtext("{*}title", ""), "text": one.text}
        for one in root.findall(f".//{{*}}{tag}")
    ]


def test_both_forms_are_the_same_picture():
    one = Drawing(50)
    one.line([(0, 1), (2, math.nan), (3, 4), (5, 6)], "s3", 2, "5 3", opacity=0.5, title="a <b> & c")
    one.text(1, 2, "<script>")
    page, file = (ElementTree.fromstring(text) for text in (one.inline('it\'s "named"'), one.standalone()))
    assert page.attrib["aria-label"] == 'it\'s "named"'
    assert page[0].attrib == {**file[1].attrib, "stroke": "var(--s3)"}
    assert file[1].attrib["points"] == "3,4 5,6"  # a line of one point is none
    assert file[1].attrib["stroke"] == drawing.LIGHT["s3"]
    assert file[1][0].text == "a <b> & c"
    assert file[2].text == page[1].text == "<script>"


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)), st.floats(10, 400)
)
def test_wrapping_keeps_the_words_and_the_width(words, width):
    lines = wrap(" ".join(words), width)
    assert " ".join(lines).split() == words
    assert all(text_width(line) <= width or " " not in line for line in lines)


def test_series_differ_in_colour_or_marker():
    looks = {(colour(i), marker(i)) for i in range(132)}
    assert len(looks) == 132
    drawn = set()
    for kind in drawing.MARKERS:
        picture = Drawing(10)
        picture.mark(kind, 5, 5, "ink")
        drawn.add(picture.standalone())
    assert len(drawn) == len(drawing.MARKERS) == 11


@settings(deadline=None)
@given(FINITE, FINITE, st.booleans(), st.floats(0, 1))
def test_a_scale_is_linear_in_the_number_or_its_logarithm(one, other, log, share):
    low, high = sorted((10 ** (one / 1e11), 10 ** (other / 1e11)) if log else (one, other))
    assume(high - low > 1e-6 * (abs(low) + abs(high)))
    scale = Scale(low, high, log, 10.0, 110.0)
    value = low ** (1 - share) * high**share if log else low + share * (high - low)
    assert scale(value) == pytest.approx(10 + 100 * share, abs=1e-3)
    assert scale(low) == 10
    assert scale(high) == 110
    assert scale(math.inf) == 110
    assert math.isnan(scale(math.nan))
    assert math.isnan(scale(-1.0)) if log else scale(-math.inf) == 10


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1), st.booleans(), st.integers(5, 7))
def test_ticks_are_few_round_numbers_inside_of_the_range(values, log, count):
    if log:
        values = [10 ** (value / 1e11) for value in values]
    low, high = limits([np.array(values)], log, 0.05)
    assert low <= min(values)
    assert max(values) <= high
    found = ticks(low, high, log, count)
    assert 2 <= len(found) <= count
    assert len({label for _, label in found}) == len(found)
    for value, label in found:
        assert low - 1e-9 * abs(low) <= value <= high + 1e-9 * abs(high)
        assert float(label.replace(",", "")) == pytest.approx(value, rel=6e-3, abs=1e-9 * (high - low))


@settings(deadline=None)
@given(st.floats(1, 9.9e14))
def test_prefixes_of_units(value):
    number, unit = by_thousands(value, "B").split()
    power = {"B": 0, "kB": 3, "MB": 6, "GB": 9, "TB": 12}[unit]
    assert float(number) * 10**power == pytest.approx(value, rel=5.1e-3)
    assert power == 12 or float(number) < 1000


def test_labels_tell_numbers_apart():
    assert labels([0.0, 500.0, 1000.0]) == ["0", "500", "1,000"]
    assert labels([0.92345, 0.92346]) == ["0.92345", "0.92346"]


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 500))
def test_blocks_cover_everything_once(count, most):
    found = blocks(count, most)
    assert [i for block in found for i in block] == list(range(count))
    assert len(found) <= most
    assert max(map(len, found)) - min(map(len, found)) <= 1


@settings(deadline=None)
@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=25), max_size=9))
def test_names_on_an_axis_do_not_touch(names):
    picture = Drawing(0)
    places = [(float(i), name) for i, name in enumerate(names)]
    draw_frame(picture, "", Axis((-0.5, max(len(names), 1) - 0.5), ticks=places), Axis((0.0, 1.0), ticks=[]), 100)
    boxes = []
    for text in elements(picture, "text"):
        half = text_width(text["text"]) / 2
        boxes.append((float(text["x"]) - half, float(text["x"]) + half, float(text["y"])))
    assert len(boxes) == len(names)
    for i, (left, right, y) in enumerate(boxes):
        assert left >= -0.01
        assert right <= picture.width + 0.01
        assert not any(y == v and left < s and r < right for r, s, v in boxes[:i])


def chart_of(values, log="", names=("a", "b"), x=(1.0, 10.0), **more):
    ys = np.array(values, float)
    curves = [Curve(name, i, np.array(x), ys, ys, ys, 1) for i, name in enumerate(names)]
    return Chart("c", "C", "objective", "objective F(x)", (Panel("", "round", "round", tuple(curves)),), log, **more)


@pytest.mark.parametrize(
    "values",
    [(1.0, 1.0), (0.0, 0.0), (-1.0, 1e-12), (1e300, 1e-300), (-1.7e308, 1.7e308), (math.nan, 2.0), (math.inf, 1)],
)
@pytest.mark.parametrize("log", ["", "x", "xy"])
def test_awkward_numbers_are_drawn(values, log):
    chart = chart_of(values, log)
    picture = figures.draw_panel(chart, chart.panels[0])
    texts = [one["text"] for one in elements(picture, "text")]
    assert texts.count("objective F(x)") == 1
    assert texts.count("b") == 1
    numbers = re.findall(r' (?:points|x|y|cx|cy)="([^"]*)"', picture.standalone())
    assert all(-1 <= float(n) <= 2000 for text in numbers for n in re.split("[ ,]", text))


def test_numbers_lie_where_the_ticks_say():
    chart = chart_of((0.9, 0.2, 0.5), x=(100.0, 300.0, 500.0), names=("only",), points=True)
    picture = figures.draw_panel(chart, chart.panels[0])
    texts = elements(picture, "text")
    at_x = {one["text"]: float(one["x"]) for one in texts if one["text-anchor"] == "middle"}
    at_y = {one["text"]: float(one["y"]) - 4 for one in texts if one["text-anchor"] == "end"}
    circles = [(float(one["cx"]), float(one["cy"])) for one in elements(picture, "circle")]
    assert [x for x, _ in circles] == pytest.approx([at_x["100"], at_x["300"], at_x["500"]], abs=0.02)
    assert circles[1][1] == pytest.approx(at_y["0.2"], abs=0.02)
    up = (at_y["0.2"] - at_y["0.8"]) / 0.6
    assert circles[1][1] - circles[0][1] == pytest.approx(0.7 * up, abs=0.02)


@pytest.mark.parametrize("many", [2, 11, 18])
def test_series_leave_the_axes_their_height_and_their_legend_fits(many):
    names = [f"a label that is long enough for a line of its own, {i}" for i in range(many)]
    chart = chart_of((1.0, 2.0), names=names)
    picture = figures.draw_panel(chart, chart.panels[0])
    verticals = [one["points"] for one in elements(picture, "polyline") if one["stroke"] == drawing.LIGHT["soft"]]
    (frame,) = verticals
    corners = [tuple(map(float, point.split(","))) for point in frame.split()]
    assert corners[1][1] - corners[0][1] == figures.HEIGHT
    shown = " ".join(one["text"] for one in elements(picture, "text"))
    assert all(name in shown for name in names)
    for one in elements(picture, "text"):
        assert float(one["y"]) < picture.height
        if one["text-anchor"] == "start":
            assert float(one["x"]) + text_width(one["text"]) <= picture.width
    bare = figures.draw_panel(chart, chart.panels[0], legend=False)
    assert names[0].split(",")[0] not in bare.standalone()


@pytest.mark.parametrize("points", [False, True])
def test_a_single_evaluation_is_a_marker(points):
    chart = chart_of((1.0,), x=(5.0,), names=("only",), points=points)
    assert len(elements(figures.draw_panel(chart, chart.panels[0]), "circle")) == 1


def test_lines_bear_a_few_markers_at_places_of_their_own():
    x = tuple(np.linspace(0, 1, 400))
    chart = chart_of(x, x=x, names=("a", "a second one"))
    picture = figures.draw_panel(chart, chart.panels[0], legend=False)
    circles, squares = elements(picture, "circle"), elements(picture, "polygon")
    assert 2 < len(circles) <= figures.MARKS + 1
    assert 2 < len(squares) <= figures.MARKS + 1
    first = {round(float(one["cx"])) for one in circles}
    second = {round(np.mean([float(p.split(",")[0]) for p in one["points"].split()])) for one in squares}
    assert len(first & second) <= 1  # the ends


def test_repetitions_have_a_band_over_time_and_bars_at_points():
    x, low, high = np.array([1.0, 2.0]), np.array([0.0, 1.0]), np.array([2.0, 3.0])
    curve = Curve("a", 0, x, low, (low + high) / 2, high, 3)
    panel = Panel("", "round", "round", (curve,))
    over_time, points = (Chart("c", "C", "y", "y", (panel,), points=points) for points in (False, True))
    (band,) = elements(figures.draw_panel(over_time, panel), "polygon")
    assert len(band["points"].split()) == 4
    thin = [one for one in elements(figures.draw_panel(points, panel), "polyline") if one["stroke-width"] == "1.4"]
    assert len(thin) == 2


def rank(number, peers, **more):
    neighbours = {
        str(peer): {"bytes_sent": sent, "wait_seconds": waited, "payload_bytes_sent": sent // 2}
        for peer, (sent, waited) in peers.items()
    }
    return {"rank": number, "neighbours": neighbours, "training_seconds": 10.0, "compute_seconds": 7.0,
            "wait_seconds": 3.0, "epsilon": 0.5, "budget": None, **more}  # fmt: skip


def test_the_graph_has_every_edge_as_wide_as_its_bytes():
    ranks = [rank(0, {1: (300, 1.0), 2: (50, 0.0)}), rank(1, {0: (300, 0.0)}), rank(2, {0: (100, 2.0)})]
    assert edge_bytes(ranks) == {(0, 1): 600, (0, 2): 150}
    picture = draw_traffic(ranks)
    edges = {one["title"]: float(one["stroke-width"]) for one in elements(picture.drawing, "polyline") if one["title"]}
    assert set(edges) == {"0 and 1: 600 bytes", "0 and 2: 150 bytes"}
    assert edges["0 and 1: 600 bytes"] == 4 * edges["0 and 2: 150 bytes"]
    assert {"600 B", "150 B"} <= {one["text"] for one in elements(picture.drawing, "text")}
    assert picture.heading == ("rank", "other", "bytes", "payload_bytes")
    assert picture.rows == ((0, 1, 600, 300), (0, 2, 150, 75))


def test_a_rank_that_was_lost_is_pale():
    picture = draw_traffic([rank(0, {1: (300, 0.0)}), rank(2, {1: (300, 0.0), 0: (10, 0.0)})])
    nodes = {one["title"]: one["fill"] for one in elements(picture.drawing, "circle")}
    assert nodes == {
        "rank 0": drawing.LIGHT["s0"], "rank 1, lost on the way": drawing.LIGHT["mute"], "rank 2": drawing.LIGHT["s0"],
    }  # fmt: skip
    assert draw_traffic([rank(0, {})]) is None


@pytest.mark.parametrize("spread", [0, 40])
def test_many_ranks_have_a_distribution(spread):
    n = MOST_NODES + 1
    ranks = [rank(i, {(i + 1) % n: (100 + spread * (i % 7), 0.0)}) for i in range(n)]
    bars = elements(draw_traffic(ranks).drawing, "rect")[1:]
    assert sum(int(bar["title"].split()[0]) for bar in bars) == n
    assert len(bars) == (1 if spread == 0 else 7) <= BINS
    tallest = max(bars, key=lambda bar: float(bar["height"]))
    for bar in bars:  # heights are in proportion to what they count
        share = int(bar["title"].split()[0]) / int(tallest["title"].split()[0])
        assert float(bar["height"]) == pytest.approx(share * float(tallest["height"]), abs=0.02)


def test_epsilons_stand_at_their_budgets():
    ranks = [rank(i, {}, epsilon=0.1 * i, budget=0.1 * i if i % 2 else None) for i in range(1, 6)]
    picture = figures.draw_epsilons(ranks, 0.4, 1e-5, 0.45)
    dots = {one["title"].split(":")[0]: float(one["cy"]) for one in elements(picture.drawing, "circle") if one["title"]}
    lines = elements(picture.drawing, "polyline")
    budgets = [float(one["points"].split(",")[1].split()[0]) for one in lines if one["stroke"] == drawing.LIGHT["ink"]]
    assert [dots[f"rank {i}"] for i in (1, 3, 5)] == [budgets[i - 1] for i in (1, 3, 5)]
    assert budgets[1] == budgets[3] == dots["rank 4"]  # the target, where a rank has no budget of its own
    (claim,) = [one for one in lines if one.get("stroke-dasharray") and float(one["points"].split(",")[0]) > 1]
    assert float(claim["points"].split(",")[1].split()[0]) == pytest.approx(
        (dots["rank 4"] + dots["rank 5"]) / 2, abs=0.02
    )
    assert [row[:3] for row in picture.rows] == [(i, 0.1 * i, 0.1 * i if i % 2 else 0.4) for i in range(1, 6)]
    assert figures.draw_epsilons([*ranks, rank(6, {}, epsilon=None)], None, 1e-5, None) is None


def test_a_claim_far_away_does_not_flatten_the_epsilons():
    ranks = [rank(i, {}, epsilon=1.0 + i) for i in range(2)]
    ys = [float(one["cy"]) for one in elements(figures.draw_epsilons(ranks, None, 0.0, 1e5).drawing, "circle")]
    assert abs(ys[0] - ys[1]) > 5


@pytest.mark.parametrize("n", [3, 1000])
def test_bars_add_up_to_the_training(n):
    parts = {"compute": 4.0, "noise": 1.0, "crypto": 0.0, "ledger": 2.0, "wait": 3.0}
    ranks = [rank(i, {}, seconds=parts if i else {**parts, "wait": 13.0}) for i in range(n)]
    picture = figures.draw_times(ranks)
    bars = [one for one in elements(picture.drawing, "rect") if one["title"]]
    heights = {}
    for bar in bars:
        heights.setdefault(bar["title"].split(":")[0], []).append(float(bar["height"]))
    assert len(heights) == min(n, figures.MOST_BARS)
    (first, *others) = (sum(one) for one in heights.values())
    assert others == pytest.approx([others[0]] * len(others), abs=0.1)
    count = len(blocks(n, figures.MOST_BARS)[0])
    assert first / others[0] == pytest.approx(1 + 1 / count, abs=0.01)
    assert [one["text"] for one in elements(picture.drawing, "text")][-4:] == ["compute", "noise", "ledger", "wait"]
    assert picture.rows[1] == (1, 4.0, 1.0, 0.0, 2.0, 3.0)


def test_times_of_older_runs_have_two_parts():
    assert figures.seconds(rank(0, {})) == {"compute": 7.0, "noise": 0.0, "crypto": 0.0, "ledger": 0.0, "wait": 3.0}


SECONDS = st.dictionaries(st.integers(0, 3), st.floats(0, 1), max_size=3)


@settings(deadline=None)
@given(st.lists(SECONDS, min_size=1, max_size=40), st.floats(0.01, 2), st.floats(0, 3), st.integers(1, 70))
def test_columns_are_differences_of_the_waiting_so_far(buckets, width, late, count):
    waits = Waits(0, 100.0 + late, width, tuple(buckets))
    total = late + width * len(buckets)
    found = columns(waits, 100.0, total / count, count)
    times = late + width * np.arange(len(buckets) + 1)
    for peer in range(4):
        so_far = np.concatenate([[0.0], np.cumsum([bucket.get(peer, 0.0) for bucket in buckets])])
        expected = np.diff(np.interp(np.linspace(0, total, count + 1), times, so_far))
        assert np.allclose([column.get(peer, 0.0) for column in found], expected, atol=1e-6)


def test_the_time_line_shows_who_waited_when_and_for_whom():
    half = COLUMNS // 2
    waits = [
        Waits(3, 50.0, 0.1, ({7: 0.1},) * half + ({},) * half),
        Waits(7, 50.0, 0.1, ({},) * half + ({3: 0.05, 9: 0.02},) * half),
    ]
    picture = draw_waits(waits)
    cells = [one for one in elements(picture.drawing, "rect") if one["title"]]
    first, second = cells
    assert first["title"] == "rank 3, 0 to 3.2 s: 100% waiting, most for rank 7 (3.2 s)"
    assert second["title"] == "rank 7, 3.2 to 6.4 s: 70% waiting, most for rank 3 (1.6 s)"
    assert float(first["x"]) + float(first["width"]) == pytest.approx(float(second["x"]), abs=0.02)
    assert first["width"] == second["width"]
    assert float(second["opacity"]) == pytest.approx(round(SHADES * 0.7) / SHADES, abs=0.01)
    assert sum(row[-1] for row in picture.rows if row[0] == 7) == pytest.approx(0.07 * half)
    assert draw_waits([]) is None
    assert draw_waits([Waits(0, 1.0, 0.1, ())]) is None


def test_many_ranks_share_rows():
    waits = [Waits(i, 0.0, 1.0, ({i + 1: 0.5 if i % 2 else 1.0},) * 4) for i in range(2 * ROWS)]
    cells = [one for one in elements(draw_waits(waits).drawing, "rect") if one["title"]]
    assert len(cells) == ROWS
    assert cells[0]["title"].startswith("rank 0-1, 0 to 4 s: 75% waiting, most for rank 1 (4 s)")


def test_the_longest_waits_come_first():
    ranks = [rank(0, {1: (1, 2.0), 2: (1, 0.0)}), rank(1, {0: (1, 5.0)})]
    assert longest(ranks, 5) == [(1, 0, 5.0, 0.5), (0, 1, 2.0, 0.2)]
    assert longest(ranks, 1) == [(1, 0, 5.0, 0.5)]


def luminance(tone):
    """WCAG 2's relative luminance."""
    channels = [int(tone[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("theme", "paper"), [(drawing.LIGHT, "#ffffff"), (drawing.DARK, "#0d1117")])
def test_colours_stand_out_from_the_paper(theme, paper):
    """WCAG 2 wants a contrast of 3 for graphics and 4.5 for text."""
    for name, tone in theme.items():
        lights = sorted([luminance(tone), luminance(paper)])
        contrast = (lights[1] + 0.05) / (lights[0] + 0.05)
        least = {"ink": 4.5, "soft": 4.5, "mute": 1.5, "grid": 1.0}.get(name, 3.0)
        assert contrast >= least, (name, contrast)


def cone_response(tone, matrix):
    """The colour that a dichromat sees, in linear RGB."""
    channels = [int(tone[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return np.clip(np.array(matrix) @ linear, 0, 1)


def lab(linear):
    """CIE L*a*b* of linear sRGB, white point D65."""
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.array(matrix) @ linear / np.array([0.9505, 1.0, 1.089])
    fx, fy, fz = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


# Machado, Oliveira, Fernandes (2009), severity 1.0
DICHROMATS = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}  # fmt: skip


@pytest.mark.parametrize("theme", [drawing.LIGHT, drawing.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", DICHROMATS)
def test_colours_of_series_differ_for_every_eye(theme, vision):
    """A distance of 2.3 is just noticeable; the first four, which most figures use, are far apart."""
    seen = [lab(cone_response(theme[f"s{i}"], DICHROMATS[vision])) for i in range(drawing.COLOURS)]
    distances = {(i, j): np.linalg.norm(seen[i] - seen[j]) for i in range(len(seen)) for j in range(i)}
    assert min(distances.values()) > 12
    assert min(distance for (i, _), distance in distances.items() if i < 4) > 20
