"""The audit: its statistics against oracles, its tap against the truth, and the bugs that it must catch."""

import json
import math
from dataclasses import replace

import needs
import numpy as np
import pytest
from scipy import stats

from dpmpi.commands.audit import command as audit
from dpmpi.commands.audit.statistics import (
    Rule,
    Signal,
    choose_rule,
    clopper_pearson,
    epsilon_from_rates,
    likelihood,
    one_run_bound,
    one_run_p_value,
    scores,
    two_world_bound,
)
from dpmpi.commands.audit.wire import LABEL, Laboratory, audit_one_run, audit_runs, canary_shard
from dpmpi.commands.dispatch import main as command
from dpmpi.core import Query
from dpmpi.errors import ConfigError
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.gdp import gdp_epsilon, gdp_mu
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.problem.local_problem import LocalProblem
from dpmpi.problem.losses import LOSSES
from dpmpi.rng import PrivateStream
from dpmpi.runtime.config import Config
from dpmpi.runtime.settings import Settings

# --- statistics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.9, 0.975])
@pytest.mark.parametrize(("k", "n"), [(0, 150), (1, 20), (7, 30), (149, 150), (150, 150)])
def test_clopper_pearson_inverts_the_binomial_tails(k, n, confidence):
    lower, upper = clopper_pearson(k, n, confidence)
    assert lower == pytest.approx(0) if k == 0 else stats.binom.sf(k - 1, n, lower) == pytest.approx(1 - confidence)
    assert upper == pytest.approx(1) if k == n else stats.binom.cdf(k, n, upper) == pytest.approx(1 - confidence)
    two_sided = stats.binomtest(k, n).proportion_ci(2 * confidence - 1, method="exact")
    assert (lower, upper) == pytest.approx((two_sided.low, two_sided.high))


def test_no_false_alarm_gives_the_rule_of_three():
    assert clopper_pearson(0, 1000, 0.95)[1] == pytest.approx(3 / 1000, rel=0.005)


def test_epsilon_from_exact_rates_reaches_the_epsilon_of_gaussian_dp():
    """With the true rates, the best threshold of the best test gives epsilon(delta) itself."""
    mu, delta = 1.3, 0.01
    cuts = np.linspace(-3, 6, 4000)
    found = epsilon_from_rates(stats.norm.sf(cuts - mu), stats.norm.sf(cuts), delta)
    assert found.max() == pytest.approx(gdp_epsilon(mu, delta), abs=1e-5)
    assert epsilon_from_rates(0.009, 1e-9, delta) == 0.0


def test_likelihood_is_the_ratio_of_the_mixture_densities():
    rng = np.random.default_rng(0)
    r = rng.normal(size=(7, 3))
    for signal in (Signal(-1.0, 0.6, 0.0, 0.2, 0.5), Signal(0.0, 0.3, -0.3, 0.05, 0.4), Signal(0.0, 0.3, -0.3, 1, 0.4)):

        def density(shift, signal=signal):
            absent = stats.norm.pdf(r, signal.base, signal.sigma)
            return (1 - signal.rate) * absent + signal.rate * stats.norm.pdf(r, signal.base + shift, signal.sigma)

        expected = np.log(density(signal.plus) / density(signal.minus)).sum(axis=0)
        np.testing.assert_allclose(likelihood(r, signal), expected, rtol=1e-10)


def test_noise_that_never_changes_drops_out_of_the_distance_from_the_median():
    hits = np.array([0, 0, 1.0, 0, 0, 1.0, 0])
    signal = Signal(0.0, 1.0, -1.0, 0.2, 5.0)
    name = "distance from the median"
    assert scores(hits + 17.3, signal)[name] == pytest.approx(2)
    assert scores(-hits + 17.3, signal)[name] == pytest.approx(-2)


def test_the_rule_takes_the_score_that_sees_and_cuts_in_the_middle_of_the_gap():
    rng = np.random.default_rng(1)
    blind, near = rng.normal(size=(2, 60)), rng.normal(size=(2, 60))
    rule = choose_rule({"blind": blind[0], "sees": near[0] + 50}, {"blind": blind[1], "sees": near[1]}, 0.01, 0.95)
    assert (rule.score, rule.sign) == ("sees", 1)
    assert rule.threshold == pytest.approx((np.min(near[0]) + 50 + np.max(near[1])) / 2)
    assert (rule.count(near[0] + 50), rule.count(near[1])) == (60, 0)


def test_the_rule_takes_the_direction_in_which_the_worlds_differ():
    """One world is rarely far down and never far up: only the other direction has an event that it alone shows."""
    rng = np.random.default_rng(2)
    minus = np.where(rng.random(400) < 0.3, -40.0, 0.0) + rng.normal(size=400)
    rule = choose_rule({"s": rng.normal(size=400)}, {"s": minus}, 0.01, 0.95)
    assert rule.sign == -1
    assert 5 < rule.threshold < 40
    assert Rule("s", -1, 20.0).count(minus) == np.count_nonzero(minus < -20)


