"""Secrecy and authenticity of messages: the fixed-point ring, secret shares, identities and sealing.

- `ring`: real vectors as integers modulo 2^64, in which sums are exact.
- `shares`: an integer vector as uniform shares, or under masks that cancel in the sum over all ranks.
- `keys`: identities (Ed25519), and the keys that two ranks agree on (X25519, HKDF).
- `seal`: messages between two ranks that nobody else can read, change or repeat (AES-256-GCM).

With `dpmpi.rng`, this is the only importer of `cryptography`.
"""

SEAL_BYTES = 16
"""A sealed message is longer by its tag."""
