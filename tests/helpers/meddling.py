"""Runs one command line many times in real processes, each time with one bit changed on its way between two ranks.

    mpirun -n 3 python meddling.py PLAN.json FOLDER

PLAN.json has `flags` of a run, `changes` (how many) and `seed`. The first run is left alone: it tells how many control
messages each rank receives or sends. Then each change picks a rank, one of its control messages and a bit in it, all at
random; a message of a collective is changed where one rank receives it, so that the ranks may see different ones. Keys
and noise are repeatable: a run that is not disturbed has the same bits as the first.

FOLDER/changes-RANK.json has for each change what it was, the exit code, what was said, and what the run left behind
that the first one did not.
"""

import io
import json
import os
import random
import shutil
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import tap
from seen import OWN, read_files
from two_worlds import RANK, SIZE, repeatable

from dpmpi.run import main

GRACE_SECONDS = 0.2
"""Between the end of a process that failed and that of the others, by their launcher."""


class Meddler:
    """Counts the control messages of a process, and flips one bit of one of them."""

    def __init__(self, message=None, draw=None):
        self.seen, self.what = 0, None
        self._message, self._draw = message, draw

    def __call__(self, verb, parts):
        if verb in tap.LASTING or not parts:
            return
        if self.seen == self._message:
            part = self._draw.choice(parts)
            place, bit = self._draw.randrange(part.size), self._draw.randrange(8)
            part[place] ^= 1 << bit
            self.what = f"bit {bit} of byte {place} of {part.size}, {verb}, message {self.seen}"
        self.seen += 1


class Runs:
    """The processes of all runs."""

    def __init__(self, plan, folder):
        self.plan, self.folder, self.number = plan, folder, 0
        self.wire = tap.Wire(tap.shared_byte(folder / "ended"))
        self.real = tap.tapped(self.wire)
        self.world = self.real.COMM_WORLD

    def run(self, meddler):
        """Run once; return the exit code, or how the process was ended, and what it said."""
        if RANK == 0:
            shutil.rmtree(self.folder / "place", ignore_errors=True)
            (self.folder / "place").mkdir()
        self.number += 1
        os.environ["DPMPI_HEADS"] = str(self.folder / "heads" / str(self.number))  # else of the run before
        self.wire.reset()
        self.wire.on_wire, self.wire.ended[0] = meddler, 0
        self.world.Barrier()
        repeatable("meddling")
        said, begin = io.StringIO(), time.monotonic()
        try:
            with redirect_stdout(said), redirect_stderr(said):
                code = main(self.plan["flags"])
        except tap.Ended as ended:
            code = str(ended)
        if code not in (0, None):  # as a launcher does
            time.sleep(GRACE_SECONDS)
            self.wire.ended[0] = 1
        lines = [line for line in said.getvalue().splitlines() if "Ended:" not in line]
        found = {"code": code, "said": lines, "seconds": round(time.monotonic() - begin, 2)}
        self.world.Barrier()
        return found

    def files(self):
        return read_files(self.folder / "place") if RANK == 0 else {}


def others(files, first):
    """Return the files that are other than in the first run.

    A ledger of a run that ended early may be shorter, and what a rank keeps to itself may differ.
    """
    found = []
    for name, (content, mode) in files.items():
        known = first.get(name, (b"", 0))[0]
        if "ledger" in name and name.endswith(".jsonl"):
            lines = entries(content)
            same = lines == entries(known)[: len(lines)]
        else:
            same = content == known or (OWN.search(name) is not None and not mode & 0o077)
        if not same:
            found.append(name)
    return sorted(found)


def entries(content):
    """Return what a ledger says of noise and charges, without what it gives back at its end."""
    lines = [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    kept = ("type", "run", "config", "sigma", "budget", "ranks", "records", "events", "delta", "private")
    return [{key: line.get(key) for key in kept} for line in lines if line.get("type") in ("header", "reserve")]


def all_changes(runs):
    """Yield the verdict of each change."""
    counter = Meddler()
    first = runs.run(counter)
    files = runs.files()
    if first["code"] != 0:
        yield {"what": "nothing", "files": sorted(files), "messages": 0} | first
        return
    counts = runs.world.allgather(counter.seen)
    again = runs.run(Meddler())
    yield {"what": "nothing", "files": others(runs.files(), files), "messages": sum(counts)} | again
    for number in range(runs.plan["changes"]):
        draw = random.Random(f"{runs.plan['seed']} {number}")
        message = draw.randrange(sum(counts))
        rank = next(r for r in range(SIZE) if message < sum(counts[: r + 1]))
        meddler = Meddler(message - sum(counts[:rank]) if rank == RANK else None, draw)
        found = runs.run(meddler)
        what = next(filter(None, runs.world.allgather(meddler.what)), None)
        left = others(runs.files(), files)
        yield {"what": f"rank {rank}: {what}", "files": left} | found


if __name__ == "__main__":
    _plan, _folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    _runs, _found = Runs(_plan, _folder), []
    for _one in all_changes(_runs):
        _found.append(_one)
        (_folder / f"changes-{RANK}.json").write_text(json.dumps(_found, indent=1))
    _runs.world.Barrier()
    os._exit(0)  # requests of runs that were aborted are pending
