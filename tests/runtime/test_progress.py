"""What is shown of a run: on a terminal, in a log, to programs; and the privacy spent so far."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios
from collections import Counter
from itertools import pairwise

import pytest
from plans import plan_of, settings_of

from dpmpi.errors import ConfigError
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.filters import filter_epsilon
from dpmpi.run import main as run
from dpmpi.runtime.evaluation import Evaluation
from dpmpi.runtime.flags import parse
from dpmpi.runtime.live_epsilon import Before, LiveEpsilon
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.output import progress as showing
from dpmpi.runtime.output.progress import Figures, Progress, in_bytes, in_rate, in_time, watch


def planned(flags="", records=(400,) * 4):
    return plan_of(settings_of("--algorithm", "dp-dda", "--rounds", 1000, *flags.split()), records, 50)


class Clock:
    """A made-up time, in place of the module's."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(showing, "time", made)
    return made


EVALUATED = Evaluation(500, 0.36227, 0.9265, 0.9255, 0.1, None, None)


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    """At most one every 2 s, after five minutes one every 30 s, and no carriage returns."""
    facts = planned("--epsilon 1")
    live = LiveEpsilon(facts, noise_levels(facts))
    spoken = []
    with watch(facts, shown=True, live=live) as progress:
        for done in range(1, 1001):
            clock.now += 1.0
            if done == 500:
                progress.note(EVALUATED, optimum=0.36)
            progress.update(done)
            line = capsys.readouterr().err
            assert "\r" not in line
            if line:
                spoken.append((done, line))
    times = [done for done, _ in spoken]
    assert times[:3] == [2, 4, 6]
    assert max(b - a for a, b in pairwise(times)) <= 30
    assert min(b - a for a, b in pairwise(times) if a >= 300) == 30
    done, line = spoken[-1]
    assert line == (
        f"round {done}/1000  1 rounds/s  objective 0.36227  suboptimality 2.27e-03  accuracy 0.9265  "
        f"epsilon {live.epsilon(done):.3g} of 1  {done * 8 * 416 / 1e6:.3g} MB sent  {1000 - done} s left\n"
    )
    assert 0.9 < live.epsilon(done) < 1.0


