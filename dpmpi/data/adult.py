"""The census records of the UCI collection, coded as in the experiments on multi-step ADMM.

A folder holds the original files `adult.data` and `adult.test`, plain or compressed. They are pooled; a record with a
missing value ("?") is dropped. Record r of the N = 45,222 that are left becomes, attribute by attribute,

    number:     min(v / M, 1)      with a constant M per attribute                                        (1)
    category:   one column per category, 1 in the column of the record's own and 0 in the others          (2)
    row:        a_r / max(1, |a_r|)                     (with --normalize)                                (3)
    label:      +1 for >50K, -1 for <=50K                                                                 (4)

which is section 5.2 of [HG]. All 14 attributes are kept: 6 numbers, and 8 attributes with 7 + 16 + 7 + 14 + 6 + 5 + 2
+ 41 = 98 categories, together the paper's 104 columns. The codebook `adult.names` has one category more, the workclass
Never-worked. Who never worked has no occupation, hence a missing value, so no complete record is of that class.

Privacy: [HG] divides a column by its largest value and codes the categories that occur: both are functions of all
records. Here both are public constants of this module, which the files at hand cannot move, so that (1) to (4) look at
one record at a time. The categories are the codebook's. It gives no ranges for the numbers; M is the largest value in
the published files, which makes the largest value of every column 1 as in [HG]. Larger values, in other files, are
clipped by (1).

Rows are dense. As sparse ones they would take a quarter of the memory, but 1.5 to 5 times as long in every pass, and
the 38 MB of all records are dealt out over the ranks.

[HG] Huang, Gong. Differentially private ADMM for convex distributed learning: improved accuracy via multi-step
approximation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dpmpi.core import Array
from dpmpi.core.files import writing
from dpmpi.core.frozen import frozen
from dpmpi.data.file_reading import find_file, shown_bytes
from dpmpi.data.libsvm import data_lines
from dpmpi.data.shards import write_npz
from dpmpi.data.source import FileSource, Shard, Survey
from dpmpi.errors import ConfigError, DataError, nearest
from dpmpi.problem.rows import Dense, Positions, scale_rows
from dpmpi.problem.task import Task


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ATTRIBUTES: dict[str, float | tuple[str, ...]] = {
    "age": 90.0,
    "workclass": _words("Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay"),
    "fnlwgt": 1490400.0,
    "education": _words(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool"
    ),
    "education-num": 16.0,
    "marital-status": _words(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": _words(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces"
    ),
    "relationship": _words("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": _words("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": _words("Female Male"),
    "capital-gain": 99999.0,
    "capital-loss": 4356.0,
    "hours-per-week": 99.0,
    "native-country": _words(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece "
        "South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands"
    ),
}
"""In the order of the files: the constant M of a number, or the categories."""

FEATURE_NAMES: tuple[str, ...] = tuple(
    feature
    for name, kind in ATTRIBUTES.items()
    for feature in ((name,) if isinstance(kind, float) else (f"{name}={category}" for category in kind))
)
"""The names of the 104 columns."""

_PLACE = {feature: column for column, feature in enumerate(FEATURE_NAMES)}
_NUMBERS = [(k, name) for k, (name, kind) in enumerate(ATTRIBUTES.items()) if isinstance(kind, float)]
_NUMBER_COLUMNS = np.array([_PLACE[name] for _, name in _NUMBERS])
_MAXIMA = np.array([kind for kind in ATTRIBUTES.values() if isinstance(kind, float)])
_CATEGORIES = [
    (k, name, {category.encode(): _PLACE[f"{name}={category}"] for category in kind})
    for k, (name, kind) in enumerate(ATTRIBUTES.items())
    if not isinstance(kind, float)
]
_LABELS = {b">50K": 1.0, b"<=50K": -1.0}
_DIGITS = 15  # more would not be a float64 exactly
FILES = ("adult.data", "adult.test")
_TEXT = (".svm", ".libsvm", ".txt")


@frozen
class Adult(FileSource):
    """`adult:DIR`: the UCI census records, from the folder of the original adult.data and adult.test."""

    name = "adult"
    wanted = "the folder of adult.data and adult.test, as in adult:data/uci"
    unit = "complete records"

    def survey(self) -> Survey:
        """Count the complete records; cells are parsed by the rank that keeps them."""
        found = Counter(path.name.startswith(FILES[0]) for path, _, _ in _complete_lines(self.path))
        rows = found.total()
        if not found[True]:  # the larger one of the two
            raise DataError(f"{self.path}: expected complete records in {FILES[0]}, found none: download it anew")
        return Survey(rows, len(FEATURE_NAMES), (-1.0, 1.0), rows * len(FEATURE_NAMES))

    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the 104 columns."""
        return FEATURE_NAMES

    def declared_task(self, survey: Survey | None) -> Task:
        """Return the two classes, or what else flags make of them."""
        return self.options.declared.with_declared(Task("binary", ("<=50K", ">50K")))

    def load_many(self, survey: Survey | None, ranks: Sequence[int], size: int) -> list[Shard]:
        """Read the rows of several ranks in one pass."""
        survey = survey or self.survey()
        dealt = self.deal(survey, ranks, size)
        matrix, labels = self._read(survey.rows, np.concatenate([mine for mine, _ in dealt]))
        shards, first = [], 0
        for mine, n in dealt:
            trained, tested = slice(first, first + n), slice(first + n, first + len(mine))
            rows, test_rows = Dense(matrix[trained].copy()), Dense(matrix[tested].copy())
            parts = (rows, labels[trained].copy(), test_rows, labels[tested].copy())
            shards.append(Shard(*parts, task=self.declared_task(survey)))
            first += len(mine)
        return shards

    def whole(self) -> tuple[Dense, Array]:
        """Return all rows in the order of the files, and their labels."""
        rows = self.survey().rows
        matrix, labels = self._read(rows, np.arange(rows))
        return Dense(matrix), labels

    def file_labels(self, survey: Survey) -> Array:
        """Read the label of every complete record, and nothing else of it."""
        found = [_label(path, number, line.rpartition(b",")[2]) for path, number, line in _complete_lines(self.path)]
        self._check_unchanged(survey.rows, len(found))
        return np.array(found)

    def _check_unchanged(self, rows: int, found: int) -> None:
        if found != rows:
            raise DataError(
                f"{self.path}: expected the {rows} complete records of the first pass, found {found}: the files "
                "changed while in use"
            )

    def _read(self, rows: int, wanted: Positions) -> tuple[Array, Array]:
        """Return the records numbered `wanted`, in that order, out of `rows` complete ones."""
        place = np.full(rows, -1)
        place[wanted] = np.arange(len(wanted))
        places = place.tolist()
        numbers, columns = np.empty((len(wanted), len(_NUMBERS))), np.empty((len(wanted), len(_CATEGORIES)), np.intp)
        labels = np.empty(len(wanted))
        row = -1
        for row, (path, number, line) in enumerate(_complete_lines(self.path)):
            if row < rows and (here := places[row]) >= 0:
                numbers[here], columns[here], labels[here] = _record(path, number, line)
        self._check_unchanged(rows, row + 1)
        matrix = np.zeros((len(wanted), len(FEATURE_NAMES)))
        matrix[:, _NUMBER_COLUMNS] = np.minimum(numbers / _MAXIMA, 1.0)  # (1)
        np.put_along_axis(matrix, columns, 1.0, axis=1)  # (2)
        if self.options.normalize:
            scale_rows(Dense(matrix), 1.0)  # (3)
        return matrix, labels


