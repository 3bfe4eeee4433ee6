"""Reports: the numbers that are drawn, the drawings, and the page."""

import csv
import io
import json
import re
import shutil
import statistics
import struct
import sys
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.commands.report import drawing
from dpmpi.commands.report.charts import chart_csv, plot_chart, runs_charts, utility_charts
from dpmpi.commands.report.command import main, write_report
from dpmpi.commands.report.drawing import DARK, LIGHT
from dpmpi.commands.report.headline import tiles, warnings_of_runs
from dpmpi.commands.report.ranks import edge_bytes
from dpmpi.commands.sweep.file import Plot
from dpmpi.errors import ConfigError, DataError
from dpmpi.model import Model
from dpmpi.run import main as train
from dpmpi.runtime.output.progress import in_rate
from dpmpi.runtime.output.result_table import _privately, to_two_digits
from dpmpi.runtime.output.results import (
    QUANTILES,
    RANGE,
    common_name,
    group_runs,
    read_run,
    read_sweep_directory,
    read_waits,
    text_table,
)

FLAGS = [
    "--data=synthetic:samples=80,features=4", "--rounds=12", "--evaluate=4", "--allow-large-delta", "--reference",
    "--epsilon=3",
]  # fmt: skip


@pytest.fixture(autouse=True)
def fewer_files(request, monkeypatch):
    """PNGs and PDFs take most of a report's time: only tests that ask for all formats make them."""
    if "all_formats" not in request.fixturenames:
        monkeypatch.setattr(drawing, "FORMATS", ("svg",))


@pytest.fixture
def all_formats():
    return drawing.FORMATS


