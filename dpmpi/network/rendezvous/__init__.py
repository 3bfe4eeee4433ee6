"""How ranks that start on their own find each other: a small TCP service of rank 0, and a lifeline to every other rank.

Rank 0 listens. Every other rank connects, and both prove who they are before anything else is said:

    rank 0 -> k    MAGIC, nonce a                                                                          (1)
    k -> rank 0    card: k, the ranks of its party, nonce b, digest of its settings, hello of k            (2)
    rank 0 -> k    the hello of rank 0, or a refusal in words, signed for a and b                          (3)

The hellos are those of `crypto/keys.py`, signed by identities of the roster, for the session

    run = SHA-256(JOIN | a | b | digest | k | first rank of k's party | number of its ranks)               (4)

A hello that was recorded at another start, or made with another key, for another rank or for other settings, does not
verify, on either side. Whoever sends anything else is named by its address and dropped; the others do not wait for it.
From (3) on every frame is sealed under the keys of the pair, in order. When all ranks have come, rank 0 hands out the
ports where the parties meet in MPI. All that is agreed on here is agreed on again, rank by rank, when the ranks meet
(`handshake.meet`): this service decides who takes part, not what is computed.

The connections stay open as lifelines. A rank that ends well says so; one whose connection breaks, that ends early, or
that is not heard for the deadline is lost, and rank 0 tells all the others which. No frame carries anything of the
records: kinds, rank numbers, ports and exit codes.

`papers` is what a rank shows, `wire` how frames travel, `door` who may introduce itself at a time, `lifeline` what both
sides have in common, `host` rank 0, `guest` any other rank.
"""
