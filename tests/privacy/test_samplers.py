"""The oracle is mpmath at 60 digits, fed with the same bits; the laws are tested with fixed keys, hence repeatably."""

import math
import tracemalloc
from fractions import Fraction

import mpmath
import needs
import numpy as np
import pytest
from scipy import stats

from dpmpi.privacy import samplers
from dpmpi.privacy.samplers import GaussianNoise, LaplaceNoise, SphericalLaplaceNoise, discrete_gaussian, grid
from dpmpi.rng import PrivateStream, insecure_key

mp = mpmath.mp.clone()
mp.dps = 60
EXACT = (GaussianNoise, LaplaceNoise)
ALL = (*EXACT, SphericalLaplaceNoise)


def stream(seed):
    return PrivateStream(insecure_key(seed, 0), "noise")


def draws(kind, seed, dimension, rounds, value=0.0, scale=1.0):
    noise = kind(stream(seed), dimension)
    out = np.full((rounds, dimension), value)
    for row in out:
        noise.add(row, scale)
    return out


# --- the definition, once more and slowly ----------------------------------------------------------------------------


class Oracle:
    """Reads the same streams and evaluates (2), (3) with all bits that it is told to use."""

    def __init__(self, kind, seed, dimension):
        self.kind, self.dimension, self.stream = kind, dimension, stream(seed)
        key = np.empty(4, np.uint64)
        self.stream.fill(key)
        self.more = PrivateStream(key.tobytes(), "refine")

    def round(self):
        self.half = (self.dimension + 1) // 2
        words = np.empty(2 * self.half if self.kind is GaussianNoise else self.dimension, np.uint64)
        self.stream.fill(words)
        self.words, self.extra = [int(w) for w in words], {}
        return self

    def uniform(self, word, bits, key, extended):
        if extended and key not in self.extra:
            self.extra[key] = int(self.more.words(1)[0])
        tail = mp.mpf(self.extra[key] if extended else 1 << 63) / 2**64
        return (word + tail) / mp.mpf(2) ** bits

    def normal(self, i, extended=False):
        sine, p = divmod(i, self.half)
        u = self.uniform(self.words[p], 64, ("u", p), extended)
        v = self.uniform(self.words[p + self.half], 64, ("v", p), extended)
        return mp.sqrt(-2 * mp.log(u)) * (mp.sin if sine else mp.cos)(2 * mp.pi * v)

    def laplace(self, i, extended=False):
        word = self.words[i]
        sign, word = (1, word) if word < 2**63 else (-1, 2**64 - 1 - word)
        return -sign * mp.log(self.uniform(word, 63, i, extended))

    def x(self, i, extended=False):
        return (self.normal if self.kind is GaussianNoise else self.laplace)(i, extended)

    def expect(self, value, scale, extended=False):
        g = grid(scale)
        steps = [(mp.mpf(v) + scale * self.x(i, extended)) / g for i, v in enumerate(value.tolist())]
        return np.array([float(Fraction(int(mp.floor(s + 0.5))) * Fraction(g)) for s in steps])


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize(("scale", "spread"), [(1.0, 1.0), (0.0137, 3.0), (3e-120, 1e-119), (7e99, 1.0), (1e-3, 1e15)])
def test_every_output_is_the_rounding_of_the_real_sum(kind, scale, spread):
    noise, oracle = kind(stream(1), 301), Oracle(kind, 1, 301)
    for t in range(3):
        value = np.random.default_rng(t).normal(0.0, spread, 301)
        expected = oracle.round().expect(value, scale)
        noise.add(value, scale)
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("kind", EXACT)
def test_outputs_next_to_a_boundary_use_more_than_64_bits(kind):
    """Values that put every sum within 2^-50 grid steps of a boundary: float64 cannot decide, the further bits must."""
    m, scale = 201, 0.75
    g = grid(scale)
    oracle = Oracle(kind, 2, m).round()
    y = [scale * oracle.x(i) / g for i in range(m)]
    value = np.array([float(mp.ceil(t - 0.5) + 0.5 - t) * g for t in y])
    short, expected = oracle.expect(value, scale), oracle.expect(value, scale, extended=True)
    assert np.count_nonzero(short != expected) > m / 10

    careful, careless = value.copy(), value.copy()
    kind(stream(2), m).add(careful, scale)
    np.testing.assert_array_equal(careful, expected)

    noise = kind(stream(2), m)
    noise._error = 0.0
    noise.add(careless, scale)
    assert np.count_nonzero(careless != expected) > m / 10


