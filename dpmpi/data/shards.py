"""Files that only one rank can see, and cutting a data set into such files.

`shards:PATTERN` names rank i's file by the pattern with `{rank}` filled in. A file is either an `.npz` as
`write_shards` makes it (dense: X, y; sparse: indptr, indices, data, dimension, y) or LIBSVM text, plain or compressed.
An `.npz` whose records were partly in an earlier one says so by an array `continues`, see `Shard.continues`; one that
was coded from a table carries the text of its codebook, which is public, in an array `codebook`. One whose persons have
several records has an array `person`, whose each record is, and a number `most` of records that none of them exceeds.
There is no survey: nobody but the rank itself looks at its file.

A codebook declares what the labels are, and an `.npz` that `write_shards` made says it in an array `task` (JSON): there
they are coded already. In other files they stand as they are, and flags declare them: names of classes, the range of
numbers. Nothing is taken from private labels. Without flags they are two classes, -1/+1 or 0/1; 1/2 is refused, since a
shard that holds one class only would be read as the wrong one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.core.files import writing
from dpmpi.core.frozen import frozen
from dpmpi.data.codebook import parse_codebook
from dpmpi.data.file_reading import MOST_FEATURES, MOST_TIMES, largest_content, open_file
from dpmpi.data.libsvm import read_rows
from dpmpi.data.persons import checked_persons, numbered, rows_of
from dpmpi.data.source import Shard, Source, SourceOptions, Survey, fingerprint, held_out
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.rows import Csr, Dense, Positions, Rows, check_finite, scale_rows, take
from dpmpi.problem.task import Task
from dpmpi.rng import public_generator


@frozen
class ShardFiles(Source):
    """`shards:PATTERN`: one file per rank, e.g. `shards:/secret/part-{rank:03d}.npz`."""

    name = "shards"
    private = True
    holds_out = True
    pattern: str

    @classmethod
    def parse(cls, text: str, options: SourceOptions) -> Self:
        """Return the source for a pattern."""
        shard_path(text, 0)
        if options.samples is not None:
            raise ConfigError(f"expected no samples for shards, used whole, found {options.samples}: leave it out")
        if options.deal.kind != "even":
            raise ConfigError(
                f"expected no --deal for shards, which are dealt already, found {options.deal.kind}: leave it out"
            )
        return cls(options, text)

    def training_rows(self, survey: Survey) -> int:
        """Raise `ConfigError`: nobody looks at another rank's file."""
        raise ConfigError("expected data whose rows can be counted, found shards, which their ranks alone know")

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Read the rank's own file; the test rows are the last ones after a shuffle, all of a person or none."""
        path = shard_path(self.pattern, rank)
        if not path.exists():
            missing = DataError(f"cannot read the shard of rank {rank}: no such file {path}")
            missing.public = True
            raise missing
        if path.suffix == ".npz":
            stored = read_shard(path)
        else:
            stored = StoredShard(*_read_text(path, rank, self.options.dimension))
        rows, labels = stored.rows, stored.labels
        shard = make_shard(rows, labels, rank, self.options, str(path), said=stored.task, persons=stored.persons)
        return replace(shard, continues=stored.continues, codebook=stored.codebook, most=stored.most)


def make_shard(
    rows: Rows,
    labels: Array,
    rank: int,
    options: SourceOptions,
    what: str,
    tests: tuple[Rows, Array] | None = None,
    said: Task | None = None,
    *,
    persons: Positions | None = None,
) -> Shard:
    """Return a rank's own records as a shard: labels coded, rows scaled in place.

    Unless test records are given, they are the last ones after a shuffle: of the persons, if `persons` says whose each
    record is, with all that they have. `what` is what errors call the records, `said` what their labels are coded for
    already.
    """
    if rows.count == 0 or rows.dimension == 0:
        raise DataError(f"{what}: expected rows and features, found {rows.count} rows of {rows.dimension} features")
    task = _declared(options, said)
    taken = task.coded if said is None else task.kept
    labels = taken(labels, what)
    tests = tests and (tests[0], taken(tests[1], what))
    units = rows.count if persons is None else int(persons.max()) + 1
    held = 0 if tests else held_out(units, options.test_fraction)
    if held == units:
        fraction = options.test_fraction
        raise DataError(f"{what}: expected rows to train on, found none of {rows.count} at test fraction {fraction}")
    if options.normalize:
        scale_rows(rows, 1.0)
        if tests:
            scale_rows(tests[0], 1.0)
    if not held:
        nothing = np.empty(0, np.intp)
        return Shard(rows, labels, *(tests or (take(rows, nothing), labels[nothing])), task=task, persons=persons)
    order = public_generator(options.seed, "shuffle", rank).permutation(units)
    train, test = order[:-held], order[-held:]
    if persons is not None:
        train, test = rows_of(train, persons, units), rows_of(test, persons, units)
        persons = numbered(persons[train])
    parts = take(rows, train), labels[train], take(rows, test), labels[test]
    return Shard(*parts, task=task, persons=persons, whole=fingerprint(rows, labels))