def test_the_bound_holds_as_often_as_it_says():
    """Of many audits of a mechanism with known epsilon, at most 1 - confidence may exceed it; none may be far off."""
    mu, delta, rng = 1.5, 0.01, np.random.default_rng(2)
    truth = gdp_epsilon(mu, delta)
    found = []
    for _ in range(200):
        plus, minus = ({"s": rng.normal(shift, 1, 200)} for shift in (mu, 0.0))
        found.append(two_world_bound(plus, minus, delta, 0.8).epsilon)
    assert np.mean(np.array(found) > truth) < 0.2
    assert np.max(found) > 0.6 * truth


def test_one_run_without_delta_is_a_binomial_test():
    accuracy = 1 / (1 + math.exp(-1.2))
    assert one_run_p_value(100, 60, 50, 1.2, 0.0) == pytest.approx(stats.binom.sf(49, 60, accuracy))
    assert one_run_bound(100, 100, 100, 0.0, 0.95) == pytest.approx(-math.log(0.05 ** (-1 / 100) - 1), abs=1e-6)
    assert one_run_bound(100, 100, 50, 0.0, 0.95) == 0.0


def test_one_run_with_delta_is_the_published_formula():
    """The loop of the paper's appendix, with scipy's binomial."""
    m, r, v, epsilon, delta = 300, 120, 110, 0.7, 1e-4
    accuracy = 1 / (1 + math.exp(-epsilon))
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, accuracy)
        alpha = max(alpha, total / i)
    expected = stats.binom.sf(v - 1, r, accuracy) + alpha * delta * 2 * m
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)
    assert one_run_bound(m, r, v, delta, 0.95) < one_run_bound(m, r, v, 0.0, 0.95)


def test_one_run_bound_holds_for_randomised_response():
    """Randomised response is the epsilon-DP mechanism that (3) is tight for."""
    epsilon, m, rng = 1.0, 200, np.random.default_rng(3)
    right = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), 300)
    bounds = [one_run_bound(m, m, int(v), 0.0, 0.9) for v in set(right.tolist())]
    exceeded = np.mean([one_run_bound(m, m, int(v), 0.0, 0.9) > epsilon for v in right])
    assert 0.02 < exceeded < 0.14
    assert max(bounds) > 0.8


def test_more_right_guesses_than_guesses_are_refused():
    with pytest.raises(ConfigError, match="expected right <= guesses <= canaries"):
        one_run_p_value(10, 5, 6, 1.0, 0.0)


def lab(config, transport, records, **planted):
    return Laboratory(Settings.of(replace(config, loss="squared")), transport, records, **planted)


# --- the tap -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["dp-dda", "dda", "sampled-dda"])
@pytest.mark.parametrize("graph", ["ring", "star"])
def test_without_noise_the_wire_tells_the_gradients(algorithm, graph):
    config = Config(algorithm=algorithm, rounds=60, noise=0.0, batch="full", graph=graph, insecure_noise_seed=1)
    laboratory = lab(config, LoopbackTransport(5), 10)
    for sign in (1, -1):
        releases = laboratory.run(*canary_shard(10, sign, False), 2)
        assert len(releases) == laboratory.plan.active[0] > 5
        np.testing.assert_allclose(releases, np.tile([sign / 10, 0.0], (len(releases), 1)), atol=1e-12)
        opposed = laboratory.run(*canary_shard(10, sign, True), 1)
        np.testing.assert_allclose(opposed, (sign - 9) / 10, atol=1e-12)


def test_the_wire_tells_every_release_to_the_bit_of_the_noise():
    """The releases that come off the wire are those that the mechanism made, whatever the batch."""
    made = []

    class Listening:
        hides = False

        def __init__(self, inside):
            self.inside, self.sigma = inside, inside.sigma
            self.event, self.prepare = inside.event, inside.prepare

        def perturb(self, value, scale=1.0):
            self.inside.perturb(value, scale)
            made.append(value.copy())

    config = Config(rounds=40, noise=0.7, batch="poisson:3", insecure_noise_seed=5)
    seats = iter(range(4))

    def mechanism(plan, sigma, key):
        inside = plan.mechanism(sigma, key)
        return Listening(inside) if next(seats) == 0 else inside

    laboratory = lab(config, LoopbackTransport(4), 20, make_mechanism=mechanism)
    releases = laboratory.run(*canary_shard(20, 1, False), 2)
    np.testing.assert_allclose(releases, np.array(made), atol=1e-12)
    assert len(laboratory.recorder.charged) == 40
    [event] = laboratory.recorder.spending()
    assert (event.scale, event.sensitivity, event.sampling.kind) == (0.7, 2 / 3, "poisson")