@pytest.mark.parametrize("kind", EXACT)
def test_refining_every_coordinate_changes_nothing(kind):
    fast, slow = kind(stream(3), 151), kind(stream(3), 151)
    slow._error = 1.0
    for t in range(4):
        a = np.random.default_rng(t).normal(size=151)
        b = a.copy()
        fast.add(a, 0.3)
        slow.add(b, 0.3)
        np.testing.assert_array_equal(a, b)


def test_normals_keep_their_error_bound():
    """Words from the whole range, the ends included: the float64 draws are within half of the bound, or set aside."""
    m = 6000
    noise, rng = GaussianNoise(stream(4), m), np.random.default_rng(4)
    half = m // 2
    high = [2**64 - 1 - int(2.0**e) for e in np.linspace(0, 63, half // 3)]
    low = [int(2.0**e) for e in np.linspace(0, 63, half // 3)]
    radius = high + low + [int(w) for w in rng.integers(0, 2**64, half - len(high) - len(low), np.uint64)]
    angle = [int(w) for w in rng.integers(0, 2**64, half, np.uint64)]
    angle[::7] = [(k % 8) * 2**61 for k in range(len(angle[::7]))]
    noise._words[:] = np.array(radius + angle, np.uint64)
    unsafe = set(noise._draw().tolist())
    oracle = Oracle(GaussianNoise, 4, m)
    oracle.half, oracle.words = half, radius + angle
    safe = [i for i in range(m) if i not in unsafe]
    worst = max(abs(oracle.normal(i) - mp.mpf(float(noise._x[i]))) for i in safe)
    assert len(unsafe) > 100
    assert len(safe) > m / 2
    assert worst < samplers._ERROR / 2


def test_laplace_draws_keep_their_error_bound():
    m = 4000
    noise, rng = LaplaceNoise(stream(5), m), np.random.default_rng(5)
    words = [int(2.0**e) for e in np.linspace(0, 62.99, m // 4)]
    words += [2**64 - 1 - w for w in words]
    words += [int(w) for w in rng.integers(0, 2**64, m - len(words), np.uint64)]
    noise._words[:] = np.array(words, np.uint64)
    unsafe = set(noise._draw().tolist())
    oracle = Oracle(LaplaceNoise, 5, m)
    oracle.words = words
    safe = [i for i in range(m) if i not in unsafe]
    worst = max(abs(oracle.laplace(i) - mp.mpf(float(noise._x[i]))) for i in safe)
    assert len(unsafe) > 100
    assert worst < samplers._ERROR / 2


def test_words_of_zeros_and_ones_are_drawn_on():
    """The ends of the uniforms: U = 0.000... has no logarithm yet, that of U = 0.111... is 0 in float64."""
    for word in (0, 2**64 - 1):
        noise = GaussianNoise(stream(6), 2)
        noise.prepare()
        noise._words[:] = np.array([word, 2**61], np.uint64)
        noise._unsafe = noise._draw()
        assert noise._unsafe.tolist() == [0, 1]
        value = np.zeros(2)
        noise.add(value, 1.0)
        u = (word + mp.mpf(int(Oracle(GaussianNoise, 6, 2).more.words(1)[0])) / 2**64) / mp.mpf(2) ** 64
        assert float(value @ value) == pytest.approx(float(-2 * mp.log(u)), rel=1e-5, abs=1e-5)


# --- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("dimension", [1, 2, 7])
def test_prepare_changes_nothing_and_nothing_is_used_twice(kind, dimension):
    plain, ahead = kind(stream(7), dimension), kind(stream(7), dimension)
    seen = []
    for _ in range(5):
        a, b = np.ones(dimension), np.ones(dimension)
        plain.add(a, 0.5)
        ahead.prepare()
        ahead.prepare()
        ahead.add(b, 0.5)
        ahead.prepare()
        np.testing.assert_array_equal(a, b)
        seen.append(a)
    assert len(np.unique(np.array(seen)[:, 0])) == 5


@pytest.mark.parametrize("kind", ALL)
def test_powers_of_two_scale_through(kind):
    value = np.random.default_rng(8).normal(size=50)
    a, b = value.copy(), value * 2.0**-200
    kind(stream(8), 50).add(a, 0.7)
    kind(stream(8), 50).add(b, 0.7 * 2.0**-200)
    np.testing.assert_array_equal(a * 2.0**-200, b)


@pytest.mark.parametrize("kind", ALL)
def test_no_vector_is_allocated(kind):
    m = 200_000
    noise, value = kind(stream(12), m), np.zeros(m)
    noise.add(value, 1.0)
    tracemalloc.start()
    try:
        for _ in range(3):
            noise.prepare()
            noise.add(value, 1.0)
        assert tracemalloc.get_traced_memory()[1] < m * 8 / 2
    finally:
        tracemalloc.stop()


def test_grid_is_a_power_of_two_below_the_scale():
    for scale in (1.0, 1.999, 2.0, 0.3, 1e-100):
        g = grid(scale)
        assert math.frexp(g)[0] == 0.5
        assert 2.0**20 <= scale / g < 2.0**21


@pytest.mark.parametrize("kind", ALL)
def test_zero_has_no_sign(kind):
    noise = kind(stream(9), 4)
    noise.prepare()
    noise._x[:] = [-1e-9, 1e-9, -1e-9, 1e-9]
    noise._unsafe = np.empty(0, np.intp)
    value = np.array([-1e-9, -2e-9, 1e-10, 0.0])
    noise.add(value, 1.0)
    assert value.tolist() == [0.0] * 4
    assert not np.signbit(value).any()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 1e-200])
def test_impossible_scales_are_refused(kind, scale):
    with pytest.raises(ValueError, match="noise scale between"):
        kind(stream(10), 3).add(np.zeros(3), scale)


@pytest.mark.parametrize("kind", ALL)
def test_impossible_values_are_refused_and_cost_no_draw(kind):
    noise = kind(stream(11), 3)
    for bad in (np.array([0.0, math.nan, 1.0]), np.array([0.0, math.inf, 1.0]), np.array([-math.inf, 0.0, 1.0])):
        with pytest.raises(ValueError, match="finite"):
            noise.add(bad, 1.0)
    with pytest.raises(ValueError, match="below 2\\^500"):
        noise.add(np.full(3, 1e200), 1.0)
    with pytest.raises(ValueError, match="vector of 3"):
        noise.add(np.zeros(4), 1.0)
    with pytest.raises(ValueError, match="float64"):
        noise.add(np.zeros(3, np.float32), 1.0)
    with pytest.raises(ValueError, match="at least 1"):
        kind(stream(11), 0)
    a, b = np.zeros(3), np.zeros(3)
    noise.add(a, 1.0)
    kind(stream(11), 3).add(b, 1.0)
    np.testing.assert_array_equal(a, b)


# --- the laws --------------------------------------------------------------------------------------------------------

MILLION = 10**6


def z_score(sample, mean, deviation):
    return abs(sample.mean() - mean) / (deviation / math.sqrt(sample.size))


@pytest.fixture(scope="module")
def normals():
    return draws(GaussianNoise, 20, 10_000, 100)


@pytest.fixture(scope="module")
def laplaces():
    return draws(LaplaceNoise, 21, 10_000, 100)


def test_normal_law(normals):
    x = normals.ravel()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert z_score(x**power, mean, math.sqrt(variance)) < 4.5
    assert stats.kstest(x[::4], "norm").pvalue > 1e-4


@pytest.mark.parametrize("threshold", [3.0, 4.0, 4.5])
def test_normal_tails(normals, threshold):
    count = int(np.count_nonzero(np.abs(normals) > threshold))
    assert stats.binomtest(count, MILLION, 2 * stats.norm.sf(threshold)).pvalue > 1e-4


def test_laplace_law(laplaces):
    x = laplaces.ravel()
    for power, mean, variance in ((1, 0, 2), (2, 2, 20), (3, 0, 720)):
        assert z_score(x**power, mean, math.sqrt(variance)) < 4.5
    assert stats.kstest(x[::4], "laplace").pvalue > 1e-4
    for threshold in (5.0, 10.0):
        count = int(np.count_nonzero(np.abs(x) > threshold))
        assert stats.binomtest(count, MILLION, math.exp(-threshold)).pvalue > 1e-4


def correlation(a, b):
    """Return the correlation of two standardised samples in units of its standard error."""
    a, b = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()
    return abs(float((a * b).mean())) * math.sqrt(a.size)


@pytest.mark.parametrize("transform", [lambda x: x, np.square, np.abs, np.sign])
def test_partners_neighbours_and_rounds_are_independent(normals, transform):
    x = transform(normals)
    half = x.shape[1] // 2
    assert correlation(x[:, :half].ravel(), x[:, half:].ravel()) < 4.5
    assert correlation(x[:, :-1].ravel(), x[:, 1:].ravel()) < 4.5
    assert correlation(x[:-1].ravel(), x[1:].ravel()) < 4.5


@pytest.mark.parametrize("dimension", [1, 2, 5, 30])
def test_spherical_law(dimension):
    x = draws(SphericalLaplaceNoise, 22, dimension, 5000, scale=0.25) / 0.25
    radius = np.linalg.norm(x, axis=1)
    assert stats.kstest(radius, stats.gamma(dimension).cdf).pvalue > 1e-4
    assert z_score(x[:, 0] ** 2, dimension + 1.0, float((x[:, 0] ** 2).std())) < 4.5
    assert np.array_equal(x * 0.25 / grid(0.25), np.rint(x * 0.25 / grid(0.25)))
    if dimension == 1:
        assert stats.kstest(x[:, 0], "laplace").pvalue > 1e-4
    else:
        cosine = (x[:, -1] / radius) ** 2
        assert stats.kstest(cosine, stats.beta(0.5, (dimension - 1) / 2).cdf).pvalue > 1e-4
        assert correlation(radius, cosine) < 4.5


# --- the low bits ----------------------------------------------------------------------------------------------------


def finer_than(outputs, step):
    return np.count_nonzero(outputs / step != np.rint(outputs / step)) / outputs.size


def test_low_bits_tell_naive_noise_apart():
    """What the next test must not find: with float64 noise, bits below 2^-53 come from value 0 only."""
    x = np.random.default_rng(23).normal(size=MILLION)
    assert finer_than(0.0 + x, 2.0**-53) > 0.1
    assert finer_than(1.0 + x, 2.0**-53) == 0.0


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1])
def test_low_bits_tell_nothing(kind, value):
    """All outputs are grid points, of every residue modulo 256, equally often, whatever the value."""
    out = draws(kind, 24, 50_000, 20, value)
    assert finer_than(out, grid(1.0)) == 0.0
    residues = np.bincount((out / grid(1.0)).astype(np.int64).ravel() & 255, minlength=256)
    assert stats.chisquare(residues).pvalue > 1e-4


# --- integers --------------------------------------------------------------------------------------------------------


def discrete_law(sigma, width):
    y = np.arange(-width, width + 1)
    weights = np.array([float(mp.exp(-(mp.mpf(int(k)) ** 2) / (2 * mp.mpf(sigma) ** 2))) for k in y])
    return y, weights / weights.sum()


@pytest.mark.parametrize("sigma", [0.5, 0.7, 3.0, 50.0])
def test_discrete_gaussian_chi_square(sigma):
    sample = discrete_gaussian(stream(30), sigma, 300_000)
    y, p = discrete_law(sigma, math.ceil(12 * sigma))
    observed = np.bincount(sample + y[-1], minlength=len(y))
    rare = p * len(sample) < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(p[~rare], p[rare].sum()) * len(sample)
    assert sample.dtype == np.int64
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [2.0**17.5, 2.0**40, 2.0**45])
def test_wide_discrete_gaussian(sigma):
    """Wide against its steps, it is as good as normal; and all of its bits are random."""
    y = discrete_gaussian(stream(31), sigma, 200_000)
    assert stats.kstest(y / sigma, "norm").pvalue > 1e-4
    assert z_score((y / sigma) ** 2, 1.0, math.sqrt(2.0)) < 4.5
    for shift in (0, max(math.frexp(sigma)[1] - 20, 0)):  # the lowest bits, and those around the seam of H and L
        assert stats.chisquare(np.bincount(y >> shift & 255, minlength=256)).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [0.7, 3.3, 1000.0, 2.0**45 / 3])