def csv_rows(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


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
    edges = edge_bytes(run.summary["per_rank"])
    assert sum(edges.values()) == run.summary["communication"]["bytes"]
    assert all(one < other for one, other in edges)


def test_hosts_without_a_common_disk(tmp_path, runs):
    shutil.copytree(runs / "ring", tmp_path / "run")
    (tmp_path / "run/metrics/rank-002.jsonl").unlink()
    curves, whole = (read_run(path).curves for path in (tmp_path / "run", runs / "ring"))
    assert set(whole) - set(curves) == {"bytes", "messages"}
    assert list(curves["objective"]) == list(whole["objective"])
    check_page(write_report([tmp_path / "run"], None))


def test_numbers_that_are_not_there(runs):
    run = read_run(runs / "ring")
    assert run.number("privacy.private") is None  # a truth value is not a number
    assert run.number("privacy.nothing") is None
    assert run.number("objective.nothing") is None
    assert run.number("graph.edges") == 4


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12))
def test_spreads_of_repetitions(values):
    low, middle, high = QUANTILES.numbers([None, *values, float("nan")])
    assert middle == pytest.approx(statistics.median(values), rel=1e-12, abs=1e-9)
    if len(values) > 1:
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        assert (low, high) == pytest.approx((tenths[0], tenths[-1]), rel=1e-12, abs=1e-6)
    expected = (min(values), statistics.fmean(values), max(values))
    assert RANGE.numbers([*values, None]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert RANGE.numbers([None]) is None


def test_a_path_that_no_terminal_shows_is_refused_in_one_plain_line(tmp_path):
    run = {"series": "a", "grid": {}, "path": "a/\0", "state": "done"}
    index = {"name": "demo", "series": [{"name": "a", "label": "a"}], "runs": [run]}
    (tmp_path / "sweep.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="the path") as caught:
        read_sweep_directory(tmp_path)
    assert str(caught.value).isprintable()


def test_values_of_the_grid_that_no_run_has_make_no_panels(sweep):
    index = json.loads((sweep / "sweep.json").read_text())
    index["grid"] |= {"epsilon": [*index["grid"]["epsilon"], *range(100, 5000)], "batch": list(range(5000))}
    (sweep / "sweep.json").write_text(json.dumps(index))
    chart = plot_chart(read_sweep_directory(sweep), Plot("round", "objective"), "x")
    assert [panel.title for panel in chart.panels] == ["epsilon = 1.0", "epsilon = 2.0"]


def test_the_name_of_a_sweep_is_no_html(sweep):
    index = json.loads((sweep / "sweep.json").read_text())
    (sweep / "sweep.json").write_text(json.dumps(index | {"name": "<script>"}))
    text = write_report([sweep], sweep / "report.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;-results.csv" in text


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
    assert not [value for value in (*LIGHT.values(), *DARK.values()) if value in text.split("</style>")[1]]
    return text


def test_the_page_of_a_run(runs, capsys):
    assert main([str(runs / "ring")]) == 0
    assert capsys.readouterr().out.strip() == str(runs / "ring/report.html")
    text = check_page(runs / "ring/report.html")
    for heading in (
        "Progress", "Privacy spent by each rank", "Where the time went", "Bytes on each edge", "Predicted cost",
        "Settings", "How to repeat it", "How good the model is", "Coefficients", "What a curious rank learns",
    ):  # fmt: skip
        assert f"<h2>{heading}</h2>" in text
    assert len(re.findall(r'<h2>[^<]+</h2>\n<p class="about">[A-Z][^<]+\.</p>', text)) == text.count("<h2>") == 10
    assert "<h2>Who waited for whom</h2>" not in text  # nobody, in one process
    assert "<h2>When ranks waited</h2>" not in text
    assert re.findall(r'<input type="radio" name="progress" [^>]*/><label [^>]*>(.*?)</label>', text) == [
        "by rounds",
        "by time",
        "by bytes",
    ]
    assert text.count(" checked") == 1
    summary = json.loads((runs / "ring/summary.json").read_text())
    shown = dict(re.findall(r'<div class="tile(?: bad)?"><span>([^<]*)</span><b>([^<]*)</b>', text))
    assert shown.pop("time").endswith(" s")
    assert f", {in_rate(summary['rounds_per_second'])}</small>" in text
    assert shown == {
        "accuracy": f"{summary['accuracy']:.2%}", "certified epsilon": f"{summary['privacy']['epsilon']:.3g} of 3",
        "verdict": summary["verdict"]["word"], "bytes sent": plots_unit(summary["communication"]["bytes"]),
        "suboptimality": f"{summary['suboptimality']:.3g}",
    }  # fmt: skip
    assert list(shown) == ["accuracy", "certified epsilon", "verdict", "bytes sent", "suboptimality"]
    majority = summary["metrics"]["mean"]["majority"]
    assert f"<small>most frequent class {majority:.1%}; on 8 held-out rows</small>" in text
    assert "are outside of the guarantee; the data are synthetic." in text
    assert "private data" not in text.split("<h2>")[0]
    assert "(<code>--seal</code>)" in text
    assert f"python -m dpmpi.run --config {runs}/ring/config.toml --loopback 4 --out runs/again/ring" in text


def plots_unit(count):
    assert 1000 <= count < 999_500
    return f"{count / 1000:.3g} kB"


def test_every_drawing_has_its_files(runs):
    write_report([runs / "ring"], None)
    names = {path.name for path in (runs / "ring/plots").iterdir()}
    drawn = {path.removesuffix(".svg") for path in names if path.endswith(".svg")}
    assert drawn == {f"{y}-{i}" for y in ("suboptimality", "accuracy", "consensus-error") for i in (1, 2, 3)} | {
        "epsilon", "time", "traffic",
    }  # fmt: skip
    for name in drawn:
        root = ElementTree.fromstring((runs / f"ring/plots/{name}.svg").read_text())
        assert root.attrib["width"] == f"{drawing.WIDTH:g}pt"  # a column of a paper
        assert f"{name.rstrip('-123')}.csv" in names
    summary = json.loads((runs / "ring/summary.json").read_text())
    rows = csv_rows(runs / "ring/plots/traffic.csv")
    assert sum(int(row["bytes"]) for row in rows) == summary["communication"]["bytes"]
    assert len(rows) == summary["graph"]["edges"]
    for row, record in zip(csv_rows(runs / "ring/plots/epsilon.csv"), summary["per_rank"], strict=True):
        assert (int(row["rank"]), float(row["epsilon"]), float(row["budget"])) == (record["rank"], record["epsilon"], 3)


def test_every_format_is_the_same_drawing(runs, all_formats):
    text = check_page(write_report([runs / "ring"], None))
    assert text.count(">PNG</a>") == text.count(">PDF</a>") == text.count(">SVG</a>") == 12
    assert all_formats == ("svg", "png", "pdf")
    for path in (runs / "ring/plots").glob("*.svg"):
        root = ElementTree.fromstring(path.read_text())
        wide, high = (float(root.attrib[side].removesuffix("pt")) for side in ("width", "height"))
        image = path.with_suffix(".png").read_bytes()
        assert image[:8] == b"\x89PNG\r\n\x1a\n"
        pixels = struct.unpack(">II", image[16:24])
        assert pixels == pytest.approx([drawing.ZOOM * 96 / 72 * side for side in (wide, high)], abs=1)
        (box,) = re.findall(rb"/MediaBox \[ ?([\d. ]+?) ?\]", path.with_suffix(".pdf").read_bytes())
        assert list(map(float, box.split())) == pytest.approx([0, 0, wide, high], abs=0.1)


def test_without_matplotlib_a_report_says_what_gives_it(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"expected matplotlib .* pip install 'dpmpi\[report\]'"):
        main([str(runs / "ring"), "--out", str(runs / "bare/report.html")])
    assert not (runs / "bare").exists()


def test_runs_side_by_side(runs):
    out = write_report([runs / "ring", runs / "gossip"], runs / "both.html")
    text = check_page(out)
    assert text.count('class="keyed"') == 2
    assert 'class="tile"' not in text
    assert (runs / "plots/both-traffic-2.svg").is_file()
    assert "<td>complete</td>" in text  # the table of the settings that differ
    assert text.count('<ul class="legend">') == 1  # of the row of curves
    rows = csv_rows(runs / "plots/both-time.csv")
    assert [row["run"] for row in rows] == ["ring"] * 4 + ["gossip"] * 4


WAITS = {"rank": 1, "started": 100.0, "width": 0.5, "buckets": [{"0": 0.5}, {"2": 0.25}]}


@pytest.fixture
def waited(tmp_path, runs):
    """A run as several processes would leave it: ranks waited, and rank 3 was lost on the way."""
    path = tmp_path / "waited"
    shutil.copytree(runs / "ring", path)
    summary = json.loads((path / "summary.json").read_text())
    summary |= {"cost": None, "lost": [3], "ranks": 3, "ranks_at_start": 4, "per_rank": summary["per_rank"][:3]}
    shutil.rmtree(path / "waits")
    (path / "waits").mkdir()
    for record in summary["per_rank"]:
        record |= {"wait_seconds": 0.75, "training_seconds": 2.0}
        record["neighbours"][min(record["neighbours"])]["wait_seconds"] = 0.75
        waits = WAITS | {"rank": record["rank"], "started": 100.0 + record["rank"]}
        (path / f"waits/rank-{record['rank']:03d}.json").write_text(json.dumps(waits))
    (path / "summary.json").write_text(json.dumps(summary))
    lines = (path / "metrics/rank-003.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics/rank-003.jsonl").write_text(lines[0])
    return path


def test_the_time_line_of_a_run(waited):
    text = check_page(write_report([waited], None))
    assert "<h2>Who waited for whom</h2>" in text
    assert "<title>rank 1 waited 0.75 s for rank 0</title>" in text
    assert "<p>Rank 1 was waited for most: 67% of all waiting, where 33% is its even share." in text
    assert "<h2>When ranks waited</h2>" in text
    assert "waited: rank 3 was lost on the way, and the others went on." in text
    assert "rank 3, lost on the way" in text
    assert "<h2>Predicted cost</h2>" not in text
    assert f"mpirun -n 4 python -m dpmpi.run --config {waited}/config.toml --out runs/again/waited" in text
    rows = csv_rows(waited / "plots/waits.csv")
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(3 * 0.75)
    assert list(read_run(waited).curves["round"]) == [4, 8, 12]  # what the lost rank missed is not missing


def test_ranks_that_share_cores_are_not_at_fault(waited, runs):
    cost = json.loads((runs / "ring/summary.json").read_text())["cost"]
    summary = json.loads((waited / "summary.json").read_text())
    summary["cost"] = cost | {"ranks_per_host": 4, "cores_per_host": 1}
    for record in summary["per_rank"]:
        record["seconds"] = {"compute": 0.125, "noise": 0.0, "crypto": 0.0, "ledger": 0.0, "wait": 0.875}
    (waited / "summary.json").write_text(json.dumps(summary))
    text = check_page(write_report([waited], None))
    assert "; 4 ranks share 1 core, so each has its turn 25% of the time." in text
    assert "; 4 ranks share 1 core, so shades begin at 75%, which is having no turn." in text
    assert "<title>rank 1: others&#x27; turn 0.75 s</title>" in text.replace("&apos;", "&#x27;").replace("'", "&#x27;")
    assert "<title>rank 1: wait 0.125 s</title>" in text
    (row, *_) = csv_rows(waited / "plots/time.csv")
    assert float(row["wait_seconds"]) == 0.875  # the file has what was measured


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_seconds_that_are_no_numbers_are_damage(waited, value):
    summary = json.loads((waited / "summary.json").read_text())
    summary["per_rank"][1]["seconds"]["compute"] = value
    (waited / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(DataError, match="expected finite seconds of each rank"):
        write_report([waited], None)


def section(text, heading):
    return re.search(rf"<h2>{heading}</h2>(.*?)</section>", text, re.DOTALL)[1]


def test_the_predicted_cost_says_something(runs):
    ring, gossip = (
        section(write_report([runs / name], None).read_text(), "Predicted cost") for name in ("ring", "gossip")
    )
    each = json.loads((runs / "ring/summary.json").read_text())["communication"]["bytes"] // 4
    assert f"so each sends {plots_unit(each)} as here: 10,000 ranks send {each / 100:.3g} MB." in ring
    assert "<table" not in ring
    headings = re.findall("<th>(.*?)</th>", gossip)
    assert headings == ["ranks", "messages", "bytes"]  # one process tells nothing about hosts and seconds
    assert len(csv_rows(runs / "gossip/plots/cost.csv")) == gossip.count("<tr><td>") > 3


@pytest.mark.parametrize("broken", ["{", "[]", '{"rank": 1}', '{"rank": 1, "started": 0, "width": 1, "buckets": [1]}'])
def test_a_damaged_time_line_is_named(waited, broken):
    (waited / "waits/rank-001.json").write_text(broken)
    with pytest.raises(DataError, match=r"rank-001\.json .*damaged|rank-001\.json cannot be read"):
        read_waits(waited)


@pytest.fixture
def family(tmp_path, runs):
    """Runs with known numbers: two methods at two epsilons in three repetitions, and one that is not private."""
    source = json.loads((runs / "ring/summary.json").read_text())
    config = (runs / "ring/config.toml").read_text()
    folders = []
    for method, epsilon, shift in (
        ("dp-dda", 1.0, 0),
        ("dp-dda", 2.0, 1),
        ("dgd", 1.0, 2),
        ("dgd", 2.0, 3),
        ("dda", None, 4),
    ):
        for repetition, accuracy in enumerate((0.5, 0.6, 0.7)):
            path = tmp_path / f"{method}-{epsilon}-{repetition}"
            (path / "metrics").mkdir(parents=True)
            summary = source | {"algorithm": method, "accuracy": accuracy + 0.05 * shift, "suboptimality": 1.0 + shift}
            summary["privacy"] = source["privacy"] | {"epsilon": epsilon, "private": epsilon is not None}
            (path / "summary.json").write_text(json.dumps(summary))
            text = re.sub(r"algorithm = .*", f'algorithm = "{method}"', config)
            text = re.sub(r"epsilon = .*\n", "" if epsilon is None else f"epsilon = {epsilon}\n", text)
            text = re.sub(r"seed = .*", f"seed = {repetition}", re.sub(r"out = .*", f'out = "{path}"', text))
            (path / "config.toml").write_text(text)
            for rank in range(4):
                lines = [{"round": t, "objective": 9.0, "accuracy": (repetition + 1.0) * t} for t in (1, 2)]
                file = path / f"metrics/rank-{rank:03d}.jsonl"
                file.write_text("".join(json.dumps(line) + "\n" for line in lines))
            folders.append(path)
    return folders


def test_repetitions_are_found(family):
    found = [read_run(path) for path in family]
    groups = group_runs(found, [path.name for path in family])
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("dp-dda-1.0", 3), ("dp-dda-2.0", 3), ("dgd-1.0", 3), ("dgd-2.0", 3), ("dda-None", 3),
    ]  # fmt: skip
    chart = next(chart for chart in runs_charts(groups) if chart.y == "accuracy")
    line = chart.panels[0].curves[0]
    assert [list(v) for v in (line.low, line.middle, line.high)] == [[1, 2], [2, 4], [3, 6]]
    (smaller,) = group_runs([found[0]], ["alone-1"])
    assert smaller.label == "alone-1"


def test_common_names():
    assert common_name(["demo-1", "demo-2"]) == "demo"
    assert common_name(["a", "b"]) == "a"
    assert common_name(["only-7"]) == "only-7"
    assert common_name(["x/eps1-10", "x/eps1-11"]) == "x/eps1"


def test_privacy_against_utility(family):
    groups = group_runs([read_run(path) for path in family], [path.name for path in family])
    accuracy, loss = utility_charts(groups)
    assert (accuracy.y, loss.y) == ("accuracy", "suboptimality")
    ((dda, dgd, open_),) = [panel.curves for panel in accuracy.panels]
    assert [curve.label for curve in (dda, dgd, open_)] == ["dp-dda", "dgd", "dda-None (not private)"]
    assert list(dda.x) == list(dgd.x) == [1.0, 2.0]
    assert list(dda.middle) == pytest.approx([0.6, 0.65])
    assert list(dgd.low) == pytest.approx([0.6, 0.65])
    assert list(dgd.high) == pytest.approx([0.8, 0.85])
    assert (open_.flat, open_.middle[0]) == (True, pytest.approx(0.8))
    assert not utility_charts(groups[:1])
    rows = list(csv.DictReader(io.StringIO(chart_csv(accuracy))))
    assert [(row["series"], row["x"], row["repetitions"]) for row in rows][:2] == [
        ("dp-dda", "1.0", "3"),
        ("dp-dda", "2.0", "3"),
    ]
    assert float(rows[0]["mean"]) == pytest.approx(0.6)
    assert (float(rows[0]["smallest"]), float(rows[0]["largest"])) == pytest.approx((0.5, 0.7))


def test_the_page_of_repetitions(family, tmp_path):
    text = check_page(write_report(family, tmp_path / "all.html"))
    assert "Accuracy against the price in privacy" in text
    assert "means of 3 repetitions, bands: smallest to largest" in text
    assert "0.6000<br><small>0.5000 to 0.7000</small>" in text
    assert "Of repetitions the first is shown." in text
    assert text.count("dda-None: NOT PRIVATE") == 1


def test_the_page_of_a_sweep(sweep):
    text = check_page(write_report([sweep], None))
    assert "<h1>Known &lt;b&gt;numbers&lt;/b&gt;</h1>" in text
    assert "<p>Look again.</p>" in text
    assert "No run that is done has no_such_figure against epsilon." in text
    assert "medians of 3 repetitions" in text
    rows = list(csv.DictReader(io.StringIO((sweep / "plots/known-results.csv").read_text())))
    assert [float(row["objective"]) for row in rows] == [value for values in OBJECTIVES.values() for value in values]
    assert "9 of 9 runs, 4 ranks, 3 repetitions, on loopback" in text


def test_a_sweep_that_is_not_through(sweep):
    index = json.loads((sweep / "sweep.json").read_text())
    index["runs"][0] |= {"state": "failed", "error": "out of luck"}
    index["runs"][1] |= {"state": "waiting"}
    (sweep / "sweep.json").write_text(json.dumps(index | {"repetitions": 1}))
    text = check_page(write_report([sweep], None))
    assert "1 run failed, the first (a/1.0/rep-0): out of luck" in text
    assert "1 run is still to be made" in text
    assert "7 of 9 runs, 4 ranks, one repetition, on loopback" in text


def test_a_budget_that_was_spent(tmp_path):
    flags = ["--data=synthetic:samples=400,features=4", "--rounds=30", "--allow-large-delta", "--loopback=2"]
    assert train([*flags, "--noise=0.05", "--budget=1.5", f"--out={tmp_path / 'small'}"]) == 0
    epsilon = json.loads((tmp_path / "small/summary.json").read_text())["privacy"]["epsilon"]
    text = check_page(write_report([tmp_path / "small"], None))
    assert f"<b>{epsilon:.3g} of 1.5</b>" in text
    assert "small: the budget of 2 ranks was spent before the end. They went on without their data." in text
    assert ">budget</text>" in text


def test_warnings_about_privacy(tmp_path):
    flags = [*FLAGS[:2], "--allow-large-delta", "--loopback=2", "--no-evaluate"]
    assert train([*flags, "--epsilon=1", "--insecure-noise-seed=1", f"--out={tmp_path / 'fixed'}"]) == 0
    assert train([*flags, "--algorithm=dda", f"--out={tmp_path / 'open'}"]) == 0
    text = check_page(write_report([tmp_path / "fixed", tmp_path / "open"], tmp_path / "report.html"))
    assert '<p class="alert">fixed: NOT PRIVATE: its noise is repeatable' in text
    assert '<p class="alert">open: NOT PRIVATE: no finite epsilon' in text
    assert "outside of the guarantee" not in text
    alone = check_page(write_report([tmp_path / "open"], None))
    assert '<div class="tile bad"><span>certified epsilon</span><b>none</b><small>NOT PRIVATE</small></div>' in alone
    assert alone.index("NOT PRIVATE") < alone.index('class="tiles"')


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


def test_a_report_shows_the_seconds_that_are_at_hand(tmp_path):
    """Ranks with private shards keep their figures: a report merges the files that it is given."""
    for rank in range(3):
        X = np.random.default_rng(rank).normal(size=(20, 3))
        np.savez(tmp_path / f"shard-{rank}.npz", X=X, y=np.sign(X[:, 0]))
    data = ("--data", f"shards:{tmp_path}/shard-{{rank}}.npz", "--noise", "1", "--delta", "1e-3")
    assert train(["--loopback", "3", "--rounds", "5", *data, "--quiet", "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["timings"] == "own"
    assert [summary[name] for name in ("wall_seconds", "started", "rounds_per_second", "cost")] == [None] * 4
    for record in summary["per_rank"]:
        assert {record[name] for name in ("wait_seconds", "core_seconds", "max_rss_mb")} == {None}
    files = sorted((tmp_path / "run" / "process").iterdir())
    assert [file.name for file in files] == [f"rank-00{rank}.json" for rank in range(3)]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    for missing in (None, *files):
        if missing is not None:
            missing.unlink()
        found = read_run(tmp_path / "run").summary
        known = [record["core_seconds"] is not None for record in found["per_rank"]]
        assert sum(known) == len(list((tmp_path / "run" / "process").iterdir()))
        assert (found["wall_seconds"] is not None) == any(known)
        assert main([str(tmp_path / "run")]) == 0


def test_the_page_has_the_metrics_and_the_coefficients(tmp_path):
    words = ["--loopback=3", "--data=synthetic:samples=200,features=3", "--loss=logistic", "--rounds=6", "--reference"]
    assert train([*words, "--epsilon=5", "--allow-large-delta", f"--out={tmp_path / 'run'}"]) == 0
    text = write_report([tmp_path / "run"], None).read_text()
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]
    assert "How good the model is" in text
    assert "<th>optimum</th>" in text
    told = section(text, "How good the model is")
    for name, value in found["mean"].items():
        if name not in ("auc", "auc_error"):
            assert re.search(rf"<td>{name.replace('_', ' ')}</td><td>{value:.4f}</td>", told), name
    assert re.search(rf"<td>auc<br><small>within 0\.\d{{4}}</small></td><td>{found['mean']['auc']:.4f}</td>", told)
    assert "auc error" not in told
    assert not re.search(r"\de[-+]\d", told)
    model = Model.load(tmp_path / "run")
    told = section(text, "Coefficients")
    assert all(f"<td>{value:+.4g}</td>" in told for value in model.coef.values())
    assert f"Noise: {model.noise_std[0]:.3g}, " in told
    assert "certified for replacing one record" in text
    rows = csv_rows(tmp_path / "run" / "plots" / "coefficients.csv")
    assert {row["feature"] for row in rows} == {"1", "2", "3", "(intercept)"}
    drawn = csv_rows(tmp_path / "run" / "plots" / "reliability.csv")
    assert len(drawn) == len(found["reliability"]) + 2


def test_coefficients_that_are_not_told_from_noise_are_folded(runs, tmp_path):
    """Of a run with known noise: one coefficient is made to stand out, all others to be far below the noise."""
    shutil.copytree(runs / "ring", tmp_path / "run")
    with np.load(tmp_path / "run" / "model.npz", allow_pickle=False) as found:
        table = dict(found)
    noise = Model.load(tmp_path / "run").noise_std[0]
    table["coefficients"] = np.full_like(table["coefficients"], 0.01 * noise)
    table["intercept"] = np.zeros_like(table["intercept"])
    table["coefficients"][2] = 50 * noise
    np.savez(tmp_path / "run" / "model.npz", **table)
    told = section(write_report([tmp_path / "run"], None).read_text(), "Coefficients")
    open_, folded = re.fullmatch(r"(.*)<details><summary>(.*)</details>.*", told, re.DOTALL).groups()
    assert re.findall(r"<tr><td>([^<]*)</td>", open_) == ["3"]
    assert folded.startswith("4 of 5 coefficients are not told from noise: below 2 times its standard deviation")
    assert set(re.findall(r"<tr><td>([^<]*)</td>", folded)) == {"1", "2", "4", "(intercept)"}
    assert "adds to the score of class 1" in open_
    assert "<th>class</th>" not in told


@pytest.mark.parametrize(
    ("source", "said"),
    [("synthetic:samples=9", "the data are synthetic"), ("shards:a-{rank}.npz", "read private data without noise"),
     ("libsvm:a9a.bz2", "keep them if the data are private")],
)  # fmt: skip
def test_the_warning_about_evaluations_says_what_is_known_of_the_data(runs, source, said):
    run = read_run(runs / "ring")
    run.settings["data"] = source
    (warning,) = [text for text in warnings_of_runs(group_runs([run], ["a"])) if "guarantee" in text]
    assert said in warning


def test_the_verdict_of_a_run_that_came_out_worse_stands_in_red(runs):
    run = read_run(runs / "ring")
    run.summary["verdict"] |= {"word": "good", "afterwards": None}
    assert '<div class="tile"><span>verdict</span><b>good</b>' in tiles(run)
    run.summary["verdict"]["afterwards"] = "the objective is above that of zeros"
    assert '<div class="tile bad"><span>verdict</span><b>good</b><small>was expected, but see the warning' in tiles(run)
    run.summary["verdict"] = None
    assert "verdict" not in tiles(run)


@pytest.fixture(scope="module")
def privately(tmp_path_factory):
    """Runs with private evaluation: of classes, of numbers, one that says nothing, and one without budget for it."""
    base, draw = tmp_path_factory.mktemp("private"), np.random.default_rng(0)
    for rank in range(3):
        X = draw.normal(size=(400, 3)) / 3
        y = X[:, 0] + 0.1 * draw.normal(size=400)
        np.savez(base / f"classes-{rank}.npz", X=X, y=np.where(y > 0, 1.0, -1.0))
        np.savez(base / f"numbers-{rank}.npz", X=X, y=np.clip(y, -1, 1))
    numbers = ("--task=regression", "--label-range=-1:1")
    cases = {
        "classes": ("--loss=logistic", "--epsilon=20"),
        "numbers": (*numbers, "--epsilon=20"),
        "noise": ("--loss=logistic", "--epsilon=0.02"),
        "numbers-noise": (*numbers, "--epsilon=0.02"),
        "unevaluated": ("--loss=logistic", "--epsilon=1", "--budget=0"),
    }
    for name, flags in cases.items():
        source = f"--data=shards:{base}/{'numbers' if numbers[0] in flags else 'classes'}-{{rank}}.npz"
        assert train(["--loopback=3", source, "--rounds=8", "--delta=1e-4", *flags, f"--out={base / name}"]) == 0
    return base


@pytest.mark.parametrize(("name", "label"), [("classes", "accuracy"), ("numbers", "RMSE")])
def test_the_page_has_the_private_metrics_with_their_errors(privately, name, label):
    text = write_report([privately / name], None).read_text()
    found = json.loads((privately / name / "summary.json").read_text())["private_evaluation"]
    value, error = found["metrics"][label.lower()].values()
    shown = " \u00b1".join(to_two_digits(value, error, "%" if name == "classes" else ""))
    assert f"<span>{label}</span><b>{shown}</b>" in text
    beside = found["metrics"]["majority" if name == "classes" else "r2"]["value"]
    small = f"most frequent class {beside or 0:.1%}; " if name == "classes" else f"R^2 {beside or 0:.3g}; "
    assert f"<small>{'' if beside is None else small}on 120 held-out rows, privately</small>" in text
    assert "<section><h2>Coefficients</h2>" in text  # beside the metrics: there is no calibration
    told = section(text, "How good the model is")
    assert "120 held-out rows of 3 ranks" in told
    for metric, one in found["metrics"].items():
        cells = re.search(rf"<td>{metric.replace('_', ' ')}</td><td>([^<]*)</td><td>\u00b1([^<]*)</td>", told)
        assert (cells is None) == (one["value"] is None), metric
        if cells is not None:
            assert cells.groups() == to_two_digits(**one)


@pytest.mark.parametrize(("name", "label"), [("noise", "accuracy"), ("numbers-noise", "RMSE")])
def test_the_page_says_what_is_not_told_from_noise(privately, name, label):
    text = write_report([privately / name], None).read_text()
    assert f"<span>{label}</span><b>not told from noise</b>" in text
    told_ = section(text, "How good the model is")
    names = json.loads((privately / name / "summary.json").read_text())["private_evaluation"]["metrics"]
    unknown = [metric.replace("_", " ") for metric, one in names.items() if one["value"] is None]
    assert f"<p>Not told from noise: {', '.join(unknown)}.</p>" in told_
    assert label.lower() in unknown
    assert told_.count("<td>") == 3 * (len(names) - len(unknown))
    told = _privately(json.loads((privately / name / "summary.json").read_text())["private_evaluation"])
    assert (label.lower(), "not told from noise") in told


def test_the_page_says_that_nothing_was_evaluated(privately):
    text = write_report([privately / "unevaluated"], None).read_text()
    assert "<span>quality</span><b>not known</b>" in text
    assert "no budget was left for it" in section(text, "How good the model is")


def test_private_metrics_stand_side_by_side(privately, tmp_path):
    text = write_report([privately / "classes", privately / "noise"], tmp_path / "both.html").read_text()
    assert "<th>accuracy, private</th>" in text


def test_a_run_without_a_model_or_metrics_has_a_page(runs, tmp_path):
    shutil.copytree(runs / "ring", tmp_path / "old")
    (tmp_path / "old" / "model.npz").unlink()
    summary = json.loads((tmp_path / "old" / "summary.json").read_text())
    del summary["metrics"]
    (tmp_path / "old" / "summary.json").write_text(json.dumps(summary))
    text = write_report([tmp_path / "old"], None).read_text()
    assert "Coefficients" not in text
    assert "How good the model is" not in text
