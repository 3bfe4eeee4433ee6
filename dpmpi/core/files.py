"""Files that are there whole or not at all, and TOML read with one-line errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from dpmpi.errors import ConfigError, DpmpiError

Raised: TypeAlias = type[DpmpiError]


@contextmanager
def writing(
    path: Path, *, private: bool = False, durable: bool = False, exclusive: bool = False, error: Raised | None = None
) -> Iterator[IO[bytes]]:
    """Yield a binary stream whose content becomes the file `path` when the block ends; if it fails, nothing changes.

    The content goes to a temporary name beside it first, and missing folders are made. `private`: for the owner alone.
    `durable`: on disk before this returns, its name included. `exclusive`: raise `FileExistsError` instead of replacing
    a file. `error`: raise this, in one line, in place of an `OSError`.
    """
    mode = 0o600 if private else 0o666
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        with suppress(FileExistsError):  # or, if it is not a folder, opening says so
            path.parent.mkdir(mode=0o700 if private else 0o777, parents=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        if exclusive:
            os.link(temporary, path)  # fails if `path` is there; renaming would not
            os.unlink(temporary)
        else:
            os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except BaseException as reason:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(reason, OSError) and reason.filename is None:
            reason.filename = str(path)  # a full disk does not say where
        if error is None or not isinstance(reason, OSError):
            raise
        advice = ", and is not replaced: name another one" if isinstance(reason, FileExistsError) else ""
        raise error(f"cannot write {path}: {reason.strerror or reason}{advice}") from reason


def write_file(path: Path, content: str | bytes, **how: Any) -> None:
    """Write a whole file as `writing` does, with its options; text as UTF-8."""
    with writing(path, **how) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def user_path(text: str) -> Path:
    """Return a path below the user's home (`~/...`); for a user without one, below a folder for temporary files."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # neither HOME nor an entry in the list of users, as in containers
        import tempfile  # noqa: PLC0415 - rare

        return Path(tempfile.gettempdir()) / f"dpmpi-{os.getuid()}" / text.removeprefix("~/")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: after a crash a new file is found there."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folders(path: Path) -> None:
    """Make a new file's name durable, with the names of the folders that lead to it, up to where its disk begins."""
    folder = path.parent.resolve()
    while True:
        try:
            sync_folder(folder)
        except PermissionError:  # a folder that we may pass but not read was there before
            return
        if folder == folder.parent or os.stat(folder).st_dev != os.stat(folder.parent).st_dev:
            return
        folder = folder.parent


def check_output(out: Path | None, *inputs: Path | None) -> None:
    """Raise `ConfigError` if a file to be written is one of those that are read."""
    for one in inputs:
        if out is not None and one is not None and out.exists() and one.exists() and out.samefile(one):
            raise ConfigError(f"expected another file to write than those that are read, found {out}: rename it")


def read_toml(path: Path, what: str, error: Raised = ConfigError) -> dict[str, Any]:
    """Return the table in a TOML file; raise `error` in one line, naming `what` the file should be."""
    return parse_toml(read_text(path, what, error), f"{what} {path}", error)


def read_text(path: Path, what: str, error: Raised = ConfigError) -> str:
    """Return the text of a file for TOML; raise `error` in one line, naming `what` the file should be."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as reason:
        raise error(f"cannot read {what} {path}: {reason.strerror}") from reason
    except UnicodeDecodeError as reason:
        raise error(f"expected {what} in TOML, found text that is not UTF-8 in {path}: {reason!s:.200}") from reason
    except ValueError as reason:  # a null byte in the path
        raise error(f"cannot read {what} {path}: {reason}") from reason


def parse_toml(text: str, where: str, error: Raised = ConfigError) -> dict[str, Any]:
    """Return the table that a TOML text describes; raise `error` in one line."""
    import tomllib  # noqa: PLC0415 - only where there is a file

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # broken TOML, endless digits, brackets without end
        raise error(f"{where} is not TOML: {reason!s:.200}") from reason