def write_adult(source: Adult, path: Path) -> int:
    """Write all rows in the order of the files, as .npz (arrays X, y) or LIBSVM text; return how many.

    `libsvm:PATH` of the text gives every rank the same rows as `adult:DIR` does, for any seed.
    """
    if path.suffix not in (".npz", *_TEXT):
        raise ConfigError(f"expected a file name that ends with .npz, {', '.join(_TEXT)}, found {str(path)!r}")
    rows, labels = source.whole()
    if path.suffix == ".npz":
        write_npz(path, rows, labels)
        return len(labels)
    with writing(path, private=True, durable=True, error=DataError) as stream:
        for label, row in zip(labels.tolist(), rows.matrix, strict=True):
            columns = np.flatnonzero(row)
            pairs = zip((columns + 1).tolist(), row[columns].tolist(), strict=True)
            line = f"{label:+g} {' '.join(f'{column}:{value!r}' for column, value in pairs)}\n"
            stream.write(line.encode("ascii"))
    return len(labels)


def _complete_lines(folder: Path) -> Iterator[tuple[Path, int, bytes]]:
    """Yield (file, line number, line) for every record without a missing value, adult.data first."""
    if not folder.is_dir():
        raise DataError(f"expected the folder of adult.data and adult.test, found no such folder: {folder}")
    cells = len(ATTRIBUTES) + 1
    for path in [_find(folder, name) for name in FILES]:
        for number, line in data_lines(path):
            if line.startswith(b"|"):  # the codebook's mark of a comment
                continue
            if (found := line.count(b",") + 1) != cells:
                raise DataError(
                    f"{path}:{number}: expected {cells} cells separated by commas, found {found}: is this the UCI file?"
                )
            if b"?" not in line:
                yield path, number, line


def _find(folder: Path, name: str) -> Path:
    """Return the file of this name, plain or compressed."""
    if (path := find_file(folder, name)) is not None:
        return path
    raise DataError(f"expected {folder / name}, plain or .gz, .bz2, .xz, found no such file: download it from UCI")


def _record(path: Path, number: int, line: bytes) -> tuple[list[int], list[int], float]:
    """Return a record's numbers, the columns of its categories and its label; raise `DataError` for a wrong cell."""
    cells = [cell.strip() for cell in line.split(b",")]
    numbers, columns = [], []
    for k, name in _NUMBERS:
        if not cells[k].isdigit() or len(cells[k]) > _DIGITS:
            raise DataError(f"{path}:{number}: expected a whole number as {name}, found {shown_bytes(cells[k])}")
        numbers.append(int(cells[k]))
    for k, name, known in _CATEGORIES:
        if (column := known.get(cells[k])) is None:
            close = nearest(cells[k].decode("ascii", "replace"), map(bytes.decode, known))
            raise DataError(
                f"{path}:{number}: expected one of {len(known)} categories of {name} that complete records have, "
                f"found {shown_bytes(cells[k])}{close}: mend or drop the record"
            )
        columns.append(column)
    return numbers, columns, _label(path, number, cells[-1])


def _label(path: Path, number: int, cell: bytes) -> float:
    cell = cell.strip()
    if (label := _LABELS.get(cell.removesuffix(b"."))) is None:  # adult.test ends its lines with a period
        raise DataError(f"{path}:{number}: expected >50K or <=50K as label, found {shown_bytes(cell)}")
    return label  # (4)
