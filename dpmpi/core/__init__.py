"""The nouns of a method: Query, Release, Mix, Gather, Sum, Terms, Method, Agent."""

from __future__ import annotations

from dpmpi.core.agent import Agent, Charges, Clock, Draws, Event, Mechanism, Problem, Witness
from dpmpi.core.messages import (
    Array,
    Bytes,
    Gather,
    Hidden,
    Integers,
    Mix,
    NeighbourSum,
    Public,
    Query,
    Release,
    Request,
    Sampling,
    Sendable,
    Steps,
    Sum,
    public,
)
from dpmpi.core.method import (
    Asked,
    Audience,
    Exchanges,
    Facts,
    Gossip,
    Method,
    Planned,
    Terms,
    four_digits,
    held_back,
    hyperparameter,
    rounds_to_go,
)
from dpmpi.core.penalty import Penalty
from dpmpi.core.vectors import combine

__all__ = ["Agent", "Charges", "Clock", "Draws", "Event", "Mechanism", "Penalty", "Problem", "Witness"]
__all__ += ["Array", "Bytes", "Gather", "Hidden", "Integers", "Mix", "NeighbourSum", "Public", "Query", "Release"]
__all__ += ["Request", "Sampling", "Sendable", "Steps", "Sum", "public"]
__all__ += ["Asked", "Audience", "Exchanges", "Facts", "Gossip", "Method", "Planned", "Terms", "four_digits"]
__all__ += ["held_back", "hyperparameter", "rounds_to_go"]
__all__ += ["combine"]
