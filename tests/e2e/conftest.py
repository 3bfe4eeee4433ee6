import contextlib
import os
import signal

import pytest
from launcher import survivors


@pytest.fixture(autouse=True)
def ends_what_it_started(tmp_path):
    """Kill what a failed test left running: its folder is on the command line of the processes that it started."""
    yield
    for pid in survivors(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
