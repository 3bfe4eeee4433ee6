"""Sums of secret shares against plain sums, whole runs, and what the wire shows of two worlds with the same sum."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from admm_problems import labelled_shards
from scipy import stats
from uniformity import SMALLEST_P, looks_uniform

from dpmpi.algorithms import ALGORITHMS
from dpmpi.core import Gather, Method, Mix, NeighbourSum, Query, Sampling, Sum, public
from dpmpi.errors import ConfigError, DataError
from dpmpi.network.channel import TRAILER_BYTES
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.network.exchange.shares import capacity
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem.penalties import Regulariser
from dpmpi.rng import insecure_key
from dpmpi.testing import Tap, models, random_shards, shared, simulate

MODES = ["full", "expanded"]


def said(rank, t, length):
    return 30.0 * np.random.default_rng([rank, t]).standard_normal(length)


@dataclass(frozen=True)
class Talk(Method):
    """Asks for each of `kinds` in every round, with vectors of two lengths."""

    kinds: tuple = (Sum, Mix, NeighbourSum)

    def start(self, agent):
        return []

    def round(self, agent, state, t):
        for kind in self.kinds:
            for length in (9, 4):
                state.append((yield kind(public(said(agent.rank, t, length), because="a constant"))).copy())

    def releases(self, terms):
        return []

    def model(self, agent, state, t, out):
        out[:] = 0.0


def talk(n, exchange, *kinds, rounds=2, **settings):
    engine = simulate(
        Talk(kinds), random_shards(n, 2, 3, 0), rounds, **{"graph": "complete", "exchange": exchange} | settings
    )
    return [seat.state for seat in engine.seats]


@pytest.mark.parametrize("bits", [12, 40])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [3, 5, 20])
def test_answers_are_the_plain_ones_up_to_rounding(n, mode, bits):
    kinds = (Sum, Mix, NeighbourSum)
    plain, found = talk(n, PlainExchange, *kinds), talk(n, shared(mode, bits), *kinds)
    for rank in range(n):
        for theirs, ours in zip(plain[rank], found[rank], strict=True):
            assert np.abs(ours - theirs).max() <= n * 2.0 ** -(bits + 1)
    for k, answer in enumerate(found[0]):
        same = [np.array_equal(answer, state[k]) for state in found]
        assert all(same) or kinds[k // 2 % 3] is NeighbourSum


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_is_the_exact_sum_of_the_rounded_vectors(mode):
    """In rational arithmetic; NeighbourSum is the same without the rank's own vector."""
    n, bits = 5, 20
    found = talk(n, shared(mode, bits), Sum, NeighbourSum, rounds=1)
    steps = [[round(Fraction(x) * 2**bits) for x in said(rank, 1, 9).tolist()] for rank in range(n)]
    for rank, state in enumerate(found):
        total = [sum(column) for column in zip(*steps, strict=True)]
        assert state[0].tolist() == [float(Fraction(k, 2**bits)) for k in total]
        around = [k - own for k, own in zip(total, steps[rank], strict=True)]
        assert state[2].tolist() == [float(Fraction(k, 2**bits)) for k in around]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 3, 8])
def test_a_sum_in_pieces_has_the_same_bits(monkeypatch, mode, length):
    """Vectors of 9 and 4 numbers, in pieces that divide them or not."""
    kinds = (Sum, Mix, NeighbourSum)
    whole = talk(4, shared(mode), *kinds)
    monkeypatch.setattr("dpmpi.network.exchange.shares.PIECE", length)
    for one, other in zip(whole, talk(4, shared(mode), *kinds), strict=True):
        assert all(map(np.array_equal, one, other))


def test_plus_is_added_before_rounding():
    @dataclass(frozen=True)
    class Plus(Talk):
        def round(self, agent, state, t):
            more = public(said(agent.rank, t + 100, 9), because="a constant")
            state.append((yield Mix(public(said(agent.rank, t, 9), because="a constant"), plus=more, times=2.5)).copy())

    exchange = shared("full", 40)
    engines = [
        simulate(Plus(), random_shards(4, 2, 3, 0), 1, graph="complete", exchange=e) for e in (exchange, PlainExchange)
    ]
    for seats in zip(*(engine.seats for engine in engines), strict=True):
        ours, theirs = (seat.state[0] for seat in seats)
        assert 0 < np.abs(ours - theirs).max() <= 2.0**-41 + 1e-13


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("graph", "kind", "reason"),
    [
        ("ring", Mix, "found Mix over 2 peers: use --exchange plain"),
        ("ring", NeighbourSum, "found NeighbourSum over 2 peers"),
        ("path", NeighbourSum, "found NeighbourSum over 1 peers"),
        ("complete", Gather, "found Gather over 4 peers"),
    ],
)
def test_what_the_sum_of_all_does_not_tell_is_refused(mode, graph, kind, reason):
    tap = Tap(LoopbackTransport(5))
    with pytest.raises(ConfigError, match=reason) as caught:
        talk(5, shared(mode), kind, graph=graph, transport=tap)
    assert "\n" not in str(caught.value)
    assert tap.heard == []