def _declared(options: SourceOptions, said: Task | None) -> Task:
    """Return the task that private labels are declared for; raise `ConfigError` without a declaration."""
    if said is not None:
        return options.declared.with_declared(said)
    task = options.declared.known()
    if task is None:
        kind = options.declared.kind
        flag = "--classes a,b,..." if kind == "multiclass" else "--label-range low:high"
        raise ConfigError(
            f"expected {flag} for --task {kind} on labels that no codebook declares, found none: they are private, so "
            "nothing is taken from them"
        )
    return task


def _read_text(path: Path, rank: int, dimension: int | None) -> tuple[Rows, Array]:
    """Read a libsvm file; an error goes to all ranks, so the words of the file that it quotes are cut off.

    The number of features, and so the length of every message, must not depend on the records: it is declared.
    """
    if dimension is None:
        raise ConfigError(
            "expected --dimension M for shards as text, which do not say how many features there are, found none"
        )
    try:
        rows, labels = read_rows(path)
        if rows.dimension > dimension:
            raise DataError(f"{path}: expected feature numbers up to --dimension {dimension}, found a larger one")
        return Csr(rows.indptr, rows.indices, rows.data, dimension), labels
    except DataError as error:
        told = str(error).partition(", found")[0]
        raise DataError(f"shard of rank {rank}: {told}; what was found is private and not shown") from error


def shard_path(pattern: str, rank: int) -> Path:
    """Return the path of a rank's file; raise `ConfigError` unless `{rank}` is the one thing to fill in."""
    path, places = re.subn(r"\{rank(?::0?(\d)d)?\}", lambda found: f"{rank:0{found[1] or 1}d}", pattern)
    if places == 0 or "{" in path or "}" in path:
        raise ConfigError(
            f"expected a pattern of shards with {{rank}} or e.g. {{rank:03d}} and no other field, found {pattern!r}"
        )
    return Path(path)


def write_shards(source: Source, size: int, pattern: str, progress: Callable[[int], None]) -> list[Path]:
    """Write the rows of `source` as one `.npz` per rank and return the paths, holding one shard at a time.

    All rows are written: test rows are held out when the shards are loaded. `progress(done)` is called after each file.
    """
    if shard_path(pattern, 0).suffix != ".npz":
        raise ConfigError(f"expected a pattern that ends with .npz, found {pattern!r}")
    if size < 1:
        raise ConfigError(f"expected shards for at least one rank, found {size}")
    whole = replace(source, options=replace(source.options, test_fraction=0.0))
    survey = whole.survey()
    paths = []
    for rank in range(size):
        path = shard_path(pattern, rank)
        shard = whole.load(survey, rank, size)
        write_npz(path, shard.rows, shard.labels, task=shard.task)
        paths.append(path)
        progress(rank + 1)
    return paths


class StoredShard(NamedTuple):
    """What a file of `write_npz` holds."""

    rows: Rows
    labels: Array
    continues: bool = False
    codebook: str = ""
    task: Task | None = None
    persons: Positions | None = None
    most: int = 1


def write_npz(
    path: Path,
    rows: Rows,
    labels: Array,
    *,
    continues: bool = False,
    codebook: str = "",
    task: Task | None = None,
    persons: Positions | None = None,
    most: int = 1,
) -> None:
    """Write one shard, readable by its owner only; the flags as in `Shard`."""
    arrays: dict[str, Any] = {"y": labels} | ({"continues": np.array(True)} if continues else {})
    if codebook:
        arrays["codebook"] = np.array(codebook)
    if task is not None:
        arrays["task"] = np.array(json.dumps(task.to_dict()))
    if persons is not None:
        arrays |= {"person": persons, "most": np.array(most)}
    if isinstance(rows, Dense):
        arrays["X"] = rows.matrix
    else:
        arrays |= {"indptr": rows.indptr, "indices": rows.indices, "data": rows.data, "dimension": rows.dimension}
    with writing(path, private=True, durable=True, error=DataError) as stream:
        np.savez(stream, **arrays)


