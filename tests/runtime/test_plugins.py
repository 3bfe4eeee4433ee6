"""Methods of the user's own: found, named, checked, and the same in every command; a source that changed is noticed."""

import hashlib
import json
import linecache
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

import dpmpi.run
from dpmpi.algorithms.dda import DpDda
from dpmpi.commands.dispatch import main
from dpmpi.commands.verify.command import verify
from dpmpi.core import hyperparameter
from dpmpi.errors import ConfigError
from dpmpi.model import Model
from dpmpi.network.handshake import _check_claims
from dpmpi.problem.losses import Huber
from dpmpi.problem.penalties import Regulariser
from dpmpi.runtime.assembly import claim_of
from dpmpi.runtime.flags import from_text, from_values, parse
from dpmpi.runtime.job import Past
from dpmpi.runtime.plugin_source import stop_if_loading
from dpmpi.runtime.plugins import methods, resolve, settings_of, settings_of_loss, settings_of_penalty
from dpmpi.runtime.settings import Settings
from dpmpi.testing import check_loss, check_method, check_penalty

SOURCE = '''
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dpmpi.core import Array, Method, Mix, combine, hyperparameter, public


@dataclass
class State:
    x: Array
    v: Array


@dataclass(frozen=True)
class MixedGd(Method):
    """Gradient descent on the average of the neighbours' models."""

    state: ClassVar[Any] = State

    my_step: float = hyperparameter(0.5, "eta", minimum=0.0)
    my_order: Literal["before", "after"] = hyperparameter("before", "when to mix")

    def round(self, agent, state, t):
        x, v = state.x, state.v
        s = agent.release(agent.problem.subgradient(x)).value
        combine(v, (1.0, x), (-self.my_step, s), scratch=s)
        yield Mix(public(v, because="a function of releases"), out=v)
        agent.penalty.prox(v, self.my_step, out=x)
'''
FLAGS = ["--algorithm", "mixed-gd", "--my-step", "0.3", "--loss", "logistic", "--epsilon", "2", "--rounds", "12"]
DATA = ["--data", "synthetic:samples=200,features=6", "--insecure-noise-seed", "1", "--quiet"]


@pytest.fixture
def plugin(tmp_path):
    """The path of a plug-in."""
    path = tmp_path / "my.py"
    path.write_text(SOURCE)
    return path


def write(path, text):
    path.write_text(textwrap.dedent(text))
    return path


def run(*words):
    return dpmpi.run.main([str(word) for word in words])


def command(capsys, *words):
    """The exit code, and all that the command said."""
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out + said.err


# --- names, flags, files ---------------------------------------------------------------------------------------------


def test_hyperparameters_are_flags_and_keys_of_files(plugin, tmp_path):
    config = parse(["--plugin", str(plugin), *FLAGS])
    method = Settings.of(config).method
    assert (type(method).__name__, method.my_step, method.my_order) == ("MixedGd", 0.3, "before")
    assert config.plugin == (str(plugin),)
    assert config.plugin_digest == (hashlib.sha256(plugin.read_bytes()).hexdigest(),)
    again = from_text(config.to_toml(), tmp_path / "config.toml", {})
    assert (again.to_toml(), again.make_method()) == (config.to_toml(), config.make_method())
    file = write(tmp_path / "mine.toml", f'plugin = "{plugin}"\nalgorithm = "mixed-gd"\nmy-step = 2\n')
    assert parse(["--config", str(file), "--my-order", "after"]).make_method().my_step == 2.0


def test_help_lists_them(plugin, capsys):
    with pytest.raises(SystemExit):
        run("--plugin", plugin, "--help")
    assert "--my-step X" in capsys.readouterr().out


def test_a_run_without_plug_ins_says_nothing_of_them():
    config = parse(["--algorithm", "dp-dda"])
    assert "plugin" not in config.to_toml()


