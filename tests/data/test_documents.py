"""Documents of `synthetic:zipf=...`: the law of their words, weights and labels, and how near they come to RCV1."""

from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats

from dpmpi.data import parse_source
from dpmpi.errors import ConfigError
from dpmpi.rng import public_generator

RCV1 = "features=47236,density=0.00159,zipf=1.5,shift=100,topic=0.75,flip=0"
"""The options of docs/data.md."""

SPECS = [
    "synthetic:samples=300,features=2000,density=0.02,zipf=1.2,shift=5",
    "synthetic:samples=300,features=7,density=0.5,zipf=4,topic=4",  # nearly every row needs waiting times
    f"synthetic:samples=270,{RCV1}",
]


def source(spec, test_fraction=0.0, loss="hinge", seed=7):
    return parse_source(spec, samples=None, normalize=True, test_fraction=test_fraction, seed=seed, loss=loss)


def load(spec, rank=0, size=1, **options):
    made = source(spec, **options)
    return made.load(made.survey(), rank, size)


def vocabulary(features, zipf, shift=0.0, seed=7):
    """Return p and w of (5), (6)."""
    p = (np.arange(features) + 1.0 + shift) ** -zipf
    return p / p.sum(), np.where(public_generator(seed, "separator").random(features) < 0.5, -1.0, 1.0)


@pytest.mark.parametrize("spec", SPECS)
def test_documents_are_the_same_bits_for_every_rank_count(spec):
    whole = load(spec, test_fraction=0.3)
    for size in (2, 5, 20):
        shards = [load(spec, rank, size, test_fraction=0.3) for rank in range(size)]
        for name in ("rows", "test_rows"):
            parts, all_ = [getattr(shard, name) for shard in shards], getattr(whole, name)
            assert np.array_equal(np.concatenate([part.indices for part in parts]), all_.indices)
            assert np.array_equal(np.concatenate([part.data for part in parts]), all_.data)
        for name in ("labels", "test_labels"):
            assert np.array_equal(np.concatenate([getattr(shard, name) for shard in shards]), getattr(whole, name))


@pytest.mark.parametrize("spec", SPECS)
def test_documents_are_positive_rows_of_norm_one_with_distinct_words(spec):
    rows = load(spec).rows
    k = source(spec).nonzeros
    assert np.all(np.diff(rows.indptr) == k)
    assert np.all(np.diff(rows.indices.reshape(-1, k), axis=1) > 0)
    assert rows.data.min() > 0.0
    norms = [math.fsum(float(v) ** 2 for v in row) for row in rows.data.reshape(-1, k)]
    assert max(norms) <= 1.0
    assert min(norms) > 1.0 - 1e-10


def set_probabilities(p, w, topic, k):
    """Return {words: (P(words, y = -1), P(words, y = +1))} by adding up (6) over all orders and integrating over s."""
    s, ds = np.linspace(-8.0, 8.0, 4001, retstep=True)
    density = stats.norm.pdf(s) * ds
    tilted = p[:, None] * np.exp(topic * np.outer(w, s))
    tilted /= tilted.sum(axis=0)
    found = {}
    for words in combinations(range(len(p)), k):
        law = np.zeros_like(s)
        for order in permutations(words):
            one, left = np.ones_like(s), np.ones_like(s)
            for word in order:
                one = one * tilted[word] / left
                left = left - tilted[word]
            law += one
        half = 0.5 * law[s == 0.0] * density[s == 0.0]
        found[words] = (law[s < 0] @ density[s < 0] + half[0], law[s > 0] @ density[s > 0] + half[0])
    return found


@pytest.mark.parametrize(
    ("features", "k", "zipf", "shift", "topic"), [(6, 2, 0.5, 10, 0.75), (6, 3, 2.5, 0, 1), (5, 1, 1, 0, 2)]
)
def test_words_and_labels_follow_their_law(features, k, zipf, shift, topic):
    p, w = vocabulary(features, zipf, shift)
    assert set(w) == {-1.0, 1.0}
    expected = set_probabilities(p, w, topic, k)
    assert sum(map(sum, expected.values())) == pytest.approx(1.0, abs=1e-6)
    n = 10000
    options = f"density={k / features},zipf={zipf},shift={shift},topic={topic},flip=0"
    shard = load(f"synthetic:samples={n},features={features},{options}")
    seen = dict.fromkeys(((words, y) for words in expected for y in (-1.0, 1.0)), 0)
    for words, y in zip(shard.rows.indices.reshape(n, k).tolist(), shard.labels.tolist(), strict=True):
        seen[tuple(words), y] += 1
    theory = [share for pair in expected.values() for share in pair]
    assert stats.chisquare(list(seen.values()), n * np.array(theory) / sum(theory)).pvalue > 1e-3


