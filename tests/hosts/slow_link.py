"""Two network interfaces with a long wire between them: every frame arrives so many seconds later, in order.

    python slow_link.py INTERFACE INTERFACE SECONDS

Makes the two interfaces (TAP devices of this network namespace) and carries frames between them until it is ended. The
kernel's own means, netem, is not there on every machine.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LONGEST = 1 << 16


def tap(name):
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return handle


def carry(ends, delay):
    """Read frames at each end, and write them at the other when their time has come."""
    underway = deque()
    while True:
        wait = max(0.0, underway[0][0] - time.monotonic()) if underway else None
        for end in select.select(ends, [], [], wait)[0]:
            try:
                while True:
                    underway.append((time.monotonic() + delay, ends[1 - ends.index(end)], os.read(end, LONGEST)))
            except BlockingIOError:
                pass
        while underway and underway[0][0] <= time.monotonic():
            _, end, frame = underway.popleft()
            try:
                os.write(end, frame)
            except OSError:  # the interface is down, or full: frames get lost on any wire
                continue


if __name__ == "__main__":
    made = [tap(name) for name in sys.argv[1:3]]
    print("ready", flush=True)
    carry(made, float(sys.argv[3]))
