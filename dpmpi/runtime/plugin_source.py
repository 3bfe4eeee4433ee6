"""The source of a plug-in: where it is, its digest, and how it is run, once and up to where it would train."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from dpmpi.errors import ConfigError, DpmpiError

PROMPT = "<prompt>"
"""Where a class was defined that has no file."""
_loading: list[str] = []


class _Defined(BaseException):
    """A file that is loaded as a plug-in is about to train: what it defines is there."""


def stop_if_loading() -> None:
    """End the loading of a plug-in here: a script that trains can be a plug-in, for what it defines before."""
    if _loading:
        raise _Defined


def is_file(where: str) -> bool:
    """Return whether a plug-in is named by a path, and not as a module."""
    return where.endswith(".py") or "/" in where


def source_file(where: str) -> Path:
    """Return the file of a plug-in: the path itself, or that of an installed module."""
    if is_file(where):
        return Path(where).absolute()
    from importlib.util import find_spec  # noqa: PLC0415 - few runs need it

    try:
        spec = find_spec(where)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ConfigError(f"expected --plugin FILE.py or an installed module, found {where!r}: is it installed here?")
    return Path(spec.origin)


def read_source(path: Path) -> tuple[str, bytes]:
    """Return the SHA-256 of a source and its bytes; the digest of a package is that of all its files."""
    try:
        source = path.read_bytes()
        if path.name != "__init__.py":
            return hashlib.sha256(source).hexdigest(), source
        package = hashlib.sha256()
        for file in sorted(path.parent.rglob("*.py")):
            content = file.read_bytes()
            package.update(f"{file.relative_to(path.parent).as_posix()} {len(content)}\n".encode() + content)
        return package.hexdigest(), source
    except OSError as error:
        found = f"expected the plug-in {path}, found nothing to read ({error.strerror})"
        raise ConfigError(f"{found}: put it there, or give its place by --plugin FILE") from error


def typed_source(cls: type) -> str:
    """Return the text of the notebook cells, or lines at a prompt, that define a class."""
    import linecache  # noqa: PLC0415 - few runs need it

    text = "".join("".join(linecache.getlines(cell)) for cell in cells_of(cls))
    if not text.strip():
        raise ConfigError(f"expected the source of {cls.__name__}, found none: write it to a file and import it")
    return text if text.endswith("\n") else f"{text}\n"


def cells_of(cls: type) -> list[str]:
    """Return the notebook cells, as tracebacks name them, that define a class."""
    names = dict.fromkeys(value.__code__.co_filename for value in vars(cls).values() if hasattr(value, "__code__"))
    return [name for name in names if not Path(name).is_file()]


def run_source(where: str, path: Path, source: bytes, digest: str) -> ModuleType:
    """Return the module of a plug-in: of a file, made of these very bytes and under a name of its own."""
    if not is_file(where):
        from importlib import import_module  # noqa: PLC0415 - few runs need it

        with _up_to_training(path):
            import_module(where)
        return sys.modules[where]
    from importlib.abc import SourceLoader  # noqa: PLC0415 - few runs need it
    from importlib.util import module_from_spec, spec_from_loader  # noqa: PLC0415 - likewise

    class Loader(SourceLoader):
        def get_filename(self, fullname: str) -> str:
            return str(path)

        def get_data(self, path: Any) -> bytes:
            return source

    name, loader = f"dpmpi_plugin_{digest[:16]}", Loader()
    spec = spec_from_loader(name, loader, origin=str(path))
    assert spec is not None  # noqa: S101 - a loader was given
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    with _up_to_training(path):
        loader.exec_module(module)
    return module


@contextmanager
def _up_to_training(path: Path) -> Iterator[None]:
    """Load a plug-in up to where it would train; raise `ConfigError` for what else goes wrong."""
    _loading.append(str(path))
    try:
        yield
    except _Defined:
        pass
    except DpmpiError:
        raise
    except (Exception, SystemExit) as error:
        place = last_line(error, {str(path)}) or str(path)
        if isinstance(error, SyntaxError):
            place = f"{path.name}, line {error.lineno}"
        raise ConfigError(f"cannot load the plug-in {place}: {one_line(error)}") from error
    finally:
        _loading.pop()


def last_line(error: BaseException, files: set[str] | None = None) -> str | None:
    """Return the last line that an error went through, of these files if they are given, as `FILE, line N`."""
    found, trace = None, error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if files is None or name in files:
            found = f"{Path(name).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def one_line(error: BaseException) -> str:
    """Return the kind of an error and what it says, on one line."""
    text = " ".join(str(getattr(error, "msg", error)).split())
    return f"{type(error).__name__}: {text}"[:300]
