"""What is predicted."""

import numpy as np
import pytest

from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.task import Declared, Task, parse_weights


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


# --- declarations ----------------------------------------------------------------------------------------------------


def test_flags_say_as_much_as_they_can():
    assert Declared.parse(None, None, None) == Declared()
    assert Declared.parse(None, "no, yes", None).known() == Task("binary", ("no", "yes"))
    assert Declared.parse(None, "a,b,c", None).known() == Task("multiclass", ("a", "b", "c"))
    assert Declared.parse("multiclass", '"a, b",c', None).known() == Task("multiclass", ("a, b", "c"))
    assert Declared.parse(None, None, "-3:1e3").known() == Task("regression", (), -3.0, 1000.0)
    assert Declared.parse("counts", None, "0:7").known() == Task("counts", (), 0.0, 7.0)
    assert Declared.parse("multiclass", None, None).known() is Declared.parse("regression", None, None).known() is None
    assert Declared().known() == Task()


@pytest.mark.parametrize(
    ("kind", "classes", "span", "message"),
    [
        (None, "a,b", "0:1", "not both"),
        ("regression", "a,b", None, "expected --classes with --task binary or multiclass only"),
        ("binary", None, "0:1", "expected --label-range with --task regression or counts only"),
        (None, "a,,b", None, "names of the classes"),
        (None, "", None, "names of the classes"),
        (None, None, "3", "low < high"),
        (None, None, "3:1", "low < high"),
        (None, None, "0:1_0", "low < high"),
        (None, None, "0:inf", "low < high"),
    ],
)
def test_flags_that_contradict_each_other_or_say_nothing_are_refused(kind, classes, span, message):
    with pytest.raises(ConfigError, match=message):
        Declared.parse(kind, classes, span)


def test_the_text_of_a_task_is_the_task():
    for task in (
        Task("binary", ('say "no", please', "yes")),
        Task("regression", (), -1e-9, 1 / 3),
        Task("counts", (), 0, 3),
    ):
        assert Declared.parse(task.kind, task.class_text, task.range_text).known() == task
        assert Task.from_dict(task.to_dict()) == task


@pytest.mark.parametrize(
    "content", [None, [], {}, {"kind": "x", "classes": [], "low": 0, "high": 1}, {"kind": "binary"}]
)
def test_a_description_of_no_task_is_refused(content):
    with pytest.raises(DataError, match="expected a task"):
        Task.from_dict(content)


def test_public_labels_complete_what_flags_leave_open():
    digits = [0.0, 1.0, 2.5]
    assert Declared("multiclass").with_labels(digits, None, "f") == Task("multiclass", ("0", "1", "2.5"))
    assert Declared().with_labels([1.0, 2.0], None, "f") == Task("binary", ("1", "2"))
    assert Declared("regression").with_labels(digits, None, "f") == Task("regression", (), 0.0, 2.5)
    assert Declared("regression").with_labels(digits, (-7.0, 9.0), "f") == Task("regression", (), -7.0, 9.0)
    assert Declared("counts").with_labels([0.0, 3.0], None, "f") == Task("counts", (), 0.0, 3.0)
    for kind in (None, "binary"):
        with pytest.raises(
            DataError, match=r"f: expected exactly two label values, found 0, 1, 2\.5.* --loss softmax --classes"
        ):
            Declared(kind).with_labels(digits, None, "f")


def test_what_the_data_declare_must_be_what_flags_say():
    three = Task("multiclass", ("a", "b", "c"))
    assert Declared().with_declared(three) == Declared("multiclass", ("a", "b", "c")).with_declared(three) == three
    assert Declared("regression").with_declared(Task()) == Task("regression", ())
    for other in (Declared("binary"), Declared("multiclass", ("a", "c", "b")), Declared("regression")):
        with pytest.raises(ConfigError, match="as the data declare"):
            other.with_declared(three)


@pytest.mark.parametrize(
    ("task", "labels", "codes"),
    [
        (Task(), [-1, 1, 1], [-1, 1, 1]),
        (Task(), [0, 1, 0], [-1, 1, -1]),
        (Task(), [1, 1], [1, 1]),
        (Task("binary", ("2", "1")), [1, 2], [1, -1]),
        (Task("binary", ("no", "yes")), [-1, 1], [-1, 1]),
        (Task("multiclass", ("9", "5", "7")), [5, 9, 7], [1, 0, 2]),
        (Task("multiclass", ("a", "b", "c")), [2, 0, 1], [2, 0, 1]),
        (Task("regression", (), 100.0, 300.0), [200, 300, 1e308, -5], [0, 1, 1, -1]),
        (Task("counts", (), 0.0, 5.0), [0, 3, 70], [0, 3, 5]),
    ],
)
def test_labels_are_coded_as_declared(task, labels, codes):
    assert task.coded(np.array(labels, float), "x").tolist() == codes


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        (Task(), [1, 2]),
        (Task(), [-1, 0]),
        (Task("binary", ("1", "2")), [0, 1]),
        (Task("multiclass", ("a", "b", "c")), [0, 3]),
        (Task("multiclass", ("a", "b", "c")), [0.5]),
        (Task("counts", (), 0.0, 5.0), [-1]),
        (Task("counts", (), 0.0, 5.0), [1.5]),
    ],
)
def test_labels_that_were_not_declared_are_refused_without_showing_them(task, labels):
    with pytest.raises(DataError, match=r"x: expected .* found other") as caught:
        task.coded(np.array(labels, float), "x")
    assert "3" not in str(caught.value).replace("-1,1", "")


@pytest.mark.parametrize(
    ("task", "labels"),
    [
        (Task(), [1, 42.5]),
        (Task(), [0, 1]),
        (Task("multiclass", ("a", "b", "c")), [0, 42]),
        (Task("multiclass", ("a", "b", "c")), [-1]),
        (Task("multiclass", ("a", "b", "c")), [0.5]),
        (Task("counts", (), 0.0, 5.0), [-42]),
        (Task("counts", (), 0.0, 5.0), [42.5]),
    ],
)
def test_labels_that_are_said_to_be_coded_are_looked_at_and_not_shown(task, labels):
    with pytest.raises(DataError, match=r"x: expected .* found other labels") as caught:
        task.kept(np.array(labels, float), "x")
    assert "42" not in str(caught.value)


def test_coded_numbers_stay_within_what_was_declared():
    assert Task("regression", (), 0.0, 10.0).kept(np.array([-7.0, 0.5, 1e6]), "x").tolist() == [-1.0, 0.5, 1.0]
    assert Task("counts", (), 0.0, 5.0).kept(np.array([0.0, 4.0, 70.0]), "x").tolist() == [0.0, 4.0, 5.0]


def test_class_weights_are_read_by_name():
    assert parse_weights('a=1,"b, c=2=5"') == {"a": 1.0, "b, c=2": 5.0}
    for text in ("a", "a=0", "a=1,a=2", "=1", "a=x", "a=nan", ""):
        with pytest.raises(ConfigError):
            parse_weights(text)