def test_where_the_file_lies_does_not_matter_and_what_it_says_does(plugin, tmp_path):
    copy = write(tmp_path / "copy.py", SOURCE)
    other = write(tmp_path / "other.py", f"{SOURCE}# a remark\n")
    digests = [parse(["--plugin", str(path), *FLAGS]).digest() for path in (plugin, copy, other)]
    assert digests[0] == digests[1] != digests[2]


def test_a_method_chooses_its_name_and_helpers_are_none(tmp_path):
    path = write(
        tmp_path / "named.py",
        """
        from dataclasses import dataclass
        from typing import ClassVar
        from dpmpi.algorithms.dda import DpDda
        from dpmpi.core import Method

        @dataclass(frozen=True)
        class _Hidden(DpDda):
            pass

        @dataclass(frozen=True)
        class Base(Method):
            pass

        @dataclass(frozen=True)
        class SGDPlus(_Hidden):
            pass

        @dataclass(frozen=True)
        class Other(SGDPlus):
            name: ClassVar[str] = "sgd-2"
        """,
    )
    [found] = resolve([str(path)])
    assert list(found.methods) == ["sgd-plus", "sgd-2"]


def method_file(body="pass", name="Mine", above="@dataclass(frozen=True)"):
    return (
        "from dataclasses import dataclass\nfrom dpmpi.algorithms.dda import DpDda\nfrom dpmpi.core import *\n"
        f"{above}\nclass {name}(DpDda):\n    {body}\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "expected a subclass of dpmpi.Method, Loss or Penalty in the plug-in .*broken.py, found none"),
        ("def f(:\n", "cannot load the plug-in broken.py, line 1: SyntaxError"),
        ("a = 1\nb = a / 0\n", "cannot load the plug-in broken.py, line 2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", "cannot load the plug-in broken.py, line 2: SystemExit: 3"),
        ("import nowhere_to_be_found\n", "line 1: ModuleNotFoundError"),
        (method_file(name="Rcd"), "expected a name of its own for Rcd .*found rcd, which is built in"),
        (method_file("name = 'a b'"), "expected a name of small letters, digits and dashes .*found 'a b'"),
        (method_file("step: float = 1.0", above=""), r"expected @dataclass\(frozen=True\) above Mine"),
        (method_file("step: list = None"), "expected hyperparameters that .*found step in Mine"),
        (method_file("step: float"), "non-default argument|expected hyperparameters that"),
        (method_file("rounds: int = 3"), "found rounds, which is a setting of every run"),
        (method_file("tolerance: int = 3"), "found tolerance, which has another type in another method"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(tmp_path, text, message):
    path = write(tmp_path / "broken.py", text)
    with pytest.raises(ConfigError, match=message) as found:
        parse(["--plugin", str(path), "--algorithm", "mine"])
    assert "\n" not in str(found.value)


def test_an_error_of_a_hook_names_its_line(tmp_path, capsys):
    path = write(tmp_path / "hook.py", method_file("def check(self, terms):\n        return terms.nothing"))
    code = run("--plugin", path, "--algorithm", "mine", *DATA, "--loopback", 3, "--rounds", 2, "--out", tmp_path / "r")
    assert code == 2
    assert "hook.py, line 7: AttributeError: 'Terms' object has no attribute 'nothing'" in capsys.readouterr().err


def test_names_are_not_shared(plugin, tmp_path):
    other = write(tmp_path / "other.py", f"{SOURCE}# another\n")
    with pytest.raises(ConfigError, match=r"expected names of their own in plug-ins, found mixed-gd in .*my\.py and"):
        resolve([str(plugin), str(other)])
    assert len(resolve([str(plugin), str(plugin)])) == 1


def test_ranks_with_other_sources_do_not_begin(plugin, tmp_path):
    other = write(tmp_path / "other.py", f"{SOURCE}# another\n")
    settings = [Settings.of(parse(["--plugin", str(path), *FLAGS])) for path in (plugin, other)]
    mine, theirs = (claim_of(one, Past.none(2)).card() | {"hello": None} for one in settings)
    with pytest.raises(ConfigError, match="the same source of the plug-ins on all ranks, found others on rank 1"):
        _check_claims(claim_of(settings[0], Past.none(2)), 0, [mine, theirs])


def test_two_plug_ins_serve_one_run(plugin, tmp_path):
    other = write(tmp_path / "other.py", method_file())
    config = parse(["--plugin", str(plugin), "--plugin", str(other), "--algorithm", "mine"])
    again = from_text(config.to_toml(), tmp_path / "config.toml", {})
    assert again.to_toml() == config.to_toml()
    assert len(again.plugin_digest) == 2


def test_a_script_that_trains_is_loaded_up_to_there(tmp_path):
    path = write(
        tmp_path / "script.py",
        method_file()
        + "from dpmpi.runtime.plugin_source import stop_if_loading\nstop_if_loading()\nraise SystemError('trained')\n",
    )
    assert list(resolve([str(path)])[0].methods) == ["mine"]
    stop_if_loading()  # says nothing otherwise


# --- installed packages ----------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that offers `mixed-gd`, and tries to replace `dgd`."""
    folder = tmp_path / "their_methods"
    folder.mkdir()
    write(folder / "__init__.py", "")
    write(folder / "descent.py", SOURCE)
    info = tmp_path / "their_methods-1.0.dist-info"
    info.mkdir()
    write(info / "METADATA", "Metadata-Version: 2.1\nName: their-methods\nVersion: 1.0\n")
    offers = "mixed-gd = their_methods.descent:MixedGd\ndgd = their_methods.descent:MixedGd\n"
    write(info / "entry_points.txt", f"[dpmpi.methods]\n{offers}wrong-name = their_methods.descent:MixedGd\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("their_methods", "their_methods.descent"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_package_offers_a_method_by_its_name_alone(package, tmp_path):
    config = parse(FLAGS)
    assert config.plugin == ("their_methods.descent",)
    assert config.plugin_digest == (
        hashlib.sha256((package / "their_methods" / "descent.py").read_bytes()).hexdigest(),
    )
    again = from_text(config.to_toml(), tmp_path / "config.toml", {})
    assert (again.to_toml(), again.make_method()) == (config.to_toml(), config.make_method())
    with pytest.raises(
        ConfigError, match=r"expected wrong-name among the methods of the module their_methods\.descent, found mix"
    ):
        parse(["--algorithm", "wrong-name"])


def test_a_package_cannot_take_a_built_in_name(package):
    assert parse(["--algorithm", "dgd"]).plugin == ()
    assert "their_methods.descent" not in sys.modules


def test_a_package_is_not_loaded_for_others(package):
    parse(["--algorithm", "dp-dda"])
    assert "their_methods" not in sys.modules


def test_a_module_is_named_without_its_file(package):
    assert parse(["--plugin", "their_methods.descent", *FLAGS]).plugin == ("their_methods.descent",)
    with pytest.raises(ConfigError, match=r"expected --plugin FILE.py or an installed module, found 'no_such'"):
        parse(["--plugin", "no_such", *FLAGS])


def test_the_digest_of_a_package_is_that_of_all_its_files(package):
    write(package / "their_methods" / "__init__.py", SOURCE)
    before = resolve(["their_methods"])[0].digest
    write(package / "their_methods" / "descent.py", f"{SOURCE}# changed\n")
    assert resolve(["their_methods"])[0].digest != before


# --- losses ----------------------------------------------------------------------------------------------------------

LOSS = """
from dataclasses import dataclass
import numpy as np
from dpmpi.problem.losses import Loss

@dataclass(frozen=True)
class Pinball(Loss):
    kinds = ("regression",)
    q: float = 0.9

    def value(self, scores, labels):
        return np.maximum(self.q * (labels - scores), (1.0 - self.q) * (scores - labels))

    def slope(self, scores, labels):
        return np.where(scores < labels, -self.q, 1.0 - self.q)
"""
NUMBERS = ["--data", "synthetic:task=regression,samples=300,features=5", "--epsilon", "5", "--rounds", "20", "--quiet"]


def test_a_loss_is_planned_run_verified_and_reported(plugin, tmp_path, capsys):
    loss, out = write(tmp_path / "pinball.py", LOSS), tmp_path / "run"
    words = ["--plugin", loss, "--plugin", plugin, "--loss", "pinball:0.3", "--algorithm", "mixed-gd", *NUMBERS]
    assert command(capsys, "plan", "--ranks", 3, *words)[0] == 0
    assert run(*words, "--loopback", 3, "--out", out) == 0
    assert 'loss = "pinball:0.3"' in (out / "config.toml").read_text()
    assert command(capsys, "verify", out)[0] == 0
    assert command(capsys, "report", out)[0] == 0
    model = Model.load(out)
    X = np.eye(5)
    assert model.predict(X).shape == (5,)
    loss.write_text(f"{LOSS}# changed\n")
    code, said = command(capsys, "verify", out)
    assert (code, f"expected the plug-in {loss} with the SHA-256" in said) == (2, True)


@pytest.mark.parametrize(
    ("text", "flag", "message"),
    [
        (LOSS, "pinball:much", "expected --loss pinball:Q with numbers, found"),
        (LOSS, "pinball:1,2", "expected --loss pinball:Q with numbers, found"),
        (LOSS, "pinbal", "--loss is one of"),
        (LOSS.replace("Pinball", "Huber"), "huber", "found huber, which is built in"),
        (LOSS.replace("q: float = 0.9", "q: float"), "pinball", "numbers and have a default"),
        (
            LOSS.replace("q: float = 0.9", "q: float = 0.9\n    def __post_init__(self):\n        1 / 0"),
            "pinball",
            "without arg",
        ),
        (
            LOSS.replace('kinds = ("regression",)', 'kinds = ("numbers",)'),
            "pinball",
            r"expected kinds = \(...\) of some of 'binary', .*found \('numbers',\)",
        ),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused(tmp_path, text, flag, message):
    path = write(tmp_path / "broken.py", text)
    with pytest.raises(ConfigError, match=message):
        parse(["--plugin", str(path), "--loss", flag, *NUMBERS])


def test_a_package_offers_a_loss(package):
    write(package / "their_methods" / "descent.py", LOSS)
    info = package / "their_methods-1.0.dist-info"
    write(info / "entry_points.txt", "[dpmpi.losses]\npinball = their_methods.descent:Pinball\n")
    config = parse(["--loss", "pinball:0.2", *NUMBERS])
    assert config.plugin == ("their_methods.descent",)
    assert Settings.of(config).loss.q == 0.2


def test_objects_of_losses_and_penalties(tmp_path):
    [found] = resolve([str(write(tmp_path / "pinball.py", LOSS))])
    cls = found.losses["pinball"]
    assert settings_of_loss(cls(0.25)) == {
        "loss": "pinball:0.25",
        "plugin": (found.where,),
        "plugin_digest": (found.digest,),
    }
    assert settings_of_loss(cls)["loss"] == settings_of_loss(cls())["loss"] == "pinball"
    assert settings_of_loss(Huber(0.3)) == {"loss": "huber:0.3"}
    assert settings_of_loss("hinge") == {"loss": "hinge"}
    with pytest.raises(ConfigError, match="expected a loss"):
        settings_of_loss(3)
    draw = np.random.default_rng(0)
    X = draw.standard_normal((90, 3))
    result = dpmpi.simulate(
        dpmpi.split(X, X[:, 0], 3),
        method=Here(my_weight=2.0),
        loss=cls(0.25),
        penalty=Regulariser(l2=0.5, ball=3.0),
        label_range="-3:3",
        epsilon=2.0,
        rounds=5,
    )
    kept = {name: result.settings[name] for name in ("algorithm", "loss", "penalty", "domain", "my-weight")}
    assert kept == {
        "algorithm": "of-this-file",
        "loss": "pinball:0.25",
        "penalty": "l2:0.5",
        "domain": "ball:3.0",
        "my-weight": 2.0,
    }
    assert len(result.settings["plugin-digest"]) == 2
    assert not any(rank.problems for rank in verify(result.path))


# --- penalties -------------------------------------------------------------------------------------------------------

PENALTY = """
from dataclasses import dataclass
import math
import numpy as np
from dpmpi import Penalty

@dataclass(frozen=True)
class NonNegative(Penalty):
    weight: float = 0.1

    def value(self, x):
        return self.weight * float(x.sum()) if x.min() >= -1e-9 else math.inf

    def prox(self, v, step, out):
        np.maximum(v - step * self.weight, 0.0, out=out)
"""
SHORT = ["--seed", "4", "--loss", "logistic", "--epsilon", "5", "--rounds", "20", *DATA]


@pytest.fixture
def penalty(tmp_path):
    """The path of a plug-in with a penalty."""
    return write(tmp_path / "penalty.py", PENALTY)


@pytest.mark.parametrize("algorithm", ["dda", "dp-dda", "mixed-gd", "dp-admm", "ip-admm", "ldp-admm", "momentum"])
def test_a_penalty_is_planned_run_verified_and_reported(penalty, plugin, tmp_path, capsys, algorithm):
    out, noise = tmp_path / "run", [] if algorithm != "dda" else ["--batch", "full"]
    words = ["--plugin", penalty, "--plugin", plugin, "--penalty", "non-negative:0.01", "--algorithm", algorithm]
    words += [*SHORT, *noise]
    code, said = command(capsys, "plan", "--ranks", 3, *(word for word in words if word != "--quiet"))
    assert code == 0, said
    assert run(*words, "--loopback", 3, "--out", out) == 0, capsys.readouterr().err
    assert 'penalty = "non-negative:0.01"' in (out / "config.toml").read_text()
    coef = np.array(list(Model.load(out).coef.values()))
    assert coef.min() >= 0.0
    assert coef.max() > 0.0
    assert command(capsys, "verify", out)[0] == 0
    assert command(capsys, "report", out)[0] == 0
    assert command(capsys, "show", out / "model.npz")[0] == 0
    penalty.write_text(f"{PENALTY}# changed\n")
    code, said = command(capsys, "verify", out)
    assert (code, f"expected the plug-in {penalty} with the SHA-256" in said) == (2, True)


def test_a_run_with_a_penalty_of_its_own_goes_on(tmp_path, capsys):
    failing = PENALTY.replace("np.maximum", "calls.append(step)\n        1 / (len(calls) - 40)\n        np.maximum")
    penalty, whole, cut = (
        write(tmp_path / "failing.py", f"{failing}\ncalls = []\n"),
        tmp_path / "whole",
        tmp_path / "cut",
    )
    words = ["--plugin", penalty, "--penalty", "non-negative:0.01", *SHORT, "--loopback", 3, "--checkpoint-every", 5]
    assert run(*words, "--out", cut) == 1
    assert re.search(r"rank \d, round 1\d: failing.py, line 16: ZeroDivisionError", capsys.readouterr().err)
    assert run("--resume", cut, "--loopback", 3) == 0
    assert run(*words, "--out", whole) == 0
    assert Model.load(whole).coef == Model.load(cut).coef


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--penalty", "non-negative:x"], "expected --penalty non-negative:WEIGHT with numbers, found"),
        (["--penalty", "non-negativ"], r"or none, found 'non-negativ' \(did you mean non-negative\?\)"),
        (["--penalty", "non-negative", "--domain", "box:1"], "expected no --domain beside --penalty non-negative"),
    ],
)
def test_a_penalty_that_cannot_be_used_is_refused(penalty, flags, message):
    with pytest.raises(ConfigError, match=message):
        parse(["--plugin", str(penalty), *SHORT, *flags])


@pytest.mark.parametrize(
    "flags",
    [
        ["--algorithm", "dp-dgd"],
        ["--algorithm", "rcd"],
        ["--algorithm", "dvp-admm"],
        ["--algorithm", "ip-admm", "--inner-noise", "once"],
        ["--algorithm", "ip-admm", "--regulariser", "linearised"],
        ["--reference"],
    ],
)
def test_methods_that_need_to_know_the_penalty_refuse_another(penalty, flags, tmp_path, capsys):
    words = ["--plugin", penalty, "--penalty", "non-negative", *SHORT, "--out", tmp_path / "run"]
    assert run(*words, "--loopback", 3, *flags) == 2
    said = capsys.readouterr().err
    assert re.search("expected a penalty l2.* or none .*found (one of your own|NonNegative): ", said)
    assert said.count("\n") == 1


def test_a_package_offers_a_penalty(package):
    write(package / "their_methods" / "descent.py", PENALTY)
    info = package / "their_methods-1.0.dist-info"
    write(info / "entry_points.txt", "[dpmpi.penalties]\nnon-negative = their_methods.descent:NonNegative\n")
    config = parse(["--penalty", "non-negative:0.2", *SHORT])
    assert config.plugin == ("their_methods.descent",)
    assert Settings.of(config).penalty.weight == 0.2


def test_a_penalty_as_an_object(penalty):
    [found] = resolve([str(penalty)])
    cls = found.penalties["non-negative"]
    source = {"plugin": (found.where,), "plugin_digest": (found.digest,)}
    assert settings_of_penalty(cls(0.25)) == {"penalty": "non-negative:0.25", **source}
    assert settings_of_penalty(cls) == {"penalty": "non-negative", **source}
    assert settings_of_penalty("l1:2") == {"penalty": "l1:2"}
    with pytest.raises(ConfigError, match=r"expected a penalty, an object or a class of dpmpi\.Penalty, found 3"):
        settings_of_penalty(3)
    draw = np.random.default_rng(0)
    X = draw.standard_normal((300, 4))
    shards = dpmpi.split(X, (X[:, 0] - X[:, 1] > 0).astype(int), 3)
    result = dpmpi.simulate(shards, penalty=cls(0.01), loss="logistic", epsilon=9.0, insecure_noise_seed=1)
    assert result.settings["penalty"] == "non-negative:0.01"
    assert min(result.model.coef.values()) >= 0.0
    assert not any(rank.problems for rank in verify(result.path))


# --- objects in Python -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Here(DpDda):
    """A method of this file."""

    name: ClassVar[str] = "of-this-file"
    my_weight: float = hyperparameter(1.0, "nothing")


BROKEN_PROMISES = {
    "x = state.x; yield Mix(public(agent.problem.subgradient(x).value, because='I say so'), out=x)": (
        "expected 1 releases in 1 rounds of broken, as it foresees, found 0: correct its `releases`"
    ),
    "[agent.release(agent.problem.subgradient(state.x)) for _ in 'ab']; yield from ()": (
        "expected 3 releases in 3 rounds of broken, as it foresees, found 6"
    ),
    "return None": "expected Broken.round to yield requests, found none",
}


@pytest.mark.parametrize("body", BROKEN_PROMISES)
def test_a_method_that_breaks_its_word_leaves_no_result(body, tmp_path, capsys):
    text = method_file(name="Broken").replace("    pass", f"    def round(self, agent, state, t):\n        {body}")
    path = write(tmp_path / "broken.py", text)
    flags = ("--rounds", "3", "--noise", "1", "--evaluate", "1", "--data", "synthetic:samples=40,features=3")
    words = ("--plugin", path, "--algorithm", "broken", "--loopback", "2", *flags, "--out", tmp_path / "run")
    assert run(*words) == 2
    assert BROKEN_PROMISES[body] in capsys.readouterr().err
    assert not (tmp_path / "run" / "model.npz").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


def test_one_slope_for_all_records_is_refused(tmp_path, capsys):
    text = "from dpmpi import Loss\nclass Flat(Loss):\n    kinds = ('binary',)\n"
    text += "    value = slope = lambda self, scores, labels: (scores - labels).sum()\n"
    words = ("--plugin", write(tmp_path / "flat.py", text), "--loss", "flat", "--loopback", "2", "--rounds", "3")
    words += ("--noise", "1", "--data", "synthetic:samples=40,features=3", "--out", tmp_path / "run")
    assert run(*words) == 2
    assert "expected a slope for every score of Flat, found another shape" in capsys.readouterr().err


def test_an_object_is_registered_under_its_name():
    given = settings_of(Here(my_weight=3.0))
    assert given["algorithm"] == "of-this-file"
    assert given["my_weight"] == 3.0
    config = from_values({**given})
    assert config.make_method() == Here(my_weight=3.0)
    assert config.plugin == (__name__,)
    assert settings_of(Here)["plugin_digest"] == given["plugin_digest"]
    assert "of-this-file" not in methods()


def test_what_is_built_in_needs_no_plug_in():
    assert settings_of(DpDda(gamma=3.0)) == {"algorithm": "dp-dda", "gamma": 3.0}
    with pytest.raises(ConfigError, match="expected a method"):
        settings_of(3)


def test_a_method_inside_a_function_is_refused():
    @dataclass(frozen=True)
    class Inside(DpDda):
        def round(self, agent, state, t):
            yield from super().round(agent, state, t)

    with pytest.raises(ConfigError, match=r"expected Inside at the top of .*test_plugins"):
        settings_of(Inside)


def test_a_method_of_a_notebook_is_known_to_its_process(monkeypatch):
    cell, module = "<ipython-input-7>", ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", module)
    monkeypatch.setitem(linecache.cache, cell, (len(SOURCE), None, SOURCE.splitlines(keepends=True), cell))
    exec(compile(SOURCE, cell, "exec"), vars(module))
    given = settings_of(module.MixedGd(my_step=0.1))
    config = from_values({**given})
    assert config.make_method() == module.MixedGd(my_step=0.1)
    assert config.plugin_digest == (hashlib.sha256(SOURCE.encode()).hexdigest(),)
    with pytest.raises(ConfigError, match="found one that was typed at a prompt or into a notebook"):
        resolve(["<prompt>"], ["00"])


# --- runs ------------------------------------------------------------------------------------------------------------


def test_plan_run_verify_report_sweep_audit(plugin, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("--plugin", plugin, *FLAGS, *DATA, "--loopback", 3, "--out", out) == 0
    assert json.loads((out / "summary.json").read_text())["algorithm"] == "mixed-gd"
    assert f'plugin = "{plugin}"\nplugin-digest = "' in (out / "config.toml").read_text()
    code, said = command(capsys, "plan", "--ranks", 3, "--plugin", plugin, *FLAGS, *DATA[:2])
    assert (code, "mixed-gd, 3 ranks" in said) == (0, True)
    assert command(capsys, "verify", out)[0] == 0
    assert command(capsys, "report", out)[0] == 0
    code, said = command(
        capsys, "audit", "--config", out / "config.toml", "--out", tmp_path / "audit", "--loopback", 3, "--runs", 12
    )
    assert (code, "mixed-gd, 3 ranks" in said) == (0, True)
    sweep = write(
        tmp_path / "two.toml",
        f"""
        ranks = 3
        [run]
        plugin = "{plugin}"
        algorithm = "mixed-gd"
        data = "synthetic:samples=60,features=4"
        rounds = 3
        [grid]
        my-step = [0.1, 0.2]
        """,
    )
    code, said = command(capsys, "sweep", sweep, "--out", tmp_path / "sweeps")
    assert code == 0, said
    assert "2 of 2 runs are done already" in command(capsys, "sweep", sweep, "--out", tmp_path / "sweeps")[1]


def test_a_source_that_changed_or_went_is_noticed(plugin, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("--plugin", plugin, *FLAGS, *DATA, "--loopback", 3, "--out", out) == 0
    moved = plugin.rename(tmp_path / "moved.py")
    code, said = command(capsys, "verify", out)
    assert code == 2
    assert f"expected the plug-in {plugin}, found nothing to read" in said
    assert command(capsys, "verify", out, "--plugin", moved)[0] == 0
    moved.write_text(f"{SOURCE}# changed\n")
    code, said = command(capsys, "verify", out, "--plugin", moved)
    assert code == 2
    assert f"expected the plug-in {moved} with the SHA-256" in said
    code, said = command(capsys, "run", "--config", out / "config.toml", "--plugin", moved, "--out", tmp_path / "again")
    assert "expected the plug-in" not in said  # a new run may have another source


def test_code_that_a_run_directory_brings_along_is_not_run_unasked(plugin, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("--plugin", plugin, *FLAGS, *DATA, "--loopback", 3, "--out", out) == 0
    carried = out / "my.py"
    plugin.rename(carried)
    text = (out / "config.toml").read_text().replace(str(plugin), str(carried))
    (out / "config.toml").write_text(text)
    code, said = command(capsys, "verify", out)
    assert (code, "brings its own plug-in" in said) == (2, True)
    assert command(capsys, "verify", out, "--plugin", carried)[0] == 0


def test_a_run_goes_on_with_the_same_source_alone(plugin, tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    failing = SOURCE.replace("x, v = state.x", "if t == 9: open(STOP).close()\n        x, v = state.x")
    stop = tmp_path / "stop"
    stop.touch()
    plugin.write_text(f"{failing}\nSTOP = {str(stop)!r}\n")
    common = ["--plugin", plugin, *FLAGS, *DATA, "--loopback", 3, "--checkpoint-every", 4]
    assert run(*common, "--out", whole) == 0
    stop.unlink()
    assert run(*common, "--out", cut) == 1
    assert "rank 0, round 9: my.py, line 24: FileNotFoundError" in capsys.readouterr().err
    stop.touch()
    kept = plugin.read_text()
    plugin.write_text(f"{kept}# changed\n")
    assert run("--resume", cut, "--loopback", 3) == 2
    assert "expected the plug-in" in capsys.readouterr().err
    plugin.write_text(kept)
    moved = plugin.rename(tmp_path / "moved.py")
    assert run("--resume", cut, "--loopback", 3, "--plugin", moved) == 0
    np.testing.assert_array_equal(*(np.load(one / "model.npz")["x_rank"] for one in (whole, cut)))


def test_the_page_has_whole_plug_ins_that_keep_all_contracts(tmp_path, capsys):
    page = (Path(dpmpi.__file__).parents[1] / "docs" / "plugins.md").read_text()
    page = re.sub(r"^```python.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    method, loss, penalty = re.findall(r'(?:^ {4}""".*\n(?: {4}.*\n|\n)*)', page, re.MULTILINE)
    [found] = resolve([str(write(tmp_path / "nonnegative.py", penalty))])
    check_penalty(found.penalties["non-negative"])
    [found] = resolve([str(write(tmp_path / "pinball.py", loss))])
    check_loss(found.losses["pinball"])
    [found] = resolve([str(write(tmp_path / "my.py", method))])
    capsys.readouterr()
    check_method(found.methods["mixed-gd"])
    table = capsys.readouterr().out.splitlines()
    assert table[-1] in page
    shown = [line for line in table if line.strip() and line in page]
    assert len(shown) == 5
