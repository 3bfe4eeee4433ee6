"""What all fuzz targets share: damaged versions of valid input, and what any of them may do to a reader.

A reader answers with a value or with one of our errors in one short line. Anything else is a finding: another
exception, more than `SECONDS` of processor time, more than `MEGABYTES` of memory on top of what was there.

DPMPI_EXAMPLES sets how many inputs each target gets; the default is small enough for every commit.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from dpmpi.errors import DpmpiError

SECONDS = 5.0
MEGABYTES = 400
LONGEST_MESSAGE = 2500
"""A setting of 1000 characters may stand in a message twice; nothing else is long."""
EXAMPLES = int(os.environ.get("DPMPI_EXAMPLES", "0"))

TALLY: dict[str, Counter[str]] = {}
"""For each target: how many inputs were accepted, how many refused, and the processor time of the slowest in ms."""


def examples(few: int) -> settings:
    """Return the settings of a target: `few` inputs, or DPMPI_EXAMPLES."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=EXAMPLES or few, deadline=None, suppress_health_check=checks)


# --- what may happen -------------------------------------------------------------------------------------------------


class TooSlow(AssertionError):
    """An input took more processor time than any input may."""


def attempt(target: str, call: Callable[[], Any]) -> Any:
    """Return what `call` returns, or the error of ours that it raises; fail for all else."""
    tally = TALLY.setdefault(target, Counter())
    if not tally:
        _forget_peak()
        tally["start"] = _memory("VmRSS")
    late: list[str] = []

    def stop(_signal: int, frame: FrameType | None) -> None:
        late.append(str(frame))
        raise TooSlow(f"{target}: more than {SECONDS} seconds, at {frame}")

    before, begin = signal.signal(signal.SIGPROF, stop), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        found = call()
    except DpmpiError as error:
        found = error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if late:
        raise TooSlow(f"{target}: more than {SECONDS} seconds, at {late[0]}")  # whoever caught the first one
    tally["slowest"] = max(tally["slowest"], round(1000 * (time.process_time() - begin)))
    if isinstance(found, DpmpiError):
        tally["refused"] += 1
        message = str(found)
        assert message.isprintable(), f"not one plain line: {message!r}"
        assert 0 < len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} letters: {message[:200]}..."
    else:
        tally["accepted"] += 1
    grown = (_memory("VmHWM") - tally["start"]) / 1024
    assert grown < MEGABYTES, f"{target}: {grown:.0f} MB"
    return found


def _memory(name: str) -> int:
    """Return a figure of /proc/self/status in kilobytes; 0 where there is no such file."""
    status = Path("/proc/self/status")
    found = re.search(rf"{name}:\s*(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) if found else 0


def _forget_peak() -> None:
    """Let the peak begin anew: earlier tests of the same process may have taken more."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")


# --- damage ----------------------------------------------------------------------------------------------------------

NUMBERS = (
    b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"1e999", b"-1e999", b"1e-999", b"1e308", b"-0.0", b"0", b"-1", b"1",
    b"2147483648", b"9223372036854775807", b"18446744073709551616", b"1" + b"0" * 400, b"9" * 5000,
    b"0x" + b"f" * 5000, b"[" * 3000 + b"]" * 3000,
    b"1_000", b"0x1p3", b"1e", b"+", b"true", b"null", b'"1"', b"[1]", b"{}", b"", b"0.5", b"3",
)  # fmt: skip
"""What is put in the place of a number."""

PIECES = (
    *NUMBERS, b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\r\n", b"\x1a", b"\x1c", b"\x85",
    b"\xe2\x80\xa8", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b'"', b"'", b"'''", b"\\", b"\\u0000", b"\\ud800", b"#", b"=",
    b":", b",", b"..", b"/", b"{rank}", b"${HOME}", b"[" * 4000, b'{"a":' * 3000, b"[" * 100_000, b"a=" * 40, b" " * 99,
    b"A" * 70_000, b"-", b"%s", b"%", b"{}", b"{0}", b"\x1b[2J",
)  # fmt: skip
"""What is put in between."""

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """Return the original after one to three changes, or garbage of its own."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200)) + draw(st.sampled_from(PIECES))
    data = bytearray(original)
    for _ in range(draw(st.sampled_from((1, 1, 1, 1, 2, 3)))):
        kind = draw(st.sampled_from(_CHANGES))
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind(draw, data, place)
    return bytes(data)


def _flip(draw: st.DrawFn, data: bytearray, place: int) -> None:
    if data:
        data[place] ^= 1 << draw(st.integers(0, 7))


def _put(draw: st.DrawFn, data: bytearray, place: int) -> None:
    if data:
        data[place] = draw(st.integers(0, 255))


def _cut(draw: st.DrawFn, data: bytearray, place: int) -> None:
    del data[place:]


def _drop(draw: st.DrawFn, data: bytearray, place: int) -> None:
    del data[place : place + draw(st.integers(1, 60))]


def _insert(draw: st.DrawFn, data: bytearray, place: int) -> None:
    data[place:place] = draw(st.sampled_from(PIECES) | st.binary(max_size=20))


def _append(draw: st.DrawFn, data: bytearray, place: int) -> None:
    data += draw(st.sampled_from(PIECES) | st.binary(max_size=20))


def _repeat(draw: st.DrawFn, data: bytearray, place: int) -> None:
    data[place:place] = data[place : place + draw(st.integers(1, 200))] * draw(st.integers(1, 5))


def _number(draw: st.DrawFn, data: bytearray, place: int) -> None:
    """Replace the first number after a place."""
    if found := _NUMBER.search(data, place):
        data[found.start() : found.end()] = draw(st.sampled_from(NUMBERS))


_CHANGES = (_flip, _flip, _put, _cut, _drop, _insert, _append, _repeat, _number, _number, _number)

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 2**63,
    10**400, "", "x", "1", "nan", "../../x", "\0", "a\nb", "<script>", [], {}, [1], [[]], {"a": 1}, [None], ["x"] * 50,
    "y" * 5000,
)  # fmt: skip
"""What is put in the place of a value of a parsed document."""


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """Return a copy of a document of dicts and lists in which one to three values are others, gone or new."""
    for _ in range(draw(st.integers(1, 3))):
        document = _change(draw, document)
    return deepcopy(document)  # who gets it may write into it, and VALUES must stay what they are


def _change(draw: st.DrawFn, value: Any) -> Any:
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(VALUES))
    keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    copy = dict(value) if isinstance(value, dict) else list(value)
    what = draw(st.integers(0, 11))
    if what == 0:
        del copy[key]
    elif what == 1 and isinstance(copy, dict):
        copy[draw(st.sampled_from(("x", "hash", "run", "", key + "x")))] = draw(st.sampled_from(VALUES))
    elif what == 2 and isinstance(copy, list):
        copy.append(value[key])
    else:
        copy[key] = _change(draw, value[key])
    return copy
