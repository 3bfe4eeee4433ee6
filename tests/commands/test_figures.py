"""Drawings: where numbers land, and that nothing is lost on the way to the paper."""

import math
import re
from xml.etree import ElementTree

import needs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.commands.report import drawing
from dpmpi.commands.report.charts import Chart, Curve, Panel, draw_panel
from dpmpi.commands.report.drawing import LIGHT, STYLE, Drawing, Entry, blocks, by_thousands, lay_out, limits, series
from dpmpi.commands.report.ranks import (
    BINS,
    COLUMNS,
    MOST_BARS,
    MOST_NODES,
    ROWS,
    SHADES,
    SIDE,
    columns,
    draw_epsilons,
    draw_pairs,
    draw_times,
    draw_traffic,
    draw_waits,
    edge_bytes,
    seconds,
)
from dpmpi.runtime.output.results import Waits

matplotlib = needs.package("matplotlib", "report")

FINITE = st.floats(-1e12, 1e12)


def painted(one):
    """The axes of a drawing, laid out."""
    with matplotlib.rc_context(STYLE):
        figure = lay_out(one)
        figure.draw_without_rendering()
    return figure.axes[0]


def tips(axes):
    """The marks of a drawing by what a pointer on them shows."""
    marks = [artist for artist in axes.get_children() if (artist.get_gid() or "").startswith("tip:")]
    return {mark.get_gid().removeprefix("tip:"): mark for mark in marks}


def svg(one):
    return drawing.render(one, "name", ("svg",))[0].decode()


def texts(one):
    return [text.text for text in ElementTree.fromstring(svg(one)).findall(".//{*}text")]


def tone(artist):
    return matplotlib.colors.to_hex(artist.get_color() if hasattr(artist, "get_color") else artist.get_facecolor())


def boxes(axes, artists):
    """Where artists lie, in pixels, and where the figure does."""
    return [artist.get_window_extent() for artist in artists], axes.get_figure().bbox


def assert_apart(found, frame):
    for i, box in enumerate(found):
        assert frame.x0 - 1 <= box.x0 < box.x1 <= frame.x1 + 1
        assert frame.y0 - 1 <= box.y0 < box.y1 <= frame.y1 + 1
        assert not any(box.overlaps(other) for other in found[:i])


def test_both_forms_are_the_same_picture():
    def paint(axes):
        axes.plot([0, 1], [2, 3], color=LIGHT["s3"], alpha=0.5, gid=drawing.tip("""a <b> & 'c' "d\""""))
        axes.set_title("$1 <script>")

    file = svg(Drawing(paint))
    page = drawing.inline(file, 'it\'s "named"')
    one, other = (ElementTree.fromstring(text.replace("xlink:href", "href")) for text in (file, page))
    assert other.attrib["aria-label"] == 'it\'s "named"'
    assert one.attrib["viewBox"] == other.attrib["viewBox"]
    for root in (one, other):
        assert [title.text for title in root.iter() if title.tag.endswith("title")] == ["""a <b> & 'c' "d\""""]
        assert "$1 <script>" in [text.text for text in root.iter() if text.tag.endswith("text")]
    assert f"stroke: {LIGHT['s3']}" in file
    assert "stroke: var(--s3)" in page
    assert not [tone for tone in LIGHT.values() if tone in page]
    assert not re.search(r"https?://(?!www\.w3\.org)", file)


def test_a_drawing_is_the_same_every_time():
    one = draw_panel(CHART := chart_of((1.0, 2.0)), CHART.panels[0])
    for kind, start in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        first, second = (drawing.render(one, "name", (kind,))[0] for _ in range(2))
        assert first.startswith(start)
        assert first == second


def test_ids_of_two_drawings_on_a_page_differ():
    chart = chart_of((1.0, 2.0))
    one, other = (
        set(
            re.findall(r' id="([^"]*)"', drawing.render(draw_panel(chart, chart.panels[0]), name, ("svg",))[0].decode())
        )
        for name in ("one", "other")
    )
    assert one
    assert not one & other


def test_series_differ_in_colour_or_marker():
    looks = {(series(i).tone, series(i).marker) for i in range(132)}
    assert len(looks) == 132
    assert len({drawing.sample(Entry("", "ink", kind, "")) for kind in drawing.MARKERS}) == len(drawing.MARKERS) == 11
    assert "stroke-dasharray" in drawing.sample(series(0, line="--"))


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1), st.booleans())
def test_limits_leave_a_margin(values, log):
    if log:
        values = [10 ** (value / 1e11) for value in values]
    low, high = limits([np.array(values)], log, 0.05)
    assert low < min(values)
    assert max(values) < high
    assert low > 0 or not log


