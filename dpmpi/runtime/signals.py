"""What signals do to a rank: end it, or let it stop where it can be resumed. Imports nothing that is slow."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dpmpi.errors import interrupt


class Signals:
    """The signals of one process, and whether it was told to stop."""

    def __init__(self) -> None:
        self.told_to_stop = False

    def note(self, _signal: int, _frame: FrameType | None) -> None:
        """Remember that the process was told to stop: a handler."""
        self.told_to_stop = True

    def while_loading(self) -> None:
        """Let Ctrl-C end ranks without a traceback each, and no early warning kill one, while modules load."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, self.note)

    def end_runs(self) -> None:
        """Let Ctrl-C, what ranks get when Open MPI's mpirun is interrupted, and warnings end a run."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, interrupt)

    def stop_runs(self) -> None:
        """Let a run stop at its next checkpoint instead, but for Ctrl-C."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self.note)

    def after_the_end(self) -> None:
        """Ignore what comes late: Python takes its handlers off while it ends, and the run has ended well."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Leave the handlers as they were."""
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
