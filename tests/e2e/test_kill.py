"""kill -9 of a random rank at a random moment: no ledger says less than the wire carried.

DPMPI_KILLS sets how often (default 4; each takes a few seconds).
"""

import mmap
import os
import random
import signal

import needs
import pytest
from launcher import finish, process_of, start, survivors, wait_until

from dpmpi.privacy.ledger import recorded_spending

pytestmark = needs.mpi

RANKS = 4
KILLS = int(os.environ.get("DPMPI_KILLS", "4"))

COUNTING = """
import mmap, os, sys
from dpmpi.run import main
from dpmpi.network.transport.mpi import MpiTransport

# Each rank counts the rounds it speaks in, in a byte range of its own, just before it speaks. A mapped file keeps the
# count when the process is killed.
counts = mmap.mmap(os.open(sys.argv.pop(1), os.O_RDWR), 0)
start = MpiTransport.start

def counted(self, channel):
    place = 8 * self.rank
    counts[place : place + 8] = channel.round.to_bytes(8, "little")
    start(self, channel)

MpiTransport.start = counted
sys.exit(main())
"""


def rounds_spoken(path):
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as counts:
        return [int.from_bytes(counts[8 * rank : 8 * rank + 8], "little") for rank in range(RANKS)]


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_rank_has_not_said_more_than_it_charged(tmp_path, kill):
    draw = random.Random(kill)
    script, counts = tmp_path / "counting.py", tmp_path / "counts"
    script.write_text(COUNTING)
    counts.write_bytes(bytes(8 * RANKS))
    flags = ["--data", "synthetic:samples=400,features=8", "--rounds", 4000, "--noise", 1, "--no-evaluate"]
    process = start(RANKS, counts, *flags, "--out", tmp_path / "run", program=(str(script),))
    wanted = draw.choice([1, 2, 499, 500, 501, 1000, 2000])  # reservations are of 500
    assert wait_until(lambda: max(rounds_spoken(counts)) >= wanted, 120), process.poll()
    os.kill(process_of(script, draw.randrange(RANKS)), signal.SIGKILL)
    done = finish(process, 120)
    assert done.code != 0
    assert wait_until(lambda: not survivors(tmp_path), 20)
    for rank, spoken in enumerate(rounds_spoken(counts)):
        ledger = tmp_path / "run" / "ledger" / f"rank-{rank:03d}.jsonl"
        assert recorded_spending(ledger).total() >= spoken
