import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmpi.errors import CheckpointError
from dpmpi.privacy.samplers import GaussianNoise, LaplaceNoise, SphericalLaplaceNoise
from dpmpi.rng import PrivateStream
from dpmpi.runtime.recovery.snapshot import Snapshot, from_bytes, to_bytes

SNAPSHOT = Snapshot(
    7, {"z": np.arange(4.0), "visits": np.array([3, -1]), "empty": np.zeros(0)}, {"last": 3},
    {"active_rounds": 7, "releases": 9, "stopped": None, "admitted": True}, [[0.5], [1.0]],
    [[1, 2, 3, 4]], {"2": {"messages_sent": 4}}, {"run": "ab"},
)  # fmt: skip


def test_bytes_and_back():
    found = from_bytes(to_bytes(SNAPSHOT), "here")
    for name, array in SNAPSHOT.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].dtype == array.dtype
    assert replace(found, arrays={}) == replace(SNAPSHOT, arrays={})


@given(st.data())
def test_a_changed_byte_is_noticed(data):
    content = bytearray(to_bytes(SNAPSHOT))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = from_bytes(bytes(content), "here")
    except CheckpointError:
        return
    assert replace(found, arrays={}) == replace(SNAPSHOT, arrays={})  # white space in the first line, at most


@pytest.mark.parametrize("cut", [0, 1, 50, -1, -8])
def test_a_part_is_refused(cut):
    with pytest.raises(CheckpointError, match="damaged"):
        from_bytes(to_bytes(SNAPSHOT)[:cut], "here")


def test_objects_are_not_read():
    """A file with a right hash, from somebody who means no good."""
    fields = json.loads(to_bytes(SNAPSHOT).split(b"\n", 2)[1])
    text = json.dumps(fields | {"arrays": {"z": ["|O", [1]]}})
    rest = text.encode() + b"\n" + b"\0" * 8
    seal = json.dumps({"dpmpi": 1, "sha256": hashlib.sha256(rest).hexdigest()}).encode()
    with pytest.raises(CheckpointError, match="type"):
        from_bytes(seal + b"\n" + rest, "here")


@pytest.mark.parametrize("noise", [GaussianNoise, LaplaceNoise, SphericalLaplaceNoise])
@pytest.mark.parametrize("ahead", [False, True])
def test_noise_goes_on_where_it_was(noise, ahead):
    def draw(source):
        value = np.zeros(5)
        source.add(value, 1.0)
        return value

    one, other = (noise(PrivateStream(b"k" * 32, "noise"), 5) for _ in range(2))
    for _ in range(3):
        draw(one)
    if ahead:
        one.prepare()
    positions = [stream.position for stream in one.streams()]
    expected = [draw(one) for _ in range(4)]
    for stream, position in zip(other.streams(), positions, strict=True):
        stream.seek(position)
    np.testing.assert_array_equal([draw(other) for _ in range(4)], expected)


def test_streams_go_on_inside_their_buffer():
    one, other = (PrivateStream(b"k" * 32, "batch") for _ in range(2))
    one.uniforms(700)
    one.fill(np.empty(3, np.uint64))
    one.uniforms(5)
    other.seek(one.position)
    np.testing.assert_array_equal(other.uniforms(600), one.uniforms(600))
    assert other.integer(1000) == one.integer(1000)
