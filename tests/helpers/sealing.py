"""Keys for sealed transports that every rank can repeat."""

from dpmpi.crypto.keys import Handshake, Identity, verify_hello
from dpmpi.rng import insecure_key


def repeatable_keys(session, size):
    """The keys of every pair of ranks after a handshake whose secrets everybody can repeat."""
    hands = [
        Handshake(session, rank, Identity(insecure_key(0, rank)), insecure_key(session.incarnation + 1, rank))
        for rank in range(size)
    ]
    greetings = [verify_hello(hand.hello, session, rank, None) for rank, hand in enumerate(hands)]
    return {rank: {p.rank: hands[rank].keys(p) for p in greetings if p.rank != rank} for rank in range(size)}
