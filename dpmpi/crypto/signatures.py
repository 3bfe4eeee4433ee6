"""Signatures of ranks on what others read later, under the public keys of a roster."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpmpi.errors import SealBroken


def check_signature(public: bytes, message: bytes, signature: str) -> None:
    """Raise `SealBroken` unless `signature`, in hexadecimal digits, is that of the identity `public` on `message`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError, TypeError) as error:  # no hexadecimal digits, no encoding of a point
        raise SealBroken("expected a signature by the roster's key, found another: it was rewritten") from error
