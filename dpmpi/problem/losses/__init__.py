"""Losses by name: one file for each kind of label, and one line in the table for each loss."""

from __future__ import annotations

from collections.abc import Sequence

from dpmpi.errors import ConfigError, nearest
from dpmpi.problem.losses.base import Loss
from dpmpi.problem.losses.margins import Hinge, Logistic, SmoothedHinge
from dpmpi.problem.losses.poisson import Poisson
from dpmpi.problem.losses.residuals import Huber, Squared
from dpmpi.problem.losses.softmax import Softmax
from dpmpi.problem.losses.weighted import Weighted, weighted
from dpmpi.problem.task import TaskKind

__all__ = [
    "LOSSES",
    "USUAL_LOSS",
    "Hinge",
    "Huber",
    "Logistic",
    "Loss",
    "Poisson",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "Weighted",
    "parse_loss",
    "weighted",
]

LOSSES: dict[str, Loss] = {
    "hinge": Hinge(),
    "logistic": Logistic(),
    "softmax": Softmax(),
    "squared": Squared(),
    "huber": Huber(),
    "poisson": Poisson(),
}
USUAL_LOSS: dict[TaskKind, str] = {
    "binary": "hinge",
    "multiclass": "softmax",
    "regression": "squared",
    "counts": "poisson",
}
"""The loss of a task, if nobody says."""
MEAN = "mean"
"""The name of the loss of points without labels, which has no scores: see `local_problem.MeanProblem`."""


def parse_loss(text: str, others: Sequence[str] = ()) -> Loss:
    """Return the loss that `--loss` names, e.g. `logistic` or `huber:0.5`; raise `ConfigError`.

    `others` are names of further losses, for the message.
    """
    name, colon, value = text.partition(":")
    if name not in LOSSES:
        known = (*LOSSES, MEAN, *others)
        raise ConfigError(f"--loss is one of {', '.join(known)}; got {text!r}{nearest(name, known)}")
    if not colon:
        return LOSSES[name]
    try:
        delta = float(value)
    except ValueError:
        delta = 0.0
    if name != "huber" or not delta > 0.0:
        raise ConfigError(f"expected --loss huber:DELTA with a number above 0, or a name alone, found {text!r}")
    return Huber(delta)
