"""Slow tests are behind one flag, no test is skipped in silence, and processes are shared where several workers run."""

import atexit
import os
import shutil
import signal
import tempfile
import threading

import pytest
from hypothesis import settings
from skips import table

if "DPMPI_HEADS" not in os.environ:  # what is known of ledgers in tests does not go to the user's own heads
    os.environ["DPMPI_HEADS"] = tempfile.mkdtemp(prefix="dpmpi-heads-")
    atexit.register(shutil.rmtree, os.environ["DPMPI_HEADS"], ignore_errors=True)

# The same inputs in every run, so that a commit passes or fails whoever checks it; new ones where they are asked for.
settings.register_profile("repeatable", derandomize=True)
if "DPMPI_EXAMPLES" not in os.environ:
    settings.load_profile("repeatable")

SKIPPED: list[str] = []
"""The reason of every skipped test; with pytest-xdist the reports of all workers arrive in the one that shows them."""
NOTES: list[str] = []
"""Lines that the workers of pytest-xdist leave for the end."""
BEHIND = {
    "slow": ("--slow", "is slow: ./launch/test --slow"),
    "mpi": ("--with-mpi", "needs 5 ranks: mpirun -n 5 python -m pytest --with-mpi tests/mpi"),
}
"""The flag that a marked test needs, and why it is skipped without."""
SHARING = ("test_tutorial.py", "test_report_browser.py", "test_no_leak.py")
"""Modules whose tests look at the same runs: with `--dist loadscope` each stays on one worker."""


@pytest.fixture(autouse=True)
def sigterm_as_before():
    """A run that ends early ignores SIGTERM while it speaks; processes of later tests would inherit that."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_collection_modifyitems(config, items):
    for mark, (flag, reason) in BEHIND.items():
        if not config.getoption(flag, default=False):
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(pytest.mark.skip(reason=reason), append=False)


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        SKIPPED.append(" ".join(report.longrepr[2].removeprefix("Skipped: ").split()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Deal out the tests of `--dist loadscope` one by one, except those that share something."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - it is there when this is called

    class OneByOne(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            module = nodeid.partition("::")[0]
            return module if module.endswith(SHARING) else nodeid

    return OneByOne(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    NOTES.extend(getattr(node, "workeroutput", {}).get("notes", ()))


def pytest_terminal_summary(terminalreporter, config):
    """Append the reasons to the file that DPMPI_SKIPS names, for one table of several sessions; else show the table."""
    file, shown = os.environ.get("DPMPI_SKIPS"), list(NOTES)
    if hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist, whose reports are counted by the session that started it
    if file:
        with open(file, "a", encoding="utf-8") as stream:
            stream.writelines(f"{reason}\n" for reason in SKIPPED)
    else:
        shown += table(SKIPPED)
    for line in shown:
        terminalreporter.write_line(line)