@settings(deadline=None)
@given(st.floats(1, 9.9e14))
def test_prefixes_of_units(value):
    number, unit = by_thousands(value, "B").split()
    power = {"B": 0, "kB": 3, "MB": 6, "GB": 9, "TB": 12}[unit]
    assert float(number) * 10**power == pytest.approx(value, rel=5.1e-3)
    assert power == 12 or float(number) < 1000


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 500))
def test_blocks_cover_everything_once(count, most):
    found = blocks(count, most)
    assert [i for block in found for i in block] == list(range(count))
    assert len(found) <= most
    assert max(map(len, found)) - min(map(len, found)) <= 1


def chart_of(values, log="", names=("a", "b"), x=(1.0, 10.0), **more):
    ys = np.array(values, float)
    curves = [Curve(name, i, np.array(x), ys, ys, ys, 1) for i, name in enumerate(names)]
    return Chart("c", "C", "objective", "objective F(x)", (Panel("", "round", "round", tuple(curves)),), log, **more)


GRAPHS = ("ring", "complete", "erdos-renyi:p=0.1", "erdos-renyi:p=0.25", "torus:4x5", "random:edges=40", "star", "path")


@pytest.mark.parametrize("count", range(1, len(GRAPHS) + 1))
@pytest.mark.parametrize("turned", [False, True])
def test_names_on_an_axis_do_not_touch(count, turned):
    names = GRAPHS[::-1][:count] if turned else GRAPHS[:count]
    chart = chart_of((1.0,) * count, x=tuple(map(float, range(count))), ticks=names, points=True)
    axes = painted(draw_panel(chart, chart.panels[0]))
    labels = axes.get_xticklabels()
    assert [label.get_text().strip() for label in labels] == list(names)
    found, frame = boxes(axes, labels)
    last_lines = [
        matplotlib.transforms.Bbox([[box.x0, box.y0], [box.x1, box.y0 + 10]]) for box in found
    ]  # lines above are empty
    assert_apart(last_lines, frame)


@pytest.mark.parametrize("log", ["", "x", "xy"])
@pytest.mark.parametrize("x", [(1.0, 10.0), (0.98, 0.981), (1e-7, 1e7), (100.0, 123456.0)])
def test_numbers_on_an_axis_do_not_touch(x, log):
    chart = chart_of(x, log, x=x)
    axes = painted(draw_panel(chart, chart.panels[0]))
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        assert 2 <= len(ticks) <= 8
        assert len({tick.label1.get_text() for tick in ticks}) == len(ticks)
        found, frame = boxes(axes, [tick.label1 for tick in ticks])
        assert_apart(found, frame)
        for tick in ticks:
            value = float(tick.label1.get_text().replace(",", "").replace("\N{MINUS SIGN}", "-"))
            assert value * 10 ** _power(axis) == pytest.approx(tick.get_loc(), rel=1e-3)


def _power(axis):
    return int(re.sub(r"^1e", "", axis.get_offset_text().get_text()) or 0)


@pytest.mark.parametrize(
    "values",
    [(1.0, 1.0), (0.0, 0.0), (-1.0, 1e-12), (1e300, 1e-300), (-1.7e308, 1.7e308), (math.nan, 2.0), (math.inf, 1)],
)
@pytest.mark.parametrize("log", ["", "x", "xy"])
def test_awkward_numbers_are_drawn(values, log):
    chart = chart_of(values, log)
    picture = draw_panel(chart, chart.panels[0])
    said = texts(picture)
    assert said.count("objective F(x)") == 1
    assert said.count("b") == 1
    numbers = re.findall(r' (?:d|x|y)="([^"]*)"', svg(picture))
    assert all(-10 <= float(n) <= 2000 for text in numbers for n in re.findall(r"[-\d.e]+", text))


def test_numbers_lie_where_they_belong():
    chart = chart_of((0.9, 0.2, 0.5), x=(100.0, 300.0, 500.0), names=("only",), points=True)
    axes = painted(draw_panel(chart, chart.panels[0]))
    points = {said: mark.get_xydata().tolist() for said, mark in tips(axes).items()}
    assert points == {"only: 0.9": [[100, 0.9]], "only: 0.2": [[300, 0.2]], "only: 0.5": [[500, 0.5]]}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["100", "300", "500"]


