"""Parties that each start their own ranks by `dpmpi join`, with MPICH in an environment beside that of the tests."""

import fcntl
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path

import needs
import numpy as np
from groups import start_group
from launcher import finish

REPOSITORY = Path(__file__).parents[2]
AGREED = """\
loss = "logistic"
epsilon = 1.0
deadline = 20.0
"""
SUMS = 'graph = "complete"\nexchange = "shares"\nnoise-in = "sum"\n'


@cache
def python():
    """Return an interpreter whose MPI is MPICH: this one, or one that shares all packages but MPI with it."""
    if not needs.is_open_mpi():
        return sys.executable
    folder = REPOSITORY / ".venv-test-join"
    with (REPOSITORY / ".venv-test-join.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            venv.create(folder, clear=True, with_pip=True)
            install = [
                folder / "bin/python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "mpich>=4.2",
            ]
            subprocess.run(install, check=True, timeout=300, capture_output=True)
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            paths = f"{sysconfig.get_path('purelib')}\n{REPOSITORY}\n"
            (folder / "lib" / version / "site-packages/tests.pth").write_text(paths)
            (folder / "ready").touch()
    return str(folder / "bin/python")


class Consortium:
    """So many parties, each with a folder of its own: settings, roster, its keys and its shards."""

    def __init__(self, folder, size, agreed=AGREED, rows=300, features=5, parties=None):
        self.folder, self.size = folder, size
        self.parties = dict(parties or dict.fromkeys(range(size), 1))
        subprocess.run(
            [sys.executable, "-m", "dpmpi", "keys", "make", str(size), folder / "all"], check=True, timeout=60
        )
        roster = (folder / "all/roster.toml").read_text() + "[names]\n"
        roster += "".join(f'rank-{rank:03d} = "Site {chr(65 + rank)}"\n' for rank in range(size))
        generator = np.random.default_rng(1)
        for first, count in self.parties.items():
            own = self.own(first)
            (own / "keys").mkdir(parents=True)
            (own / "keys/roster.toml").write_text(roster)
            (own / "agreed.toml").write_text(agreed)
            for rank in range(first, first + count):
                (folder / f"all/rank-{rank:03d}.key").rename(own / f"keys/rank-{rank:03d}.key")
                X = generator.normal(size=(rows, features))
                np.savez(own / f"shard-{rank}.npz", X=X, y=np.sign(X[:, 0]))

    def own(self, first):
        return self.folder / f"party-{first}"

    def command(self, first, *flags, meet, of=None):
        """The command of the party whose first rank this is."""
        seat = ["--rank", str(first), "--of", str(of or self.size), "-n", str(self.parties[first]), "--meet", str(meet)]
        usual = ["--keys", "keys", "--wait", "40", *map(str, flags)]
        if "--resume" not in flags:
            usual += ["--config", "agreed.toml", "--data", "shards:shard-{rank}.npz", "--out", "run"]
        return [python(), "-m", "dpmpi", "join", *seat, *usual]

    def start(self, first, *flags, meet=None, of=None, **variables):
        """Start a party's own process."""
        meet = meet or self.folder / "meet"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_"))}
        environment |= {
            "PATH": f"{Path(python()).parent}:{os.environ['PATH']}",
            "OPENBLAS_NUM_THREADS": "1",
        } | variables
        return start_group(self.command(first, *flags, meet=meet, of=of), cwd=self.own(first), env=environment)

    def run(self, *flags, order=None, limit=90):
        """Start all parties in this order; return how they ended, by their first ranks."""
        started = {first: self.start(first, *flags) for first in order or self.parties}
        return {first: finish(process, limit) for first, process in started.items()}


def kill_party(process):
    """Kill a party at once: the command, mpiexec and its ranks."""
    for pid in descendants(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def descendants(pid):
    """Return a process and all that it started, the youngest first."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, ahead = [], [pid]
    while ahead:
        one = ahead.pop()
        found.append(one)
        ahead += children.get(one, [])
    return found[::-1]
