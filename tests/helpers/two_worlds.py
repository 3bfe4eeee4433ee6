"""Runs cases twice in real processes, over two unrelated data sets of one public shape, and says what differs.

    mpirun -n 3 python two_worlds.py CASES.json FOLDER

Each case is a run of `dpmpi.run` on `shards:` data, or a call of `dpmpi.train` on its arrays. Releases are deaf:
a query is emptied when it is charged, so its noise is all that is left. All randomness is repeatable, noise and keys
included. What still differs between the two worlds is data that got out by another way: in a buffer handed to MPI, in
what a process prints, in a file that is not a rank's own, or in one of its own that others may read.

Figures about the process are data too. So that they differ in any two runs, clocks run faster in the second world and
its memory is larger.

FOLDER/verdict-RANK.json has for each case the exit codes, the number of buffers, and a line for each leak.

    mpirun --with-ft ulfm -n 4 python two_worlds.py CASES.json FOLDER WORLD

runs the first case in one world, in which the last rank dies, and writes all that was seen to FOLDER/seen-WORLD-RANK.
"""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import defaultdict
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

WORLD = 0


def _running_faster(real, rate):
    begin = real()
    return lambda: begin + (real() - begin) * (1.0 + rate * WORLD)


for _clock in ("perf_counter", "process_time", "time", "thread_time"):
    setattr(time, _clock, _running_faster(getattr(time, _clock), 2.0))
time.monotonic = _running_faster(time.monotonic, 0.25)
_getrusage = resource.getrusage


def _larger(who):
    usage = list(_getrusage(who))
    usage[0] += WORLD
    usage[2] *= 1 + WORLD
    return resource.struct_rusage(usage)


resource.getrusage = _larger

import numpy as np  # noqa: E402
import plants  # noqa: E402
import tap  # noqa: E402
from seen import Seen, leaks, read_files, write_seen  # noqa: E402

from dpmpi.api import training  # noqa: E402
from dpmpi.data.mean import Mean  # noqa: E402
from dpmpi.data.shards import read_npz  # noqa: E402
from dpmpi.data.source import Shard  # noqa: E402
from dpmpi.errors import DpmpiError  # noqa: E402
from dpmpi.network import handshake  # noqa: E402
from dpmpi.network.launcher import launched_as  # noqa: E402
from dpmpi.problem.rows import Csr, Dense  # noqa: E402
from dpmpi.run import main  # noqa: E402
from dpmpi.testing import DeafAgent  # noqa: E402

RANK, SIZE = launched_as(os.environ)


class Deaf(DeafAgent):
    """An agent whose queries are emptied, those inside of an objective included."""

    def release_inside(self, query, solve, scale=1.0):
        # It is solved beside, for the passes over the records that it takes.
        return super().release_inside(query, lambda value: solve(value.copy()), scale)


def deafen(job):
    seats = job.engine.seats
    for k, seat in enumerate(seats):
        fields = {f.name: getattr(seat.agent, f.name) for f in dataclasses.fields(seat.agent)}
        seats[k] = dataclasses.replace(seat, agent=Deaf(**fields))


def private_means(place):
    """Let the one source for means, which is public, read the shard of this rank instead, as if it were private."""

    def load(self, survey, rank, size):
        rows, labels = read_npz(place / f"data-{rank}.npz")
        return Shard(rows, 0.0 * labels, type(rows)(rows.matrix[:0]), labels[:0])

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Mean, "load", load))
    stack.enter_context(mock.patch.object(Mean, "private", True))
    return stack


def repeatable(*labels):
    """Let all keys and names of runs that are drawn be the same again.

    What is drawn of one length takes nothing from the others: how many temporary files there are, whose names have 4
    bytes, depends on what other processes left in the accountant's cache.
    """
    counters = defaultdict(itertools.count)

    def drawn(count):
        seed = hashlib.sha256(repr((labels, RANK, count, next(counters[count]))).encode()).digest()
        return random.Random(seed).randbytes(count)

    os.urandom = drawn


@contextmanager
def own_domain(place):
    """Let this rank be in a folder and a trust domain of its own."""
    folder = place / str(RANK)
    folder.mkdir()
    os.chdir(folder)
    with mock.patch.object(handshake, "trust_domain", return_value=f"domain of rank {RANK}"):
        yield
    os.chdir(place.parent)


class Passes:
    """Counts how often records are gone through: what takes time must not depend on them."""

    count = 0

    def watch(self, kind, name):
        original = getattr(kind, name)

        def counted(*args):
            self.count += 1
            return original(*args)

        return mock.patch.object(kind, name, counted)


class Sixth:
    """Says, in a file, that this rank has come to its sixth exchange; one that is to die there waits for the others."""

    def __init__(self, folder, dies):
        self.folder, self.dies, self.sent = folder, dies and RANK == SIZE - 1, 0

    def __call__(self, verb, parts):
        self.sent += verb in tap.LASTING
        if self.sent == 5 * (SIZE - 1) + 1 and self.dies:
            self.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.sent == 6 * (SIZE - 1):
            (self.folder / f"sixth-{RANK}").touch()

    def wait(self):
        """Return when all others have come there."""
        while any(not (self.folder / f"sixth-{rank}").exists() for rank in range(SIZE) if rank != RANK):
            time.sleep(1e-3)


