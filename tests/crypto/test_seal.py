import hashlib
import tracemalloc

import needs
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto import seal as module
from dpmpi.crypto.keys import Handshake, Identity, Session, verify_hello
from dpmpi.crypto.seal import SealedPair
from dpmpi.errors import SealBroken

# --- AES-GCM itself --------------------------------------------------------------------------------------------------

VECTORS = [  # key, nonce, plaintext, associated data, ciphertext, tag
    # McGrew and Viega, The Galois/Counter Mode of Operation, test cases 13 to 16
    ("00" * 32, "00" * 12, "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    ("00" * 32, "00" * 12, "00" * 16, "", "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"),
    (
        "feffe9928665731c6d6a8f9467308308" * 2,
        "cafebabefacedbaddecaf888",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
        "",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
        "b094dac5d93471bdec1a502270e3cc6c",
    ),
    (
        "feffe9928665731c6d6a8f9467308308" * 2,
        "cafebabefacedbaddecaf888",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
        "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
    # NIST CAVP, gcmEncryptExtIV256.rsp
    (
        "b52c505a37d78eda5dd34f20c22540ea1b58963cf8e5bf8ffa85f9f2492505b4",
        "516c33929df5a3284ff463d7",
        "",
        "",
        "",
        "bdc1ac884d332457a1d2664f168c76f0",
    ),
    (
        "78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223",
        "d79cf22d504cc793c3fb6c8a",
        "",
        "b96baa8c1c75a671bfb2d08d06be5f36",
        "",
        "3e5d486aa2e30b22e040b85723a06e76",
    ),
    (
        "31bdadd96698c204aa9ce1448ea94ae1fb4a9a0b3c9d773b51bb1822666b8f22",
        "0d18e06c7c725ac9e362e1ce",
        "2db5168e932556f8089a0622981d017d",
        "",
        "fa4362189661d163fcd6a56d8bf0405a",
        "d636ac1bbedd5cc3ee727dc2ab4a9489",
    ),
    (
        "24501ad384e473963d476edcfe08205237acfd49b5b8f33857f8114e863fec7f",
        "9ff18563b978ec281b3f2794",
        "27f348f9cdc0c5bd5e66b1ccb63ad920ff2219d14e8d631b3872265cf117ee86757accb158bd9abb3868fdc0d0b074b5f01b2c",
        "adb5ec720ccf9898500028bf34afccbcaca126ef",
        "eb7cb754c824e8d96f7c6d9b76c7d26fb874ffbf1d65c6f64a698d839b0b06145dae82057ad55994cf59ad7f67c0fa5e85fab8",
        "bc95c532fecc594c36d1550286a7a3f0",
    ),
]


def gcm(key, nonce, plain, data):
    """AES-GCM as NIST SP 800-38D writes it, from single blocks of AES and integers: an independent oracle."""

    def aes(block):
        return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)

    def times(x, y):
        z = 0
        for i in range(128):
            if x >> (127 - i) & 1:
                z ^= y
            y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
        return z

    def padded(raw):
        return raw + bytes(-len(raw) % 16)

    stream = b"".join(aes(nonce + (i + 2).to_bytes(4, "big")) for i in range(-(-len(plain) // 16)))
    cipher = bytes(a ^ b for a, b in zip(plain, stream, strict=False))
    h, y = int.from_bytes(aes(bytes(16)), "big"), 0
    lengths = (8 * len(data)).to_bytes(8, "big") + (8 * len(cipher)).to_bytes(8, "big")
    hashed = padded(data) + padded(cipher) + lengths
    for i in range(0, len(hashed), 16):
        y = times(y ^ int.from_bytes(hashed[i : i + 16], "big"), h)
    mask = int.from_bytes(aes(nonce + (1).to_bytes(4, "big")), "big")
    return cipher + (y ^ mask).to_bytes(16, "big")


@pytest.mark.parametrize("vector", VECTORS)
def test_the_published_vectors(vector):
    key, nonce, plain, data, cipher, tag = map(bytes.fromhex, vector)
    assert gcm(key, nonce, plain, data) == cipher + tag
    assert module.AESGCM(key).encrypt(nonce, plain, data) == cipher + tag
    assert module.AESGCM(key).decrypt(nonce, cipher + tag, data) == plain


# --- sealing ---------------------------------------------------------------------------------------------------------

IDENTITIES = [Identity(bytes([rank + 1]) * 32) for rank in range(3)]
ROSTER = tuple(identity.public for identity in IDENTITIES)
SESSION = Session(b"run 7", 2)


def pairs(session=SESSION, ranks=(0, 1, 2)):
    """{(rank, peer): its end} for all ranks of a session, after a handshake with fresh keys."""
    hands = {rank: Handshake(session, rank, IDENTITIES[rank]) for rank in ranks}
    greetings = {rank: verify_hello(hand.hello, session, rank, ROSTER) for rank, hand in hands.items()}
    return {(i, j): SealedPair(session, i, j, hands[i].keys(greetings[j])) for i in ranks for j in ranks if i != j}


def sealed(pair, plain, round_=12, hop=0):
    out = np.empty(len(plain) + SEAL_BYTES, np.uint8)
    pair.seal(np.frombuffer(plain, np.uint8), out, round_, hop)
    return out


def opened(pair, message, round_=12, hop=0):
    out = np.full(len(message) - SEAL_BYTES, 0xA5, np.uint8)
    pair.open(message, out, round_, hop)
    return out.tobytes()


def rejected(pair, message, round_=12, hop=0, room=None):
    """The message does not open, the error names who and when, and nothing of the text is left in the buffer."""
    out = np.full(len(message) - SEAL_BYTES if room is None else room, 0xA5, np.uint8)
    with pytest.raises(SealBroken) as caught:
        pair.open(message, out, round_, hop)
    assert not out.any()
    text = str(caught.value)
    assert text.startswith(
        f"rank {pair.rank} could not open the message of rank {pair.peer} in round {round_}, hop {hop}: "
    )
    assert "\n" not in text
    return text


PLAIN = bytes(range(1, 100))


in_place = needs.encryption_in_place(module.WRITES_INTO)


@pytest.mark.parametrize("into", [pytest.param(True, marks=in_place), False])
def test_a_sealed_message_is_aes_gcm_under_the_agreed_nonce_and_data(into, monkeypatch):
    """(1) and (2) of the module, against the oracle; with and without the library's in-place calls."""
    monkeypatch.setattr(module, "WRITES_INTO", into)
    hands = [Handshake(SESSION, rank, IDENTITIES[rank]) for rank in (0, 1)]
    keys = [hands[0].keys(hands[1].greeting), hands[1].keys(hands[0].greeting)]
    ends = [SealedPair(SESSION, 0, 1, keys[0]), SealedPair(SESSION, 1, 0, keys[1])]
    message = sealed(ends[1], PLAIN, 5, 3)
    number = lambda value, width: value.to_bytes(width, "big")  # noqa: E731
    bound = hashlib.sha256(
        b"dpmpi sealed message" + hashlib.sha256(b"run 7").digest() + number(2, 8) + number(1, 4) + number(0, 4)
    ).digest()
    position = number(5, 8) + number(3, 4)
    expected = gcm(keys[1].outgoing, position, PLAIN, bound + position + number(len(PLAIN), 8))
    assert message.tobytes() == expected
    assert opened(ends[0], message, 5, 3) == PLAIN
    message = sealed(ends[1], PLAIN, 6, 0)
    message[0] ^= 1
    rejected(ends[0], message, 6, 0)


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_what_is_sealed_opens_in_both_directions(plain, round_, hop):
    ends = pairs(ranks=(0, 1))
    for i, j in ((0, 1), (1, 0)):
        message = sealed(ends[i, j], plain, round_, hop)
        assert opened(ends[j, i], message, round_, hop) == plain


def test_memoryviews_and_bytearrays_serve_as_well():
    ends = pairs(ranks=(0, 1))
    words = np.arange(10, dtype=np.uint64)
    message, back = bytearray(80 + SEAL_BYTES), np.zeros(10, np.uint64)
    ends[0, 1].seal(words.data.cast("B"), memoryview(message), 1, 0)
    ends[1, 0].open(message, back.view(np.uint8), 1, 0)
    assert back.tolist() == words.tolist()


def test_a_replayed_message_is_rejected():
    ends = pairs()
    message = sealed(ends[0, 1], PLAIN)
    assert opened(ends[1, 0], message) == PLAIN
    assert "found a past one" in rejected(ends[1, 0], message)  # at its own position
    rejected(ends[1, 0], message, 12, 1)  # at the next
    rejected(ends[1, 0], message, 13, 0)


def test_reordered_messages_are_rejected():
    ends = pairs()
    first, second = sealed(ends[0, 1], PLAIN, 1, 0), sealed(ends[0, 1], PLAIN, 1, 1)
    rejected(ends[1, 0], second, 1, 0)
    assert opened(ends[1, 0], first, 1, 0) == PLAIN  # what did not open has not kept the true one out
    assert opened(ends[1, 0], second, 1, 1) == PLAIN
    rejected(ends[1, 0], first, 1, 0)


@pytest.mark.parametrize("cut", [1, 8, SEAL_BYTES, len(PLAIN), len(PLAIN) + SEAL_BYTES])
def test_truncated_and_extended_messages_are_rejected(cut):
    ends = pairs()
    message = sealed(ends[0, 1], PLAIN)
    assert "expected 115 sealed bytes" in rejected(ends[1, 0], message[:-cut], room=len(PLAIN))
    if cut <= len(PLAIN):
        rejected(ends[1, 0], message[:-cut])  # into a buffer of the shorter length
    rejected(ends[1, 0], np.append(message, np.zeros(cut, np.uint8)))


def test_every_flipped_bit_is_noticed():
    ends = pairs()
    message = sealed(ends[0, 1], PLAIN)
    for bit in range(8 * len(message)):
        changed = message.copy()
        changed[bit // 8] ^= 1 << bit % 8
        rejected(ends[1, 0], changed)
    assert opened(ends[1, 0], message) == PLAIN


def test_a_message_for_another_receiver_is_rejected():
    ends = pairs()
    message = sealed(ends[0, 1], PLAIN)
    rejected(ends[2, 0], message)
    rejected(ends[0, 1], message)  # sent back to its sender


def test_a_message_of_another_round_or_hop_is_rejected():
    ends = pairs()
    message = sealed(ends[0, 1], PLAIN, 12, 1)
    for position in ((11, 1), (12, 0), (12, 2), (13, 1), (1, 12)):
        rejected(ends[1, 0], message, *position)


def test_a_forged_sender_is_rejected():
    ends = pairs()
    message = sealed(ends[2, 1], PLAIN)
    rejected(ends[1, 0], message)
    assert opened(ends[1, 2], message) == PLAIN


def test_a_message_of_a_stale_incarnation_or_another_run_is_rejected():
    for session in (Session(b"run 7", 1), Session(b"run 8", 2), SESSION):  # the last with new X25519 keys
        message = sealed(pairs(session)[0, 1], PLAIN)
        rejected(pairs()[1, 0], message)


def test_the_associated_data_bind_all_that_the_keys_bind():
    """With the same keys by force, a different run, incarnation or rank is still noticed."""
    hands = [Handshake(SESSION, rank, IDENTITIES[rank]) for rank in (0, 1)]
    mine, theirs = hands[0].keys(hands[1].greeting), hands[1].keys(hands[0].greeting)
    for session, sender, receiver in (
        (Session(b"run 8", 2), 0, 1), (Session(b"run 7", 3), 0, 1), (SESSION, 2, 1), (SESSION, 0, 2)
    ):  # fmt: skip
        message = sealed(SealedPair(session, sender, receiver, mine), PLAIN)
        rejected(SealedPair(SESSION, 1, 0, theirs), message)
    assert opened(SealedPair(SESSION, 1, 0, theirs), sealed(SealedPair(SESSION, 0, 1, mine), PLAIN)) == PLAIN


@given(st.binary(min_size=SEAL_BYTES, max_size=150))
@settings(deadline=None, max_examples=50)
def test_garbage_is_rejected(raw):
    ends = pairs(ranks=(0, 1))
    rejected(ends[1, 0], np.frombuffer(raw, np.uint8))


class Recorder:
    """AES-GCM that notes every (key, nonce) used to encrypt."""

    used: list

    def __init__(self, key):
        self._key, self._aead = key, AESGCM(key)

    def encrypt_into(self, nonce, plain, data, out):
        self.used.append((self._key, bytes(nonce)))
        self._aead.encrypt_into(nonce, plain, data, out)

    def encrypt(self, nonce, plain, data):
        self.used.append((self._key, bytes(nonce)))
        return self._aead.encrypt(nonce, plain, data)


calls = st.lists(st.tuples(st.sampled_from([(0, 1), (1, 0)]), st.integers(0, 3), st.integers(0, 3)), max_size=12)


@given(st.lists(st.tuples(st.integers(0, 2), calls), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_no_nonce_is_used_twice_under_a_key_whatever_the_calls(incarnations):
    """Incarnations may repeat, as after a crash: their X25519 keys differ."""
    recorder = type("Fresh", (Recorder,), {"used": []})
    asked = done = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AESGCM", recorder)
        for incarnation, sends in incarnations:
            ends = pairs(Session(b"run 7", incarnation), ranks=(0, 1))
            last = {}
            for way, round_, hop in sends:
                asked += (round_, hop) > last.get(way, (-1, -1))
                try:
                    sealed(ends[way], PLAIN, round_, hop)
                except ValueError as error:
                    assert "expected an increasing position" in str(error)  # noqa: PT017  # others must get through
                else:
                    done += 1
                    last[way] = (round_, hop)
    assert len(recorder.used) == done == asked
    assert len(set(recorder.used)) == done


def test_a_nonce_is_burnt_even_if_sealing_fails():
    pair = pairs()[0, 1]
    with pytest.raises(TypeError):
        pair.seal(np.zeros(9, np.uint64), np.empty(9 + SEAL_BYTES, np.uint8), 12, 0)
    with pytest.raises(ValueError, match=r"rank 0 cannot seal .* to rank 1 in round 12, hop 0: expected an increasing"):
        sealed(pair, PLAIN)
    assert sealed(pair, PLAIN, 12, 1).size == len(PLAIN) + SEAL_BYTES


def test_impossible_buffers_and_positions_are_refused():
    ends = pairs()
    with pytest.raises(
        ValueError,
        match="rank 0 cannot seal a message to rank 1 in round 1, hop 0: expected 115 sealed bytes, found 99",
    ):
        ends[0, 1].seal(np.frombuffer(PLAIN, np.uint8), np.empty(len(PLAIN), np.uint8), 1, 0)
    for position in ((-1, 0), (2**64, 0), (0, -1), (0, 2**32)):
        with pytest.raises(ValueError, match="expected 0 <= round"):
            sealed(ends[0, 1], PLAIN, *position)
        with pytest.raises(ValueError, match="expected 0 <= round"):
            ends[1, 0].open(np.zeros(99, np.uint8), np.zeros(83, np.uint8), *position)


@in_place
def test_a_large_message_is_sealed_in_place():
    """No second buffer of the message's size."""
    ends = pairs()
    plain, out = np.ones(378_000, np.uint8), np.empty(378_000 + SEAL_BYTES, np.uint8)
    tracemalloc.start()
    ends[0, 1].seal(plain, out, 1, 0)
    ends[1, 0].open(out, plain, 1, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plain.all()
    assert peak < 20_000
