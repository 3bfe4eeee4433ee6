import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpmpi import rng
from dpmpi.rng import PrivateStream, fresh_key, insecure_key, public_generator


def test_public_generators_are_functions_of_seed_and_labels():
    draw = lambda *key: public_generator(*key).integers(2**63, size=4).tolist()  # noqa: E731
    assert draw(7, "rows", 3) == draw(7, "rows", 3)
    assert len({tuple(draw(*key)) for key in [(7, "rows", 3), (7, "rows", 4), (8, "rows", 3), (7, "row", 3)]}) == 4
    assert draw(1, "ab", "c") != draw(1, "a", "bc")


def test_a_private_stream_is_aes_256_in_counter_mode():
    key = insecure_key(1, 2)
    out = np.empty(10_000, np.uint64)
    PrivateStream(key, "noise").fill(out)
    cipher = Cipher(algorithms.AES(rng._digest("private", key, "noise")), modes.CTR(bytes(16))).encryptor()
    assert out.tobytes() == cipher.update(bytes(80_000))


def test_streams_differ_by_label_rank_and_seed():
    words = {
        tuple(PrivateStream(key, label).words(4).tolist())
        for key in (insecure_key(1, 0), insecure_key(1, 1), insecure_key(2, 0), fresh_key(), fresh_key())
        for label in ("noise", "batch")
    }
    assert len(words) == 10


def test_words_do_not_depend_on_how_they_are_asked_for():
    one, other = (PrivateStream(insecure_key(0, 0), "x") for _ in range(2))
    assert np.concatenate([one.words(3), one.words(5)]).tolist() == other.words(8).tolist()


def test_uniforms_are_uniform_and_never_zero():
    u = PrivateStream(insecure_key(0, 0), "x").uniforms(200_000)
    assert 0 < u.min() <= u.max() <= 1
    assert abs(u.mean() - 0.5) < 5 / np.sqrt(12 * u.size)
    counts, _ = np.histogram(u, 50, (0, 1))
    assert ((counts - 4000) ** 2 / 4000).sum() < 100  # chi-square with 49 degrees of freedom: P < 3e-5


def test_integers_are_uniform():
    stream = PrivateStream(insecure_key(0, 0), "x")
    counts = np.bincount([stream.integer(7) for _ in range(14_000)], minlength=7)
    assert counts.size == 7
    assert ((counts - 2000) ** 2 / 2000).sum() < 30  # 6 degrees of freedom: P < 5e-5


def test_a_short_key_is_refused():
    with pytest.raises(ValueError, match="32 bytes for a private stream, found 16"):
        PrivateStream(bytes(16), "noise")
