import hmac
import os
import re
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpmpi.crypto import keys
from dpmpi.crypto.keys import (
    HELLO_BYTES,
    Greeting,
    Handshake,
    Identity,
    Session,
    agree,
    check_identity,
    hkdf,
    load_identity,
    load_roster,
    make_identities,
    make_identity,
    verify_hello,
    write_roster,
)
from dpmpi.errors import ConfigError, SealBroken
from dpmpi.network.mpi_collectives import CARD_BYTES

SESSION = Session(b"run 7", 3)
IDENTITIES = [Identity(bytes([rank + 1]) * 32) for rank in range(4)]
ROSTER = tuple(identity.public for identity in IDENTITIES)
ONE_LINE = re.compile(r"[^\n]{10,}\Z")


def handshake(rank, session=SESSION, identity=None, private=None):
    return Handshake(session, rank, identity or IDENTITIES[rank], private)


def test_a_hello_is_too_long_to_go_through_another_rank():
    """Short texts do: whoever passes them on could say that all are short, and tell others a text of its own."""
    assert len(handshake(1).hello.hex()) > CARD_BYTES - 8


# --- published vectors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scalar", "point", "expected"),
    [  # RFC 7748, section 5.2, and Alice's and Bob's keys of section 6.1
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
        (
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
            "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
        ),
    ],
)
def test_x25519(scalar, point, expected):
    assert agree(bytes.fromhex(scalar), bytes.fromhex(point), 1).hex() == expected


def test_x25519_public_key_of_a_hello():
    """RFC 7748, section 6.1: Alice's public key."""
    private = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    expected = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert handshake(0, private=private).greeting.exchange.hex() == expected


