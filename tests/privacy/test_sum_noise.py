"""Noise inside a shared sum: its law, its price, who may look at it, and runs that are calibrated to a target."""

import json
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from admm_problems import labelled_shards
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import plan_of, settings_of

from dpmpi.algorithms.dda import DpDda
from dpmpi.commands.verify import verify
from dpmpi.core import Agent, Gather, Hidden, Method, Mix, NeighbourSum, Query, Sampling, Sum, public
from dpmpi.errors import BudgetExceeded, ConfigError, LeakError
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import recorded_spending
from dpmpi.privacy.mechanisms import NoNoise, SumMechanism, make_mechanism
from dpmpi.rng import insecure_key
from dpmpi.run import main
from dpmpi.testing import DeafAgent, check_no_leak, check_sensitivity, models, random_shards, shared, simulate

MODES = ["full", "expanded"]
FULL = Sampling("full", 10.0, 10)


def mechanism(rank=0, width=5, sigma=0.3, parts=5, bits=40, seed=0):
    return SumMechanism(sigma, parts, bits, insecure_key(seed, rank), width)


def parts_of(ranks, width, **settings):
    """The parts of some ranks, in the units of the values."""
    return np.array([mechanism(rank, width, **settings).part() for rank in ranks]) * 2.0**-40


# --- the law of the noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "c"), [(3, 0), (3, 1), (8, 3)])
def test_the_honest_parts_have_the_variance_of_the_whole(n, c):
    """c colluders may take their parts off again; with them it is n/(n - c) times as much."""
    m, sigma = 40_000, 0.3
    noise = parts_of(range(n), m, sigma=sigma, parts=n - c)
    margin = 6.0 * math.sqrt(2.0 / m)  # six deviations of a sample variance
    for honest in (noise[c:], noise[: n - c]):
        assert honest.sum(axis=0).var() == pytest.approx(sigma**2, rel=margin)
    assert noise.sum(axis=0).var() == pytest.approx(sigma**2 * n / (n - c), rel=margin)
    assert abs(noise.sum(axis=0).mean()) < 6.0 * sigma * math.sqrt(n / (n - c) / m)
    correlation = np.corrcoef(noise)[np.triu_indices(n, 1)]
    assert np.abs(correlation).max() < 6.0 / math.sqrt(m)


def test_parts_are_whole_steps_and_drawn_afresh():
    one = mechanism(width=20_000)
    first, second = one.part(), one.part()
    assert first.dtype == np.int64
    assert abs(np.corrcoef(first, second)[0, 1]) < 6.0 / math.sqrt(20_000)
    assert np.gcd.reduce(first) == 1
    tripled = mechanism(width=20_000).part(3.0)
    assert tripled.std() == pytest.approx(3.0 * first.std(), rel=6.0 * math.sqrt(1.0 / 20_000))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("c", [0, 2])
def test_the_sum_that_all_see_has_this_noise(mode, c):
    """One round of dual averaging moves z by the mean of n gradients plus the sum of the parts over n."""
    n, m, sigma = 5, 4000, 0.3
    shards = random_shards(n, 3, m, 1)
    run = {"graph": "complete", "loss": "logistic", "exchange": shared(mode, noise_tail=40.0)}
    noisy = simulate(DpDda(), shards, 1, **run, mechanism=lambda rank, width: mechanism(rank, width, sigma, n - c))
    clean = simulate(DpDda(), shards, 1, **run)
    noise = n * (noisy.seats[0].state.z - clean.seats[0].state.z)
    assert noise.var() == pytest.approx(sigma**2 * n / (n - c), rel=6.0 * math.sqrt(2.0 / m))
    np.testing.assert_allclose(noise, parts_of(range(n), m, sigma=sigma, parts=n - c).sum(axis=0), atol=1e-9)
    for seat in noisy.seats[1:]:
        np.testing.assert_array_equal(seat.state.z, noisy.seats[0].state.z)


class Shown(SumMechanism):
    """Puts the rank's part of the noise on its value, for all to see."""

    hides = False
    cancels = False

    def perturb(self, value, scale=1.0):
        value += self.part(scale) * 2.0**-self.bits


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_that_of_parts_on_each_value_up_to_rounding(mode):
    """In round t the mean is off by 2^-(f+1) at most, and z takes it t times."""
    shards, rounds = labelled_shards(5), 20
    run = {"graph": "complete", "loss": "logistic"}
    inside = simulate(DpDda(), shards, rounds, **run, exchange=shared(mode, noise_tail=40.0), mechanism=mechanism)
    plain = simulate(
        DpDda(), shards, rounds, **run, mechanism=lambda rank, m: Shown(0.3, 5, 40, insecure_key(0, rank), m)
    )
    for ours, theirs in zip(inside.seats, plain.seats, strict=True):
        difference = np.abs(ours.state.z - theirs.state.z).max()
        assert 0 < difference <= rounds * (rounds + 1) / 2 * 2.0**-41
        assert np.abs(theirs.state.z).max() > 1.0