class Program:
    """The processes of all cases."""

    def __init__(self, folder, real_abort):
        self.folder = folder
        self.wire = tap.Wire(tap.shared_byte(folder / "ended"), real_abort=real_abort)
        self.real = tap.tapped(self.wire)
        self.world = self.real.COMM_WORLD

    def close(self):
        """End all processes; by force if a run was aborted: its requests are pending."""
        self.world.Barrier()
        if self.world.allreduce(self.wire.aborted):
            os._exit(0)
        self.real.Finalize()

    def see(self, case, world):
        """Run a case in one world."""
        global WORLD  # noqa: PLW0603 - the clocks of the process ask
        WORLD = world
        place = self.folder / case["name"]
        if RANK == 0:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        self.world.Barrier()
        os.environ["DPMPI_HEADS"] = str(self.folder / "heads" / f"{case['name']}-{world}")  # else of the world before
        [data] = self.folder.glob(f"{case['data']}-{world}-{RANK}.*")
        shutil.copy(data, place / f"data-{RANK}{data.suffix}")
        self.wire.reset()
        self.wire.ended[0] = 0
        plants.SIXTH = self.wire.on_wire = Sixth(place, case.get("dies"))
        self.world.Barrier()
        said, codes, passes = io.StringIO(), [], Passes()
        with ExitStack() as stack:
            for kind, name in itertools.product((Dense, Csr), ("scores", "fold")):
                stack.enter_context(passes.watch(kind, name))
            for context in (redirect_stdout(said), redirect_stderr(said), private_means(place)):
                stack.enter_context(context)
            stack.enter_context(plants.planted(case.get("plant"), RANK))
            if case.get("domains"):
                stack.enter_context(own_domain(place))
            for k, start in enumerate(case["starts"]):
                repeatable(case["name"], k)
                codes.append(self.start(start, place))
                if not self.wire.real_abort:
                    self.world.Barrier()
                self.wire.ended[0] = 0
        files = read_files(place) if RANK == 0 and not self.wire.real_abort else {}
        shown = "".join(line for line in said.getvalue().splitlines(True) if "Ended:" not in line)
        return Seen(tuple(codes), tuple(self.wire.sent), shown, files, passes.count)

    def see_alone(self, case, world):
        """Run a case in one world, and write down what was seen, even if the process is ended from within."""
        leave, path = os._exit, self.folder / f"seen-{world}-{RANK}"

        def ended(code):
            write_seen(path, Seen((code,), tuple(self.wire.sent), "", {}))
            leave(code)

        os._exit = ended
        seen = self.see(case, world)
        write_seen(path, seen)
        sys.exit(seen.codes[-1])

    def start(self, start, place):
        """Start a run, and let the second rank be told to stop if it is to be resumed; return its exit code."""

        def attend(job):
            deafen(job)
            if start.get("stops") and RANK == 1:
                os.kill(os.getpid(), signal.SIGUSR1)

        try:
            if "keywords" in start:
                return call_train(start["keywords"], place, attend)
            return main(start["flags"], attend=attend)
        except tap.Ended as ended:
            return str(ended)


def call_train(keywords, place, attend):
    """Hand this rank's records to `dpmpi.train`, as a program does; return the exit code that an error stands for."""
    with np.load(place / f"data-{RANK}.npz") as file:
        X, y = file["X"], file["y"]
    with mock.patch.object(training, "Caller", functools.partial(training.Caller, attend=attend)):
        try:
            result = training.train(X, y, callback=lambda kind, figures: None, **keywords)
            assert result.summary["algorithm"]
        except DpmpiError as error:
            print(f"{type(error).__name__}: {error}")
            return error.exit_code
    return 0


def verdict(program, case):
    begin = time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        first, second = (program.see(case, world) for world in (0, 1))
        found = {"codes": first.codes, "said": first.said, "buffers": len(first.sent), "passes": first.passes}
        found["leaks"] = list(leaks(first, second))
    except Exception:
        found = {"codes": [], "said": "", "buffers": 0, "leaks": [traceback.format_exc()]}
    return found | {"seconds": round(time.clock_gettime(time.CLOCK_MONOTONIC) - begin, 3)}


if __name__ == "__main__":
    _cases, _folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    os.chdir(_folder)
    _program, _found = Program(_folder, real_abort=len(sys.argv) > 3), {}
    if len(sys.argv) > 3:
        _program.see_alone(_cases[0], int(sys.argv[3]))
    for _case in _cases:
        _found[_case["name"]] = verdict(_program, _case)
        (_folder / f"verdict-{RANK}.json").write_text(json.dumps(_found, indent=1))
    _program.close()
