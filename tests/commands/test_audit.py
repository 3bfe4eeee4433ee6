"""The audit: what it hears against the truth, every method, and the bugs that it must catch."""

import json
import math
from dataclasses import fields, replace

import needs
import numpy as np
import pytest
from plans import settings_of

from dpmpi.algorithms import ALGORITHMS
from dpmpi.commands.audit import command as audit
from dpmpi.commands.audit import every_method, examination
from dpmpi.commands.audit.figures import compare, numbers_in
from dpmpi.commands.audit.laboratory import LABEL, Canary, Laboratory, Weakened, WeakMechanism, honest, weaken
from dpmpi.commands.audit.listening import project
from dpmpi.commands.audit.one_run import audit_one_run, releases
from dpmpi.commands.audit.statistics import GaussianClaim, certified_claim
from dpmpi.commands.audit.two_worlds import audit_runs
from dpmpi.commands.dispatch import main as command
from dpmpi.core import Query
from dpmpi.errors import ConfigError
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.problem.batches import Batch
from dpmpi.problem.local_problem import LocalProblem
from dpmpi.runtime.settings import Settings

OWN = ["--evaluate", 0, "--allow-large-delta", "--insecure-noise-seed", 1, "--graph", "complete"]


SHARES = ["--exchange", "shares"]
TEN = Canary(10)


def laboratory(*flags, ranks=3, canary=TEN, plant=honest):
    points = ["--data", "mean", "--loss", "mean"] if "one-shot" in flags else ["--loss", "squared"]
    points = [] if {"--loss", "--task"} & set(map(str, flags)) else points
    return Laboratory(settings_of(*OWN, *points, *flags), LoopbackTransport(ranks), canary, plant)


def audited(lab, runs):
    return audit_runs(lab, runs, 0.95, certified_claim(lab.claim, lab.config.delta)).certified


# --- what is heard -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [[], ["--seal"], SHARES, [*SHARES, "--share-mode", "full"]])
@pytest.mark.parametrize("algorithm", ["dp-dda", "dda"])
def test_without_noise_the_gradient_is_heard_whatever_the_exchange(algorithm, flags):
    """The first message is the first gradient: that of the canary, over 10 records."""
    lab = laboratory("--algorithm", algorithm, "--rounds", 4, "--noise", 0, *flags)
    for sign in (1, -1):
        numbers = lab.run(lab.world(sign), 1).numbers(5)
        assert len(numbers) == 4
        assert numbers[0][0] == pytest.approx([sign / 10], abs=1e-9)


@pytest.mark.parametrize(
    ("mode", "colluders", "graph"),
    [("expanded", 0, "complete"), ("full", 2, "complete"), ("expanded", 2, "ring"), ("full", 1, "ring")],
)
def test_of_a_sum_the_canary_and_the_honest_noise_are_heard(mode, colluders, graph):
    """What remains of the noise after the colluders took off their parts has the declared spread."""
    rounds, sigma = 400, 0.05
    flags = ["--exchange", "shares", "--noise-in", "sum", "--share-mode", mode, "--colluders", colluders]
    flags += ["--graph", graph]
    lab = laboratory("--rounds", rounds, "--noise", sigma, *flags, ranks=5)
    for sign in (1, -1):
        heard = np.array(lab.run(lab.world(sign), 1).sent)
        noise = (heard - sign / 10 / math.sqrt(5)).ravel()
        assert abs(noise.mean()) < 5 * sigma / np.sqrt(noise.size)
        assert abs(noise.std() / sigma - 1) < 5 / np.sqrt(2 * noise.size)
    assert {event.noise for event in lab.charged} == {"discrete-gaussian"}


def test_what_cannot_be_shared_cannot_be_audited():
    with pytest.raises(ConfigError, match="expected a graph that stays connected without any 1 ranks"):
        laboratory("--exchange", "shares", "--share-mode", "full", "--graph", "path", "--noise", 1, ranks=5)


