"""Starting ranks from a notebook or a script: `launch` runs a function under mpirun.

The function, its arguments and what it returns go through files of this user alone (mode 0700), by cloudpickle where it
is installed and by pickle otherwise. Nothing is pickled on the wire, and no file of a run is.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from dpmpi.errors import ConfigError, DpmpiError
from dpmpi.network.launcher import ONE_THREAD, Finished, Launcher, complaint, launched_as
from dpmpi.runtime.output.console import shout

Answer = TypeVar("Answer")

MAIN = "__dpmpi_main__"
"""The name of the script that called `launch`, in the ranks that it starts: what is under `if __name__ == "__main__"`
does not run there."""


def rank() -> int:
    """Return this process's rank, as its launcher says; 0 without one. MPI is not started."""
    return launched_as(os.environ)[0]


def ranks() -> int:
    """Return how many ranks there are, as the launcher says; 1 without one. MPI is not started."""
    return launched_as(os.environ)[1]


def launch(
    function: Callable[..., Answer],
    ranks: int,
    *args: Any,
    timeout: float | None = None,
    launcher: str | None = None,
    **kwargs: Any,
) -> Answer:
    """Run `function(*args, **kwargs)` in `ranks` processes under mpirun; return what it returns on the first rank.

    The function calls `dpmpi.train` with the arrays of its rank (`dpmpi.rank()`). What the ranks print is shown when
    they have ended. An exception of a rank is raised here, after all ranks have ended; after `timeout` seconds they are
    ended. `launcher` is another command than `mpirun -n {ranks}`.

    A function of a notebook needs cloudpickle (`pip install cloudpickle`); without it, one of a file will do.
    """
    if os.environ.keys() & {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} and launched_as(os.environ)[1] > 1:
        raise ConfigError("expected a process that mpirun has not started, found a rank: call the function itself")
    with tempfile.TemporaryDirectory(prefix="dpmpi-launch-") as name:
        folder = Path(name)
        (folder / "call").write_bytes(_packed(function, args, kwargs))
        program = [sys.executable, "-m", "dpmpi.api.launching", name]
        done = Launcher.make(launcher).run(ranks, program, timeout, ONE_THREAD | {"PYTHONUNBUFFERED": "1"})
        sys.stdout.write(done.out)
        found = _opened(folder / "error")
        if found is not None:
            raise found
        if done.code != 0:
            raise DpmpiError(complaint(done.err) or f"the ranks ended with exit code {done.code} and said nothing")
        sys.stderr.write(done.err)
        answer: list[Answer] | None = _opened(folder / "answer")
        if answer is None:
            raise _no_answer(done)
        return answer[0]


def _no_answer(done: Finished) -> DpmpiError:
    """Return the error of ranks that ended well and left nothing."""
    return DpmpiError(f"expected an answer of the first rank, found none: are mpirun and mpi4py of one MPI? {done.err}")


def _pickler() -> ModuleType:
    with suppress(ImportError):
        return import_module("cloudpickle")
    return pickle


def _packed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return the call as bytes, with what the ranks need to import."""
    main, pickler = sys.modules["__main__"], _pickler()
    script = getattr(main, "__file__", None) if pickler is pickle else None
    try:
        call: bytes = pickler.dumps((function, args, kwargs))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"expected a function that can be sent to ranks, found {error}: pip install cloudpickle"
        ) from error
    return pickle.dumps((list(sys.path), script and str(Path(script).absolute()), call))


def _opened(file: Path) -> Any:
    """Return the answer that a rank left in a file; None if there is none."""
    return pickle.loads(file.read_bytes()) if file.exists() else None  # noqa: S301 - of the same user


def _call(folder: Path) -> int:
    """Run one rank: call the function and leave what it returns, or raises, in the folder; return the exit code."""
    first = rank() == 0
    try:
        sys.path[:], script, call = _opened(folder / "call")
        if script is not None:  # as multiprocessing does: the functions of a script are those of its main module
            sys.modules["__main__"] = sys.modules[MAIN] = main = ModuleType("__main__")
            main.__dict__.update(runpy.run_path(script, run_name=MAIN))
        function, args, kwargs = pickle.loads(call)  # noqa: S301 - of the same user
        answer = function(*args, **kwargs)
        if first:
            _leave(folder / "answer", [answer])
    except BaseException as error:
        _leave_error(folder, error)
        if isinstance(error, DpmpiError) and error.told and not first:
            return 0  # the first rank says so
        sys.stderr.flush()
        os._exit(1)  # the launcher ends the others: they may wait for this one
    return 0


def _leave(file: Path, content: object) -> None:
    """Write a file that is there whole or not at all."""
    made = file.with_name(f"{file.name}-{os.getpid()}")
    made.write_bytes(_pickler().dumps(content))
    with suppress(FileExistsError):  # another rank was first
        os.link(made, file)


def _leave_error(folder: Path, error: BaseException) -> None:
    """Leave an exception for the caller, with the rank and the traceback as a note; if it cannot be sent, its text."""
    error.add_note(f"on rank {rank()} of {ranks()}:\n{''.join(traceback.format_exception(error))}")
    try:
        pickle.loads(_pickler().dumps(error))  # noqa: S301 - what was just made
        _leave(folder / "error", error)
    except Exception:
        told = DpmpiError(f"rank {rank()}: {type(error).__name__}: {error}")
        _leave(folder / "error", told)
        shout(f"dpmpi: {told}", sys.stderr)


if __name__ == "__main__":
    _code = _call(Path(sys.argv[1]))
    sys.exit(_code)
