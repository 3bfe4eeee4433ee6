"""Words of other ranks, which may have been changed on their way: what cannot be is refused, with the sender's name."""

from __future__ import annotations

from collections.abc import Sequence

from dpmpi.errors import ProtocolError

LONGEST_WORDS = 1 << 30
"""Bytes of one rank for another; more is not believed."""


def check_lengths(rank: int, lengths: Sequence[int]) -> None:
    """Raise `ProtocolError` if another rank announces to `rank` what cannot be."""
    for peer, length in enumerate(lengths):
        if not 0 <= length <= LONGEST_WORDS:
            raise ProtocolError(
                f"rank {rank} expected at most {LONGEST_WORDS} bytes of rank {peer}, found {length} announced: was the "
                "message changed?"
            )


def other_lengths(rank: int, lengths: Sequence[int]) -> ProtocolError:
    """Return the error that other lengths have come to `rank` than were announced."""
    told = ", ".join(f"{length} of rank {peer}" for peer, length in enumerate(lengths) if peer != rank)
    return ProtocolError(
        f"rank {rank} expected as many bytes as were announced ({told}), found others: was a message changed?"
    )


def text_of(peer: int, words: bytes) -> str:
    """Return the text of a rank; raise `ProtocolError` for bytes that are none."""
    try:
        return words.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"expected the words of rank {peer}, found other bytes: were they changed?") from error
