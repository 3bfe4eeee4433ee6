import pytest
from hostile import EXAMPLES, TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a long run, say what became of the inputs."""
    if EXAMPLES:
        for target, tally in sorted(TALLY.items()):
            figures = ", ".join(f"{tally[what]} {what}" for what in ("accepted", "refused"))
            terminalreporter.write_line(f"{target}: {figures}, the slowest in {tally['slowest']} ms")
