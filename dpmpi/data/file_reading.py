"""Files of records as streams of bytes, plain or compressed, within limits that no file can push aside.

A compressed file does not say how much comes out of it, and a line has no end until it is there. So a file that is
damaged, or made to do harm, is refused as soon as more comes out than `MOST_TIMES` its size, or a line is longer than
`LONGEST_LINE`. What follows the end of the compressed data must be compressed data too, or nothing: rows that cannot be
read are never left out in silence.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from dpmpi.errors import DataError, shown

MOST_TIMES = 200
"""The largest ratio of content to compressed size. Texts of records become 2 to 70 times larger, a bomb 1000."""
ALWAYS_BYTES = 1 << 22
"""Up to this size (4 MB) any file may grow: it does no harm."""
LONGEST_LINE = 1 << 24
"""Bytes of a record as text (16 MB): about a million numbers."""
MOST_FEATURES = 10**8
"""Columns of a model: 0.8 GB for each of its vectors. More is a damaged index."""

_CHUNK = 1 << 16
_LZMA_MEMORY = 1 << 28  # xz -9 takes a quarter of it


def largest_content(size: int) -> int:
    """Return how many bytes a compressed file of `size` bytes may hold."""
    return max(ALWAYS_BYTES, MOST_TIMES * size)


def shown_bytes(raw: bytes) -> str:
    """Return bytes of a file for a message: as text on one line, at most about 40 characters long."""
    return shown(raw[:80].decode("utf-8", "replace"), 40)


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) of a text, decompressed if its name ends with .gz, .bz2 or .xz."""
    with open_file(path) as raw:
        plain = iter(partial(raw.readline, LONGEST_LINE + 1), b"")
        lines = _lines(_unpacked(path, raw)) if path.suffix in _DECOMPRESSORS else plain
        for number, line in enumerate(lines, 1):
            if len(line) > LONGEST_LINE:
                raise DataError(
                    f"{path}:{number}: expected lines of at most {LONGEST_LINE >> 20} MB, found more: is it text?"
                )
            yield number, line


def content_pieces(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file piece by piece, decompressed if its name ends with .gz, .bz2 or .xz."""
    with open_file(path) as raw:
        yield from _unpacked(path, raw) if path.suffix in _DECOMPRESSORS else iter(partial(raw.read, _CHUNK), b"")


def find_file(folder: Path, name: str) -> Path | None:
    """Return the file of this name, plain or compressed; None if there is none."""
    return next((path for suffix in ("", *_DECOMPRESSORS) if (path := folder / f"{name}{suffix}").exists()), None)


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file; raise `DataError` for anything else, such as a pipe, which nobody may ever fill."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DataError(f"cannot read {path}: no such file") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"cannot read {path}: it is not a file, but a folder, a pipe or a device")
    return os.fdopen(handle, "rb", _CHUNK)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text that comes in pieces; one that is too long comes without its end."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(rest) > LONGEST_LINE:
            break
    if rest:
        yield rest


def _unpacked(path: Path, raw: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a compressed file piece by piece, none of them empty; raise `DataError` if it is damaged."""
    limit, total = largest_content(os.fstat(raw.fileno()).st_size), 0
    try:
        for piece in _decompressed(raw, _DECOMPRESSORS[path.suffix]):
            total += len(piece)
            if total > limit:
                raise DataError(
                    f"cannot read {path}: it becomes larger than {limit >> 20} MB, {MOST_TIMES} times its size: if "
                    "that is right, decompress it and name the plain file"
                )
            yield piece
    except _broken_streams() as error:
        raise DataError(f"cannot decompress {path}: {error}: the file is damaged or incomplete") from error


def _decompressed(raw: IO[bytes], make: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the content of one compressed file, or of several end to end, with zeros as padding behind each."""
    rest = raw.read(_CHUNK)
    if not rest:
        raise EOFError("it is empty")
    while rest:
        decompressor = make()
        piece = decompressor.decompress(rest, _CHUNK)
        while not decompressor.eof:
            if piece:
                yield piece
            more = raw.read(_CHUNK) if decompressor.needs_input else b""
            if decompressor.needs_input and not more:
                raise EOFError("it ends too early")
            piece = decompressor.decompress(more, _CHUNK)
        if piece:
            yield piece
        rest = decompressor.unused_data or raw.read(_CHUNK)
        while rest and not (rest := rest.lstrip(b"\0")):
            rest = raw.read(_CHUNK)


class _Gzip:
    """zlib's decompressor with the interface of the other two."""

    def __init__(self) -> None:
        import zlib  # noqa: PLC0415 - only where there is such a file

        self._zlib = zlib.decompressobj(wbits=31)
        self.needs_input, self.eof, self.unused_data = True, False, b""

    def decompress(self, data: bytes, most: int) -> bytes:
        """Return at most `most` bytes of the content."""
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, most)
        self.needs_input = len(piece) < most and not self._zlib.unconsumed_tail
        self.eof, self.unused_data = self._zlib.eof, self._zlib.unused_data
        return piece


def _bz2() -> Any:
    import bz2  # noqa: PLC0415 - only where there is such a file

    return bz2.BZ2Decompressor()


def _xz() -> Any:
    import lzma  # noqa: PLC0415 - only where there is such a file

    return lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY)


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {".gz": _Gzip, ".bz2": _bz2, ".xz": _xz}


def _broken_streams() -> tuple[type[Exception], ...]:
    """Return the errors of decompressors for a broken file; Python asks for them only when something was raised."""
    import lzma  # noqa: PLC0415 - slow
    import zlib  # noqa: PLC0415

    return OSError, EOFError, zlib.error, lzma.LZMAError
