"""A rank of a run that is attacked: `mpirun -n 3 python attack.py ATTACK NOTES FLAGS...`, with MPI tapped.

NOTES/RANK.json gets what the attack found. `{me}` in a flag is the rank, and `own folders` lets every rank work in
a folder and a trust domain of its own, NOTES/RANK.
"""

import json
import mmap
import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import tap

from dpmpi.network import handshake
from dpmpi.network.launcher import launched_as
from dpmpi.network.transport import control
from dpmpi.run import main
from dpmpi.runtime import assembly

RANK, SIZE = launched_as(os.environ)
NUMBERS = re.compile(rb"\[null, null, \[(\d[\d.e-]+(?:, )?)+\]")
"""A list of floating-point numbers, as one rank tells it to the others."""


class Attack:
    """Does nothing; others override."""

    def __init__(self):
        self.notes, self.wire = {}, tap.Wire(mmap.mmap(-1, 1), real_abort=True)
        self.job = None

    def begin(self):
        """Prepare the process."""

    def on_wire(self, verb, parts):
        """See, and maybe change, a message."""

    def attend(self, job):
        self.job = job

    def end(self):
        """Look at what was sent."""


class OwnFolders(Attack):
    """Every rank has a folder and a trust domain of its own."""

    def begin(self):
        folder = Path(sys.argv[2], str(RANK))
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        with suppress(AttributeError):
            handshake.trust_domain = lambda: f"domain of rank {RANK}"


class StopRank1(OwnFolders):
    """The same, and rank 1 is told to stop."""

    def attend(self, job):
        super().attend(job)
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGUSR1)


class LowerNoise(Attack):
    """Somebody between the ranks writes tiny numbers where rank 1 is told numbers: what calibration found, say."""

    def on_wire(self, verb, parts):
        for part in parts if RANK == 1 else ():
            found = NUMBERS.search(part.tobytes())
            if found is not None:
                old = found.group()
                new = re.sub(rb"[1-9](?=\d*\.)|(?<=[.\d])[1-9]", b"0", old)[: len(old)]
                new = re.sub(rb"0(?=[,\]])", b"1", new)
                part[found.start() : found.end()] = list(new)
                self.notes["changed"] = [old.decode(), new.decode()]


class Flip(Attack):
    """Somebody between the ranks changes the middle byte of one control message to rank 1."""

    seen = 0

    def on_wire(self, verb, parts):
        if verb in tap.LASTING or RANK != 1 or not parts:
            return
        if self.seen == int(sys.argv[1].removeprefix("flip ")):
            parts[0][min(parts[0].size // 2, 100)] ^= 4
        self.seen += 1


class LyingFirst(Attack):
    """Rank 0 itself says that a tenth of the noise is enough."""

    def begin(self):
        found = assembly.noise_levels
        if RANK == 0:
            assembly.noise_levels = lambda *args: [0.1 * sigma for sigma in found(*args)]


class Search(Attack):
    """Everything that a rank hands to MPI, or to a seal, is searched for its own last model and its own loss."""

    def begin(self):
        self.plain = []
        line = getattr(control, "_Line", None)
        if line is not None:
            seal = line.seal

            def seen(this, messages):
                self.plain += map(bytes, messages)
                return seal(this, messages)

            line.seal = seen

    def end(self):
        import numpy as np  # noqa: PLC0415

        [seat], engine = self.job.engine.seats, self.job.engine
        x = np.zeros(seat.agent.dimension)
        engine.model(seat, x)
        with np.load(Path(self.job.config.out, "model.npz")) as model:
            mean = model["x"]
        secrets = {"model": x, "loss": np.array([seat.agent.problem.value(mean)])}
        said = [one.content for one in self.wire.sent] + self.plain
        for name, values in secrets.items():
            forms = [values.tobytes()[k : k + 8] for k in range(0, values.nbytes, 8)]
            forms += [
                np.rint(values * 2.0**40).astype(np.int64).tobytes()[k : k + 8] for k in range(0, values.nbytes, 8)
            ]
            forms += [repr(float(value)).encode() for value in values]
            self.notes[name] = sum(form in one for form in forms for one in said)
        self.notes["texts"] = [text for one in said if (text := _text(one)) is not None]


def _text(content):
    """Return a message that is text, without its length and padding."""
    found = re.search(rb"\[.*\]", content, re.DOTALL)
    text = found.group().decode("ascii", "replace") if found else ""
    return text if text.isprintable() and "null" in text else None


class Die(Attack):
    """The highest rank is killed when it begins its fourth exchange."""

    def begin(self):
        self.exchanges = 0

    def on_wire(self, verb, parts):
        if verb in tap.LASTING and RANK == SIZE - 1:
            self.exchanges += 1
            if self.exchanges > 3 * (SIZE - 1):
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(10)


ATTACKS = {"none": Attack, "own folders": OwnFolders, "stop": StopRank1, "lower noise": LowerNoise}
ATTACKS |= {"lying first": LyingFirst, "search": Search, "die": Die, "flip": Flip}

if __name__ == "__main__":
    _attack, _notes = ATTACKS[sys.argv[1].rstrip(" 0123456789")](), Path(sys.argv[2], f"{RANK}.json")
    _real = tap.tapped(_attack.wire)
    _attack.wire.on_wire = _attack.on_wire
    _attack.begin()
    _code = main([flag.replace("{me}", str(RANK)) for flag in sys.argv[3:]], attend=_attack.attend)
    if _code == 0 and sys.argv[1] != "die":
        _real.COMM_WORLD.Barrier()
        _attack.end()
    _notes.write_text(json.dumps(_attack.notes))
    sys.exit(_code)
