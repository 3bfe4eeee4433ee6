"""Reports: the numbers that are drawn, the drawings, and the page."""

import csv
import io
import json
import re
import statistics
import sys
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmpi import figures
from dpmpi.charts import Chart, Curve, Panel, chart_csv, plot_chart
from dpmpi.errors import ConfigError, DataError
from dpmpi.report import main, write_report
from dpmpi.results import read_run, read_sweep_directory, spread, text_table
from dpmpi.run import main as train
from dpmpi.sweepfile import Plot

FLAGS = [
    "--data=synthetic:samples=80,features=4", "--rounds=12", "--evaluate=4", "--allow-large-delta", "--reference",
    "--epsilon=3",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on 4 ranks: a private one on a ring, and gossip on single edges of the complete graph."""
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("ring", []), ("gossip", ["--algorithm=sampled-dda", "--graph=complete"])):
        assert train([*FLAGS, *more, "--loopback=4", f"--out={folder / name}"]) == 0
    return folder


OBJECTIVES = {("a", 1.0): [5.0, 1.0, 3.0], ("a", 2.0): [2.0, 8.0, 4.0], ("b", None): [7.0, 6.0, 9.0]}


@pytest.fixture
def sweep(tmp_path, runs):
    """A sweep directory with known numbers: real run directories whose objectives are replaced."""
    index = {
        "name": "known", "title": "Known <b>numbers</b>", "paper": "A paper", "figure": "3",
        "text": "Look.\n\nLook again.",
        "ranks": 4, "repetitions": 3, "grid": {"epsilon": [1.0, 2.0]}, "file": "known.toml", "quick": False,
        "launcher": None, "plots": [
            {"x": "epsilon", "y": "objective", "title": "", "log": "xy"},
            {"x": "round", "y": "objective", "title": "Over time", "log": ""},
            {"x": "epsilon", "y": "no_such_figure", "title": "Nothing", "log": ""},
        ],
        "series": [{"name": "a", "label": "<script>a</script>", "without": []},
                   {"name": "b", "label": "b", "without": ["epsilon"]}], "runs": [],
    }  # fmt: skip
    source = runs / "ring"
    for (name, epsilon), values in OBJECTIVES.items():
        for repetition, objective in enumerate(values):
            path = f"{name}/{epsilon}/rep-{repetition}"
            grid = {} if epsilon is None else {"epsilon": epsilon}
            index["runs"].append(
                {"series": name, "grid": grid, "repetition": repetition, "path": path, "state": "done", "error": None}
            )
            (tmp_path / path / "metrics").mkdir(parents=True)
            summary = json.loads((source / "summary.json").read_text()) | {"objective": objective}
            (tmp_path / path / "summary.json").write_text(json.dumps(summary))
            (tmp_path / path / "config.toml").write_text((source / "config.toml").read_text())
            for rank in range(4):
                lines = [{"round": t, "objective": objective * t, "bytes": t, "epsilon": rank} for t in (1, 2)]
                file = tmp_path / path / f"metrics/rank-{rank:03d}.jsonl"
                file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "sweep.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("name", ["ring", "gossip"])
def test_curves_end_where_the_summary_stands(runs, name):
    run = read_run(runs / name)
    assert list(run.curves["round"]) == [4, 8, 12]
    for key in ("objective", "suboptimality", "accuracy", "consensus_error"):
        assert run.curves[key][-1] == run.summary[key]
    assert run.curves["bytes"][-1] == run.number("bytes") == run.summary["communication"]["bytes"]
    assert run.curves["messages"][-1] == run.number("communication.messages")
    assert run.curves["epsilon"][-1] == pytest.approx(run.summary["privacy"]["epsilon"], rel=1e-3)
    edges = figures.edge_bytes(run.summary["per_rank"])
    assert sum(edges.values()) == run.summary["communication"]["bytes"]
    assert all(one < other for one, other in edges)


def test_numbers_that_are_not_there(runs):
    run = read_run(runs / "ring")
    assert run.number("privacy.private") is None  # a truth value is not a number
    assert run.number("privacy.nothing") is None
    assert run.number("objective.nothing") is None
    assert run.number("graph.edges") == 4


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12))
def test_spread_is_the_median_and_the_tenths(values):
    low, middle, high = spread([None, *values])
    assert middle == pytest.approx(statistics.median(values), rel=1e-12, abs=1e-9)
    if len(values) > 1:
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        assert (low, high) == pytest.approx((tenths[0], tenths[-1]), rel=1e-12, abs=1e-6)


def test_points_over_a_grid_key(sweep):
    chart = plot_chart(read_sweep_directory(sweep), Plot("epsilon", "objective"), "x")
    (panel,) = chart.panels
    a, b = panel.curves
    assert list(a.x) == [1.0, 2.0]
    assert list(a.middle) == [3.0, 4.0]
    assert a.low == pytest.approx([1.4, 2.4])
    assert a.high == pytest.approx([4.6, 7.2])
    assert (b.flat, list(b.middle), b.style) == (True, [7.0], 1)


def test_lines_over_rounds_have_a_panel_for_each_point(sweep):
    chart = plot_chart(read_sweep_directory(sweep), Plot("round", "objective"), "x")
    assert [panel.title for panel in chart.panels] == ["epsilon = 1.0", "epsilon = 2.0"]
    first, second = chart.panels
    assert [list(curve.middle) for curve in first.curves] == [[3.0, 6.0], [7.0, 14.0]]
    assert [list(curve.middle) for curve in second.curves] == [[4.0, 8.0], [7.0, 14.0]]
    assert [[c.style for c in panel.curves] for panel in chart.panels] == [[0, 1], [0, 1]]


def test_points_over_a_number_of_the_summary(sweep):
    chart = plot_chart(read_sweep_directory(sweep), Plot("privacy.epsilon", "objective"), "x")
    ((a, b),) = [panel.curves for panel in chart.panels]
    epsilon = json.loads((sweep / "a/1.0/rep-0/summary.json").read_text())["privacy"]["epsilon"]
    assert list(a.x) == [epsilon, epsilon]
    assert not b.flat


def test_csv_has_the_numbers_that_are_drawn(sweep):
    chart = plot_chart(read_sweep_directory(sweep), Plot("epsilon", "objective"), "x")
    rows = list(csv.DictReader(io.StringIO(chart_csv(chart))))
    assert [(row["series"], row["x"], float(row["median"]), row["repetitions"]) for row in rows] == [
        ("<script>a</script>", "1.0", 3.0, "3"), ("<script>a</script>", "2.0", 4.0, "3"), ("b", "", 7.0, "3"),
    ]  # fmt: skip


def test_the_text_table_has_the_medians(sweep):
    lines = text_table(read_sweep_directory(sweep)).splitlines()
    assert "9 of 9 runs" in lines[0]
    assert [line.split()[:4] for line in lines[2:]] == [
        ["a", "1.0", "3", "3"],
        ["a", "2.0", "3", "4"],
        ["b", "-", "3", "7"],
    ]


class Reader(HTMLParser):
    """Collects what a page refers to, and checks that its tags nest."""

    VOID = ("meta", "br", "link", "img", "hr")

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.tags = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(path):
    """Assert that a page is whole and needs nothing but the files beside it; return its text."""
    text = path.read_text()
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    assert not {"script", "link", "img", "iframe"} & set(reader.tags)
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = {v[1:] for n, v in reader.attributes if n in ("href", "xlink:href") and v.startswith("#")}
    assert used | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    for name, value in reader.attributes:
        if name in ("href", "src") and not value.startswith("#"):
            assert (path.parent / value).is_file(), value
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    light, dark = (set(re.findall(r"--([\w]+):", theme)) for theme in re.findall(r":root\{([^}]*)\}", text))
    assert set(re.findall(r"var\(--(\w+)\)", text)) <= light & dark
    assert not [value for value in figures.LIGHT.values() if value in text.split("</style>")[1]]
    return text


def test_the_page_of_a_run(runs, capsys):
    assert main([str(runs / "ring")]) == 0
    assert capsys.readouterr().out.strip() == str(runs / "ring/report.html")
    text = check_page(runs / "ring/report.html")
    for heading in ("Results", "Privacy spent by each rank", "Where the time went", "Bytes on each edge", "Settings"):
        assert f"<h2>{heading}</h2>" in text
    objective = json.loads((runs / "ring/summary.json").read_text())["objective"]
    assert f"<td>{objective:.4g}</td>" in text
    assert "outside of the guarantee" in text
    assert {path.name for path in (runs / "ring/plots").iterdir()} >= {
        "suboptimality.csv",
        "epsilon.svg",
        "traffic.svg",
    }


def test_runs_side_by_side(runs):
    out = write_report([runs / "ring", runs / "gossip"], runs / "both.html")
    text = check_page(out)
    assert text.count('class="keyed"') == 2
    assert (runs / "plots/both-traffic-2.svg").is_file()
    assert "<td>complete</td>" in text  # the table of the settings that differ


def test_the_page_of_a_sweep(sweep):
    text = check_page(write_report([sweep], None))
    assert "<h1>Known &lt;b&gt;numbers&lt;/b&gt;</h1>" in text
    assert "<p>Look again.</p>" in text
    assert "No run that is done has no_such_figure against epsilon." in text
    assert "medians of 3 repetitions" in text
    rows = list(csv.DictReader(io.StringIO((sweep / "plots/known-results.csv").read_text())))
    assert [float(row["objective"]) for row in rows] == [value for values in OBJECTIVES.values() for value in values]


def test_warnings_about_privacy(tmp_path):
    flags = [*FLAGS[:2], "--allow-large-delta", "--loopback=2", "--no-evaluate"]
    assert train([*flags, "--epsilon=1", "--insecure-noise-seed=1", f"--out={tmp_path / 'fixed'}"]) == 0
    assert train([*flags, "--algorithm=dda", f"--out={tmp_path / 'open'}"]) == 0
    text = check_page(write_report([tmp_path / "fixed", tmp_path / "open"], tmp_path / "report.html"))
    assert "fixed is NOT PRIVATE: its noise is repeatable" in text
    assert "open is NOT PRIVATE: no finite epsilon" in text
    assert "outside of the guarantee" not in text


def test_a_report_is_about_runs(tmp_path, runs):
    with pytest.raises(ConfigError, match="found no such directory"):
        main([str(tmp_path / "nothing")])
    with pytest.raises(ConfigError, match="found something else"):
        main([str(tmp_path)])
    with pytest.raises(ConfigError, match=r"ends with \.html, got x\.pdf"):
        main([str(runs / "ring"), "--out", "x.pdf"])
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "ended.txt").write_text("rank 3, round 7: out of luck\n")
    with pytest.raises(ConfigError, match="ended early: rank 3, round 7"):
        main([str(tmp_path)])
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary\.json cannot be read"):
        main([str(tmp_path)])


def test_a_long_legend_leaves_the_axes_their_height():
    def axes_height(labels):
        x = np.arange(3.0)
        curves = tuple(Curve(label, i, x, x, x, x, 1) for i, label in enumerate(labels))
        panel = Panel("", "round", "round", curves)
        svg = figures.draw_panel(Chart("c", "c", "error", "error", (panel,)), panel)
        ticks = re.findall(r'<use xlink:href="#\w+" x="[\d.]+" y="([\d.]+)"', svg)
        return max(map(float, ticks)) - min(map(float, ticks))

    few, many = (axes_height([f"a label that is longer than a column, {i}" for i in range(n)]) for n in (4, 9))
    assert many == pytest.approx(few, rel=0.15)


@pytest.mark.parametrize("letters", [(25, 25), (17, 25), (25, 17), (26, 16), (40, 3)])
def test_a_legend_fits_into_its_figure(letters):
    x = np.arange(3.0)
    curves = tuple(Curve("n" * count, i, x, x, x, x, 1) for i, count in enumerate(letters * 3))
    panel = Panel("", "round", "round", curves)
    svg = figures.draw_panel(Chart("c", "c", "error", "error", (panel,)), panel)
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg).group(1))
    starts = re.findall(r'translate\(([\d.]+) [\d.]+\)[^>]*>(n+)<|x="([\d.]+)"[^>]*>(n+)<', svg)
    assert len(starts) == len(curves)
    for one, text, other, same in starts:  # a letter is 0.6 of its size of 10 points wide, or less
        assert float(one or other) + 6.34 * len(text or same) <= width


def test_the_figure_of_random_weights(tmp_path, capsys):
    assert main(["--figure", "gamma", "--out", str(tmp_path / "gamma.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "gamma.html")
    check_page(tmp_path / "gamma.html")
    assert (tmp_path / "plots/gamma-2.svg").is_file()
    gamma = {}
    for row in csv.DictReader(io.StringIO((tmp_path / "plots/gamma.csv").read_text())):
        gamma.setdefault((row["panel"], row["series"]), []).append(float(row["median"]))
    for (_, series), values in gamma.items():  # wider intervals and less noise hide more
        assert all(1 > a > b > 0 for a, b in pairwise(values)), series
    wide, narrow = (gamma[f"shift = {shift}", "beta = 2, exact"] for shift in (0.05, 0.001))
    assert all(a > b for a, b in zip(wide, narrow, strict=True))
    h = 2.0 * np.linspace(0.1, 1.0, 46) / 2  # as the shift vanishes gamma is the total variation of p, twice its peak
    assert np.allclose(narrow, -np.expm1(-h) / h, rtol=2e-3)
    assert all(b < a for a, b in zip(wide, gamma["shift = 0.05", "beta = 2, theorem"], strict=True))  # no bound


@pytest.mark.parametrize("words", [[], ["somewhere", "--figure", "gamma"]])
def test_a_report_is_about_one_thing(words):
    with pytest.raises(ConfigError, match="or --figure gamma without one"):
        main(words)


def test_without_matplotlib(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'dpmpi\[report\]'"):
        main([str(runs / "ring")])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_labels_stand_apart(heights):
    gap = 0.09
    placed = figures.apart(heights, gap)
    for one, other in pairwise(sorted(placed)):
        assert other - one >= gap * (1 - 1e-9)
    assert max(placed) <= 1 + 1e-9
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    assert [placed[i] for i in order] == sorted(placed)
    if all(other - one >= gap for one, other in pairwise(sorted(heights))):
        assert placed == heights


def chart_of(values, log="", labels=("a", "b")):
    xs = np.array([1.0, 10.0])
    curves = [Curve(label, i, xs, *([np.array(values, float)] * 3), 1) for i, label in enumerate(labels)]
    return Chart("c", "C", "objective", "objective F(x)", (Panel("", "round", "round", tuple(curves)),), log)


@pytest.mark.parametrize("values", [(1.0, 1.0), (0.0, 0.0), (-1.0, 1e-12), (1e300, 1e-300), (float("nan"), 2.0)])
@pytest.mark.parametrize("log", ["", "x", "xy"])
def test_awkward_numbers_are_drawn(values, log):
    chart = chart_of(values, log)
    svg = figures.draw_panel(chart, chart.panels[0])
    assert svg.count("objective F(x)") == 1
    assert svg.count(">b</text>") == 1


def test_short_labels_stand_at_the_lines_and_long_ones_below():
    short, long = chart_of((1.0, 2.0)), chart_of((1.0, 2.0), labels=("a", "a label of some length"))
    assert 'id="legend_1"' not in figures.draw_panel(short, short.panels[0])
    assert 'id="legend_1"' in figures.draw_panel(long, long.panels[0])


def luminance(colour):
    """WCAG 2's relative luminance."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("theme", "paper"), [(figures.LIGHT, "#ffffff"), (figures.DARK, "#0d1117")])
def test_colours_stand_out_from_the_paper(theme, paper):
    """WCAG 2 wants a contrast of 3 for graphics and 4.5 for text."""
    for name, colour in theme.items():
        lights = sorted([luminance(colour), luminance(paper)])
        contrast = (lights[1] + 0.05) / (lights[0] + 0.05)
        least = {"ink": 4.5, "soft": 4.5, "mute": 1.5, "grid": 1.0}.get(name, 3.0)
        assert contrast >= least, (name, contrast)


def cone_response(colour, matrix):
    """The colour that a dichromat sees, in linear RGB."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
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


@pytest.mark.parametrize("theme", [figures.LIGHT, figures.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", DICHROMATS)
def test_colours_of_series_differ_for_every_eye(theme, vision):
    """A distance of 2.3 is just noticeable; the first four, which most figures use, are far apart."""
    seen = [lab(cone_response(theme[f"s{i}"], DICHROMATS[vision])) for i in range(figures.PALETTE)]
    distances = {(i, j): np.linalg.norm(seen[i] - seen[j]) for i in range(len(seen)) for j in range(i)}
    assert min(distances.values()) > 12
    assert min(distance for (i, _), distance in distances.items() if i < 4) > 20
