"""What comes over the wire: only the very message that was expected is taken; anything else is said to be wrong."""

from __future__ import annotations

import struct

import numpy as np
from hostile import attempt, damaged, examples
from hypothesis import given
from hypothesis import strategies as st

from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.keys import Greeting, Handshake, Identity, Session, verify_hello
from dpmpi.crypto.seal import SealedPair
from dpmpi.errors import ProtocolError, SealBroken
from dpmpi.network.channel import TRAILER_BYTES, Channel, ChannelSpec

SESSION = Session(bytes(range(8)), 3)
IDENTITIES = [Identity(bytes([rank + 1]) * 32) for rank in range(2)]
ROSTER = tuple(identity.public for identity in IDENTITIES)


def shakes() -> list[Handshake]:
    return [Handshake(SESSION, rank, IDENTITIES[rank], bytes([rank + 7]) * 32) for rank in range(2)]


HELLO = shakes()[0].hello


@given(raw=damaged(HELLO), roster=st.sampled_from([ROSTER, None]))
@examples(200)
def test_hello(raw, roster):
    found = attempt("hello", lambda: verify_hello(raw, SESSION, 0, roster))
    if raw == HELLO:
        assert found == Greeting(0, ROSTER[0], shakes()[0].greeting.exchange)
    else:
        assert isinstance(found, SealBroken)


LOW_ORDER = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"  # a point of order 8


@given(
    exchange=st.binary(min_size=32, max_size=32)
    | st.sampled_from([bytes(32), b"\x01" + bytes(31), b"\xff" * 32, bytes.fromhex(LOW_ORDER)])
)
@examples(80)
def test_public_key_of_a_peer(exchange):
    """A peer of the roster may sign any 32 bytes as its X25519 key."""
    keys = attempt("public key", lambda: shakes()[0].keys(Greeting(1, ROSTER[1], exchange)))
    if not isinstance(keys, SealBroken):
        assert len({keys.outgoing, keys.incoming, keys.masks}) == 3


def sealed(plain: bytes, round_: int = 5, hop: int = 0) -> bytes:
    """Return what rank 0 seals for rank 1."""
    first, second = shakes()
    pair = SealedPair(SESSION, 0, 1, first.keys(verify_hello(second.hello, SESSION, 1, ROSTER)))
    out = bytearray(len(plain) + SEAL_BYTES)
    pair.seal(bytearray(plain), out, round_, hop)
    return bytes(out)


PLAIN = np.linspace(-1, 1, 9).tobytes()
SEALED = sealed(PLAIN)


@given(raw=damaged(SEALED), into=st.sampled_from([len(PLAIN), len(PLAIN), len(PLAIN), 0, 8, 80]))
@examples(200)
def test_sealed_message(raw, into):
    first, second = shakes()
    pair = SealedPair(SESSION, 1, 0, second.keys(verify_hello(first.hello, SESSION, 0, ROSTER)))
    out = bytearray(b"x" * into)
    found = attempt("sealed message", lambda: pair.open(bytearray(raw), out, 5, 0))
    if raw == SEALED and into == len(PLAIN):
        assert out == PLAIN
        return
    assert isinstance(found, SealBroken)
    assert out == bytes(into)
    true = bytearray(len(PLAIN))
    pair.open(bytearray(SEALED), true, 5, 0)  # what did not open must not keep the true message out
    assert true == PLAIN


@given(
    payload=st.integers(0, 40), round_=st.integers(0, 2**62), hop=st.integers(0, 3),
    peers=st.sampled_from([(1,), (1, 2), (0, 3, 4)]), data=st.data(),
)  # fmt: skip
@examples(150)
def test_trailer(payload, round_, hop, peers, data):
    channel = Channel(ChannelSpec(9, peers, payload))
    channel.stamp(round_, hop)
    right = struct.pack("=qq", round_, hop)
    trailers = [
        data.draw(damaged(right)).ljust(TRAILER_BYTES, b"\0")[:TRAILER_BYTES] if data.draw(st.booleans()) else right
        for _ in peers
    ]
    for message, trailer in zip(channel.incoming_messages, trailers, strict=True):
        message[-TRAILER_BYTES:] = np.frombuffer(trailer, np.uint8)
    found = attempt("trailer", channel.check)
    wrong = [peer for peer, trailer in zip(peers, trailers, strict=True) if trailer != right]
    if wrong:
        assert isinstance(found, ProtocolError)
        assert f"from rank {wrong[0]}," in str(found)
    else:
        assert found is None
