from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from uniformity import looks_uniform

from dpmpi.crypto import shares
from dpmpi.crypto.ring import FixedPoint, decode
from dpmpi.crypto.shares import PairwiseMasks, split
from dpmpi.rng import PrivateStream, insecure_key


def shares_of(secret, n, seed=0):
    out = np.empty((n, len(secret)), np.uint64)
    split(secret, out, PrivateStream(insecure_key(seed, 0), "shares"))
    return out


def total(shares):
    """A secret from its shares, or (2) from the partial sums."""
    return np.add.reduce(shares, axis=0)


words = st.integers(0, 2**64 - 1)
vectors = st.lists(words, min_size=4, max_size=4).map(lambda x: np.array(x, np.uint64))


@given(vectors, st.integers(2, 9))
@settings(deadline=None)
def test_all_shares_together_are_the_secret(secret, n):
    shares = shares_of(secret, n)
    assert total(shares).tolist() == secret.tolist()
    for row, column in enumerate(shares.T.tolist()):  # the same in Python's integers
        assert sum(column) % 2**64 == secret[row]


@given(st.lists(vectors, min_size=3, max_size=6))
@settings(deadline=None)
def test_partial_sums_add_up_to_the_sum_of_the_secrets(secrets):
    """(2): the protocol, with a share of each rank for each rank."""
    held = np.array([shares_of(secret, len(secrets), seed) for seed, secret in enumerate(secrets)])
    partial = np.array([total(held[:, j]) for j in range(len(secrets))])
    expected = [sum(int(secret[k]) for secret in secrets) % 2**64 for k in range(4)]
    assert total(partial).tolist() == expected


def test_the_secret_may_lie_in_the_last_row():
    secret = np.arange(5, dtype=np.uint64)
    out = np.zeros((3, 5), np.uint64)
    out[-1] = secret
    split(out[-1], out, PrivateStream(insecure_key(0, 0), "shares"))
    assert out.tolist() == shares_of(secret, 3).tolist()


@pytest.mark.parametrize("secret", [0, 1, 2**64 - 1], ids=["zero", "one", "minus one"])
def test_any_all_but_one_shares_are_uniform_and_unrelated_whatever_the_secret(secret):
    shares = shares_of(np.full(20_000, secret, np.uint64), 4)
    for chosen in combinations(range(4), 3):
        seen = shares[list(chosen)]
        for some in (seen, seen[:2], seen[1:], seen[::2]):  # also in sums, which one share alone would not show
            assert looks_uniform(total(some))
        for one, other in combinations(seen, 2):
            assert looks_uniform(one)
            assert abs(stats.spearmanr(one, other).statistic) < 5 / np.sqrt(20_000)


def test_the_uniformity_test_sees_a_bad_split():
    secret = np.full(20_000, 1, np.uint64)
    shares = shares_of(secret, 3)
    assert not looks_uniform(total(shares))  # the secret itself
    assert not looks_uniform(shares[0] >> np.uint64(1))  # a lost bit
    assert not looks_uniform(shares[0] | np.uint64(1))  # a stuck bit


def test_the_drawn_shares_do_not_depend_on_the_secret_and_the_last_moves_with_it():
    one, other = np.arange(50, dtype=np.uint64), np.full(50, 2**63, np.uint64)
    a, b = shares_of(one, 5), shares_of(other, 5)
    assert (a[:-1] == b[:-1]).all()
    assert (a[-1] - b[-1] == one - other).all()


@pytest.mark.parametrize("shape", [(1, 4), (3, 5), (4,)])
def test_shares_of_a_wrong_shape_are_refused(shape):
    with pytest.raises(ValueError, match="at least 2 shares"):
        split(np.zeros(4, np.uint64), np.zeros(shape, np.uint64), PrivateStream(insecure_key(0, 0), "x"))


# --- pairwise masks --------------------------------------------------------------------------------------------------


def secret_of(i, j, incarnation=0):
    return PrivateStream(insecure_key(incarnation, min(i, j)), f"{max(i, j)}").words(4).tobytes()


def all_masks(n, incarnation=0):
    return [PairwiseMasks(i, {j: secret_of(i, j, incarnation) for j in range(n) if j != i}) for i in range(n)]


def aes_block(key, block):
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)  # one block, as an oracle