def test_what_lies_beyond_the_axes_is_drawn_at_the_border():
    chart = chart_of((1.0, 1e200, math.inf), x=(1.0, 2.0, 3.0), names=("only",))
    axes = painted(draw_panel(chart, chart.panels[0]))
    (line,) = axes.get_lines()
    assert line.get_ydata()[0] == 1.0
    assert line.get_ydata()[1] == line.get_ydata()[2] == axes.get_ylim()[1] < math.inf


@pytest.mark.parametrize("log", ["", "x", "xy"])
@pytest.mark.parametrize("x", [(1.0, 1e308), (-1e308, 1e308), (5e-324, 1.0), (-1.0, math.inf), (math.nan, 1.0)])
def test_points_at_awkward_places_are_drawn(x, log):
    chart = chart_of((1.0, 2.0), log, x=x, points=True)
    axes = painted(draw_panel(chart, chart.panels[0]))
    assert axes.get_xlim() == limits([np.array(x)], "x" in log, 0.03)  # no tick widens it
    assert np.ptp(axes.get_xlim()) < math.inf


def test_panels_of_a_chart_share_their_vertical_range():
    x, small, large = np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([50.0, 100.0])
    panels = tuple(
        Panel(f"p = {i}", "round", "round", (Curve("a", 0, x, y, y, y, 1),)) for i, y in enumerate((small, large))
    )
    chart = Chart("c", "C", "y", "y", panels)
    one, other = (painted(draw_panel(chart, panel)) for panel in panels)
    assert one.get_ylim() == other.get_ylim()
    assert one.get_ylim()[0] < 1
    assert one.get_ylim()[1] > 100
    assert one.get_figure().get_suptitle() == "p = 0"


@pytest.mark.parametrize("many", [2, 11, 18])
def test_series_leave_the_axes_their_height_and_their_legend_fits(many):
    names = [f"a label that is long enough for a line of its own, {i}" for i in range(many)]
    chart = chart_of((1.0, 2.0), names=names)
    bare, whole = (painted(draw_panel(chart, chart.panels[0], legend=legend)) for legend in (False, True))
    assert whole.get_window_extent().height == pytest.approx(bare.get_window_extent().height, abs=12)
    (legend,) = whole.get_figure().legends
    assert [text.get_text().replace("\n", " ") for text in legend.get_texts()] == names
    found, frame = boxes(whole, [*legend.get_texts(), whole.xaxis.label])
    assert_apart(found, frame)
    assert not bare.get_figure().legends


def test_letters_that_the_font_lacks_are_drawn_without_a_word(capsys):
    chart = chart_of((1.0, 2.0), names=("\N{CJK UNIFIED IDEOGRAPH-4E2D}", "b"))
    picture = draw_panel(chart, chart.panels[0])
    assert "\N{CJK UNIFIED IDEOGRAPH-4E2D}" in texts(picture)
    assert len(drawing.render(picture, "name", drawing.FORMATS)) == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("points", [False, True])
def test_a_single_evaluation_is_a_marker(points):
    chart = chart_of((1.0,), x=(5.0,), names=("only",), points=points)
    lines = painted(draw_panel(chart, chart.panels[0])).get_lines()
    assert [line.get_marker() for line in lines if line.get_marker() not in ("", "None")] == ["o"]


def test_lines_bear_a_few_markers_at_places_of_their_own():
    x = tuple(np.linspace(0, 1, 400))
    chart = chart_of(x, x=x, names=("a", "a second one"))
    found = re.findall(
        r'<use xlink:href="#\w+" x="([\d.]+)" y="[\d.]+" style="fill: (#\w+)',
        svg(draw_panel(chart, chart.panels[0], legend=False)),
    )
    places = [{round(float(x)) for x, fill in found if fill == LIGHT[tone]} for tone in ("s0", "s1")]
    assert all(3 < len(one) < 10 for one in places)
    assert not places[0] & places[1]