@pytest.mark.parametrize("c", [0, 3])
def test_a_run_counts_the_colluders_out(c):
    flags = ["--graph", "complete", "--exchange", "shares", "--noise-in", "sum", "--share-bits", "30"]
    made = plan_of(settings_of(*flags, "--colluders", c), [100] * 7, 20_000).mechanism(0.3, insecure_key(0, 2))
    part = made.part() * 2.0**-30
    assert part.var() == pytest.approx(0.3**2 / (7 - c), rel=6.0 * math.sqrt(2.0 / 20_000))


# --- its price -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "width", "scale"), [(40, 5, 1.0), (12, 100, 2.0)])
def test_the_event_adds_the_rounding_to_the_sensitivity(bits, width, scale):
    event = mechanism(bits=bits, width=width).event(Query(np.zeros(width), 0.7, FULL), scale)
    rounding = 2.0 * math.sqrt(width) * 2.0**-bits
    assert event == ReleaseEvent("discrete-gaussian", 0.3 * scale, 0.7 + rounding, FULL)


@given(st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=1, max_size=6), st.integers(0, 12))
@settings(deadline=None, max_examples=200)
def test_rounding_moves_two_values_apart_by_less_than_the_event_says(pairs, bits):
    """(5), for a replaced record and for one that is taken out (a value of its own) before another is put in."""
    a, b = np.array(pairs).T
    steps = [np.rint(x * 2.0**bits) for x in (a, 0.5 * (a + b), b)]
    moved = np.linalg.norm(steps[0] - steps[2])
    halves = np.linalg.norm(steps[0] - steps[1]) + np.linalg.norm(steps[1] - steps[2])
    event = mechanism(width=len(a), bits=bits, sigma=1e6).event(Query(a, float(np.linalg.norm(a - b)), FULL))
    assert max(moved, halves) <= event.sensitivity * 2.0**bits * (1 + 1e-12)


def test_events_of_different_queries_are_not_mixed_up():
    one = mechanism()
    first = one.event(Query(np.zeros(5), 1.0, FULL))
    assert one.event(Query(np.zeros(5), 1.0, FULL)) is first
    assert one.event(Query(np.zeros(5), 2.0, FULL)).sensitivity > 2.0
    assert one.event(Query(np.zeros(5), 1.0, Sampling("poisson", 2.0, 10))).sampling.kind == "poisson"
    with pytest.raises(ConfigError, match="expected noise on values"):
        one.event(Query(np.zeros(5), 1.0, Sampling("poisson", 2.0, 10), extra=0.1))


@pytest.mark.parametrize(
    ("sigma", "bits", "advice"),
    [(63.9, 0, "found 63.9 at 0 fractional bits: use more"), (2.0**50 * 1.01, 0, "use fewer"), (1e-9, 35, "use more")],
)
def test_parts_of_too_few_or_too_many_steps_are_refused(sigma, bits, advice):
    with pytest.raises(ConfigError, match=rf"^[^\n]*deviation of 64 to 2\^50 steps[^\n]*{advice} --share-bits$"):
        mechanism(sigma=sigma, bits=bits, parts=1)
    mechanism(sigma=64.0, bits=0, parts=1)
    with pytest.raises(ConfigError, match="use more"):
        mechanism(sigma=100.0, bits=0, parts=4)  # 50 steps each
    with pytest.raises(ConfigError, match="use fewer"):
        mechanism(sigma=2.0**49, bits=0, parts=1).part(4.0)


# --- who may look ----------------------------------------------------------------------------------------------------


class Spent:
    def charge(self, event, round_):
        raise BudgetExceeded("nothing is left")


class Charged(list):
    def charge(self, event, round_):
        self.append(event)


def agent(charges, noise=None):
    return Agent(0, 1.0, None, None, None, noise or mechanism(width=400), charges, None)