@pytest.mark.parametrize(
    ("secret", "salt", "info", "expected"),
    [  # RFC 5869, A.1 to A.3
        (
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x50)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
            "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            b"\x0b" * 22,
            b"",
            b"",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf(secret, salt, info, expected):
    assert hkdf(secret, salt, info, len(expected) // 2).hex() == expected


@pytest.mark.parametrize(
    ("seed", "public", "message", "signature"),
    [  # RFC 8032, section 7.1, tests 1 and 2
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
            "387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_ed25519(seed, public, message, signature):
    identity = Identity(bytes.fromhex(seed))
    assert identity.public.hex() == public
    assert identity.sign(bytes.fromhex(message)).hex() == signature


# --- the handshake ---------------------------------------------------------------------------------------------------


def meet(a, b, roster=ROSTER):
    """The keys of both sides."""
    seen_by_a = verify_hello(b.hello, a.session, b.greeting.rank, roster)
    seen_by_b = verify_hello(a.hello, b.session, a.greeting.rank, roster)
    return a.keys(seen_by_a), b.keys(seen_by_b)


@pytest.mark.parametrize("roster", [ROSTER, None])
def test_two_ranks_agree_on_keys_crosswise(roster):
    one, other = meet(handshake(2), handshake(0), roster)
    assert (one.outgoing, one.incoming, one.masks) == (other.incoming, other.outgoing, other.masks)
    assert len({one.outgoing, one.incoming, one.masks}) == 3
    assert {len(key) for key in (one.outgoing, one.incoming, one.masks)} == {32}


def test_the_keys_are_hkdf_of_all_that_they_depend_on():
    """(2) and (3), by HMAC from the standard library."""

    def join(*parts):
        raw = [part if isinstance(part, bytes) else part.to_bytes(8, "big") for part in parts]
        return b"".join(len(part).to_bytes(8, "big") + part for part in raw)

    a, b = handshake(1), handshake(3)
    keys_a, _ = meet(a, b)
    secret = agree(a._private, b.greeting.exchange, 3)
    extracted = hmac.digest(SESSION.run, secret, "sha256")
    shared = join(b"run 7", 3, 1, 3, ROSTER[1], ROSTER[3], a.greeting.exchange, b.greeting.exchange)
    expand = lambda *info: hmac.digest(extracted, join(*info) + b"\x01", "sha256")  # noqa: E731
    assert keys_a.outgoing == expand(b"dpmpi seal", shared, 1, 3)
    assert keys_a.incoming == expand(b"dpmpi seal", shared, 3, 1)
    assert keys_a.masks == expand(b"dpmpi mask", shared)


def test_a_hello_signs_run_incarnation_rank_and_key_in_148_bytes():
    a = handshake(1)
    assert len(a.hello) == HELLO_BYTES == 148
    assert verify_hello(a.hello, SESSION, 1, ROSTER) == a.greeting
    assert a.hello[-64:] == IDENTITIES[1].sign(keys._join(b"dpmpi hello", b"run 7", 3, 1, a.greeting.exchange))


@given(st.integers(0, 2**64 - 1), st.binary(max_size=20), st.integers(0, 2**64 - 1), st.binary(max_size=20))
@settings(deadline=None)
def test_sessions_never_share_a_key_even_with_the_same_x25519_keys(incarnation, run, other_incarnation, other_run):
    pairs = []
    for session in (Session(run, incarnation), Session(other_run, other_incarnation)):
        pairs.append(meet(*(handshake(rank, session, private=bytes([rank + 9]) * 32) for rank in (0, 1)))[0])
    every = {key for pair in pairs for key in (pair.outgoing, pair.incoming, pair.masks)}
    assert len(every) == (3 if (run, incarnation) == (other_run, other_incarnation) else 6)


def test_runs_that_are_the_same_salt_have_different_keys():
    """HMAC pads its key with zeros."""
    runs = [Session(run, 0) for run in (b"a", b"a\0")]
    one, other = (meet(*(handshake(rank, run, private=bytes([rank + 9]) * 32) for rank in (0, 1)))[0] for run in runs)
    assert one.masks != other.masks


def test_x25519_keys_are_drawn_anew():
    assert handshake(0).greeting.exchange != handshake(0).greeting.exchange
    assert meet(handshake(0), handshake(1))[0].masks != meet(handshake(0), handshake(1))[0].masks


def refused(hello, rank=1, session=SESSION, roster=ROSTER):
    with pytest.raises(SealBroken) as caught:
        verify_hello(hello, session, rank, roster)
    assert f"rank {rank}" in str(caught.value)
    assert ONE_LINE.match(str(caught.value))
    return str(caught.value)


def test_hellos_of_others_are_refused():
    assert "found that of rank 2" in refused(handshake(2).hello)
    assert "expected the key that the roster has" in refused(handshake(1, identity=IDENTITIES[2]).hello)
    assert "expected the key that the roster has" in refused(handshake(1).hello, roster=ROSTER[:1])
    assert "incarnation 2" in refused(handshake(1, Session(b"run 7", 2)).hello)
    assert "expected the signature" in refused(handshake(1, Session(b"run 8", 3)).hello)
    assert "148 bytes" in refused(handshake(1).hello[:-1])


def test_a_hello_with_a_foreign_signature_is_refused():
    stranger = handshake(1, identity=IDENTITIES[2]).hello
    forged = stranger[:20] + ROSTER[1] + stranger[52:]
    assert "expected the signature" in refused(forged)


def test_every_flipped_bit_of_a_hello_is_noticed():
    hello = handshake(1).hello
    for bit in range(0, 8 * len(hello), 5):
        changed = bytearray(hello)
        changed[bit // 8] ^= 1 << bit % 8
        refused(bytes(changed))


@given(st.binary(max_size=200) | st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES), st.booleans())
@settings(deadline=None)
def test_garbled_hellos_are_refused(raw, dressed):
    if dressed:
        raw = handshake(1).hello[:20] + raw[20:]
    refused(raw, roster=None)


P = 2**255 - 19
LOW_ORDER = [0, 1, P - 1, P, P + 1] + [
    int.from_bytes(bytes.fromhex(point), "little")
    for point in (
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    )
]


@pytest.mark.parametrize("point", LOW_ORDER)
@pytest.mark.parametrize("top", [0, 1])
def test_public_keys_of_low_order_are_refused(point, top):
    raw = (point | top << 255).to_bytes(32, "little")
    with pytest.raises(SealBroken, match="from rank 2, found a degenerate one"):
        handshake(0).keys(Greeting(2, ROSTER[2], raw))


def test_keys_are_given_out_once_for_each_peer():
    a, b = handshake(0), handshake(1)
    meet(a, b)
    for greeting in (b.greeting, a.greeting):
        with pytest.raises(ValueError, match="expected a new peer of rank 0"):
            a.keys(greeting)


def test_secrets_are_not_printed():
    a, b = handshake(0), handshake(1)
    pair, _ = meet(a, b)
    printed = repr(pair) + repr(a) + repr(IDENTITIES[0]) + repr(a.greeting)
    for secret in (pair.outgoing, pair.incoming, pair.masks, a._private, bytes([1]) * 32):
        assert secret.hex() not in printed
        assert repr(secret)[2:-1] not in printed


def test_an_incarnation_has_64_bits():
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match="incarnation"):
            Session(b"", wrong)


# --- files -----------------------------------------------------------------------------------------------------------


def test_made_identities_are_read_back(tmp_path):
    folder = tmp_path / "a" / "keys"
    roster = make_identities(3, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["rank-000.key", "rank-001.key", "rank-002.key",
                                                              "roster.toml"]  # fmt: skip
    assert load_roster(folder / "roster.toml") == roster
    assert len(set(roster)) == 3
    for rank, public in enumerate(roster):
        path = folder / f"rank-{rank:03d}.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        identity = load_identity(path)
        assert identity.public == public
        check_identity(identity, rank, 3, roster)
        greeting = verify_hello(Handshake(SESSION, rank, identity).hello, SESSION, rank, roster)
        assert greeting.identity == public


def test_key_files_are_pem_that_others_can_read_too(tmp_path):
    """RFC 8410, section 7: the private key that it prints, with its public key."""
    der = "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC"
    text = f"-----BEGIN PRIVATE KEY-----\n{der}\n-----END PRIVATE KEY-----\n"
    identity = load_identity(secret_file(tmp_path / "k", text.encode()))
    assert identity.public.hex() == "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1"
    assert identity.pem() == text.encode()


def test_a_private_key_is_private_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        make_identity(tmp_path / "k")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600


def test_nothing_is_overwritten(tmp_path):
    make_identities(2, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=r"rank-000.key: File exists"):
        make_identities(2, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_key_files_that_others_can_use_are_refused(tmp_path, mode):
    make_identity(tmp_path / "k")
    (tmp_path / "k").chmod(mode)
    with pytest.raises(ConfigError, match=f"found mode {mode:04o} of .*: use chmod 600"):
        load_identity(tmp_path / "k")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "big").write_bytes(bytes(2**20 + 1))
    (tmp_path / "big").chmod(0o600)
    for load in (load_identity, load_roster):
        for path, reason in (
            (tmp_path, "Is a directory|something else"), (tmp_path / "none", "No such file"),
            (tmp_path / "pipe", "something else"), (tmp_path / "big", "more than 1 MB"), (Path("a\0b"), "no file name"),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match=f"^expected a file of keys at [^\n]*({reason})[^\n]*$"):
                load(path)
    with pytest.raises(ConfigError, match=r"cannot write .*/rank-000.key: Not a directory"):
        make_identities(1, tmp_path / "big" / "keys")
    with pytest.raises(ConfigError, match="expected 1 to 10000"):
        make_identities(0, tmp_path)


def secret_file(path, content):
    path.touch(0o600)
    path.write_bytes(content)
    return path


def test_keys_of_another_kind_or_with_a_password_are_refused(tmp_path):
    form = serialization.PrivateFormat.PKCS8
    other = X25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with pytest.raises(ConfigError, match="another kind"):
        load_identity(secret_file(tmp_path / "x", other))
    locked = IDENTITIES[0]._key.private_bytes(
        serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"word")
    )
    with pytest.raises(ConfigError, match="without password"):
        load_identity(secret_file(tmp_path / "y", locked))


@given(st.binary(max_size=300), st.integers(0, 120), st.integers(0, 120), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_malformed_key_files_are_refused(tmp_path, raw, start, stop, inside):
    pem = IDENTITIES[0].pem()
    content = pem[:start] + raw + pem[stop:] if inside else raw
    try:
        identity = load_identity(secret_file(tmp_path / "k", content))
    except ConfigError as error:
        assert ONE_LINE.match(str(error))  # noqa: PT017  # other exceptions must get through
    else:  # text around the key is harmless
        assert len(identity.sign(content)) == 64


HEX = "ab" * 32


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "table [public]"),
        ("public = 3", "table [public]"),
        ("[public]", "table [public]"),
        ("[public", "is not TOML"),
        ("[public]\n" + "a" + "." * 3, "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
        (f'[public]\nrank-001 = "{HEX}"', "expected rank-000 = 64 hexadecimal digits, found nothing"),
        (
            f'[public]\nrank-000 = "{HEX}"\nrank-002 = "{"cd" * 32}"',
            "expected rank-001 = 64 hexadecimal digits, found nothing",
        ),
        (f'[public]\nrank-000 = "{HEX}"\nrank-001 = "{HEX}"', "that of rank-000 for rank-001 too"),
        ('[public]\nrank-000 = "abcd"', "expected rank-000 = 64 hexadecimal digits, found "),
        (f'[public]\nrank-000 = "{"zz" * 32}"', "expected rank-000 = 64 hexadecimal digits, found "),
        ("[public]\nrank-000 = 5", "expected rank-000 = 64 hexadecimal digits, found "),
        ('[public]\nrank-000 = "\\n\\n"', "expected rank-000 = 64 hexadecimal digits, found "),
    ],
)
def test_malformed_rosters_are_refused(tmp_path, text, reason):
    (tmp_path / "roster.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        load_roster(tmp_path / "roster.toml")
    assert ONE_LINE.match(str(caught.value))


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 300), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbled_rosters_are_refused_or_whole(tmp_path, raw, start, stop, inside):
    path = tmp_path / "roster.toml"
    path.unlink(missing_ok=True)
    write_roster(path, ROSTER)
    good = path.read_bytes()
    path.write_bytes(good[:start] + raw + good[stop:] if inside else raw)
    try:
        roster = load_roster(path)
    except ConfigError as error:
        assert ONE_LINE.match(str(error))  # noqa: PT017  # other exceptions must get through
    else:
        assert {len(public) for public in roster} == {32}
        assert len(set(roster)) == len(roster)


def test_an_identity_must_be_that_of_its_rank():
    check_identity(IDENTITIES[2], 2, 4, ROSTER)
    with pytest.raises(ConfigError, match="for rank 2, found that of rank 1"):
        check_identity(IDENTITIES[1], 2, 4, ROSTER)
    with pytest.raises(ConfigError, match="found one that it lacks"):
        check_identity(Identity(), 2, 4, ROSTER)
    with pytest.raises(ConfigError, match="roster of 5 ranks, found 4 keys"):
        check_identity(IDENTITIES[2], 2, 5, ROSTER)