def test_repetitions_have_a_band_over_time_and_bars_at_points():
    x, low, high = np.array([1.0, 2.0]), np.array([0.0, 1.0]), np.array([2.0, 3.0])
    curve = Curve("a", 0, x, low, (low + high) / 2, high, 3)
    panel = Panel("", "round", "round", (curve,))
    over_time, points = (Chart("c", "C", "y", "y", (panel,), points=points) for points in (False, True))
    (band,) = painted(draw_panel(over_time, panel)).collections
    assert band.get_paths()[0].get_extents().extents.tolist() == [1, 0, 2, 3]
    (bars,) = painted(draw_panel(points, panel)).collections
    assert [segment.tolist() for segment in bars.get_segments()] == [[[1, 0], [1, 2]], [[2, 1], [2, 3]]]


def test_series_at_names_stand_side_by_side():
    chart = chart_of((1.0, 2.0), x=(0.0, 1.0), ticks=("ring", "star"), points=True)
    marks = tips(painted(draw_panel(chart, chart.panels[0])))
    assert marks["a: 1"].get_xdata()[0] < 0 < marks["b: 1"].get_xdata()[0]
    assert marks["a: 2"].get_xdata()[0] < 1 < marks["b: 2"].get_xdata()[0]


def test_a_flat_series_crosses_the_plot():
    y = np.array([3.0])
    curves = (
        Curve("a", 0, np.array([1.0, 2.0]), *(np.array([1.0, 5.0]),) * 3, 1),
        Curve("b", 1, y * 0, y - 1, y, y + 1, 3, flat=True),
    )
    panel = Panel("", "epsilon", "epsilon", curves)
    axes = painted(draw_panel(Chart("c", "C", "y", "y", (panel,), points=True), panel))
    (flat,) = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert list(flat.get_ydata()) == [3, 3]
    assert (tone(flat), list(flat.get_xdata())) == (LIGHT["s1"], [0, 1])  # shares of the axes
    (span,) = axes.patches
    assert (span.get_y(), span.get_height()) == (2, 2)