def test_the_releases_of_dual_averaging_are_heard_to_the_bit_of_the_noise():
    """Rebuilt from the messages, they are what the mechanism made."""
    made = []

    class Listening(WeakMechanism):
        def perturb(self, value, scale=1.0):
            self.does.perturb(value, scale)
            made.append(value.copy())

    class Noise:
        def __init__(self, honest):
            self.honest = honest

        def mechanism(self, sigma, key, width, ranks):
            inside = self.honest.mechanism(sigma, key, width, ranks)
            return Listening(inside, inside)

        def on(self, graph):
            return Noise(self.honest.on(graph))

        def __getattr__(self, name):
            return getattr(self.honest, name)

    lab = laboratory(
        "--algorithm", "dp-dda", "--rounds", 40, "--noise", 0.7, "--batch", "poisson:3", "--graph", "ring", ranks=4,
        plant=lambda settings: replace(settings, noise=Noise(settings.noise)),
    )  # fmt: skip
    heard = releases(lab, lab.run(lab.world(1), 1))
    np.testing.assert_allclose(heard, [one for one in made if any(np.allclose(one, row) for row in heard)], atol=1e-12)
    assert len(heard) == 40


def test_a_message_of_several_models_is_as_many_numbers():
    assert project(np.arange(4.0), 2) == pytest.approx([1 / math.sqrt(2), 5 / math.sqrt(2)])
    assert project(np.array([1.0, 2.0, 6.0]), 2) == pytest.approx([9 / math.sqrt(3)])
    assert project(np.array([3.0]), 5) == [3.0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_method_is_heard_and_its_ledger_is_what_the_laboratory_reckons(algorithm):
    """Noise aside, the two worlds are mirror images, and one record moves what is said by what is declared at most."""
    lab = laboratory("--algorithm", algorithm, "--rounds", 6, "--epsilon", 1, "--delta", 1e-5, canary=Canary(100))
    plus, minus = (lab.run(lab.world(sign), 5).numbers(5) for sign in (1, -1))
    assert lab.charged == lab.claim
    assert len(plus) == len(minus) > 0
    assert plus[0][0] != minus[0][0]


CLASSES = ["--task", "multiclass", "--classes", "a,b,c", "--loss", "softmax", "--lipschitz", 0.1]
COUNTS = ["--task", "counts", "--label-range", "0:9"]


@pytest.mark.parametrize(
    ("flags", "slopes"),
    [
        (["--loss", "logistic"], [0.5]),
        (["--loss", "hinge"], [1.0]),
        (["--loss", "huber:0.3"], [0.3]),
        (COUNTS, [3.0]),  # clipped to the root of the bound
        (CLASSES, np.array([-2 / 3, 1 / 3, 1 / 3]) / math.sqrt(2 / 3) * 0.1),
    ],
)
def test_a_loss_has_canaries_of_its_own(flags, slopes):
    """The first gradient is the slope at the model 0, of either sign, over 10 records; K numbers for K scores."""
    lab = laboratory("--rounds", 2, "--noise", 0, "--algorithm", "dp-dda", *flags)
    for sign in (1, -1):
        numbers = lab.run(lab.world(sign), 1).numbers(5, len(slopes))
        assert numbers[0][0] == pytest.approx(sign * np.array(slopes) / 10, abs=1e-9)


@pytest.mark.parametrize("flags", [["--loss", "logistic"], CLASSES, COUNTS, ["--task", "regression"]])
@pytest.mark.parametrize(("weaken", "refuted"), [(1, False), (6, True)])
def test_audits_with_the_loss_of_a_run(flags, weaken, refuted, capsys):
    words = ["--loopback", 3, "--rounds", 3, "--epsilon", 1, "--delta", 1e-5, "--runs", 60, "--insecure-noise-seed", 1]
    code = command(["audit", *map(str, [*words, *flags, "--weaken", weaken, "--json", "-"])])
    result = json.loads(capsys.readouterr().out)
    assert (code, result["verdict"].startswith("VIOLATION"), result["ledger_as_planned"]) == (refuted, refuted, True)
    name = {"logistic": "logistic", "softmax": "softmax", "0:9": "poisson", "regression": "squared"}
    assert result["loss"].startswith(next(name[word] for word in flags if word in name))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--task", "multiclass", "--loss", "softmax"],
            "squared, instead of softmax: expected the labels' declaration",
        ),
        (["--one-run", *CLASSES], "squared, instead of softmax: it has several scores"),
        ([], "squared"),
        (["--loss", "logistic"], "logistic, canaries of label -1 with 1 of the clip at the model 0"),
        (
            ["--loss", "logistic", "--lipschitz", 2],
            "logistic, canaries of label -1 with 0.25 of the clip at the model 0",
        ),
    ],
)
def test_the_audit_says_which_loss_it_uses(flags, words):
    parsed = audit.parse_flags([*map(str, flags), "--loopback", "3", "--noise", "1"])
    assert examination.prepare(*parsed).flags.loss.startswith(words)