def test_a_sum_needs_no_complete_graph():
    expected = sum(said(rank, 1, 9) for rank in range(5))
    np.testing.assert_allclose(talk(5, shared(), Sum, graph="ring")[2][0], expected, atol=1e-11)


def test_sampled_pairs_are_refused():
    with pytest.raises(ConfigError, match="found Mix over 1 peers"):
        simulate(ALGORITHMS["sampled-dda"](), random_shards(5, 4, 3, 0), 3, graph="complete", exchange=shared())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 2])
def test_two_ranks_have_nothing_to_hide_in(mode, n):
    with pytest.raises(ConfigError, match=f"at least 3 ranks.*, found {n}"):
        talk(n, shared(mode), Sum)


@dataclass(frozen=True)
class Says(Talk):
    value: float = 0.0

    def round(self, agent, state, t):
        vector = np.full(3, self.value if agent.rank == 1 else 0.0)
        state.append((yield Sum(public(vector, because="a constant"))).copy())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_value_beyond_the_capacity_is_an_error_and_one_below_it_is_exact(sign):
    n, bits = 4, 40
    limit = capacity(n, bits)
    assert limit == 2.0 ** (62 - 40) / 4
    settings = {"graph": "complete", "exchange": shared("full", bits)}
    engine = simulate(Says(value=sign * limit), random_shards(n, 2, 3, 0), 1, **settings)
    assert engine.seats[0].state[0].tolist() == [sign * limit] * 3
    with pytest.raises(DataError, match=r"^expected values below 1\.05e\+06 in a shared sum, found .*--share-bits$"):
        simulate(Says(value=sign * np.nextafter(limit, np.inf)), random_shards(n, 2, 3, 0), 1, **settings)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_an_error(value):
    with pytest.raises(DataError, match=r"^expected [^\n]*, found -?(nan|inf)[^\n]*$"):
        simulate(Says(value=value), random_shards(3, 2, 3, 0), 1, graph="complete", exchange=shared())


@pytest.mark.parametrize(
    ("n", "bits", "tail", "fits"), [(4, 60, 0.0, True), (5, 60, 0.0, False), (4, 40, 2.0**22, False)]
)
def test_too_many_bits_or_too_much_noise_leave_no_room(n, bits, tail, fits):
    if fits:
        assert capacity(n, bits, tail) >= 1.0
        return
    with pytest.raises(ConfigError, match=r"use fewer --share-bits$|use at most \d+ fractional bits$"):
        capacity(n, bits, tail)


# --- whole runs ------------------------------------------------------------------------------------------------------


class RoundedExchange(PlainExchange):
    """The plain exchange of vectors that were rounded to the grid first; Mix as a sum times 1/n."""

    bits = 40

    def serve(self, request, near, round_):
        vector, kind, n = request.vector.value, type(request), len(near.peers) + 1
        if kind is Mix and request.plus is not None:
            vector = request.times * request.plus.value + vector
        rounded = public(np.rint(vector * 2.0**self.bits) * 2.0**-self.bits, because="rounded")
        asked = Sum if kind is Mix else kind
        answer = yield from super().serve(asked(rounded, out=request.out), near, round_)
        if kind is Mix:
            answer *= 1.0 / n
        return answer


RUNS = ["admm", "ip-admm", "dp-admm", "dp-dda", "rcd"]


