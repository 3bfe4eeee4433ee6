"""What is predicted."""

import numpy as np
import pytest

from dpmpi.errors import ConfigError
from dpmpi.problem.task import Task


def test_numbers_are_scaled_to_the_unit_interval_and_back():
    task = Task("regression", (), 25.0, 346.0)
    labels = np.array([25.0, 100.0, 346.0])
    np.testing.assert_allclose(task.unscaled(task.scaled(labels)), labels, rtol=1e-14)
    np.testing.assert_array_equal(task.scaled(np.array([25.0, 346.0, 1e9, -1e9])), [-1, 1, 1, -1])


def test_other_labels_stay_as_they_are():
    labels = np.array([0.0, 3.0])
    for task in (Task(), Task("multiclass", ("a", "b", "c", "d")), Task("counts", (), 0.0, 20.0)):
        assert task.scaled(labels) is labels
        assert task.unscaled(labels) is labels


def test_a_model_has_a_score_for_each_of_several_classes():
    assert Task("multiclass", ("a", "b", "c")).scores == 3
    assert Task().scores == Task("regression", (), 0.0, 1.0).scores == 1


@pytest.mark.parametrize(
    ("kind", "classes", "low", "high", "message"),
    [
        ("binary", ("a",), -1.0, 1.0, "expected the names of two classes, found 1"),
        ("multiclass", (), -1.0, 1.0, "give --classes"),
        ("multiclass", ("a", "a"), -1.0, 1.0, "different names, found a, a"),
        ("regression", (), 3.0, 3.0, "expected a label range low:high, found 3:3"),
        ("counts", (), 0.0, float("inf"), "give --label-range"),
    ],
)
def test_what_cannot_be_predicted_is_refused(kind, classes, low, high, message):
    with pytest.raises(ConfigError, match=message):
        Task(kind, classes, low, high)