def test_an_audit_leaves_the_run_alone_whose_settings_it_takes(tmp_path, capsys):
    out = tmp_path / "run"
    words = ["--loopback", 3, "--rounds", 3, "--epsilon", 1, "--loss", "logistic", "--out", out, "--quiet"]
    assert command(["run", *map(str, words)]) == 0
    kept = {path.name: path.stat().st_mtime_ns for path in out.rglob("*")}
    config = str(out / "config.toml")
    assert command(["audit", "--config", config, "--loopback", "3", "--runs", "12", "--insecure-noise-seed", "1"]) == 0
    assert {path.name: path.stat().st_mtime_ns for path in out.rglob("*")} == kept
    assert "loss                 logistic, canaries" in capsys.readouterr().out


# --- audits ------------------------------------------------------------------------------------------------------


def mu_is(mu, rounds, records=10, batch=None):
    """The flag of a noise at which full batches are exactly mu-Gaussian DP."""
    return ["--rounds", rounds, "--noise", math.sqrt(rounds) * 2 / records / mu, "--delta", 1e-5]


FULL = mu_is(1.0, 2)
ONE = ["--rounds", 20, "--batch", 1, "--epsilon", 2, "--delta", 0.01]
POISSON = ["--rounds", 25, "--batch", "poisson:8", "--noise", 1 / 8 / 1.6, "--delta", 0.01]
LOWERED = ["--rounds", 4, "--epsilon", 1, "--delta", 1e-5]
HONEST = {
    "full": (FULL, Canary(10), 300),
    "one record": (ONE, Canary(20, opposed=True), 150),
    "poisson": (POISSON, Canary(200, opposed=True), 300),
    "one epsilon": (LOWERED, Canary(10), 450),
    "sum": ([*FULL, "--exchange", "shares", "--noise-in", "sum"], Canary(10), 150),
    "admm": ([*mu_is(1.0, 4)[:2], "--algorithm", "admm", "--epsilon", 3, "--delta", 1e-5], Canary(10), 150),
}


@pytest.mark.parametrize("name", HONEST)
def test_certified_noise_is_not_caught(name):
    flags, canary, runs = HONEST[name]
    lab = laboratory(*flags, canary=canary)
    assert not audited(lab, runs).refuted
    assert lab.charged == lab.claim


def test_the_bound_of_mu_comes_near_the_truth():
    lab = laboratory(*mu_is(1.0, 4))
    found = audit_runs(lab, 900, 0.95, certified_claim(lab.claim, 1e-5))
    assert found.certified.claim == GaussianClaim(pytest.approx(1.0))
    assert 0.6 < found.mu < 1.0


