"""Model files: damaged ones are refused in one line, or read as what they were."""

import io

import numpy as np
import pytest
from hostile import attempt, damaged, examples
from hypothesis import given
from hypothesis import strategies as st

from dpmpi.errors import DataError
from dpmpi.model import Model
from dpmpi.problem.task import Task


def saved(folder, **more):
    task = Task("multiclass", ("a", "b", "c"))
    model = Model.of_vector(np.arange(12.0), 0.3, task, loss="softmax", link="softmax", names=("x", "y", "z"), **more)
    model.save(folder / "model.npz")
    return model, (folder / "model.npz").read_bytes()


@given(data=st.data())
@examples(150)
def test_damaged_model(data, tmp_path):
    model, raw = saved(tmp_path, codebook="bias = true", x_rank=np.ones((2, 12)))
    path = tmp_path / "damaged.npz"
    path.write_bytes(data.draw(damaged(raw)))
    found = attempt("model", lambda: Model.load(path))
    assert isinstance(found, DataError) or np.array_equal(found.coefficients, model.coefficients)


def test_an_archive_that_grows_without_end_is_refused(tmp_path):
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros(1 << 21))
    (tmp_path / "bomb.npz").write_bytes(stream.getvalue())
    with pytest.raises(DataError, match="times the"):
        Model.load(tmp_path / "bomb.npz")
