"""All methods keep all contracts; their variants keep those that look at one run."""

import linecache
import re
import sys
import textwrap
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

import dpmpi
from dpmpi import testing
from dpmpi.algorithms import ALGORITHMS
from dpmpi.core import Method
from dpmpi.problem.penalties import Regulariser
from dpmpi.testing import check_exchanges, check_method, check_no_leak, check_releases, check_resume, check_sensitivity

COMPLETE, SMOOTH, EXACT = {"graph": "complete"}, {"loss": "logistic"}, {"loss": "logistic", "normalized": True}
NEEDS = {
    "one-shot": {"loss": "mean"},
    "ldp-admm": SMOOTH,
    "ldp-gd": COMPLETE | SMOOTH,
    "ldp-gd-minmax": SMOOTH,
    "rcd": COMPLETE | SMOOTH,
} | dict.fromkeys(("admm", "pvp-admm", "dvp-admm", "r-admm"), EXACT)
OPTIONS = {"ldp-gd-minmax": {"average": "mean"}}  # the last iterate moves with every random weight


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_keeps_all_contracts(name):
    check_method(partial(ALGORITHMS[name], **OPTIONS.get(name, {})), **NEEDS.get(name, {}))


BATCHES = ("full", "1", "5", "fixed:4")
BOX, BALL, SPARSE_BOX = Regulariser(box=0.2), Regulariser(l2=0.01, ball=0.3), Regulariser(l1=0.01, box=0.4)


LOSSES = ("hinge", "logistic", "squared")


def with_batches():
    """Yield (name, options, settings) of methods that take batches of any kind."""
    for name, loss in product(("dda", "dp-dda", "sampled-dda"), LOSSES):
        yield name, {}, {"loss": loss}
    descents = (("dgd", {}), ("dp-dgd", {}), ("dp-dgd", {"tolerance": 0.5}), ("hmv-dgd", {}))
    convex = (("mean", SPARSE_BOX), ("mean", BOX), ("logistic", BALL), ("squared", BALL))
    for (name, options), (loss, penalty) in product(descents, convex):
        yield name, options, {"loss": loss, "penalty": penalty, "graph": "complete"}
    yield "one-shot", {}, {"loss": "mean", "radius": 2.0}
    for regulariser, loss in product(("exact", "linearised"), ("hinge", "logistic")):
        yield "ip-admm", {"inner_steps": 2, "regulariser": regulariser}, {"loss": loss}
    for loss in LOSSES:
        yield "dp-admm", {}, {"loss": loss, "penalty": Regulariser(l1=0.01, ball=1.0)}
    for name, growth in product(
        ("ldp-admm", "ldp-gd", "ldp-gd-minmax"), ({"noise_growth": 1.0}, {"noise_growth": 1.02})
    ):
        yield name, growth, COMPLETE | SMOOTH
    for name in ("ldp-gd", "ldp-gd-minmax"):
        yield name, {}, COMPLETE | {"loss": "hinge"}


def without_batches():
    """Yield (name, options, settings) of methods that need all records in every round."""
    for name, loss in product(("admm", "pvp-admm", "dvp-admm", "r-admm"), ("squared", "mean")):
        yield name, {}, {"loss": loss, "normalized": True}
    for options, loss, penalty in (
        ({}, "logistic", Regulariser(l2=0.05)),
        ({"eta": 0.125}, "logistic", Regulariser(l1=0.02, ball=0.5)),
        ({"regulariser": "linearised"}, "logistic", Regulariser(l2=0.1)),
        ({"eta_growth": "sqrt"}, "squared", Regulariser(l2=0.01)),
        ({}, "mean", Regulariser()),
    ):
        once = {"inner_steps": 3, "inner_noise": "once"} | options
        yield "ip-admm", once, {"loss": loss, "penalty": penalty, "normalized": True}
    for width, order in product((1, 3, 7), ("cyclic", "random")):
        yield "rcd", {"coordinates": width, "coordinate_order": order}, COMPLETE | SMOOTH


VARIANTS = [(*one, settings | {"batch": batch}) for *one, settings in with_batches() for batch in BATCHES]


@pytest.mark.parametrize(("name", "options", "settings"), [*VARIANTS, *without_batches()])
def test_a_variant_keeps_the_contracts(name, options, settings):
    make = partial(ALGORITHMS[name], **options)
    settings = dict(settings)
    normalized = settings.pop("normalized", False)
    for check in (check_no_leak, check_releases, check_exchanges, check_resume):
        check(make, rounds=20 if name == "rcd" else 12, **settings)
    if options.get("coordinate_order") != "random":  # its parts are not parts of the latest charge
        rounds = 20 if name == "rcd" else 3
        check_sensitivity(make, rounds=rounds, lipschitz=0.5, normalized=normalized, **settings)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_class_a_file_and_a_page_are_named_after_the_command_line(name):
    cls = ALGORITHMS[name]
    assert cls.__name__ == "".join(part.capitalize() for part in name.split("-"))
    file = cls.__module__.rpartition(".")[2].replace("_", "-")
    assert name == file or name.endswith(f"-{file}")  # variants that differ in hyperparameters share a file
    docs = Path(dpmpi.__file__).parents[1] / "docs"
    assert f"`{name}`" in (docs / "algorithms" / f"{file}.md").read_text().splitlines()[0]
    assert f"[`{name}`](algorithms/{file}.md)" in (docs / "algorithms.md").read_text()


def test_the_page_on_adding_a_method_names_all_hooks_and_contracts():
    page = (Path(dpmpi.__file__).parents[1] / "docs" / "algorithms" / "README.md").read_text()
    hooks = [name for name in vars(Method) if not name.startswith("_")]
    checks = [name for name in testing.__all__ if name.startswith("check_")]
    assert [name for name in hooks + checks if not re.search(rf"`{name}[`(]", page)] == []


def test_the_example_of_the_page_works(monkeypatch):
    page = (Path(dpmpi.__file__).parents[1] / "docs" / "algorithms" / "README.md").read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r'(?:^ {4}""".*\n(?: {4}.*\n|\n)*)', page, re.M)]
    method, test = blocks
    module = ModuleType("dpmpi.algorithms.mixed_gd")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(linecache.cache, "mixed_gd", (len(method), None, method.splitlines(keepends=True), "mixed_gd"))
    exec(compile(method, "mixed_gd", "exec"), vars(module))
    found: dict = {}
    exec(test, found)
    tests = [value for name, value in found.items() if name.startswith("test_")]
    assert len(tests) == 3
    for one in tests:
        one()


def test_half_of_the_method_files_have_at_most_150_lines():
    files = {Path(dpmpi.__file__).parent / f"{cls.__module__.replace('.', '/')[6:]}.py" for cls in ALGORITHMS.values()}
    lengths = sorted(len(file.read_text().splitlines()) for file in files)
    assert lengths[len(lengths) // 2] <= 150