class Planted:
    """Noise of a run with a bug in its mechanism."""

    def __init__(self, honest, bug):
        self.honest, self.bug = honest, bug

    def mechanism(self, sigma, key, width, ranks):
        made = self.honest.mechanism(sigma, key, width, ranks)
        return self.bug(made, made)

    def on(self, graph):
        return Planted(self.honest.on(graph), self.bug)

    def __getattr__(self, name):
        return getattr(self.honest, name)


class Reused(WeakMechanism):
    """Draws once, and adds the same noise in every round."""

    drawn = None

    def perturb(self, value, scale=1.0):
        if self.drawn is None:
            self.drawn = np.zeros_like(value)
            self.does.perturb(self.drawn, scale)
        value += self.drawn


class ThenClipped(WeakMechanism):
    """Adds the noise to a gradient that nobody clipped, and clips the sum."""

    def perturb(self, value, scale=1.0):
        self.does.perturb(value, scale)
        value /= max(1.0, np.max(np.abs(value)))
        value /= max(1.0, np.linalg.norm(value))


class Unclipped(LocalProblem):
    """Declares the sensitivity of clipped records, and does not clip."""

    def __init__(self, honest):
        super().__init__(honest.rows, honest.labels, honest.loss, Batch("full"), 10 * LABEL, honest.stream)
        self.honest = honest

    def subgradient(self, x):
        declared = self.honest._query
        return Query(super().subgradient(x).value, declared.sensitivity, declared.sampling)


class RealisedSize:
    """Divides a Poisson batch by its realised size instead of the expected one."""

    def __init__(self, honest):
        self.honest, draw = honest, honest.draw
        self.drawn = None

        def remember():
            self.drawn = draw()
            return self.drawn

        honest.draw = remember

    def subgradient(self, x):
        query = self.honest.subgradient(x)
        np.multiply(query.value, query.sampling.expected / max(1, len(self.drawn)), out=query.value)
        return query

    def __getattr__(self, name):
        return getattr(self.honest, name)


class OtherProblem(Settings):
    """Settings of runs with a bug in the problem."""

    def problem(self, rows, labels, stream, weight=1.0, persons=None):
        return type(self).bug(super().problem(rows, labels, stream, weight, persons))


def with_noise(bug):
    return lambda settings: replace(settings, noise=Planted(settings.noise, bug))


def with_problem(bug, noise=None):
    def plant(settings):
        made = type("Bug", (OtherProblem,), {"bug": bug})(
            **{f.name: getattr(settings, f.name) for f in fields(settings)}
        )
        return made if noise is None else with_noise(noise)(made)

    return plant


class Lowered:
    """Noise of which another rank has said that a third is enough."""

    def __init__(self, honest):
        self.honest = honest

    def common(self, levels):
        return [level / 3 for level in self.honest.common(levels)]

    def on(self, graph):
        return Lowered(self.honest.on(graph))

    def __getattr__(self, name):
        return getattr(self.honest, name)


