"""Figures of the accountants that this user's processes have computed before: checked, never believed.

Every figure is kept with an HMAC-SHA256 under a key of the user (mode 0600, beside the file),

    mac = HMAC(key, name of the figure | its value)                                                 (1)

where a name says all that is composed, which may be a release of every round. So the file has its SHA-256 instead,
and the last `MOST_FIGURES` figures alone: it stays short for all who read it at their start. A figure without its mac,
or under another key, counts as not there and is computed again. So what somebody else wrote into the file, or copied
from another figure, lowers nobody's noise.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpmpi.core.files import write_file, writing
from dpmpi.rng import fresh_key

KEY_BYTES = 32
MOST_FIGURES = 2000


def cached_figure(path: Path, name: str) -> float | None:
    """Return a figure of the cache, or None where there is none that can be trusted."""
    try:
        status = path.stat()
        value, mac = _entries(path, status.st_mtime_ns, status.st_size)[_entry(name)]
        figure = float(value)
        trusted = hmac.compare_digest(bytes.fromhex(mac), _mac(_key(path), name, figure))  # (1)
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return None
    return figure if trusted and 0 < figure < math.inf else None


def keep_figure(path: Path, name: str, figure: float) -> None:
    """Put a figure into the cache; without the file, the next process computes it again."""
    with suppress(OSError, ValueError):
        try:
            entries = dict(_read(path))
        except (OSError, ValueError, AttributeError):
            entries = {}
        entries[_entry(name)] = [figure, _mac(_key(path), name, figure).hex()]
        entries = dict([*entries.items()][-MOST_FIGURES:])
        write_file(path, json.dumps(entries, indent=0), private=True)


@lru_cache(maxsize=1)
def _entries(path: Path, _changed: int, _size: int) -> dict[str, list[Any]]:
    """Return the entries of a file that has not changed since; a calibration asks for many in a row."""
    return _read(path)


def _read(path: Path) -> dict[str, list[Any]]:
    try:
        found = json.loads(path.read_text())
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError("no table")
    return found


def _entry(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _key(path: Path) -> bytes:
    """Return the user's key; made at the first use."""
    file = path.with_suffix(".key")
    if not file.exists():
        with suppress(FileExistsError), writing(file, private=True, exclusive=True) as new:
            new.write(fresh_key().hex().encode())
    key = bytes.fromhex(file.read_text())
    if len(key) != KEY_BYTES:
        raise ValueError(f"expected a key of {KEY_BYTES} bytes, found {len(key)}")
    return key


def _mac(key: bytes, name: str, figure: float) -> bytes:
    return hmac.digest(key, f"{name} {figure!r}".encode(), "sha256")
