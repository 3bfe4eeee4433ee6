"""What is imported where: MPI and cryptography by few modules, slow packages where they are used, nothing unpickled."""

import ast
import subprocess
import sys
from pathlib import Path

import dpmpi

PACKAGE = Path(dpmpi.__file__).parent

PLUG_INS = ("algorithms/", "network/exchange/", "network/transport/")
ONLY = {"mpi4py": {"network/transport/mpi.py"}, "cryptography": {"rng.py", "crypto"}}
LAZY = {"scipy", "matplotlib", "dp_accounting", "sklearn", "tqdm", "mpi4py", "mlflow", "tensorboardX", "threadpoolctl"}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def name(path):
    return path.relative_to(PACKAGE).as_posix()


def imports(path):
    """(module, is at the top level) for every import of a file; `from dpmpi import x` counts as dpmpi.x."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "dpmpi":
                for alias in node.names:
                    yield f"dpmpi.{alias.name}", id(node) in top
            else:
                yield node.module, id(node) in top


def test_algorithms_do_not_make_releases():
    """Only Agent.release makes a Release; a plug-in that made its own would go round the ledger."""
    for path in modules():
        if name(path).startswith(PLUG_INS):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                    assert called not in ("Release", "Sendable"), f"{name(path)} makes a release"


def test_only_the_named_modules_import_mpi_and_cryptography():
    for path in modules():
        for module, _ in imports(path):
            allowed = ONLY.get(module.split(".")[0])
            if allowed is not None:
                assert name(path) in allowed or name(path).split("/")[0] in allowed, f"{name(path)} imports {module}"


def test_slow_packages_are_imported_where_they_are_used():
    for path in modules():
        for module, top in imports(path):
            asked_for = name(path).startswith("sklearn/") and module.startswith("sklearn.")
            lazy = module.split(".")[0] in LAZY and not asked_for
            assert not (top and lazy), f"{name(path)} imports {module} for everybody"


def loaded_modules(*arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}


def loaded(*arguments):
    return {module.split(".")[0] for module in loaded_modules(*arguments)}


def test_help_is_cheap():
    assert not loaded("-m", "dpmpi.run", "--help") & (LAZY | {"sklearn"})


def test_a_rank_does_not_import_masked_arrays(tmp_path):
    """numpy's set operations import numpy.ma, which takes as long as half of numpy itself."""
    words = "--loopback 1 --data synthetic:samples=40,features=3 --rounds 2 --noise 1 --no-evaluate --quiet"
    found = loaded_modules("-m", "dpmpi.run", *words.split(), "--out", str(tmp_path / "run"))
    assert "numpy" in found
    assert "numpy.ma" not in found


def test_a_rank_imports_the_method_and_the_data_source_that_it_needs(tmp_path):
    words = "--algorithm dgd --loopback 1 --data synthetic:samples=40,features=3 --rounds 2 --noise 1 --quiet"
    program = "import sys; from dpmpi.run import main; main(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", program, *words.split(), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = {*done.stdout.split()}
    methods = {f"dpmpi.algorithms.{path.stem}" for path in (PACKAGE / "algorithms").glob("[a-z]*.py")}
    assert found & methods == {"dpmpi.algorithms.dgd"}
    sources = {f"dpmpi.data.{path.stem}" for path in (PACKAGE / "data").glob("[a-z]*.py")}
    assert found & sources == {"dpmpi.data.dealing", "dpmpi.data.source", "dpmpi.data.synthetic"}


def test_importing_the_package_imports_no_numpy_and_no_mpi():
    assert not loaded("-c", "import dpmpi") & (LAZY | {"numpy"})


def test_nothing_is_unpickled_or_evaluated():
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert called not in ("eval", "exec", "system", "popen"), f"{name(path)} calls {called}"
        pickles = "pickle" in {module.split(".")[0] for module, _ in imports(path)}
        assert not pickles or name(path) == "api/launching.py"  # files between processes of one user