def run(name, exchange, rounds=25, noise=0.0):
    algorithm = ALGORITHMS[name]()
    kind = algorithm.mechanisms[0] if noise else "none"
    return models(
        simulate(
            algorithm, labelled_shards(5), rounds, graph="complete", loss="logistic", penalty=Regulariser(l2=0.05),
            mechanism=lambda rank, m: make_mechanism(kind, noise, insecure_key(0, rank), m), exchange=exchange,
        )
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_bits_of_a_plain_run_on_rounded_messages(name, mode):
    """Sums of numbers on the grid below 2^13 are exact in float64 too, so nothing is left to differ."""
    expected = run(name, RoundedExchange, noise=0.05)
    np.testing.assert_array_equal(run(name, shared(mode), noise=0.05), expected)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("bits", [16, 28, 40])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_follows_the_plain_one_to_the_accumulated_rounding(name, bits):
    """Each round adds n 2^-(f+1) at most, and none of the methods stretches what came before."""
    rounds, n = 25, 5
    difference = np.abs(run(name, shared("expanded", bits)) - run(name, PlainExchange)).max()
    assert 0 < difference <= rounds * n * 2.0 ** -(bits + 1)


# --- what the wire shows ---------------------------------------------------------------------------------------------

LENGTH = 20_000
RANKS = 4


@dataclass(frozen=True, eq=False)
class Secret(Method):
    """Adds up one private vector a rank, without noise."""

    vectors: tuple = ()

    def start(self, agent):
        return []

    def round(self, agent, state, t):
        value = self.vectors[agent.rank].copy()
        released = agent.release(Query(value, 1.0, Sampling("full", 2.0, 2)))
        state.append((yield Sum(released)).copy())

    def width(self, dimension):
        return LENGTH

    def model(self, agent, state, t, out):
        out[:] = 0.0


def worlds():
    """Two sets of private vectors on the grid, which have the same sum."""
    draw = np.random.default_rng(0)
    one = np.rint(draw.standard_normal((RANKS, LENGTH)) * 2.0**20) / 2.0**20
    other, moved = one.copy(), 1.0 + np.rint(draw.standard_normal(LENGTH) * 2.0**20) / 2.0**20
    other[0] += moved
    other[1] -= moved
    return one, other


def on_the_wire(vectors, exchange):
    """{(rank, hop, which): words} of the one sum, and the answers."""
    tap = Tap(LoopbackTransport(RANKS))
    engine = simulate(
        Secret(tuple(vectors)), random_shards(RANKS, 2, 3, 0), 1, graph="complete", exchange=exchange, transport=tap
    )
    found = {}
    for rank, _, hop, message in tap.heard:
        which = sum(key[:2] == (rank, hop) for key in found)
        found[rank, hop, which] = np.frombuffer(message[:-TRAILER_BYTES], np.uint64)
    return found, [seat.state[0] for seat in engine.seats]


@pytest.fixture(scope="module", params=MODES)
def shown(request):
    """What both worlds show on the wire under independent keys, and their answers."""
    return request.param, *(on_the_wire(world, shared(request.param, seed=seed)) for seed, world in enumerate(worlds()))


def encoded(vector):
    return np.rint(vector * 2.0**40).astype(np.int64).view(np.uint64)


def test_two_worlds_with_the_same_sum_have_the_same_answers(shown):
    _, (_, one), (_, other) = shown
    for answer in [*one, *other]:
        np.testing.assert_array_equal(answer, worlds()[0].sum(axis=0))


def test_every_message_is_uniform_in_both_worlds(shown):
    mode, (one, _), (other, _) = shown
    assert len(one) == len(other) == (RANKS * RANKS if mode == "full" else RANKS)
    for key in one:
        assert looks_uniform(one[key]), key
        assert looks_uniform(other[key]), key
        assert stats.ks_2samp(one[key], other[key]).pvalue > SMALLEST_P, key


def test_the_difference_of_the_worlds_messages_is_uniform_and_not_that_of_the_inputs(shown):
    _, (one, _), (other, _) = shown
    first, second = worlds()
    for rank, hop, which in one:
        difference = other[rank, hop, which] - one[rank, hop, which]
        assert looks_uniform(difference)
        assert not np.any(difference == encoded(second[rank] - first[rank]))


def test_all_but_the_last_partial_sum_are_uniform_together_and_all_are_the_sum(shown):
    """The last one is no longer free: it completes the others to what everybody is to know."""
    mode, (one, _), _ = shown
    partial = [one[rank, 1 if mode == "full" else 0, 0] for rank in range(RANKS)]
    for some in (chosen for k in range(1, RANKS) for chosen in combinations(partial, k)):
        assert looks_uniform(np.add.reduce(some))
    total = np.add.reduce(partial)
    np.testing.assert_array_equal(total, encoded(worlds()[0].sum(axis=0)))
    assert not looks_uniform(total)


def test_any_all_but_one_of_the_shares_of_a_vector_are_uniform(shown):
    """The share that a rank keeps follows from its partial sum and what it was sent: only seals hide it."""
    mode, (one, _), _ = shown
    if mode == "expanded":
        return
    rank, secret = 2, encoded(worlds()[0][2])
    sent = [one[rank, 0, k] for k in range(RANKS - 1)]
    received = [one[j, 0, rank - (rank > j)] for j in range(RANKS) if j != rank]
    kept = one[rank, 1, 0] - np.add.reduce(received)
    shares = [*sent, kept]
    np.testing.assert_array_equal(np.add.reduce(shares), secret)
    for chosen in combinations(shares, RANKS - 1):
        for k in range(1, RANKS):
            for some in combinations(chosen, k):
                assert looks_uniform(np.add.reduce(some))


def test_a_plain_exchange_shows_the_difference():
    """The same eyes on plain messages: neither uniform nor the same in both worlds."""
    first, second = worlds()
    (one, answers), (other, _) = (on_the_wire(world, PlainExchange) for world in (first, second))
    np.testing.assert_array_equal(answers[0], first.sum(axis=0))
    for rank in range(RANKS):
        assert not looks_uniform(one[rank, 0, 0])
        np.testing.assert_array_equal(one[rank, 0, 0].view(np.float64), first[rank])
    for rank in (0, 1):
        seen = [wire[rank, 0, 0].view(np.float64) for wire in (one, other)]
        assert stats.ks_2samp(*seen).pvalue < SMALLEST_P
        np.testing.assert_array_equal(seen[1] - seen[0], second[rank] - first[rank])
