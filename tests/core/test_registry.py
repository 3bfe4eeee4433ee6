"""Classes by name: known without imports, the same as their modules' own, and found again by class."""

import pytest

from dpmpi.algorithms import ALGORITHMS
from dpmpi.algorithms.dgd import DpDgd
from dpmpi.data import SOURCES


@pytest.mark.parametrize("registry", [ALGORITHMS, SOURCES])
def test_every_name_has_its_class(registry):
    assert len({*registry.values()}) == len(registry) == len([*registry])
    assert all(registry.name_of(cls) == name and name in registry for name, cls in registry.items())


def test_sources_have_the_names_by_which_they_are_asked_for():
    assert all(cls.name == name for name, cls in SOURCES.items())


def test_other_classes_have_no_name():
    own = type("DpDgd", (DpDgd,), {"__module__": DpDgd.__module__})  # of the same module and name
    assert ALGORITHMS["dp-dgd"] is DpDgd
    assert ALGORITHMS.name_of(own) is None
    assert ALGORITHMS.name_of(int) is None
    assert "gd" not in ALGORITHMS
    with pytest.raises(KeyError):
        ALGORITHMS["gd"]
