"""The audit's score: what is new in a message, and how near it comes to the best score there is."""

import numpy as np
import pytest
from scipy import stats

from dpmpi.commands.audit.score import Table, learn, likelihood, predict, shrunk_shift, table_of_worlds

ROUNDS, SIGMA = 12, 1.0


def walk(rng, sign, shift, *, told=True):
    """A run of a made-up method: a running sum of releases, mixed with what a neighbour says."""
    z, numbers = 0.0, []
    for _ in range(ROUNDS):
        said = z + sign * shift + rng.normal(0, SIGMA)
        other = rng.normal(0, 3.0)
        z = 0.5 * said + 0.5 * other
        numbers.append(([said], [other] if told else []))
    return numbers


def worlds(runs, shift, paired, make=walk, first=0):
    """Runs in both worlds, those of a pair with the same noise."""
    plus = [make(np.random.default_rng([first, k]), 1, shift) for k in range(runs)]
    minus = [make(np.random.default_rng([first, k] if paired else [first + 1, k]), -1, shift) for k in range(runs)]
    return table_of_worlds(plus, minus)


def separation(scores):
    """The distance of the two worlds in standard deviations."""
    plus, minus = scores
    return (plus.mean() - minus.mean()) / np.sqrt((plus.var() + minus.var()) / 2)


def test_what_is_new_is_the_noise_of_the_release():
    plus, minus = worlds(400, 0.0, paired=False)
    predictions = predict(plus, minus)[""]
    assert len(predictions) == ROUNDS
    assert [one.deviation for one in predictions] == pytest.approx([SIGMA] * ROUNDS, rel=0.12)
    new = np.stack([one.new(plus.values) for one in predictions], axis=1)
    between = np.corrcoef(new.T)[np.triu_indices(ROUNDS, 1)]
    assert np.abs(between).max() < 5 / np.sqrt(400)


def test_the_learned_score_is_almost_as_good_as_the_best():
    """The best has the sum of all releases: two normal distributions 2 shift sqrt(T)/sigma apart."""
    shift = 0.1
    learned = learn(*worlds(100, shift, paired=True))
    fresh = [learned.scores(table.values)["linear discriminant"] for table in worlds(4000, shift, False, first=7)]
    best = 2 * shift * np.sqrt(ROUNDS) / SIGMA
    assert 0.88 * best < separation(fresh) < 1.08 * best


def test_without_what_the_neighbours_say_the_score_is_worse():
    def deaf(rng, sign, shift):
        return walk(rng, sign, shift, told=False)

    shift = 0.1
    learned = learn(*worlds(100, shift, True, deaf))
    fresh = [learned.scores(t.values)["linear discriminant"] for t in worlds(4000, shift, False, deaf, first=7)]
    assert separation(fresh) < 0.8 * 2 * shift * np.sqrt(ROUNDS) / SIGMA


def test_a_dual_that_remembers_everything_is_predicted_too():
    def dual(rng, sign, shift):
        total, numbers = 0.0, []
        for _ in range(ROUNDS):
            said = -0.3 * total + sign * shift + rng.normal(0, SIGMA)
            other = rng.normal(0, 3.0)
            total += said - other
            numbers.append(([said], [other]))
        return numbers

    shift = 0.1
    learned = learn(*worlds(100, shift, True, dual))
    fresh = [learned.scores(t.values)["linear discriminant"] for t in worlds(4000, shift, False, dual, first=7)]
    assert separation(fresh) > 0.88 * 2 * shift * np.sqrt(ROUNDS) / SIGMA


def test_a_leak_without_noise_is_seen_whatever_else_is_said():
    def leaky(rng, sign, shift):
        return [*walk(rng, sign, 0.0), ([1e-3 * sign], [])]

    learned = learn(*worlds(20, 0.0, True, leaky))
    fresh = [learned.scores(t.values)["linear discriminant"] for t in worlds(50, 0.0, False, leaky, first=7)]
    assert fresh[0].min() > fresh[1].max()


def test_rare_hits_are_found_by_the_likelihood_ratio():
    """A canary that is drawn in one round of 50, and then plain to see: a sum hardly shows it."""
    rate, hit, rounds = 0.01, 10.0, 200

    def sampled(rng, sign, shift):
        drawn = rng.random(rounds) < rate
        return [([sign * hit / 2 * one + rng.normal()], []) for one in drawn]

    learned = learn(*worlds(100, 0.0, True, sampled), rate)
    plus, minus = (learned.scores(table.values) for table in worlds(300, 0.0, False, sampled, first=7))
    found = {name: np.mean(plus[name] > np.quantile(minus[name], 0.98)) for name in plus}
    assert found["likelihood ratio"] > 0.7
    assert found["linear discriminant"] < 0.3


def test_noise_that_is_used_again_drops_out_of_the_distance_from_the_median():
    def again(rng, sign, shift):
        noise, drawn = rng.normal(0, 50), rng.random(40) < 0.05
        return [([sign * one + noise], []) for one in drawn]

    learned = learn(*worlds(100, 0.0, True, again), 0.05)
    plus, minus = (learned.scores(table.values) for table in worlds(100, 0.0, False, again, first=7))
    seen = [name for name in plus if np.mean(plus[name] > np.quantile(minus[name], 0.98)) > 0.5]
    assert any(name.startswith("distance from the median") for name in seen)


def test_the_likelihood_is_the_ratio_of_the_mixture_densities():
    r = np.random.default_rng(0).normal(size=(7, 3))
    for plus, minus, rate in ((1.2, 0.0, 0.2), (0.7, -0.7, 0.05), (0.7, -0.7, 1.0)):

        def density(shift, rate=rate):
            return (1 - rate) * stats.norm.pdf(r) + rate * stats.norm.pdf(r, shift)

        expected = np.log(density(plus) / density(minus)).sum(axis=1)
        np.testing.assert_allclose(likelihood(r, plus, minus, rate), expected, rtol=1e-10)


def test_a_shift_is_shrunk_only_by_its_own_noise():
    exact = np.tile([1.0, 2.0, 3.0], (5, 1))
    np.testing.assert_allclose(shrunk_shift(exact), [1, 2, 3])
    noisy = 0.3 + np.random.default_rng(0).normal(size=(40, 50))
    assert shrunk_shift(noisy).std() < 0.3 * noisy.mean(axis=0).std()


def test_a_run_that_ends_early_has_zeros_where_others_go_on():
    table = Table.of([[([1.0], [2.0]), ([3.0], [])], [([4.0], [5.0])]])
    assert table.heard == 3
    np.testing.assert_array_equal(table.values[:, :3], [[1, 2, 3], [4, 5, 0]])
