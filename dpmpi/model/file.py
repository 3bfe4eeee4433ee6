"""The model file: an .npz of plain arrays that numpy reads without pickle, and that stands alone.

    x               the mean of all ranks' vectors, as trained
    x_rank          the ranks' own vectors, one a row, where a run sees them; the first version had these two alone
    coefficients    m numbers, or m x K for several classes; `intercept`: one number, or K
    constant        c of (3) in `model.py`
    features        the names of the m features; none for numbers from 1 on
    task            JSON: kind, classes, low, high
    loss, link      names
    norm_bound      B of (1) in `model.py`; infinity for rows as they are
    scaling         m x 4: slope, offset, low, high of each feature, where a codebook coded them
    codebook, codebook_digest
    privacy         JSON, see `privacy_statement.py`
    noise_std       two numbers: of a coefficient, of an intercept; `noise_note`: what they are
    algorithm, config, version

Texts are 0-dimensional arrays. What is not there has the defaults of `Model`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dpmpi import __version__
from dpmpi.core.files import writing
from dpmpi.errors import DataError, DpmpiError
from dpmpi.model.model import Model
from dpmpi.model.privacy_statement import PrivacyStatement
from dpmpi.problem.task import Task

MOST_TIMES, LEAST_BYTES = 200, 1 << 22
"""How far a compressed file may grow, and up to which size any may."""
TEXTS = ("loss", "link", "codebook", "codebook_digest", "noise_note", "version")


def write_model(model: Model, path: Path) -> None:
    """Write a model file."""
    several = model.task.kind == "multiclass"
    arrays: dict[str, Any] = {
        "coefficients": model.coefficients if several else model.coefficients[:, 0],
        "intercept": model.intercepts if several else model.intercepts[0],
        "constant": model.constant,
        "features": model.names or np.empty(0, "U1"),
        "task": json.dumps(asdict(model.task)),
        "norm_bound": model.norm_bound,
        "privacy": json.dumps(model.privacy.to_dict(), allow_nan=False),
        "algorithm": model.privacy.algorithm,
        "config": model.privacy.config,
        **{name: getattr(model, name) for name in TEXTS},
        "version": model.version or __version__,
    }
    optional = {name: getattr(model, name) for name in ("x", "x_rank", "scaling", "noise_std")}
    arrays |= {name: value for name, value in optional.items() if value is not None}
    plain: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    with writing(path) as stream:
        np.savez(stream, **plain)


def read_model(path: Path) -> Model:
    """Read a model file, or that of a run directory; raise `DataError` for anything else."""
    file = path / "model.npz" if path.is_dir() else path
    try:
        _check_archive(file)
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return _model(arrays)
    except DpmpiError as error:
        raise DataError(f"{file}: {error}") from error
    except OSError as error:
        if error.strerror is None:  # numpy's word for a file that is no archive
            raise DataError(f"{file}: expected a model of dpmpi (.npz), found something else") from error
        raise DataError(f"cannot read the model {file}: {error.strerror}") from error
    except BadZipFile as error:
        raise DataError(f"expected a model (.npz) or the directory of a run, found {file}, which is neither") from error
    except Exception as error:  # zip, array headers and JSON break in a dozen ways
        raise DataError(f"{file}: expected a model of dpmpi (.npz), found none ({type(error).__name__})") from error


def _check_archive(file: Path) -> None:
    """Raise `DataError` for an archive that grows beyond all measure, or whose checksums do not hold."""
    import zipfile  # noqa: PLC0415 - slow, and only where there is such a file

    with zipfile.ZipFile(file) as archive:
        size, content = file.stat().st_size, sum(member.file_size for member in archive.infolist())
        if content > max(LEAST_BYTES, MOST_TIMES * size):
            raise DataError(f"expected at most {MOST_TIMES} times the {size:,} bytes of the file, found {content:,}")
        if archive.testzip() is not None:
            raise DataError("expected the checksums of an undamaged file, found another: copy it anew")


def _model(arrays: dict[str, NDArray[Any]]) -> Model:
    """Return the model of the arrays of a file."""
    if "x" not in arrays and "coefficients" not in arrays:
        raise DataError(f"expected an array x or coefficients, found {', '.join(sorted(arrays)[:8]) or 'none'}")
    task = _task(arrays)
    table = _numbers(arrays.get("coefficients", arrays.get("x")))
    intercepts = _numbers(arrays["intercept"]).reshape(-1) if "intercept" in arrays else np.zeros(task.scores)
    names, scaling = arrays.get("features", np.empty(0, "U1")), arrays.get("scaling")
    more: dict[str, Any] = {name: str(arrays[name]) for name in TEXTS if name in arrays}
    more |= {name: _numbers(arrays[name]) for name in ("x", "x_rank") if name in arrays}
    more |= {name: float(arrays[name]) for name in ("norm_bound", "constant") if name in arrays}
    if "noise_std" in arrays:
        each, last = _numbers(arrays["noise_std"]).tolist()
        more["noise_std"] = (each, last)
    if scaling is not None:
        if scaling.shape != (len(table), 4):
            raise DataError(f"expected four numbers for each of {len(table)} features, found shape {scaling.shape}")
        more["scaling"] = _numbers(scaling)
    return Model(
        table.reshape(len(table), -1),
        intercepts,
        task,
        names=tuple(map(str, names.tolist())) if names.size else None,
        privacy=_privacy(arrays),
        **more,
    )


def _task(arrays: dict[str, NDArray[Any]]) -> Task:
    """Return the task of a model file; a file without one has the two classes -1 and 1."""
    if "task" not in arrays:
        return Task()
    found = json.loads(str(arrays["task"]))
    return Task(found["kind"], tuple(map(str, found["classes"])), float(found["low"]), float(found["high"]))


def _privacy(arrays: dict[str, NDArray[Any]]) -> PrivacyStatement:
    if "privacy" in arrays:
        return PrivacyStatement.from_dict(json.loads(str(arrays["privacy"])))
    told: dict[str, Any] = {name: str(arrays[name]) for name in ("algorithm", "config") if name in arrays}
    return PrivacyStatement(**told)


def _numbers(values: Any) -> NDArray[np.float64]:
    """Return an array as float64; raise `DataError` if it has no numbers."""
    if values.dtype.kind not in "fiu" or values.ndim > 2:
        raise DataError(f"expected numbers, found an array of {values.dtype} with {values.ndim} axes")
    return np.asarray(values, np.float64)