# --- audits ------------------------------------------------------------------------------------------------------


def examine(config, records, runs, opposed=False, **planted):
    """(lower bound, certified epsilon) of an audit of two agents."""
    laboratory = lab(config, LoopbackTransport(2), records, **planted)
    found = audit_runs(laboratory, runs, opposed=opposed)
    return found.bound.epsilon, spent_epsilon(laboratory.recorder.spending(), config.delta)


FULL = Config(rounds=2, epsilon=2.0, delta=0.01, batch="full", allow_large_delta=True, insecure_noise_seed=0)
ONE = Config(rounds=60, epsilon=2.0, delta=0.01, batch="1", allow_large_delta=True, insecure_noise_seed=0)
POISSON = Config(
    rounds=100, noise=1 / 20 / 1.6, delta=0.01, batch="poisson:20", allow_large_delta=True, insecure_noise_seed=0
)


@pytest.mark.parametrize(
    ("config", "records", "runs", "opposed"),
    [(FULL, 10, 600, False), (ONE, 20, 100, True), (POISSON, 2000, 60, True), (POISSON, 2000, 60, False)],
)
def test_certified_noise_is_not_caught(config, records, runs, opposed):
    lower, certified = examine(config, records, runs, opposed)
    assert certified <= (config.epsilon or 1.5)
    assert lower <= certified


def test_far_too_little_noise_is_measured_as_far_as_the_runs_allow():
    config = replace(FULL, epsilon=None, noise=1e-3)
    lower, certified = examine(config, 10, 60)
    hit, _ = clopper_pearson(30, 30, 0.975)
    _, false = clopper_pearson(0, 30, 0.975)
    assert lower == pytest.approx(math.log((hit - 0.01) / false))
    assert certified > 1000


def test_the_bound_comes_near_the_truth():
    """Two releases of sensitivity 2L/q with noise for mu = 1: the two worlds are exactly a mu-Gaussian pair."""
    truth = gdp_epsilon(1.0, 0.01)
    config = replace(FULL, epsilon=None, noise=math.sqrt(2) * 0.2)
    lower, certified = examine(config, 10, 1000)
    assert certified == pytest.approx(truth)
    assert 0.4 * truth < lower < truth


class HalfNoise:
    """Says sigma, adds half of it."""

    hides = False

    def __init__(self, plan, sigma, key):
        self.honest, self.half = plan.mechanism(sigma, key), plan.mechanism(sigma / 2, key)
        self.sigma, self.event = sigma, self.honest.event
        self.perturb, self.prepare = self.half.perturb, self.half.prepare


class ReusedNoise(HalfNoise):
    """Draws once, and adds the same noise in every round."""

    def __init__(self, plan, sigma, key):
        super().__init__(plan, sigma, key)
        self.noise = np.zeros(plan.width)
        self.honest.perturb(self.noise)
        self.perturb = self.add

    def add(self, value, scale=1.0):
        value += self.noise


class NoiseThenClip(HalfNoise):
    """Adds the noise to a gradient that nobody clipped, and clips the sum."""

    def __init__(self, plan, sigma, key):
        super().__init__(plan, sigma, key)
        self.perturb = self.add_and_clip

    def add_and_clip(self, value, scale=1.0):
        self.honest.perturb(value, scale)
        value /= max(1.0, np.max(np.abs(value)), np.linalg.norm(value / max(1.0, np.max(np.abs(value)))))


class Unclipped:
    """Declares the sensitivity of clipped records, and does not clip."""

    def __init__(self, plan, rows, labels, key):
        self.honest, stream = plan.problem(rows, labels, key), PrivateStream(key, "batch")
        self.raw = LocalProblem(rows, labels, LOSSES["squared"], plan.settings.batch, 10 * LABEL, stream)
        self.records = rows.count

    def subgradient(self, x):
        declared = self.honest.subgradient(x)
        return Query(self.raw.subgradient(x).value, declared.sensitivity, declared.sampling)


class RealisedSize(LocalProblem):
    """Divides a Poisson batch by its realised size instead of the expected one."""

    def __init__(self, plan, rows, labels, key):
        stream = PrivateStream(key, "batch")
        super().__init__(rows, labels, LOSSES["squared"], plan.settings.batch, plan.lipschitz, stream)

    def draw(self):
        self.drawn = super().draw()
        return self.drawn

    def subgradient(self, x):
        query = super().subgradient(x)
        np.multiply(query.value, query.sampling.expected / max(1, len(self.drawn)), out=query.value)
        return query


