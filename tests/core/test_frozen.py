"""`@frozen` behaves as the standard library's frozen dataclass does."""

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from dpmpi.core.frozen import frozen


class _Body:
    x: int
    y: str = "a"
    z: list[int] = field(default_factory=list)
    hidden: int = field(default=3, repr=False, compare=False)
    last: bool = field(default=False, kw_only=True)


Ours: Any = frozen(type("Point", (_Body,), dict(vars(_Body)) | {"__module__": __name__, "__qualname__": "Ours"}))
Theirs: Any = dataclass(frozen=True)(
    type("Point", (_Body,), dict(vars(_Body)) | {"__module__": __name__, "__qualname__": "Ours"})
)

CALLS = [
    ((1,), {}),
    ((1, "b", [2]), {"last": True}),
    ((), {"x": 1, "hidden": 7}),
    ((), {}),  # x is missing
    ((1,), {"x": 2}),
    ((1,), {"w": 2}),
    ((1, "b", [2], 3, True), {}),  # `last` is given by name
]


def outcome(cls, args, given):
    try:
        made = cls(*args, **given)
    except TypeError:
        return TypeError
    return asdict(made), repr(made), vars(made), cls.__match_args__


@pytest.mark.parametrize(("args", "given"), CALLS)
def test_it_is_made_as_a_dataclass_is(args, given):
    assert outcome(Ours, args, given) == outcome(Theirs, args, given)


def test_equal_if_compared_fields_are():
    for cls in (Ours, Theirs):
        assert cls(1, "b", (), hidden=1) == cls(1, "b", (), hidden=2) != cls(1, "b", (), last=True)
        assert hash(cls(1, z=(), hidden=1)) == hash(cls(1, z=(), hidden=2))
        assert cls(1) != 1
    assert Ours(1, z=()) != Theirs(1, z=())


def test_nothing_can_be_assigned_or_deleted():
    point = Ours(1)
    for attempt in (lambda: setattr(point, "x", 2), lambda: setattr(point, "w", 2), lambda: delattr(point, "x")):
        with pytest.raises(FrozenInstanceError):
            attempt()
    assert point == Ours(1)


def test_replace_copy_and_pickle():
    point = Ours(1, "b", [4], last=True)
    assert replace(point, x=2) == Ours(2, "b", [4], last=True)
    assert [one.name for one in fields(point)] == ["x", "y", "z", "hidden", "last"]
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


def test_defaults_made_by_a_factory_are_not_shared():
    assert Ours(1).z is not Ours(1).z


@frozen
class Checked:  # noqa: PLW1641  which it gets
    x: int

    def __post_init__(self):
        if self.x < 0:
            raise ValueError("x")

    def __repr__(self):
        return "checked"

    def __eq__(self, other):
        return isinstance(other, Checked)


@frozen
class Below(Checked):
    y: int = 1


def test_own_methods_and_inheritance():
    with pytest.raises(ValueError, match="x"):
        Checked(-1)
    assert repr(Checked(1)) == "checked"
    assert Checked(1) == Checked(2)
    assert hash(Checked(1)) == hash(Checked(1)) != hash(Checked(2))
    assert vars(Below(2)) == {"x": 2, "y": 1}
    with pytest.raises(ValueError, match="x"):
        Below(-2, 3)
