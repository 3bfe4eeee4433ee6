"""Files that only one rank can see, and cutting a data set into such files.

`shards:PATTERN` names rank i's file by the pattern with `{rank}` filled in. A file is either an `.npz` as
`write_shards` makes it (dense: X, y; sparse: indptr, indices, data, dimension, y) or LIBSVM text, plain or compressed.
There is no survey: nobody but the rank itself looks at its file.

Class labels are -1/+1 or 0/1. 1/2 is refused: a shard that holds one class only would be read as the wrong one.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.data.base import Settings, Shard, Source, Survey, held_out
from dpmpi.data.libsvm import read_rows
from dpmpi.data.streams import MOST_FEATURES, MOST_TIMES, largest_content, open_file
from dpmpi.errors import ConfigError, DataError
from dpmpi.rng import public_generator
from dpmpi.rows import Csr, Dense, Rows, check_finite, scale_rows, take


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """`shards:PATTERN`: one file per rank, e.g. `shards:/secret/part-{rank:03d}.npz`."""

    private: ClassVar[bool] = True

    settings: Settings
    pattern: str

    @classmethod
    def parse(cls, text: str, settings: Settings) -> Self:
        """Return the source for a pattern."""
        shard_path(text, 0)
        if settings.samples is not None:
            raise ConfigError(
                f"samples={settings.samples} does not apply to shards, of which a rank uses all rows: leave it out"
            )
        return cls(settings, text)

    def survey(self) -> None:
        """Return None: nobody looks at another rank's file."""
        return

    def training_rows(self, survey: Survey) -> int:
        """Raise `ConfigError`: nobody looks at another rank's file."""
        raise ConfigError("the number of rows of a shard is known to its rank alone")

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Read the rank's own file; the test rows are the last ones after a shuffle."""
        path = shard_path(self.pattern, rank)
        if not path.exists():
            raise DataError(f"shard of rank {rank} not found: {path}")
        rows, labels = read_npz(path) if path.suffix == ".npz" else _read_text(path, rank, self.settings.dimension)
        if rows.count == 0 or rows.dimension == 0:
            raise DataError(
                f"{path}: the shard has {rows.count} rows of {rows.dimension} features, both must be above 0"
            )
        if self.settings.binary:
            labels = _signs(labels, path)
        tests = held_out(rows.count, self.settings.test_fraction)
        if tests == rows.count:
            raise DataError(
                f"{path}: a test fraction of {self.settings.test_fraction} leaves none of {rows.count} rows to train on"
            )
        if tests:
            order = public_generator(self.settings.seed, "shuffle", rank).permutation(rows.count)
            train, test = order[:-tests], order[-tests:]
            shard = Shard(take(rows, train), labels[train], take(rows, test), labels[test])
        else:
            nothing = np.empty(0, np.intp)
            shard = Shard(rows, labels, take(rows, nothing), labels[nothing])
        if self.settings.normalize:
            scale_rows(shard.rows, 1.0)
            scale_rows(shard.test_rows, 1.0)
        return shard


def _read_text(path: Path, rank: int, dimension: int | None) -> tuple[Rows, Array]:
    """Read a libsvm file; an error goes to all ranks, so the words of the file that it quotes are cut off.

    The number of features, and so the length of every message, must not depend on the records: it is declared.
    """
    if dimension is None:
        raise ConfigError("shards as text do not say how many features there are: give --dimension M")
    try:
        rows, labels = read_rows(path)
        if rows.dimension > dimension:
            raise DataError(f"{path}: a feature number is above the --dimension {dimension}")
        return Csr(rows.indptr, rows.indices, rows.data, dimension), labels
    except DataError as error:
        told = str(error).partition(", found")[0].partition(", got")[0]
        raise DataError(f"shard of rank {rank}: {told}; what was found is private and not shown") from error


def shard_path(pattern: str, rank: int) -> Path:
    """Return the path of a rank's file; raise `ConfigError` unless `{rank}` is the one thing to fill in."""
    path, places = re.subn(r"\{rank(?::0?(\d)d)?\}", lambda found: f"{rank:0{found[1] or 1}d}", pattern)
    if places == 0 or "{" in path or "}" in path:
        raise ConfigError(
            f"a pattern of shards must hold {{rank}} or e.g. {{rank:03d}} and no other field, got {pattern!r}"
        )
    return Path(path)