BUGS = {
    "half the noise": (FULL, 10, 1500, False, {"make_mechanism": HalfNoise}),
    "noise before clipping": (
        FULL, 10, 200, False, {"make_mechanism": NoiseThenClip, "make_problem": Unclipped}
    ),
    "noise reused across rounds": (ONE, 20, 150, True, {"make_mechanism": ReusedNoise}),
    "the realised batch size": (POISSON, 2000, 130, True, {"make_problem": RealisedSize}),
}  # fmt: skip


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_planted_bugs_are_caught(bug):
    config, records, runs, opposed, planted = BUGS[bug]
    lower, certified = examine(config, records, runs, opposed, **planted)
    assert audit.verdict(lower, certified, config.epsilon) == audit.VIOLATION, (lower, certified)


def test_one_run_finds_far_too_little_noise_and_lets_certified_noise_pass():
    config = Config(rounds=50, noise=0.02, delta=1e-5, batch="poisson:4", insecure_noise_seed=0)
    bare = audit_one_run(lab(config, LoopbackTransport(2), 100), 100, 50)
    assert (bare.right, bare.guesses) == (50, 50)
    assert 2 < bare.epsilon == one_run_bound(100, 50, 50, 1e-5, 0.95)
    private = replace(config, noise=None, epsilon=1.0, allow_large_delta=True)
    assert audit_one_run(lab(private, LoopbackTransport(2), 100), 100, 50).epsilon < 1.0


def test_one_run_catches_half_the_noise():
    """Full batches: every sign is told by one Gaussian pair, of mu twice as large as certified."""
    config = replace(FULL, epsilon=2.0, delta=1e-5)
    laboratory = lab(config, LoopbackTransport(2), 600, make_mechanism=HalfNoise)
    mu = gdp_mu(2.0, 1e-5)
    found = audit_one_run(laboratory, 600, 100)
    assert found.right / 100 == pytest.approx(stats.norm.cdf(2 * mu), abs=0.15)
    honest = audit_one_run(lab(config, LoopbackTransport(2), 600), 600, 100)
    assert honest.epsilon <= 2.0
    assert honest.right < found.right


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command_writes_table_result_and_plot(tmp_path, capsys):
    flags = ["--loopback", 3, "--records", 10, "--rounds", 5, "--noise", 0.001, "--delta", 0.01, "--runs", 10]
    assert command(["audit", *map(str, flags), "--out", str(tmp_path / "a")]) == 0
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert (result["ranks"], result["rounds"], result["trials"], result["batch"]) == (3, 5, 5, "full")
    assert result["certified"] > result["lower"] >= 0
    shown = capsys.readouterr().out
    assert "certified epsilon" in shown
    assert audit.CONSISTENT in shown
    needs.package("matplotlib", "report")
    assert (tmp_path / "a" / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_a_violation_ends_with_code_1(monkeypatch, capsys):
    monkeypatch.setattr(audit, "spent_epsilon", lambda spending, delta: 0.1)
    flags = ["--loopback", 2, "--records", 10, "--rounds", 5, "--noise", 0.001, "--delta", 0.01, "--runs", 20]
    assert command(["audit", *map(str, flags), "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == audit.VIOLATION


def test_a_refuted_claim_is_a_finding_and_ends_with_code_0(capsys):
    flags = ["--loopback", 2, "--records", 120, "--rounds", 60, "--epsilon", 1, "--delta", 0.01, "--runs", 120]
    more = ["--calibration", "theorem", "--batch", 1, "--insecure-noise-seed", 0]
    assert command(["audit", *map(str, flags + more), "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == audit.REFUTED
    assert result["claimed"] == 1 < result["lower"] < result["certified"]
    assert result["insecure_noise"] is True


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--noise", "1", "--data", "synthetic"], "--data does not apply to an audit"),
        (["--rounds", "5"], "give --epsilon and --delta, or --noise"),
        (["--noise", "1", "--runs", "3"], "--runs must be at least 4, got 3"),
        (["--noise", "1", "--confidence", "1"], "--confidence must be in"),
        (["--noise", "1", "--one-run", "--canaries", "2000"], "expected --guesses <= --canaries <= --records"),
        (["--noise", "1", "--loopback", "1"], "the audit reads a wire"),
        (["--noise", "1", "--loopback", "2", "--batch", "fixed:2000"], "at most the 1000 records"),
        (["--noise", "1", "--runz", "3"], "unknown flag --runz"),
    ],
)
def test_wrong_flags_are_one_line_and_exit_code_2(flags, expected, capsys):
    assert command(["audit", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line


def test_a_result_that_could_not_be_written_is_refused_before_the_runs():
    with pytest.raises(ConfigError, match="--json: expected a file in a folder that is there"):
        audit.main(["--records", "10", "--runs", "2", "--noise", "1", "--json", "/nowhere/at/all.json"])
