"""Contracts of a penalty: those built in keep them, and every bug that is planted is found."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from dpmpi import Penalty
from dpmpi.problem.penalties import Regulariser
from dpmpi.testing import check_penalty


@dataclass(frozen=True)
class NonNegative(Penalty):
    """w (x_1 + ... + x_m) on x >= 0."""

    weight: float = 0.1

    def value(self, x):
        return self.weight * float(x.sum()) if x.min() >= -1e-9 else math.inf

    def prox(self, v, step, out):
        np.maximum(v - step * self.weight, 0.0, out=out)


@dataclass(frozen=True)
class Group(Penalty):
    """w |x|, which is no sum over coordinates."""

    weight: float = 0.5

    def value(self, x):
        return self.weight * float(np.linalg.norm(x))

    def prox(self, v, step, out):
        norm = float(np.linalg.norm(v))
        np.multiply(v, max(0.0, 1.0 - step * self.weight / norm) if norm else 0.0, out=out)


class StepForgotten(NonNegative):
    def prox(self, v, step, out):
        np.maximum(v - self.weight, 0.0, out=out)


class OutsideTheDomain(NonNegative):
    def prox(self, v, step, out):
        np.subtract(v, step * self.weight, out=out)


class Strict(NonNegative):
    def value(self, x):
        return super().value(x) if x.min() >= 0.0 else math.inf


class Root(Group):
    """The square root of the length, which is not convex."""

    def value(self, x):
        return self.weight * math.sqrt(np.linalg.norm(x))


class WrongSign(Group):
    def dual_step(self, z, A, gamma, out):
        self.prox(z / gamma, A / gamma, out)


class GammaForgotten(Group):
    def dual_step(self, z, A, gamma, out):
        self.prox(-z / gamma, A, out)


class OneStep(Group):
    def add_dual_steps(self, z, a, A, gamma, total, scratch):
        self.dual_step(z, float(A[0]), float(gamma[0]), scratch)
        total += a.sum() * scratch


class InPlace(Group):
    def prox(self, v, step, out):
        v *= max(0.0, 1.0 - step * self.weight / float(np.linalg.norm(v))) if v.any() else 0.0
        np.copyto(out, v)


class Returns(Group):
    """Returns the answer instead of writing it."""

    def prox(self, v, step, out):
        return v


class NoNumber(Group):
    def value(self, x):
        return self.weight * np.abs(x)


class Kept(Penalty):
    """Has a number that is no field."""

    def __init__(self, weight=1.0):
        self.weight = weight

    value, prox = Group.value, Group.prox


@pytest.mark.parametrize(
    "h",
    [
        NonNegative(),
        NonNegative(2.0),
        Group(),
        *(Regulariser(l1=a, l2=b, box=c) for a, b, c in ((0.0, 0.0, None), (0.3, 0.2, None), (0.3, 0.2, 1.5))),
        Regulariser(l1=0.2, ball=2.0),
    ],
    ids=str,
)
def test_penalties_keep_their_contracts(h, capsys):
    check_penalty(lambda: h)
    said = capsys.readouterr().out
    assert said.startswith(f"contracts of {type(h).__name__}\n")
    assert "9 of 9 contracts kept" in said


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (StepForgotten, "prox", "`prox` is not the minimiser"),
        (OutsideTheDomain, "prox", "`prox` is not the minimiser"),
        (Strict, "rounding", "let `value` forgive 1e-9"),
        (Root, "convex", "not convex"),
        (WrongSign, "dual step", "correct `dual_step`, or leave it out"),
        (GammaForgotten, "dual step", "correct `dual_step`, or leave it out"),
        (OneStep, "dual steps", "found another sum"),
        (InPlace, "shapes", "expected the points as they were"),
        (Returns, "shapes", "expected numbers in all of `out` after `prox`"),
        (NoNumber, "shapes", "expected a float as the value"),
        (lambda: Kept(2.0), "settings", "expected @dataclass"),
    ],
)
def test_a_planted_bug_is_found(make, name, words, capsys):
    with pytest.raises(AssertionError, match=r"breaks [1-9]"):
        check_penalty(make)
    said = capsys.readouterr().out.splitlines()
    [place] = [k for k, line in enumerate(said) if f"BROKEN  {name}  " in line]
    assert words in said[place + 1]