def test_weights_are_term_frequency_times_rarity():
    spec = "synthetic:samples=2000,features=500,density=0.08,zipf=1.1,shift=3"
    rows = load(spec).rows
    p, _ = vocabulary(500, 1.1, 3)
    frequency = rows.data.reshape(2000, 40) / np.log(1.0 + 1.0 / (40 * p))[rows.indices.reshape(2000, 40)]
    frequency /= frequency.min(axis=1, keepdims=True)  # 0.4^40: some word of every document occurs once
    counts = np.exp(frequency - 1.0)
    assert np.abs(counts - np.rint(counts)).max() < 1e-8
    for c in range(1, 6):
        share = 0.6 * 0.4 ** (c - 1)
        assert np.mean(np.rint(counts) == c) == pytest.approx(share, abs=4.5 * math.sqrt(share / 80000))


@pytest.mark.parametrize("topic", [0.2, 0.75])
def test_counting_words_for_and_against_is_as_right_as_binomial_counts_say(topic):
    n, k = 8000, 21
    shard = load(f"synthetic:samples={n},features=40000,density=0.000525,zipf=0.1,topic={topic},flip=0.1")
    p, w = vocabulary(40000, 0.1)  # 21 of 40000 words, none frequent: hardly ever is one drawn twice
    votes = w[shard.rows.indices.reshape(n, k)].sum(axis=1)
    right = np.mean(np.sign(votes) == shard.labels)
    s, ds = np.linspace(0.0, 8.0, 2001, retstep=True)
    accuracy = 0.0
    for sign in (-1.0, 1.0):
        odds = np.exp(2.0 * topic * s) * p[w == sign].sum() / p[w == -sign].sum()
        accuracy += np.trapezoid(stats.binom.sf(k // 2, k, odds / (1.0 + odds)) * stats.norm.pdf(s), dx=ds)
    expected = 0.9 * accuracy + 0.1 * (1.0 - accuracy)
    assert right == pytest.approx(expected, abs=4.5 * math.sqrt(expected * (1 - expected) / n))


def test_regression_labels_are_the_clipped_strength_plus_noise():
    labels = load("synthetic:samples=8000,features=50,density=0.1,zipf=1", loss="squared").labels
    for level in (-0.9, -0.3, 0.0, 0.5):
        share = stats.norm.cdf(level / math.sqrt(1.01))
        assert np.mean(labels <= level) == pytest.approx(share, abs=4.5 * math.sqrt(share * (1 - share) / 8000))
    assert np.abs(labels).max() == 1.0


def test_the_documented_options_resemble_rcv1():
    """The constants were measured on 23,756 documents of RCV1-v2, cosine-normalised, CCAT and ECAT against the rest."""
    n = 4000
    shard = load(f"synthetic:samples={n},{RCV1}", seed=3)
    rows = shard.rows
    assert rows.indices.size / n == 75  # 75.1
    frequency = np.bincount(rows.indices, minlength=47236) / n
    for rank, real in [
        (3, 0.344),
        (10, 0.265),
        (30, 0.191),
        (100, 0.110),
        (300, 0.0514),
        (1000, 0.0157),
        (3000, 0.0032),
    ]:
        near = frequency[round(rank / 1.1) - 1 : round(rank * 1.1)].mean()
        assert 1 / 1.4 < near / real < 1.4

    def mean(half, weights):
        """The mean of weights times rows over every other row."""
        values = (rows.data.reshape(n, 75) * weights[:, None])[half::2]
        return np.bincount(rows.indices.reshape(n, 75)[half::2].ravel(), values.ravel(), 47236) / len(values)

    # The product of two halves' means has no bias from the few documents.
    assert math.sqrt(mean(0, np.ones(n)) @ mean(1, np.ones(n))) == pytest.approx(0.149, rel=0.1)
    assert math.sqrt(mean(0, shard.labels) @ mean(1, shard.labels)) == pytest.approx(0.066, rel=0.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("shift=3", "expected shift with documents only, found zipf=0"),
        ("zipf=0,topic=1", "expected topic with documents only, found zipf=0"),
        ("zipf=1", "found density=1, decay=0"),
        ("zipf=1,density=0.1,decay=0.5", "found density=0.1, decay=0.5"),
        ("zipf=5,density=0.1", "expected zipf in 0 ... 4, found 5.0"),
        ("zipf=nan,density=0.1", "expected zipf in 0 ... 4, found nan"),
        ("zipf=1,density=0.1,shift=-1", "expected shift in 0 ... 100000, found -1.0"),
        ("zipf=1,density=0.1,topic=0", "expected a topic above 0 and at most 4, found 0.0"),
        ("zip=1", "did you mean zipf?"),
    ],
)
def test_options_that_make_no_documents_are_refused(options, says):
    with pytest.raises(ConfigError) as caught:
        source(f"synthetic:{options}")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
