"""What a hostile file could reach if the package let it: no object is unpickled, no text is run, no secret is readable.

The sources are read with `ast`. Files that hold keys, rows, states or realised losses are made, and their modes looked
at, under a umask that takes nothing away.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
from pathlib import Path

import pytest

import dpmpi
from dpmpi.commands.dispatch import main
from dpmpi.run import main as run

PACKAGE = Path(dpmpi.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

OBJECTS = {
    "pickle",
    "_pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "jsonpickle",
    "dbm",
}
"""Modules whose readers run what a file says, or are made of those that do."""
RUNS_TEXT = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execl", "os.execv", "os.spawnl", "os.spawnv",
    "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn", "yaml.load", "runpy.run_path", "mktemp",
    "tempfile.mktemp", "os.tmpnam", "builtins.eval", "builtins.exec",
}  # fmt: skip
ARRAY_READERS = {"load", "read_array"}
"""Of numpy: what unpickles unless it is told not to."""
PICKLING = {
    "send",
    "recv",
    "isend",
    "irecv",
    "sendrecv",
    "bcast",
    "scatter",
    "gather",
    "allgather",
    "alltoall",
    "allreduce",
}
"""mpi4py's methods for any object, which pickle; those for buffers begin with a capital letter."""
COMMUNICATOR = re.compile("comm|_rounds|_aside|_world", re.IGNORECASE)
"""What communicators are called."""


def dotted(node: ast.expr) -> str:
    """Return a name as it is written: `np.lib.format.read_array`; "" for what is no name."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def constant(call: ast.Call, name: str) -> object:
    """Return the value of a keyword if it is written there, else the node, which equals nothing."""
    found = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return found[0].value if found and isinstance(found[0], ast.Constant) else (found or None)


def faults(text: str, where: str = "") -> list[str]:
    """Return what is wrong with a source."""
    wrong = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            wrong += [f"imports {name}" for name in names if name.split(".")[0] in OBJECTS]
            if isinstance(node, ast.ImportFrom) and node.module in ("os", "subprocess", "tempfile"):
                called = {f"{node.module}.{alias.name}" for alias in node.names}
                wrong += [f"imports {name}" for name in sorted(called & RUNS_TEXT)]
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        last = called.rpartition(".")[2]
        if called in RUNS_TEXT:
            wrong.append(f"calls {called}")
        if (
            called.split(".")[0] in ("np", "numpy")
            and last in ARRAY_READERS
            and constant(node, "allow_pickle") is not False
        ):
            wrong.append(f"{called} without allow_pickle=False")
        if constant(node, "allow_pickle") not in (None, False):
            wrong.append(f"{called} with allow_pickle")
        if constant(node, "shell") not in (None, False):
            wrong.append(f"{called} with shell")
        if where.startswith("network/") and last in PICKLING and COMMUNICATOR.search(called.rpartition(".")[0]):
            wrong.append(f"{called} pickles")
    return wrong


OWN_FILES = {"api/launching.py": ["imports pickle", "calls runpy.run_path"]}
"""`launch` hands a function of the caller's to processes of the same user, in a folder that it makes for its owner."""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_source_runs_what_a_file_says(path):
    name = path.relative_to(PACKAGE).as_posix()
    assert faults(path.read_text(encoding="utf-8"), name) == OWN_FILES.get(name, [])


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import marshal as m", "import shelve", "import yaml",
        "eval('1')", "exec(text)", "compile(t, '', 'exec')", "os.system('ls')", "from os import system",
        "subprocess.run('ls', shell=True)", "subprocess.Popen(c, shell=flag)", "np.load(path)",
        "np.load(path, allow_pickle=True)", "np.load(path, allow_pickle=flag)", "numpy.load(path)",
        "np.lib.format.read_array(stream)", "read_array(stream, allow_pickle=True)", "yaml.load(text)",
        "tempfile.mktemp()", "if True:\n    def f():\n        import dill",
    ],
)  # fmt: skip
def test_the_search_finds(text):
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "np.load(path, allow_pickle=False)", "json.load(file)", "subprocess.run(['ls'])", "re.compile('x')",
        "subprocess.run(c, shell=False)", "comm.Isend(buffer)", "model.evaluate(1)", "steps.send(1)",
    ],
)  # fmt: skip
def test_the_search_leaves_alone(text):
    assert not faults(text, "network/transport/mpi.py")


def test_the_search_finds_pickled_messages():
    assert faults("self._comm.send({'a': 1}, dest=0)", "network/transport/mpi.py")
    assert faults("world = comm.allgather(1)", "network/transport/mpi.py")
    assert faults("self._aside.gather(row)", "network/mpi_collectives.py")


# --- what others must not read ---------------------------------------------------------------------------------------


@pytest.fixture
def open_umask():
    """Let files be made as open as the program asks for."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_keys_are_for_their_owner_alone(tmp_path, capsys):
    assert main(["keys", "make", "3", str(tmp_path / "keys")]) == 0
    assert main(["keys", "one", "7", str(tmp_path / "own")]) == 0
    capsys.readouterr()
    found = sorted(tmp_path.rglob("*.key"))
    assert len(found) == 4
    assert {mode(path) for path in found} == {0o600}


@pytest.mark.usefixtures("open_umask")
def test_realised_losses_and_marks_are_for_their_owner_alone(tmp_path, capsys):
    flags = (
        "--algorithm ldp-admm --loss logistic --loopback 3 --rounds 3 --noise 1 --data synthetic:samples=30,features=3"
    )
    assert run([*flags.split(), "--ledger", str(tmp_path / "ledger"), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    losses, marks = sorted((tmp_path / "run" / "private").iterdir()), sorted((tmp_path / "ledger").glob("*.key"))
    assert [path.name for path in losses] == [f"rank-{rank:03d}.jsonl" for rank in range(3)]
    assert len(marks) == 3
    assert {mode(path) for path in (*losses, *marks)} == {0o600}
    assert mode(tmp_path / "run" / "private") == 0o700
    told = [line for path in losses for line in map(json.loads, path.read_text().splitlines()) if "realised" in line]
    assert len(told) == 3 * 4
    figures = [str(line["realised"]) for line in told if line["realised"] < line["worst"]]  # the worst is public
    assert figures
    public = [path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file() and path not in losses]
    assert not [figure for figure in figures if any(figure in text for text in public)]


@pytest.mark.usefixtures("open_umask")
def test_shards_are_for_their_owner_alone(tmp_path, capsys):
    words = ["data", "shard", "synthetic:samples=20,features=3", "--ranks", "2", "--out", f"{tmp_path}/{{rank}}.npz"]
    assert main(words) == 0
    capsys.readouterr()
    assert {mode(path) for path in tmp_path.glob("*.npz")} == {0o600}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("open_umask")
def test_checkpoints_are_for_their_owner_alone(tmp_path, monkeypatch, capsys):
    modes = {}

    def look(keeper):
        keeper.finish()
        modes.update({path.name: mode(path) for path in keeper._folder.iterdir()})

    monkeypatch.setattr("dpmpi.runtime.recovery.checkpoint.Keeper.remove", look)
    flags = "--loopback 2 --rounds 4 --noise 1 --checkpoint-every 2 --data synthetic:samples=20,features=3"
    assert run([*flags.split(), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert any(name.endswith(".state") for name in modes)
    assert set(modes.values()) == {0o600}
    assert mode(tmp_path / "run" / "checkpoint") == 0o700