def test_a_release_into_a_sum_cannot_be_read():
    charged = Charged()
    hidden = agent(charged).release(Query(np.ones(400), 1.0, FULL))
    assert isinstance(hidden, Hidden)
    assert [event.noise for event in charged] == ["discrete-gaussian"]
    with pytest.raises(LeakError, match="only the sum"):
        _ = hidden.value
    for kind in (Mix, Gather, NeighbourSum):
        with pytest.raises(LeakError, match=f"{kind.__name__} shows its value"):
            kind(hidden)
    assert "1." not in repr(hidden)


def test_the_plain_exchange_refuses_a_hidden_value_before_it_sends():
    hidden = agent(Charged()).release(Query(np.ones(400), 1.0, FULL))

    @dataclass(frozen=True)
    class Carries(Method):
        def start(self, agent):
            return None

        def round(self, agent, state, t):
            if self.plus:
                yield Mix(public(np.zeros(400), because="zeros"), plus=hidden)
            else:
                yield Sum(hidden)

        plus: bool = False

    sent = []

    class Watched(PlainExchange):
        def serve(self, request, near, round_):
            for channel in super().serve(request, near, round_):
                sent.append(channel)
                yield channel

    for plus in (False, True):
        with pytest.raises(LeakError, match="only the sum"):
            simulate(Carries(plus), random_shards(3, 2, 3, 0), 1, graph="complete", exchange=Watched)
    assert sent == []


def test_noise_of_a_sum_cannot_go_on_a_value_and_noise_of_a_value_not_into_a_sum():
    one = mechanism()
    with pytest.raises(LeakError):
        one.perturb(np.zeros(5))
    with pytest.raises(LeakError):
        one.through(np.zeros(5), lambda value: None)
    with pytest.raises(LeakError):
        agent(Charged()).release_inside(Query(np.zeros(400), 1.0, FULL), lambda value: None)
    for visible in (NoNoise(), make_mechanism("gaussian", 1.0, insecure_key(0, 0), 5)):
        assert not visible.hides
        with pytest.raises(LeakError, match="found a sum"):
            visible.part()


def test_a_rank_without_budget_says_zeros_and_its_part_of_the_noise():
    spent = agent(Spent())
    hidden = spent.release(Query(np.ones(400), 1.0, FULL))
    assert not hidden.secret.any()
    np.testing.assert_array_equal(hidden.noise, mechanism(width=400).part())
    assert hidden.noise.any()
    assert spent.stopped is not None


# --- contracts -------------------------------------------------------------------------------------------------------

INSIDE = {"graph": "complete", "make_agent": DeafAgent, "mechanism": mechanism}


@pytest.mark.parametrize("mode", MODES)
def test_nothing_but_the_hidden_value_depends_on_data(mode):
    check_no_leak(DpDda, exchange=shared(mode, noise_tail=40.0), **INSIDE)


@dataclass(frozen=True)
class Leaky(DpDda):
    """Adds up its gradients beside their releases."""

    def round(self, agent, state, t):
        yield from super().round(agent, state, t)
        yield Sum(public(agent.problem.subgradient(state.x).value, because="it is not"))


@pytest.mark.parametrize("mode", MODES)
def test_a_leak_into_the_shares_is_found(mode):
    """Under the same keys: other inputs are other shares. That nobody can read them does not make it a release."""
    with pytest.raises(AssertionError, match="depends on unreleased data"):
        check_no_leak(Leaky, exchange=shared(mode, noise_tail=40.0), **INSIDE)


@pytest.mark.parametrize("mode", MODES)
def test_queries_keep_their_sensitivity_under_shares(mode):
    check_sensitivity(DpDda, rounds=3, graph="complete", exchange=shared(mode))


@pytest.mark.parametrize("mode", MODES)
def test_a_run_charges_one_discrete_gaussian_a_round(mode):
    engine = simulate(
        DpDda(), labelled_shards(5), 7, graph="complete", loss="logistic",
        exchange=shared(mode, noise_tail=40.0), mechanism=mechanism,
    )  # fmt: skip
    for seat in engine.seats:
        terms, rounding = seat.agent.terms, 2.0 * math.sqrt(8) * 2.0**-40
        event = ReleaseEvent("discrete-gaussian", 0.3, terms.gradient_sensitivity + rounding, terms.sampling)
        assert seat.agent.charges.charged == [(t, event) for t in range(1, 8)]


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_sums_in_pieces_have_the_same_noise(monkeypatch, mode):
    """8 features, in pieces of 3."""

    def run():
        exchange = shared(mode, noise_tail=40.0)
        settings = {"graph": "complete", "loss": "logistic", "mechanism": mechanism, "exchange": exchange}
        return models(simulate(DpDda(), labelled_shards(5), 7, **settings))

    whole = run()
    monkeypatch.setattr("dpmpi.network.exchange.shares.PIECE", 3)
    np.testing.assert_array_equal(run(), whole)
    assert np.ptp(whole) > 1e-3