BUGS = {
    "half the noise": (FULL, Canary(10), 300, weaken(2)),
    "a quarter of the noise of a sum": ([*FULL, *SHARES, "--noise-in", "sum"], Canary(10), 300, weaken(4)),
    "noise before clipping": (FULL, Canary(10), 90, with_problem(Unclipped, ThenClipped)),
    "noise reused across rounds": (ONE, Canary(20, opposed=True), 150, with_noise(Reused)),
    "the realised batch size": (POISSON, Canary(200, opposed=True), 600, with_problem(RealisedSize)),
    "noise lowered by another": (
        LOWERED, Canary(10), 450,
        lambda settings: replace(settings, noise=Lowered(settings.noise)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(bug):
    flags, canary, runs, plant = BUGS[bug]
    lab = laboratory(*flags, canary=canary, plant=plant)
    assert audited(lab, runs).refuted


def test_noise_lowered_by_another_is_seen_in_the_ledger_too():
    flags, canary, _, plant = BUGS["noise lowered by another"]
    lab = laboratory(*flags, canary=canary, plant=plant)
    lab.run(lab.world(1), 1)
    [charged], [claimed] = lab.charged, lab.claim
    assert charged.scale == pytest.approx(claimed.scale / 3)


# --- figures -----------------------------------------------------------------------------------------------------


def test_every_number_of_a_text_is_a_figure():
    text = json.dumps([None, {"seconds": 1.5, "name": "abc", "list": [2, True]}])
    assert dict(numbers_in(text)) == {
        "/length": 2, "/0/length": 0, "/1/seconds": 1.5, "/1/name/length": 3, "/1/list/length": 2, "/1/list/0": 2,
        "/1/list/1": 1,
    }  # fmt: skip
    assert list(numbers_in("no json")) == [("length", 7.0)]


def test_a_figure_that_depends_on_the_records_is_found_and_chance_is_not():
    rng = np.random.default_rng(0)
    chance = [{f"f{k}": rng.normal() for k in range(20)} for _ in range(80)]
    assert not compare(chance[:40], chance[40:]).separates(0.99)
    slow = [one | {"seconds": one["f0"] + 3 * (k < 40)} for k, one in enumerate(chance)]
    found = compare(slow[:40], slow[40:])
    assert (found.separates(0.99), found.clearest[0][0], found.count) == (True, "seconds", 21)
    some = [one if k < 40 else {} for k, one in enumerate(slow)]
    assert compare(some[:40], some[40:]).separates(0.99)  # what only one world says is a figure too
    assert not compare([{"a": 1.0}] * 9, [{"a": 1.0}] * 9).separates(0.99)


WHOLE = ["--rounds", 3, "--epsilon", 1, "--delta", 1e-5]


@pytest.mark.parametrize(
    ("flags", "canary"),
    [(["--algorithm", "admm"], Canary(100, leaves=True)), ([], Canary(100, 500, sparse=True, leaves=True))],
)
def test_no_figure_of_the_process_leaves_the_rank(flags, canary):
    """Two shards that differ in one record, whole runs: what is not a message of the rounds is the same in all."""
    found = examination.audit_figures(laboratory(*WHOLE, *flags, canary=canary), 12)
    assert (found.count, found.clearest) == (0, ())


def test_a_released_timing_is_found_in_whole_runs(monkeypatch):
    """A number of steps that depends on the records, in what is told at the closing."""
    from dpmpi.runtime import trainer  # noqa: PLC0415 - the planted bug is in it

    record = trainer.rank_record

    def told(job, seat, *rest):
        steps = np.count_nonzero(job.shards[0].labels) if seat.agent.rank == 0 else 0
        return record(job, seat, *rest) | {"steps": int(steps)}

    monkeypatch.setattr(trainer, "rank_record", told)
    found = examination.audit_figures(laboratory(*WHOLE, canary=Canary(10, leaves=True)), 12)
    assert found.separates(0.99)
    assert found.clearest[0][0].endswith("/steps")


# --- one run -----------------------------------------------------------------------------------------------------


def test_one_run_finds_far_too_little_noise_and_lets_certified_noise_pass():
    flags, canary = ["--algorithm", "dp-dda", "--rounds", 50, "--delta", 1e-5, "--batch", "poisson:4"], Canary(100, 100)
    bare = audit_one_run(laboratory(*flags, "--noise", 0.02, canary=canary, ranks=2), 50, 0.95)
    assert (bare.right, bare.guesses) == (50, 50)
    assert bare.epsilon > 2
    assert audit_one_run(laboratory(*flags, "--epsilon", 1, canary=canary, ranks=2), 50, 0.95).epsilon < 1.0


def test_one_run_catches_half_the_noise():
    """Full batches: every sign is told by one Gaussian pair, of mu twice as large as certified."""
    flags, canary = ["--algorithm", "dp-dda", "--rounds", 2, "--epsilon", 2, "--delta", 1e-5], Canary(600, 600)
    weak = audit_one_run(laboratory(*flags, canary=canary, ranks=2, plant=weaken(2)), 100, 0.95)
    right = audit_one_run(laboratory(*flags, canary=canary, ranks=2), 100, 0.95)
    assert right.epsilon <= 2.0
    assert right.right < weak.right
    assert gdp_mu(2.0, 1e-5) < 1


def test_one_run_is_for_dual_averaging_with_plain_messages():
    for flags in (["--algorithm", "admm"], ["--exchange", "shares"]):
        with pytest.raises(ConfigError, match="expected dual averaging with plain messages for --one-run"):
            audit_one_run(laboratory("--noise", 1, *flags), 5, 0.95)


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command_writes_table_result_and_plot(tmp_path, capsys):
    flags = ["--loopback", 3, "--records", 10, "--rounds", 5, "--noise", 0.001, "--delta", 0.01, "--runs", 30]
    assert command(["audit", *map(str, flags), "--out", str(tmp_path / "a")]) == 0
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["ranks"], result["rounds"], result["trials"], result["batch"]) == (3, 5, 20, "full")
    assert result["certified"] > result["lower"] > 0
    assert result["mu_certified"] > result["mu_lower"] > 1
    assert result["ledger_as_planned"] is True
    shown = capsys.readouterr().out
    assert "certified epsilon" in shown
    assert "all messages that rank 0 sends and receives" in shown
    assert examination.CONSISTENT in shown
    needs.package("matplotlib", "report")
    assert (tmp_path / "a" / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_a_violation_ends_with_code_1(capsys):
    flags = ["--loopback", 2, "--records", 10, *mu_is(1.0, 2), "--runs", 120, "--weaken", 3, "--insecure-noise-seed", 0]
    assert command(["audit", *map(str, flags), "--json", "-"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == examination.VIOLATION
    assert result["mu_lower"] > result["mu_certified"]


def test_a_refuted_claim_is_a_finding_and_ends_with_code_0(capsys):
    flags = ["--loopback", 2, "--records", 200, "--rounds", 200, "--epsilon", 1, "--delta", 0.01, "--runs", 150]
    flags += ["--algorithm", "dp-dda"]
    more = ["--calibration", "theorem", "--batch", 1, "--insecure-noise-seed", 0]
    assert command(["audit", *map(str, flags + more), "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == examination.REFUTED
    assert result["claimed"] == 1 < result["certified"]
    assert result["insecure_noise"] is True


def test_all_methods_are_audited_with_certified_noise_and_with_a_third_of_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        every_method, "methods", lambda plugins: {name: ALGORITHMS[name] for name in ("dda", "pvp-admm")}
    )
    flags = [
        "--all",
        "--runs",
        90,
        "--rounds",
        2,
        "--epsilon",
        5,
        "--insecure-noise-seed",
        3,
        "--json",
        tmp_path / "all.json",
    ]
    assert command(["audit", *map(str, flags)]) == 0
    results = json.loads((tmp_path / "all.json").read_text())
    told = [(one["algorithm"], one["weakened"], one["verdict"].startswith("VIOLATION")) for one in results]
    assert told == [("dda", 1, False), ("dda", 3, True), ("pvp-admm", 1, False), ("pvp-admm", 3, True)]
    shown = capsys.readouterr().out
    assert "| `dda` | 1/3 |" in shown
    assert "tight: spherical Laplace noise" in shown


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--noise", "1", "--data", "synthetic"], "--data does not apply to an audit"),
        (["--rounds", "5"], "give --epsilon and --delta, or --noise"),
        (["--noise", "1", "--runs", "3"], "--runs must be at least 12, got 3"),
        (["--noise", "1", "--confidence", "1"], "--confidence must be in"),
        (["--noise", "1", "--weaken", "0"], "--weaken must be greater than 0"),
        (["--noise", "1", "--one-run", "--canaries", "2000"], "expected --guesses <= --canaries <= --records"),
        (["--noise", "1", "--one-run", "--figures"], "give --one-run or --figures"),
        (["--noise", "1", "--loopback", "1"], "the audit reads a wire"),
        (["--noise", "1", "--loopback", "2", "--batch", "fixed:2000"], "at most the 100 records"),
        (["--noise", "1", "--runz", "3"], "unknown flag --runz"),
        (["--all", "--algorithm", "dda"], "--algorithm does not apply to --all"),
        (["--all", "--one-run"], "--all audits two worlds"),
    ],
)
def test_wrong_flags_are_one_line_and_exit_code_2(flags, expected, capsys):
    assert command(["audit", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line


def test_a_result_that_could_not_be_written_is_refused_before_the_runs():
    with pytest.raises(ConfigError, match="--json: expected a file in a folder that is there"):
        audit.main(["--records", "10", "--runs", "12", "--noise", "1", "--json", "/nowhere/at/all.json"])


# --- noise that cancels between neighbours -------------------------------------------------------------------------

PAIRS = ["--noise-in", "pairs", "--pair-noise", 3, "--seal"]


class NoPairs(WeakMechanism):
    """A mechanism that is priced as hidden by the pairs, and leaves their noise out."""

    def __init__(self, whole):
        super().__init__(whole, whole)
        whole._pairs = {}


class WithoutPairs(Weakened):
    """Noise of such mechanisms."""

    def __init__(self, honest):
        super().__init__(honest, 1.0)

    def mechanism(self, *args):
        return self._honest.mechanism(*args)

    def paired(self, mechanism, key, seat):
        return NoPairs(self._honest.paired(mechanism, key, seat))

    def on(self, graph):
        return WithoutPairs(self._honest.on(graph))


def without_pairs(settings):
    return replace(settings, noise=WithoutPairs(settings.noise))


def paired(plant=honest, colluders=1, rounds=6, graph="complete"):
    flags = ["--rounds", rounds, "--epsilon", 12, "--delta", 1e-5, *PAIRS, "--colluders", colluders, "--graph", graph]
    return laboratory(*flags, ranks=4, plant=plant)


@pytest.mark.parametrize("graph", ["complete", "ring"])
def test_colluders_see_what_the_pairs_do_not_hide(graph):
    """Of one round: what is left of the combination without the known noise has the certified deviation."""
    lab, runs = paired(rounds=1, graph=graph), 400
    numbers = [lab.run(lab.world(sign), seed).numbers(5) for seed in range(runs) for sign in (1, -1)]
    known, own_known, x, own = np.array([one[0][0] for one in numbers]).T
    signs = np.tile([1.0, -1.0], runs)
    left = x - known - signs / 10
    assert abs(left.std() / lab.sigma - 1) < 5 / math.sqrt(2 * runs)  # the worlds share their noise
    assert own_known.std() > 1.5 * lab.sigma / lab.settings.noise.on(lab.plan.schedule.graph).known_gain
    assert own.std() > x.std() > (x - known).std()


def test_certified_noise_of_pairs_is_not_refuted_and_the_attack_is_sharp():
    found = audit_runs(lab := paired(), 240, 0.95, certified_claim(lab.claim, lab.config.delta))
    assert not found.certified.refuted
    assert found.mu > 0.5 * found.certified.claim.mu


@pytest.mark.parametrize("plant", [weaken(3), without_pairs])
def test_noise_of_pairs_that_is_missing_is_refuted(plant):
    assert audited(paired(plant, colluders=0 if plant is without_pairs else 1), 150).refuted


def test_an_audit_says_who_listens(capsys):
    words = ["audit", "--loopback", "3", "--rounds", "2", "--runs", "12", "--epsilon", "1", "--delta", "1e-5"]
    words += [*map(str, PAIRS), "--colluders", "1", "--graph", "complete"]
    assert command(words) == 0
    assert "all messages of all ranks, with the secrets of 1 colluder\n" in capsys.readouterr().out