def test_every_proposal_is_decided_as_by_60_digits(sigma, monkeypatch):
    """Every other proposal is put to within 2^-40 of the threshold of acceptance, on either side."""
    words = np.empty((3, 500), np.uint64)
    stream(32).fill(words.reshape(-1))
    M = 2 ** max(math.frexp(sigma)[1] - 18, 0)
    expected = []
    for i, (first, second, third) in enumerate(words.T.tolist()):
        e = -mp.log((first % 2**63 + mp.mpf("0.5")) / 2**63)
        low = third % M
        y = int(mp.floor(e * sigma / M)) * M + low
        threshold = low / mp.mpf(sigma) + (y / mp.mpf(sigma) - 1) ** 2 / 2
        word = second
        if i % 2:
            word = min(max(int(mp.exp(-threshold) * 2**64) + (2**20 if i % 4 == 1 else -(2**20)), 0), 2**64 - 1)
            words[1, i] = word
        if -mp.log((word + mp.mpf("0.5")) / 2**64) > threshold and (y or first < 2**63):
            expected.append(y if first < 2**63 else -y)
    assert 150 < len(expected) < 400
    assert samplers._propose(stream(33), words.copy(), sigma, M).tolist() == expected
    monkeypatch.setattr(samplers, "_LARGEST_LOG", -1.0)  # now every proposal is decided exactly
    assert samplers._propose(stream(33), words.copy(), sigma, M).tolist() == expected


def test_discrete_gaussian_counts_and_range():
    assert len(discrete_gaussian(stream(34), 1.0, 0)) == 0
    assert len(discrete_gaussian(stream(34), 1.0, 1)) == 1
    for sigma in (0.1, math.nan, 2.0**51):
        with pytest.raises(ValueError, match=r"between 0\.5 and 2\^50"):
            discrete_gaussian(stream(34), sigma, 1)


def test_discrete_gaussian_agrees_with_opendp():
    """Two samples, one law: OpenDP's exact sampler against ours."""
    dp = needs.package("opendp.prelude", "test")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i32")), dp.l2_distance(T=float)
    theirs = np.array(dp.m.make_gaussian(*space, scale=2.5)([0] * 4000))
    ours = discrete_gaussian(stream(35), 2.5, 40_000)
    table = np.array([np.bincount(np.clip(s, -7, 7) + 7, minlength=15) for s in (theirs, ours)])
    assert stats.chi2_contingency(table).pvalue > 1e-6
