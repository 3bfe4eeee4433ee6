"""Files of records as streams of bytes, plain or compressed, within limits that no file can push aside.

A compressed file does not say how much comes out of it, and a line has no end until it is there. So a file that is
damaged, or made to do harm, is refused as soon as more comes out than `MOST_TIMES` its size, or a line is longer than
`LONGEST_LINE`. What follows the end of the compressed data must be compressed data too, or nothing: rows that cannot be
read are never left out in silence.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from dpmpi.errors import DataError

MOST_TIMES = 200
"""A compressed file may become so many times larger. Texts of records become 2 to 70 times larger, a bomb 1000."""
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


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) of a text, decompressed if its name ends with .gz, .bz2 or .xz."""
    with open_file(path) as raw:
        stream: IO[bytes] | io.BufferedReader = raw
        if path.suffix in _DECOMPRESSORS:
            stream = io.BufferedReader(_Content(_unpacked(path, raw)), _CHUNK)
        for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), 1):
            if len(line) > LONGEST_LINE:
                raise DataError(f"{path}:{number}: a line of more than {LONGEST_LINE >> 20} MB: is it text of records?")
            yield number, line


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file; raise `DataError` for anything else, such as a pipe, which nobody may ever fill."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{path}: cannot be read (not a file, but a folder, a pipe or a device)")
    return os.fdopen(handle, "rb", _CHUNK)


class _Content(io.RawIOBase):
    """Pieces of bytes as a stream that can be read line by line."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what comes next; return how much, 0 at the end."""
        piece = self._left or next(self._pieces, b"")
        taken = min(len(piece), len(buffer))
        buffer[:taken], self._left = piece[:taken], piece[taken:]
        return taken


def _unpacked(path: Path, raw: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a compressed file piece by piece, none of them empty; raise `DataError` if it is damaged."""
    limit, total = largest_content(os.fstat(raw.fileno()).st_size), 0
    pieces = _decompressed(raw, _DECOMPRESSORS[path.suffix])
    while True:
        try:
            piece = next(pieces, b"")
        except Exception as error:
            if not isinstance(error, OSError | EOFError | _broken_streams()):
                raise
            raise DataError(f"{path}: cannot be decompressed ({error}): the file is damaged or incomplete") from error
        if not piece:
            return
        total += len(piece)
        if total > limit:
            raise DataError(
                f"{path}: becomes larger than {limit >> 20} MB, {MOST_TIMES} times its size: "
                "if that is right, decompress it and name the plain file"
            )
        yield piece


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
        self.needs_input = True

    @property
    def eof(self) -> bool:
        """Whether the compressed data are complete, and their checksum right."""
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        """What came after them."""
        return self._zlib.unused_data

    def decompress(self, data: bytes, most: int) -> bytes:
        """Return at most so many bytes of the content."""
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, most)
        self.needs_input = len(piece) < most and not self._zlib.unconsumed_tail
        return piece


def _bz2() -> Any:
    import bz2  # noqa: PLC0415 - only where there is such a file

    return bz2.BZ2Decompressor()


def _xz() -> Any:
    import lzma  # noqa: PLC0415 - only where there is such a file

    return lzma.LZMADecompressor(lzma.FORMAT_XZ, _LZMA_MEMORY)


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {".gz": _Gzip, ".bz2": _bz2, ".xz": _xz}


def _broken_streams() -> Any:
    """Return what the decompressors raise for a broken file; asked for only when something was raised."""
    import lzma  # noqa: PLC0415 - slow
    import zlib  # noqa: PLC0415

    return zlib.error | lzma.LZMAError
