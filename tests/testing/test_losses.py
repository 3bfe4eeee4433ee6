"""Contracts of a loss: those built in keep them, and every bug that is planted is found."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

from dpmpi.problem.losses import LOSSES, Huber, Logistic, Loss, Squared
from dpmpi.testing import check_loss


@dataclass(frozen=True)
class Pinball(Loss):
    """The loss whose minimiser is a quantile."""

    kinds = ("regression",)
    q: float = 0.9

    def value(self, scores, labels):
        return np.maximum(self.q * (labels - scores), (1.0 - self.q) * (scores - labels))

    def slope(self, scores, labels):
        return np.where(scores < labels, -self.q, 1.0 - self.q)


class WrongSign(Logistic):
    def slope(self, scores, labels):
        return -super().slope(scores, labels)

    to_slope = Loss.to_slope


class OneSide(Pinball):
    def slope(self, scores, labels):
        return np.where(scores > labels, -self.q, 1.0 - self.q)


class Flatter(Squared):
    """Says that it is smoother than it is."""

    curvature = 0.5


class Gentle(Logistic):
    steepest = 0.2


class Centred(Squared):
    """Subtracts the mean of all records: no record is alone."""

    def slope(self, scores, labels):
        return (scores - scores.mean()) - labels

    to_slope = Loss.to_slope


class Concave(Squared):
    def value(self, scores, labels):
        return -super().value(scores, labels)

    def slope(self, scores, labels):
        return -super().slope(scores, labels)

    to_slope = Loss.to_slope


class Rounded(Squared):
    def to_slope(self, scores, labels):
        np.copyto(scores, (scores - labels).astype(np.float32))


class Overflowing(Logistic):
    def slope(self, scores, labels):
        e = np.exp(-labels * scores)
        return -labels * e / (1.0 + e)

    to_slope = Loss.to_slope


class Lax(Squared):
    def check_labels(self, labels):
        pass


class Dual(Huber):
    """A conjugate of another loss."""

    def conjugate(self, alpha, labels):
        return alpha * alpha + alpha * labels


class Summed(Squared):
    def value(self, scores, labels):
        return np.sum(super().value(scores, labels))


class Writing(Squared):
    """Changes the scores that it is given."""

    def slope(self, scores, labels):
        scores -= labels
        return scores


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_are_built_in_keep_all_contracts(name, capsys):
    check_loss(lambda: LOSSES[name])
    assert capsys.readouterr().out.endswith("13 of 13 contracts kept\n")


def test_a_loss_of_ones_own_keeps_them():
    check_loss(Pinball)
    check_loss(lambda: Pinball(0.3))


@pytest.mark.parametrize(
    ("bug", "broken", "words"),
    [
        (WrongSign, "slope", "is a sign of the slope wrong"),
        (WrongSign, "differences", "by differences"),
        (OneSide, "slope", "is a sign of the slope wrong"),
        (Flatter, "curvature", "at most curvature = 0.5 times the distance"),
        (Gentle, "steepest", "at most steepest = 0.2"),
        (Centred, "one record", "whatever others are beside it"),
        (Centred, "sensitivity", "moved by"),
        (Concave, "slope", "or the loss not convex"),
        (Rounded, "in place", "found other bits"),
        (Overflowing, "large scores", "found NaN: guard against overflow"),
        (Lax, "labels", "to refuse nan"),
        (Dual, "conjugate", "correct `conjugate`"),
        (Summed, "shapes", "expected values of shape"),
        (Writing, "shapes", "work on a copy"),
    ],
)
def test_a_planted_bug_is_found(bug, broken, words, capsys):
    with pytest.raises(AssertionError, match=words):
        check_loss(bug)
    assert re.search(rf"^  BROKEN  {broken} ", capsys.readouterr().out, re.MULTILINE)
