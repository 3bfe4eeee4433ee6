"""Errors are one printable line, whatever they quote."""

import pytest

from dpmpi.core.files import read_toml
from dpmpi.errors import ConfigError, DataError, DpmpiError, SealBroken


@pytest.mark.parametrize("kind", [DpmpiError, ConfigError, DataError, SealBroken])
def test_control_characters_are_spelt_out(kind):
    assert str(kind("cannot read a\0b\nc\x1b[2J\u2028\udcff: é stays")) == (
        r"cannot read a\x00b\nc\x1b[2J\u2028\udcff: é stays"
    )


def test_a_path_with_a_null_byte(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_toml(tmp_path / "\0", "the configuration")
    assert str(caught.value).isprintable()


def test_plain_messages_stay():
    assert str(DataError("expected 3 columns, found 2")) == "expected 3 columns, found 2"