def rank(number, peers, **more):
    neighbours = {
        str(peer): {"bytes_sent": sent, "wait_seconds": waited, "payload_bytes_sent": sent // 2}
        for peer, (sent, waited) in peers.items()
    }
    record = {"rank": number, "neighbours": neighbours, "training_seconds": 10.0, "compute_seconds": 7.0}
    return record | {"wait_seconds": 3.0, "epsilon": 0.5, "budget": None} | more


def test_the_graph_has_every_edge_as_wide_as_its_bytes():
    ranks = [rank(0, {1: (300, 1.0), 2: (50, 0.0)}), rank(1, {0: (300, 0.0)}), rank(2, {0: (100, 2.0)})]
    assert edge_bytes(ranks) == {(0, 1): 600, (0, 2): 150}
    picture = draw_traffic(ranks)
    widths = {said: mark.get_linewidth() for said, mark in tips(painted(picture)).items() if "bytes" in said}
    assert set(widths) == {"0 and 1: 600 bytes", "0 and 2: 150 bytes"}
    assert widths["0 and 1: 600 bytes"] == 4 * widths["0 and 2: 150 bytes"]
    assert {"600 B", "150 B"} <= set(texts(picture))
    assert picture.heading == ("rank", "other", "bytes", "payload_bytes")
    assert list(picture.rows) == [(0, 1, 600, 300), (0, 2, 150, 75)]


def test_a_rank_that_was_lost_is_pale():
    picture = draw_traffic([rank(0, {1: (300, 0.0)}), rank(2, {1: (300, 0.0), 0: (10, 0.0)})])
    nodes = {said: tone(mark) for said, mark in tips(painted(picture)).items() if said.startswith("rank")}
    assert nodes == {"rank 0": LIGHT["s0"], "rank 1, lost on the way": LIGHT["mute"], "rank 2": LIGHT["s0"]}
    assert draw_traffic([rank(0, {})]) is None


@pytest.mark.parametrize("count", [3, 20, MOST_NODES])
def test_numbers_around_the_graph_do_not_touch(count):
    axes = painted(draw_traffic([rank(i, {(i + 1) % count: (100, 0.0)}) for i in range(count)]))
    (legend,) = axes.get_figure().legends
    assert_apart(*boxes(axes, [*axes.texts, legend]))


@pytest.mark.parametrize("spread", [0, 40])
def test_many_ranks_have_a_distribution(spread):
    n = MOST_NODES + 1
    bars = tips(painted(draw_traffic([rank(i, {(i + 1) % n: (100 + spread * (i % 7), 0.0)}) for i in range(n)])))
    counts = {said: int(said.split()[0]) for said in bars}
    assert sum(counts.values()) == n
    assert sum(count > 0 for count in counts.values()) == (1 if spread == 0 else 7) <= BINS
    assert {said: bar.get_height() for said, bar in bars.items()} == counts


def test_epsilons_stand_at_their_budgets():
    ranks = [rank(i, {}, epsilon=0.1 * i, budget=0.1 * i if i % 2 else None) for i in range(1, 6)]
    picture = draw_epsilons(ranks, 0.4, 1e-5, 0.45)
    axes = painted(picture)
    dots = {said.split(":")[0]: mark.get_ydata()[0] for said, mark in tips(axes).items()}
    assert dots == {f"rank {i}": 0.1 * i for i in range(1, 6)}
    budgets = [line.get_ydata()[0] for line in axes.get_lines() if tone(line) == LIGHT["ink"]]
    assert budgets == [0.1, 0.4, 0.1 * 3, 0.4, 0.5]  # the target, where a rank has no budget of its own
    (claim,) = [line for line in axes.get_lines() if tone(line) == LIGHT["s1"]]
    assert claim.get_ydata()[0] == 0.45
    assert [row[:3] for row in picture.rows] == [(i, 0.1 * i, 0.1 * i if i % 2 else 0.4) for i in range(1, 6)]
    assert {"certified", "budget", "the paper's theorem: 0.45"} <= set(texts(picture))
    assert draw_epsilons([*ranks, rank(6, {}, epsilon=None)], None, 1e-5, None) is None


def test_a_claim_far_away_does_not_flatten_the_epsilons():
    axes = painted(draw_epsilons([rank(i, {}, epsilon=1.0 + i) for i in range(2)], None, 0.0, 1e5))
    one, other = (axes.transData.transform(mark.get_xydata())[0][1] for mark in tips(axes).values())
    assert other - one > 5


@pytest.mark.parametrize("n", [3, 1000])
def test_bars_add_up_to_the_training(n):
    parts = {"compute": 4.0, "noise": 1.0, "crypto": 0.0, "ledger": 2.0, "wait": 3.0}
    ranks = [rank(i, {}, seconds=parts if i else {**parts, "wait": 13.0}) for i in range(n)]
    picture = draw_times(ranks)
    tops, heights = {}, {}
    for said, bar in tips(painted(picture)).items():
        who = said.split(":")[0]
        assert bar.get_y() == pytest.approx(tops.get(who, 0.0))  # they stand on each other
        tops[who] = bar.get_y() + bar.get_height()
        heights[who] = heights.get(who, 0.0) + bar.get_height()
    assert len(heights) == min(n, MOST_BARS)
    first, *others = heights.values()
    assert others == pytest.approx([10.0] * len(others))
    assert first == pytest.approx(10 + 10 / len(blocks(n, MOST_BARS)[0]))
    assert texts(picture)[-4:] == ["compute", "noise", "ledger", "wait"]
    assert picture.rows[1] == (1, 4.0, 1.0, 0.0, 2.0, 3.0)


def test_waiting_on_shared_cores_is_the_turn_of_others():
    parts = {"compute": 1.0, "noise": 0.0, "crypto": 0.0, "ledger": 0.0, "wait": 9.0}
    picture = draw_times([rank(0, {}, seconds=parts), rank(1, {}, seconds=parts | {"compute": 9.0, "wait": 1.0})], 0.8)
    assert set(tips(painted(picture))) == {
        "rank 0: compute 1 s", "rank 0: wait 1 s", "rank 0: others' turn 8 s",
        "rank 1: compute 9 s", "rank 1: wait 0 s", "rank 1: others' turn 1 s",
    }  # fmt: skip
    assert picture.rows[0][-1] == 9.0


def test_times_of_older_runs_have_two_parts():
    assert seconds(rank(0, {})) == {"compute": 7.0, "noise": 0.0, "crypto": 0.0, "ledger": 0.0, "wait": 3.0}


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


def shades(picture):
    """The cells of a time line as (left, right, top, bottom), by their shade."""
    found = {}
    for patch in painted(picture).patches:
        cells = patch.get_path().vertices.reshape(-1, 5, 2)[:, :4]
        found[patch.get_alpha()] = [
            (*cell[:2, 0], *cell[1:3, 1]) for cell in cells.tolist() for cell in [np.array(cell)]
        ]
    return found


def test_the_time_line_shows_who_waited_when():
    half = COLUMNS // 2
    waits = [
        Waits(3, 50.0, 0.1, ({7: 0.1},) * half + ({},) * half),
        Waits(7, 50.0, 0.1, ({},) * half + ({3: 0.05, 9: 0.02},) * half),
    ]
    picture = draw_waits(waits)
    found = shades(picture)
    full, some = found[1.0], found[round(SHADES * 0.7) / SHADES]
    assert len(full) == len(some) == half
    assert {(top, bottom) for *_, top, bottom in full} == {(2.5, 3.5)}
    assert {(top, bottom) for *_, top, bottom in some} == {(6.5, 7.5)}
    assert max(right for _, right, *_ in full) == pytest.approx(3.2)
    assert min(left for left, *_ in some) == pytest.approx(3.2)
    assert sum(row[-1] for row in picture.rows if row[0] == 7) == pytest.approx(0.07 * half)
    assert draw_waits([]) is None
    assert draw_waits([Waits(0, 1.0, 0.1, ())]) is None


def test_waiting_no_more_than_shared_cores_make_is_no_shade():
    waits = [Waits(0, 0.0, 1.0, ({1: 0.9},) * 4), Waits(1, 0.0, 1.0, ({0: 1.0},) * 4)]
    assert {top for cells in shades(draw_waits(waits, 0.9)).values() for *_, top, _ in cells} == {0.5}
    assert {top for cells in shades(draw_waits(waits)).values() for *_, top, _ in cells} == {-0.5, 0.5}


def test_many_ranks_share_rows():
    waits = [Waits(i, 0.0, 1.0, ({i + 1: 0.5 if i % 2 else 1.0},) * 4) for i in range(2 * ROWS)]
    ((shade, cells),) = shades(draw_waits(waits)).items()
    assert shade == 0.75
    assert len(cells) == 4 * ROWS
    assert cells[0][2:] == (-0.5, 1.5)


def test_the_square_shows_who_waited_for_whom():
    ranks = [rank(0, {1: (1, 2.0), 2: (1, 0.0)}), rank(1, {0: (1, 5.0)}), rank(2, {0: (1, 1.0)})]
    picture = draw_pairs(ranks)
    cells = tips(painted(picture))
    assert {said: (cell.get_x() + 0.5, cell.get_y() + 0.5) for said, cell in cells.items()} == {
        "rank 0 waited 2 s for rank 1": (1, 0),
        "rank 0 waited 0 s for rank 2": (2, 0),
        "rank 1 waited 5 s for rank 0": (0, 1),
        "rank 2 waited 1 s for rank 0": (0, 2),
    }
    assert cells["rank 1 waited 5 s for rank 0"].get_alpha() == 1.0
    assert cells["rank 0 waited 2 s for rank 1"].get_alpha() == math.ceil(SHADES * 0.4) / SHADES
    assert cells["rank 0 waited 0 s for rank 2"].get_alpha() == 0.0
    assert picture.note.startswith("Rank 0 was waited for most: 75% of all waiting, where 50% is its even share.")
    assert picture.note.endswith("The longest wait: rank 1 for rank 0, 5 s.")
    assert list(picture.rows) == [(0, 1, 2.0), (0, 2, 0.0), (1, 0, 5.0), (2, 0, 1.0)]
    assert draw_pairs([rank(0, {1: (1, 0.0)})]) is None


def test_many_ranks_share_squares():
    n = 2 * SIDE
    picture = draw_pairs([rank(i, {(i + 1) % n: (1, 1.0)}) for i in range(n)])
    cells = tips(painted(picture))
    assert len(cells) == 2 * SIDE
    assert cells["ranks 0 to 1 waited 1 s for ranks 0 to 1"].get_width() == 2
    assert len(picture.rows) == n


def luminance(tone):
    """WCAG 2's relative luminance."""
    channels = [int(tone[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("theme", "paper"), [(drawing.LIGHT, "#ffffff"), (drawing.DARK, "#0d1117")])
def test_colours_stand_out_from_the_paper(theme, paper):
    """WCAG 2 wants a contrast of 3 for graphics and 4.5 for text."""
    assert theme["paper"] == paper
    for name, tone in theme.items():
        lights = sorted([luminance(tone), luminance(paper)])
        contrast = (lights[1] + 0.05) / (lights[0] + 0.05)
        least = {"ink": 4.5, "soft": 4.5, "mute": 1.5, "grid": 1.0, "paper": 1.0}.get(name, 3.0)
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
