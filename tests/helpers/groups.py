"""Commands in a process group of their own."""

import subprocess

from launcher import finish


def start_group(command, *, errors=subprocess.PIPE, **options):
    """Start a command as the leader of a new process group, without input, its output kept for `finish`."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
    return subprocess.Popen(command, text=True, start_new_session=True, **pipes, **options)


def run_group(command, limit, **options):
    """Run a command to its end; after `limit` seconds kill its group and fail."""
    return finish(start_group(command, **options), limit)