def test_the_block_oracle_is_aes_256():
    """NIST SP 800-38A, F.5.5: the first output block of CTR-AES256."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    assert aes_block(key, bytes(range(0xF0, 0x100))).hex() == "0bdf7df1591716335e9a8b15c860c502"


@given(st.integers(2, 7), st.lists(st.integers(1, 5000), min_size=1, max_size=4))
@settings(deadline=None, max_examples=30)
def test_masks_cancel_in_the_sum_over_all_ranks(n, lengths):
    """Of every vector in turn, whatever the lengths of the ones before."""
    masks = all_masks(n)
    for length in lengths:
        vectors = np.arange(length * n, dtype=np.uint64).reshape(n, length)
        masked = vectors.copy()
        for mask, vector in zip(masks, masked, strict=True):
            mask.add(vector)
        assert total(masked).tolist() == total(vectors).tolist()
        assert not (masked == vectors).any()


@pytest.mark.parametrize("lengths", [(9001,), (2000, 3001, 4000), (4096, 4096, 809)])
def test_masks_are_aes_in_counter_mode(lengths):
    """(3) and (4), block by block, over pieces and from vector to vector."""
    n, rank = 4, 1
    mask = all_masks(n)[rank]
    vectors = [np.zeros(length, np.uint64) for length in lengths]
    for vector in vectors:
        mask.add(vector)
    said = np.concatenate(vectors)
    for block in (0, 1, 999, 1000, 2047, 2048, 4096, 4499):
        expected = np.zeros(2, np.uint64)
        for j in (0, 2, 3):
            counter = bytes(12) + (block + 2).to_bytes(4, "big")
            stream = np.frombuffer(aes_block(secret_of(rank, j), counter), np.uint64)
            expected = expected + stream if j > rank else expected - stream
        assert said[2 * block : 2 * block + 2].tolist() == expected.tolist()


def test_a_stretch_of_keystream_ends_before_its_counter_does(monkeypatch):
    """(4): the next one has its own number in all counter blocks, on all ranks at once."""
    monkeypatch.setattr("dpmpi.crypto.shares.STRETCH", 8 * 2500)
    masks, said = all_masks(3), np.zeros((3, 4, 2000), np.uint64)
    for mask, vectors in zip(masks, said, strict=True):
        for vector in vectors:
            mask.add(vector)
    assert not total(said.reshape(3, -1)).any()
    for k, stretch in enumerate(said[0].reshape(-1)[: 3 * 2500].reshape(3, 2500)):
        counter = k.to_bytes(12, "big") + (2).to_bytes(4, "big")
        first = sum(np.frombuffer(aes_block(secret_of(0, j), counter), np.uint64) for j in (1, 2))
        assert stretch[:2].tolist() == first.tolist()
    assert len(np.unique(said)) == said.size


@given(st.lists(st.tuples(st.integers(0, 700), st.booleans()), min_size=1, max_size=12), st.sampled_from((64, 32)))
@settings(deadline=None, max_examples=50)
def test_masks_drawn_ahead_are_those_that_come_next(vectors, bits):
    """Whatever the lengths, across the ends of stretches, and whoever draws ahead."""
    before, shares.STRETCH = shares.STRETCH, 8 * 300
    try:
        plain, hasty = all_masks(3)[0], all_masks(3)[0]
        for length, ahead in vectors:
            if ahead:
                hasty.prepare()
                hasty.prepare()
            expected, found = (np.zeros(length, f"uint{bits}") for _ in range(2))
            plain.add(expected)
            hasty.add(found)
            assert found.tolist() == expected.tolist()
    finally:
        shares.STRETCH = before


def test_any_all_but_one_masked_vectors_look_uniform_and_unrelated():
    masked = np.zeros((3, 20_000), np.uint64)
    for mask, vector in zip(all_masks(3), masked, strict=True):
        mask.add(vector)
    for one, other in combinations(masked, 2):
        assert looks_uniform(one)
        assert looks_uniform(one + other)
        assert abs(stats.spearmanr(one, other).statistic) < 5 / np.sqrt(20_000)
    assert not total(masked).any()


def test_incarnations_have_masks_of_their_own():
    first, second = (np.zeros(1000, np.uint64) for _ in range(2))
    all_masks(3, 0)[0].add(first)
    all_masks(3, 1)[0].add(second)
    assert not (first == second).any()


def test_masks_are_not_used_twice():
    mask, said = all_masks(3)[0], np.zeros((50, 400), np.uint64)
    for vector in said:
        mask.add(vector)
    assert len(np.unique(said)) == said.size


def test_masks_refuse_missing_repeated_or_short_secrets_and_other_words():
    good = {1: bytes(32), 2: bytes(31) + b"1"}
    for secrets in ({}, {**good, 0: bytes(31) + b"2"}, {1: bytes(32), 2: bytes(32)}, {**good, 2: b"short"}):
        with pytest.raises(ValueError, match="secret"):
            PairwiseMasks(0, secrets)
    mask = PairwiseMasks(0, good)
    for vector in (np.zeros(4), np.zeros((2, 2), np.uint64)):
        with pytest.raises(ValueError, match="vector of unsigned words"):
            mask.add(vector)


@pytest.mark.parametrize("mode", ["full", "expanded"])
def test_a_sum_of_real_vectors_is_exact_in_both_modes(mode):
    n, m, bits = 5, 30, 40
    x = np.random.default_rng(1).uniform(-1, 1, (n, m))
    encoded = np.empty((n, m), np.uint64)
    for row, out in zip(x, encoded, strict=True):
        FixedPoint(1.0, bits).encode(row, out)
    expected = np.empty(m)
    decode(total(encoded), FixedPoint(1.0, bits).scale(), expected)
    if mode == "full":
        said = np.array([shares_of(row, n, seed) for seed, row in enumerate(encoded)]).sum(axis=0, dtype=np.uint64)
    else:
        said = encoded.copy()
        for mask, vector in zip(all_masks(n), said, strict=True):
            mask.add(vector)
    answer = np.empty(m)
    decode(total(said), FixedPoint(1.0, bits).scale(), answer)
    assert answer.tolist() == expected.tolist()
    assert np.abs(answer - x.sum(axis=0)).max() <= n * 2.0 ** -(bits + 1) + 1e-15
