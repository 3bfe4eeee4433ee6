"""After a long run, say what became of the inputs."""

import pytest
from hostile import EXAMPLES, TALLY


def tallies() -> list[str]:
    lines = []
    for target, tally in sorted(TALLY.items() if EXAMPLES else ()):
        figures = ", ".join(f"{tally[what]} {what}" for what in ("accepted", "refused"))
        lines.append(f"{target}: {figures}, the slowest in {tally['slowest']} ms")
    return lines


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:  # a worker of pytest-xdist shows nothing
        output["notes"] = tallies()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in tallies():
        terminalreporter.write_line(line)
