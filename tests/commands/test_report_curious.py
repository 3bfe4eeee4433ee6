"""The section of a report about curious ranks: its figures are the plan's, or it says why they are the wire's."""

import csv
import json
import re

import pytest

from dpmpi.commands.dispatch import main
from dpmpi.commands.report import drawing
from dpmpi.commands.report.command import write_report
from dpmpi.errors import ConfigError
from dpmpi.run import main as train

FLAGS = [
    "--data=synthetic:samples=600,features=4", "--rounds=120", "--loss=logistic", "--batch=full", "--epsilon=1",
    "--seal", "--allow-large-delta", "--intercept=none",
]  # fmt: skip
DGD = ["--algorithm=dgd", "--step-decay=constant", "--penalty=l2:0.001"]
HEADING = "What a curious rank learns"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    kinds = {"dgd": [*DGD, "--no-evaluate"], "dda": ["--algorithm=dp-dda", "--gamma=30", "--no-evaluate"], "seen": DGD}
    kinds["pairs"] = ["--algorithm=dp-dda", "--noise-in=pairs", "--no-evaluate"]
    for name, more in kinds.items():
        assert train([*FLAGS, *more, "--loopback=6", f"--out={folder / name}", "--quiet"]) == 0
    return folder


@pytest.fixture(autouse=True)
def fewer_files(monkeypatch):
    monkeypatch.setattr(drawing, "FORMATS", ("svg",))


def page_of(run, out, who=None):
    return write_report([run], out / "report.html", who).read_text()


def section(html):
    return html.split(HEADING, 1)[1].split("</section>")[0]


def test_figures_are_those_of_the_plan(runs, tmp_path, capsys):
    html = section(page_of(runs / "dgd", tmp_path, "0,1"))
    assert "and against the models at the end" in html
    assert "Ranks 0, 1 together, rank by rank" in html
    with (tmp_path / "plots/curious.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 * 5
    words = ["plan", "--json", "--ranks=6", f"--config={runs / 'dgd/config.toml'}", "--curious=2"]
    assert main(words) == 0
    (one,) = json.loads(capsys.readouterr().out)["curious"]["sets"]
    for row in rows:
        if row["curious"] == "2":
            rank = int(row["rank"])
            assert int(row["hops"]) == one["hops"][rank]
            assert float(row["epsilon"]) == pytest.approx(one["epsilon"][rank], rel=1e-6)
            assert float(row["epsilon_of_messages"]) == pytest.approx(one["epsilon_of_messages"][rank], rel=1e-6)
            assert float(row["epsilon"]) <= float(row["wire"])
    tips = re.findall(r"<title>rank (\d) against rank (\d): epsilon ([\d.]+), hops (\d)</title>", html)
    assert len(tips) == 30
    assert {epsilon for _, _, epsilon, hops in tips if hops == "1"} == {"1"}
    assert max(float(epsilon) for _, _, epsilon, hops in tips if hops == "3") < 0.6


def test_models_of_dual_averaging_are_not_covered(runs, tmp_path):
    html = section(page_of(runs / "dda", tmp_path))
    assert "without the models at the end" in html
    assert html.index("Not covered: the models at the end") < html.index("<figure>")


def test_a_run_that_does_not_qualify_says_why(runs, tmp_path):
    html = section(page_of(runs / "seen", tmp_path))
    assert "as much as who hears every message, epsilon 1, for these reasons." in html
    assert "Evaluations tell all ranks more than messages (<code>--evaluate</code> 0)." in html
    assert not (tmp_path / "plots/curious.csv").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda summary: summary.update(starts=2), "The run was resumed"),
        (lambda summary: summary.update(lost=[6]), "Ranks were lost on the way"),
        (lambda summary: summary["per_rank"][1].update(stopped=7), "budget was spent spoke without noise"),
    ],
)
def test_accidents_leave_the_wire(runs, tmp_path, change, why):
    run = tmp_path / "run"
    (run / "metrics").mkdir(parents=True)
    (run / "config.toml").write_text((runs / "dgd/config.toml").read_text())
    summary = json.loads((runs / "dgd/summary.json").read_text())
    change(summary)
    (run / "summary.json").write_text(json.dumps(summary))
    assert why in section(page_of(run, tmp_path))


def test_more_curious_ranks_than_shared_noise_is_made_for_have_no_figure(runs, tmp_path):
    assert "as much as who hears every message" in section(page_of(runs / "pairs", tmp_path))
    html = section(page_of(runs / "pairs", tmp_path, "2,4"))
    assert "2 curious ranks take off their part of the noise" in html
    assert "nothing is proven of what they learn" in html
    assert "as much as who hears every message" not in html


def test_nothing_is_said_of_a_run_that_is_not_private(runs, tmp_path):
    assert train([*FLAGS[:3], "--loopback=3", "--quiet", f"--out={tmp_path / 'open'}"]) == 0
    assert HEADING not in page_of(tmp_path / "open", tmp_path)


def test_ranks_that_are_none_are_refused(runs, tmp_path):
    with pytest.raises(ConfigError, match="for --curious, found '6'"):
        page_of(runs / "dgd", tmp_path, "6")


def test_curious_ranks_are_of_one_run(runs, capsys):
    assert main(["report", str(runs / "dgd"), str(runs / "dda"), "--curious", "1"]) == 2
    assert "expected one run with --curious, found 2 paths" in capsys.readouterr().err