def read_npz(path: Path) -> tuple[Rows, Array]:
    """Read the rows and labels of `write_npz`; raise `DataError` for anything else, NaN and infinity included."""
    found = read_shard(path)
    return found.rows, found.labels


def read_shard(path: Path, *, labelled: bool = True) -> StoredShard:
    """Read a file of `write_npz` as `read_npz` does, with what else it holds; unless `labelled`, labels may be NaN."""
    found = _read_arrays(path)
    persons, most = found.pop("person", None), found.pop("most", None)
    try:
        codebook, task = _said(found)
    except (ConfigError, DataError) as error:
        raise DataError(f"{path}: {error}") from None
    continues = "continues" in found and bool(np.any(found.pop("continues")))
    names = set(found)
    if names not in ({"X", "y"}, {"indptr", "indices", "data", "dimension", "y"}):
        raise DataError(
            f"{path}: expected the arrays X, y (dense) or indptr, indices, data, dimension, y (sparse), "
            f"found {', '.join(sorted(names)) or 'none'}"
        )
    for name, values in found.items():
        if values.dtype.kind not in "fiub" or (values.dtype.kind == "f" and name in ("indptr", "indices", "dimension")):
            raise DataError(f"{path}: expected numbers in the array {name}, found {values.dtype}")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large for a float64 becomes infinite
            labels = np.ascontiguousarray(found["y"], np.float64)
            rows = _rows(found)
        if rows.dimension > MOST_FEATURES:
            raise DataError(f"expected at most {MOST_FEATURES} features, found {rows.dimension}: is it damaged?")
        check_finite(rows)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    check_labels(labels, rows.count, str(path), known=labelled)
    if (persons is None) != (most is None):
        raise DataError(f"{path}: expected the arrays person and most together, found one: code the table anew")
    stored = StoredShard(rows, labels, continues, codebook, task)
    if persons is None or most is None:
        return stored
    numbers, limit = checked_persons(persons, most, rows.count, str(path))
    return stored._replace(persons=numbers, most=limit)


def _said(found: dict[str, NDArray[Any]]) -> tuple[str, Task | None]:
    """Take the codebook's text out of the arrays, and what labels are coded for: what it says, or the array `task`."""
    texts = {}
    for name in ("codebook", "task"):
        text = found.pop(name, np.array(""))
        if text.ndim or text.dtype.kind != "U":
            raise DataError(f"expected a text as {name}, found other values: code the table anew")
        texts[name] = str(text)
    if texts["codebook"]:
        return texts["codebook"], parse_codebook(texts["codebook"], "the codebook of the shard").task
    if not texts["task"]:
        return "", None
    try:
        content = json.loads(texts["task"])
    except ValueError:
        content = None
    return "", Task.from_dict(content)


def check_labels(labels: Array, count: int, what: str, *, known: bool = True) -> None:
    """Raise `DataError` unless there is a label for each of `count` rows, finite if it is to be `known`."""
    if labels.shape != (count,):
        raise DataError(f"{what}: expected one label for each of {count} rows, found shape {labels.shape}")
    if known and not np.isfinite(labels).all():
        raise DataError(f"{what}: expected finite labels, found another in row {int(np.argmin(np.isfinite(labels)))}")


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
                        f"{path}: expected at most {limit >> 20} MB, {MOST_TIMES} times its size, found more: if that "
                        "is right, write it with numpy.savez, or as sparse arrays"
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
            raise DataError(f"{path}: expected an .npz of plain arrays, found none ({type(error).__name__})") from error
    return found


def _rows(found: dict[str, Any]) -> Rows:
    if "X" in found:
        return Dense(found["X"])
    indptr, indices, data, dimension = (found[name] for name in ("indptr", "indices", "data", "dimension"))
    if dimension.ndim or any(part.ndim != 1 for part in (indptr, indices, data)):
        raise DataError(
            "expected vectors indptr, indices, data and one number dimension, found other shapes: write the file anew"
        )
    return Csr(indptr, indices, data, int(dimension))