@pytest.mark.parametrize(("rows", "columns"), [(30, 0), (0, 0), (0, 80), (30, 60)])
def test_a_bar_fits_its_terminal_also_where_that_says_no_size(rows, columns, monkeypatch):
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.set_blocking(reader, False)
    with open(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with watch(planned("--epsilon 1"), shown=True, completed=400) as progress:
            progress._bar.refresh()
            terminal.flush()
            shown = os.read(reader, 4096).decode()
    os.close(reader)
    last = [part for part in shown.split("\r") if part.strip()][-1]
    assert last.startswith("round 400/1000 |")
    assert len(last.rstrip()) <= (columns or 80)


def test_a_terminal_gets_one_line(clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    facts = planned("--epsilon 1")
    with watch(facts, shown=True, completed=400, live=LiveEpsilon(facts, noise_levels(facts))) as progress:
        for done in range(401, 600):
            clock.now += 0.5
            if done == 500:
                progress.note(EVALUATED, optimum=None)
            progress.update(done)
        progress._bar.refresh()
    shown = terminal.getvalue()
    assert "\n" not in shown
    last = [part for part in shown.split("\r") if part.strip()][-1]
    assert last.lstrip("\r").startswith("round 599/1000 |")
    assert re.search(r", 2 rounds/s  objective 0\.36227  accuracy 0\.9265  epsilon 0\.\d+ of 1  \d\.\d+ MB sent", last)


def test_the_pace_of_a_run_that_goes_on_is_its_own(clock, capsys):
    """400 rounds were done before: 100 in 10 s are 10 a second, and the other 500 take 50 s."""
    with watch(planned("--noise 1"), shown=True, completed=400) as progress:
        clock.now += 10.0
        progress.update(500)
    assert capsys.readouterr().err == "round 500/1000  10 rounds/s  1.66 MB sent  50 s left\n"


def test_others_and_quiet_runs_are_silent(clock, capsys):
    for facts, shown in ((planned(), False), (planned("--quiet"), True), (planned("--log-json"), False)):
        with watch(facts, shown=shown) as progress:
            assert list(progress.pieces(0, 1000)) == [1000]
            clock.now += 100.0
            progress.note(EVALUATED, None)
            progress.update(1000)
    assert capsys.readouterr() == ("", "")


def test_pieces_cover_all_rounds_and_take_a_fraction_of_a_second(clock):
    progress, ends, before = Progress(1000, shown=True), [], 0
    for end in progress.pieces(0, 1000):
        clock.now += 0.01 * (end - before)
        ends.append(end)
        before = end
    assert ends[-1] == 1000
    sizes = [b - a for a, b in zip([0, *ends], ends, strict=False)]
    assert sizes[0] == 1
    assert max(sizes) <= 25  # of 0.01 s each: a quarter of a second


FLAGS = "--loopback 3 --data synthetic:samples=90,features=4 --rounds 8 --evaluate 4 --noise 1 --reference"


def test_json_for_programs(tmp_path, capsys):
    assert run([*FLAGS.split(), "--log-json", "--out", str(tmp_path / "run")]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["type"] for each in told] == ["start", "evaluation", "evaluation", "end"]
    start, first, _, end = told
    assert (start["ranks"], start["rounds"], start["dimension"], start["completed"]) == (3, 8, 5, 0)
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    metrics = (tmp_path / "run" / "metrics" / "rank-000.jsonl").read_text().splitlines()
    assert first["round"] == 4
    assert first["objective"] == json.loads(metrics[0])["objective"]
    assert first["suboptimality"] == first["objective"] - found["optimum"]
    assert first["bytes"] == found["communication"]["bytes"] / 2
    assert first["epsilon"] > 0
    assert end["results"] == start["results"] == str(tmp_path / "run")
    for name, value in (("objective", found["objective"]), ("epsilon", found["privacy"]["epsilon"])):
        assert end[name] == value
    assert end["bytes"] == found["communication"]["bytes"]


def test_quiet_runs_say_where_the_results_are(tmp_path, capfd):
    assert run([*FLAGS.split(), "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert capfd.readouterr() == (f"{tmp_path / 'run'}\n", "")


def test_how_a_run_is_watched_is_no_part_of_it():
    base = parse([])
    for flag in ("--quiet", "--log-json"):
        assert parse([flag]).digest() == base.digest()
        assert parse([flag]).to_toml() == base.to_toml()
    with pytest.raises(ConfigError, match="not both"):
        parse(["--quiet", "--log-json"])


def test_a_figure_that_is_not_finite_is_null(capsys):
    progress = Progress(9, shown=True, as_json=True)
    progress.note(Evaluation(1, float("inf"), float("nan"), None, 0.0, None, None), None)
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["objective"] is told["accuracy"] is None


def spending(facts, sigmas, rank, done):
    """What a rank has charged after `done` rounds of a method that releases once in each of its active rounds."""
    [(event, _)] = facts.releases(facts.terms(rank), sigmas[rank])
    active = sum(1 for _ in facts.schedule.rounds(rank, 1, done + 1))
    return Counter({event: active})


@pytest.mark.parametrize("flags", ["", "--algorithm sampled-dda --graph complete"])
def test_the_live_epsilon_shows_the_worst_rank(flags):
    facts = planned(f"--noise 0.5 {flags}", records=(400, 90, 400, 200))
    live = LiveEpsilon(facts, [0.5] * 4)
    for done in (1, 37, 1000):
        worst = max(certified_epsilon(spending(facts, [0.5] * 4, rank, done), 1e-5) for rank in range(4))
        assert live.epsilon(done) == pytest.approx(worst, rel=1e-12)
    assert live.budget is None


def test_sampled_batches_have_an_upper_bound_below_the_target():
    facts = planned("--epsilon 1 --batch 20", records=(400,) * 3)
    sigmas = noise_levels(facts)
    live = LiveEpsilon(facts, sigmas)
    for done in (100, 1000):
        certified = certified_epsilon(spending(facts, sigmas, 0, done), 1e-5)
        assert certified <= live.epsilon(done) <= 1.0
    assert live.epsilon(100) < live.epsilon(300)
    assert live.budget == 1.0


def test_what_was_really_charged_counts_too():
    """A run that went on after a failure has charged more than planned."""
    facts = planned("--noise 0.5")
    [(event, _)] = facts.releases(facts.terms(0), 0.5)
    charged = Counter({event: 150})
    live = LiveEpsilon(facts, [0.5] * 4, lambda: [charged])
    assert live.epsilon(100) == pytest.approx(certified_epsilon(charged, 1e-5))
    assert live.epsilon(200) == pytest.approx(certified_epsilon(Counter({event: 200}), 1e-5))


def test_a_budget_is_what_a_rank_may_spend():
    facts = planned("--noise 0.5 --budget 0.3")
    live = LiveEpsilon(facts, [0.5] * 4)
    assert live.budget == 0.3
    assert live.epsilon(1000) == 0.3  # the ranks have stopped
    assert LiveEpsilon(planned("--noise 0"), [0.0] * 4).epsilon(10) is None


def test_earlier_runs_count_against_the_budget(tmp_path, capsys):
    words = ["--loopback=3", "--data=synthetic:samples=600,features=4", "--rounds=40", "--evaluate=20", "--log-json"]
    words += ["--loss=logistic", "--epsilon=0.5", "--budget=0.65", f"--ledger={tmp_path / 'ledger'}"]
    for name in ("one", "two", "three"):
        assert run([*words, f"--out={tmp_path / name}"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        shown = [one["epsilon_with_earlier_runs"] for one in told if one["type"] in ("evaluation", "end")]
        ranks = json.loads((tmp_path / name / "summary.json").read_text())["per_rank"]
        if name == "one":
            assert shown == [None] * 3
            continue
        spent = max(record["epsilon_with_earlier_runs"] for record in ranks)
        assert shown[-1] == spent <= 0.65
        assert 0.5 < shown[0] <= shown[1] <= 0.65
        assert shown[1] == pytest.approx(spent, rel=0.02)  # the filter stops before a release that would go beyond
        assert {one["budget_of_all_runs"] for one in told if one["type"] == "evaluation"} == {0.65}


def test_the_line_and_the_table_show_all_runs(tmp_path, capsys):
    words = ["--loopback=3", "--data=synthetic:samples=600,features=4", "--rounds=20", "--no-evaluate"]
    words += ["--loss=logistic", "--epsilon=0.5", f"--ledger={tmp_path / 'ledger'}"]
    for name in ("one", "two"):
        assert run([*words, "--budget=0.9", f"--out={tmp_path / name}"]) == 0
        text = capsys.readouterr().out
        assert ("with earlier runs" in text) == (name == "two")
    spent = json.loads((tmp_path / "two" / "summary.json").read_text())["per_rank"][0]["epsilon_with_earlier_runs"]
    assert f"with earlier runs epsilon {spent:.4g} of the budget 0.9" in text
    figures = Figures(3, 9, epsilon=0.2, budget=0.5, epsilon_with_earlier_runs=0.6, budget_of_all_runs=0.9)
    assert "epsilon 0.6 of 0.9 with earlier runs, 0.2 in this one" in figures.line()
    figures.budget_of_all_runs = None
    assert "epsilon 0.2 of 0.5, 0.6 with earlier runs" in figures.line()


def test_the_rank_that_has_spent_most_in_all_runs_is_shown():
    facts = planned("--noise 0.5")
    [(event, _)] = facts.releases(facts.terms(0), 0.5)
    before = [Before(Counter({event: k}), 8, 50.0) for k in (10, 0, 300, 20)]
    live = LiveEpsilon(facts, [0.5] * 4, before=before)
    assert live.with_earlier_runs(100) == (pytest.approx(filter_epsilon({event: 400}, 1e-5, 8)), 50.0)
    spent = LiveEpsilon(facts, [0.5] * 4, before=[Before(Counter({event: 300}), 8, 0.1)] * 4)
    assert spent.with_earlier_runs(100)[0] == pytest.approx(filter_epsilon({event: 300}, 1e-5, 8))
    assert LiveEpsilon(facts, [0.5] * 4).with_earlier_runs(100) == (None, None)


def test_figures_for_people():
    paces = {0.0123: "0.0123", 1: "1", 99.94: "99.9", 99.97: "100", 364.4: "364", 1139.6: "1,140", 1234567: "1,230,000"}
    assert [in_rate(pace) for pace in paces] == [f"{told} rounds/s" for told in paces.values()]
    assert [in_bytes(n) for n in (0, 999, 8_320_000, 2.5e9, 7e12)] == [
        "0 bytes",
        "999 bytes",
        "8.32 MB",
        "2.5 GB",
        "7 TB",
    ]
    assert [in_time(s) for s in (0.4, 99, 100, 3599, 7500)] == ["0 s", "99 s", "2 min", "60 min", "2 h 05 min"]


def test_the_table_has_the_pace_as_people_write_it(tmp_path, capsys):
    assert run([*FLAGS.split(), "--out", str(tmp_path / "run")]) == 0
    pace = json.loads((tmp_path / "run" / "summary.json").read_text())["rounds_per_second"]
    assert f"({in_rate(pace)})\n" in capsys.readouterr().out