def started(out, *flags):
    """The exit code of a run with noise inside its sums."""
    run = ["--loopback", 5, "--algorithm", "dp-dda", "--graph", "complete", "--exchange", "shares", "--noise-in", "sum"]
    data = ["--data", "synthetic:samples=2000,features=8", "--rounds", 12, "--no-evaluate", "--out", out]
    return main(list(map(str, [*run, *data, *flags])))


def train(out, *flags):
    assert started(out, *flags) == 0
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("flags", [(), ("--share-mode", "full", "--colluders", 2), ("--batch", 40)])
def test_a_calibrated_run_spends_its_target_and_verifies(tmp_path, capsys, flags):
    summary = train(tmp_path / "run", "--epsilon", 1, *flags)
    privacy = summary["privacy"]
    assert privacy["private"] is True
    assert privacy["noise_in"] == "sum"
    assert privacy["colluders"] == (2 if "--colluders" in flags else 1)
    assert 0.97 < privacy["epsilon"] <= 1.0
    kind = "poisson" if "--batch" in flags else "full"
    for record in summary["per_rank"]:
        assert record["sigma"] == summary["per_rank"][0]["sigma"]
        path = tmp_path / "run" / "ledger" / f"rank-{record['rank']:03d}.jsonl"
        [(event, count)] = recorded_spending(path).items()
        assert (event.noise, event.sampling.kind, event.scale, count) == (
            "discrete-gaussian", kind, record["sigma"], 12,
        )  # fmt: skip
    for replay in verify(tmp_path / "run"):
        assert replay.problems == ()
        assert replay.charges == 12
        assert 0.97 < replay.epsilon <= 1.0 < replay.rdp
    told = capsys.readouterr()
    assert told.err == ""
    who = "at most 2 ranks collude" if "--colluders" in flags else "at most 1 rank colludes"
    assert f"certified if {who}" in told.out


def test_less_noise_than_on_every_value(tmp_path, capsys):
    """The same target with noise on each value takes as much noise a rank: sqrt(n) times as much in the sum."""
    inside = train(tmp_path / "in", "--epsilon", 1)["per_rank"][0]["sigma"]
    alone = train(tmp_path / "on", "--epsilon", 1, "--noise-in", "local")["per_rank"][0]["sigma"]
    assert alone <= inside <= 1.002 * alone
    capsys.readouterr()


def test_when_budgets_end_the_run_goes_on_and_verifies(tmp_path, capsys):
    summary = train(tmp_path / "run", "--epsilon", 1, "--budget", 0.5)
    allowed = Counter(record["stopped"] for record in summary["per_rank"])
    [stopped] = allowed
    assert 1 < stopped <= 12
    assert summary["privacy"]["epsilon"] <= 0.5
    assert all(not replay.problems and replay.charges == stopped - 1 for replay in verify(tmp_path / "run"))
    assert summary["communication"]["messages"] == 5 * 4 * 12
    capsys.readouterr()


REFUSED = {
    "no shares": (("--exchange", "plain"), "add --exchange shares"),
    "a method that looks at more than the sum": (("--algorithm", "admm"), "dp-dda"),
    "another mechanism": (("--mechanism", "gaussian"), "leave --mechanism out"),
    "a theorem": (("--epsilon", 1, "--calibration", "theorem"), "use --calibration certified"),
    "colluders among whom nobody is left": (("--colluders", 4), "to leave 2 honest ranks of 5"),
    "noise of a few steps": (("--noise", 1e-12), "use more --share-bits"),
    "noise beyond the words": (("--noise", 1e6), "use fewer --share-bits"),
    "gradients beyond the words": (("--lipschitz", 1e6, "--noise", 1), "may reach 1e+06"),
    # A Poisson batch may hold all records: were such a draw refused when it happens, the refusal would tell of it.
    "batches beyond the words": (("--lipschitz", 3000, "--noise", 1, "--batch", "poisson:1"), "larger --batch"),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_settings_that_do_not_fit_are_one_line(tmp_path, capsys, what):
    flags, reason = REFUSED[what]
    assert started(tmp_path / "run", *flags) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert reason in line
    assert not (tmp_path / "run").exists()