def write_shards(source: Source, size: int, pattern: str, progress: Callable[[int], None]) -> list[Path]:
    """Write the rows of `source` as one `.npz` per rank and return the paths, holding one shard at a time.

    All rows are written: test rows are held out when the shards are loaded. `progress(done)` is called after each file.
    """
    if shard_path(pattern, 0).suffix != ".npz":
        raise ConfigError(f"shards are written as .npz files, got the pattern {pattern!r}")
    if size < 1:
        raise ConfigError(f"shards are cut for at least one rank, got {size}")
    whole: Any = source
    whole = replace(whole, settings=replace(source.settings, test_fraction=0.0))
    survey = whole.survey()
    paths = []
    for rank in range(size):
        path = shard_path(pattern, rank)
        shard: Shard = whole.load(survey, rank, size)
        write_npz(path, shard.rows, shard.labels)
        paths.append(path)
        progress(rank + 1)
    return paths


def write_npz(path: Path, rows: Rows, labels: Array) -> None:
    """Write one shard, readable by its owner only, under a temporary name that is renamed when it is complete."""
    arrays: dict[str, Any] = {"y": labels}
    if isinstance(rows, Dense):
        arrays["X"] = rows.matrix
    else:
        arrays |= {"indptr": rows.indptr, "indices": rows.indices, "data": rows.data, "dimension": rows.dimension}
    with replacing(path) as stream:
        np.savez(stream, **arrays)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a new file, readable by its owner only, that takes the place of `path` once it is whole and on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def read_npz(path: Path) -> tuple[Rows, Array]:
    """Read what `write_npz` wrote; raise `DataError` for anything else, NaN and infinity included."""
    found = _read_arrays(path)
    names = set(found)
    if names not in ({"X", "y"}, {"indptr", "indices", "data", "dimension", "y"}):
        raise DataError(
            f"{path}: expected the arrays X, y (dense) or indptr, indices, data, dimension, y (sparse), "
            f"found {', '.join(sorted(names)) or 'none'}"
        )
    for name, values in found.items():
        if values.dtype.kind not in "fiub" or (values.dtype.kind == "f" and name in ("indptr", "indices", "dimension")):
            raise DataError(f"{path}: the array {name} holds {values.dtype}, expected numbers")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large for a float64 becomes infinite
            labels = np.ascontiguousarray(found["y"], np.float64)
            rows = _rows(found)
        if rows.dimension > MOST_FEATURES:
            raise DataError(f"expected at most {MOST_FEATURES} features, found {rows.dimension}: is it damaged?")
        check_finite(rows)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if labels.shape != (rows.count,):
        raise DataError(f"{path}: {rows.count} rows and labels of shape {labels.shape}: expected one label per row")
    if not np.isfinite(labels).all():
        raise DataError(f"{path}: the label of row {int(np.argmin(np.isfinite(labels)))} is not finite")
    return rows, labels


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive, each read to its end, where its checksum is compared; nothing is unpickled."""
    import zipfile  # noqa: PLC0415 - slow, and only where there is such a file

    found: dict[str, NDArray[Any]] = {}
    with open_file(path) as stream:
        limit = largest_content(os.fstat(stream.fileno()).st_size)
        try:
            with zipfile.ZipFile(stream) as archive:
                members = archive.infolist()
                if sum(member.file_size for member in members) > limit:
                    raise DataError(
                        f"{path}: becomes larger than {limit >> 20} MB, {MOST_TIMES} times its size: "
                        "if that is right, write it with numpy.savez, or as sparse arrays"
                    )
                for member in members:
                    name = member.filename.removesuffix(".npy")
                    if name in found or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise ValueError(f"{name} is there twice, or packed as numpy does not")
                    with archive.open(member) as content:
                        found[name] = np.lib.format.read_array(content, allow_pickle=False)
                        if content.read(1):
                            raise ValueError(f"{name} is longer than it says")
        except DataError:
            raise
        except Exception as error:  # zip, deflate and array headers break in a dozen ways
            raise DataError(f"{path}: not an .npz of plain arrays ({type(error).__name__})") from error
    return found


def _rows(found: dict[str, Any]) -> Rows:
    if "X" in found:
        return Dense(found["X"])
    indptr, indices, data, dimension = (found[name] for name in ("indptr", "indices", "data", "dimension"))
    if dimension.ndim or any(part.ndim != 1 for part in (indptr, indices, data)):
        raise DataError("expected vectors indptr, indices, data and one number dimension: write the file anew")
    return Csr(indptr, indices, data, int(dimension))


def _signs(labels: Array, path: Path) -> Array:
    """Map -1/+1 or 0/1 to -1 and +1."""
    values = sorted(set(np.unique(labels).tolist()))
    if not (set(values) <= {-1.0, 1.0} or set(values) <= {0.0, 1.0}):
        raise DataError(  # without the labels that were found: the message goes to all ranks
            f"{path}: the class labels of a shard must be -1/+1 or 0/1, found others: recode them, "
            "or use --loss squared for real labels"
        )
    return np.where(labels == 1.0, 1.0, -1.0)
