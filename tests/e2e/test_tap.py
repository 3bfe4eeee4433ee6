"""The tap sees what is handed to MPI by all verbs that it knows, changes what is on its way, and refuses others."""

from pathlib import Path

import needs
from launcher import mpirun

pytestmark = needs.mpi

PROGRAM = """
import mmap, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import tap

wire = tap.Wire(mmap.mmap(-1, 1), real_abort=True)
tap.tapped(wire)
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
comm = world.Dup().Split(0, rank)
after, before = (rank + 1) % size, (rank - 1) % size
marks = []

def mark(name):
    text = f"{name} of rank {rank}"
    marks.append((name.partition(" ")[0], text.encode()))
    return np.frombuffer(text.encode().ljust(48), np.uint8).copy()

def wait(*requests):
    while not MPI.Request.Testall(list(requests)):
        pass

# What travels by a persistent request is what its buffer holds when it starts.
source, got = np.zeros(48, np.uint8), np.zeros(48, np.uint8)
send, receive = comm.Send_init(source, after, 7), comm.Recv_init(got, before, 7)
for turn in range(2):
    source[:] = mark(f"Send_init {turn}")
    MPI.Prequest.Startall([receive, send])
    wait(receive, send)
    assert f"Send_init {turn} of rank {before}".encode() in got.tobytes()
receive = comm.Irecv(got, before, 8)
wait(receive, comm.Isend(mark("Isend"), after, 8))

rows, layout = np.zeros((size, 48), np.uint8), [[48] * size, [48 * k for k in range(size)], MPI.BYTE]
wait(comm.Iallgather(mark("Iallgather"), rows))
wait(comm.Iallgatherv([mark("Iallgatherv"), MPI.BYTE], [rows, *layout]))
wait(comm.Igather(mark("Igather"), rows if rank == 0 else None, root=0))
wait(comm.Ialltoall(np.concatenate([mark("Ialltoall")] * size), rows))
wait(comm.Ialltoallv([np.concatenate([mark("Ialltoallv")] * size), *layout], [rows, *layout]))
wait(comm.Iallreduce(mark("Iallreduce").view(np.float64), np.empty(6), op=MPI.MAX))
wait(comm.Ibcast(mark("Ibcast") if rank == 0 else np.zeros(48, np.uint8), 0))

said = [one for one in wire.sent if one.verb != "Split"]
assert len(said) == len(marks), (said, marks)
for one, (verb, text) in zip(said, marks, strict=True):
    assert one.verb == verb and text in one.content, (one, verb, text)
assert {one.communicator for one in said} == {"world.Dup1.Split2"}

# A change reaches one receiver; the sender keeps what it said, and so do the other receivers.
def flip(verb, parts):
    for part in parts if rank == 1 else ():
        part[:5] = list(b"OTHER")

wire.on_wire = flip
mine = mark("Iallgather")
request = comm.Iallgather(mine, rows)
while not request.Test():
    pass
for sender in range(size):
    changed = rank == 1 and sender != 1
    assert rows[sender].tobytes().startswith(b"OTHER" if changed else b"Iallg"), rows
source[:] = mark("Send_init")
receive = comm.Recv_init(got, before, 7)
MPI.Prequest.Startall([receive, send])
wait(receive, send)
assert got.tobytes().startswith(b"OTHER" if before == 1 else b"Send_init")
assert source.tobytes().startswith(b"Send_init")

for verb in ("Alltoallw", "Put", "sendrecv", "bcast", "Ineighbor_alltoall"):
    try:
        getattr(comm, verb)
    except AttributeError as error:
        assert "expected a verb that the tap knows" in str(error)
    else:
        raise AssertionError(verb)
print("seen")
"""


def test_the_tap_sees_every_verb_and_every_communicator(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mpirun(3, Path(__file__).parents[1] / "helpers", program=(tmp_path / "program.py",), limit=60)
    assert done.code == 0, done.err
    assert done.out.split() == ["seen"] * 3
