from itertools import chain

import needs
import numpy as np
import pytest
import scipy.sparse

import dpmpi
from dpmpi.data import parse_source
from dpmpi.errors import ConfigError

X = np.arange(60.0).reshape(30, 2)
Y = (np.arange(30) % 3 == 0).astype(int)


def rows(shards):
    return [sorted(part[:, 0].tolist()) for part, _ in shards]


def test_even_shards_hold_every_record_once_with_its_label():
    shards = dpmpi.split(X, Y, 4, seed=5)
    assert [len(y) for _, y in shards] == [7, 8, 7, 8]
    assert sorted(chain(*rows(shards))) == X[:, 0].tolist()
    for part, y in shards:
        assert np.array_equal(y, Y[(part[:, 0] / 2).astype(int)])
    assert rows(dpmpi.split(X, Y, 4, seed=5)) == rows(shards) != rows(dpmpi.split(X, Y, 4, seed=6))


@pytest.mark.parametrize("by", ["even", "sorted", "dirichlet:0.5", "sizes:5,6,7"])
def test_the_shards_are_those_of_a_file_with_the_same_deal(by, tmp_path):
    lines = [f"{2 * y - 1} 1:{a} 2:{b}" for (a, b), y in zip(X, Y, strict=True)]
    (tmp_path / "all.svm").write_text("\n".join(lines) + "\n")
    source = parse_source(
        f"libsvm:{tmp_path}/all.svm", samples=None, normalize=False, test_fraction=0.0, seed=2, loss="hinge", deal=by
    )
    survey = source.survey()
    shards = dpmpi.split(X, Y, 3, by, seed=2)
    for rank, (part, y) in enumerate(shards):
        loaded = source.load(survey, rank, 3)
        assert np.array_equal(loaded.labels, 2.0 * y - 1)
        kept = loaded.rows.matrix if hasattr(loaded.rows, "matrix") else None
        if kept is not None:
            assert np.array_equal(kept, part)


def test_sizes_and_alpha_as_arguments():
    assert [len(y) for _, y in dpmpi.split(X, Y, 3, by="sizes", sizes=[5, 6, 7])] == [5, 6, 7]
    given = dpmpi.split(X, Y, 3, by="dirichlet", alpha=0.5)
    assert rows(given) == rows(dpmpi.split(X, Y, 3, by="dirichlet:0.5"))
    sorted_ = dpmpi.split(X, Y, 3, by="sorted")
    assert [set(y.tolist()) for _, y in sorted_] == [{0}, {0}, {1}]


def test_all_records_of_a_value_go_to_one_agent():
    where = np.array(["north", "south", "east"])[np.arange(30) % 3]
    shards = dpmpi.split(X, Y, 3, by="column", column=where)
    assert rows(shards)[1] == X[where == "north", 0].tolist()  # east, north, south
    two = dpmpi.split(X, Y, 2, by="column", column=where)
    assert [len(y) for _, y in two] == [10, 20]
    numbered = dpmpi.split(np.column_stack([X, Y]), Y, 2, by="column", column=2)
    assert [set(y.tolist()) for _, y in numbered] == [{0}, {1}]
    with pytest.raises(ConfigError, match="at least 4 values"):
        dpmpi.split(X, Y, 4, by="column", column=where)
    with pytest.raises(ConfigError, match="expected column"):
        dpmpi.split(X, Y, 4, by="column")


def test_tables_and_sparse_matrices_keep_their_kind():
    pandas, pyarrow = needs.package("pandas", "test"), needs.package("pyarrow", "parquet")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "ward": ["x", "y"] * 15})
    arrow = pyarrow.Table.from_pandas(frame)
    for table in (frame, arrow):
        (first, none), (second, _) = dpmpi.split(table, None, 2, by="column", column="ward")
        assert type(first) is type(table)
        assert none is None
        assert (len(first), len(second)) == (15, 15)
    sparse = scipy.sparse.csr_array(X)
    parts = dpmpi.split(sparse, pandas.Series(Y), 2)
    assert np.array_equal(parts[0][0].toarray(), dpmpi.split(X, Y, 2)[0][0])
    assert np.array_equal(parts[0][1], dpmpi.split(X, Y, 2)[0][1])
    by_number = dpmpi.split(frame, None, 2, by="column", column=2)
    assert [len(part) for part, _ in by_number] == [15, 15]


@pytest.mark.parametrize(
    ("agents", "by", "what"), [(31, "even", "fewer ranks"), (2, "eve", "did you mean"), (2, "sizes", "sizes:")]
)
def test_deals_that_cannot_be(agents, by, what):
    with pytest.raises(ConfigError, match=what):
        dpmpi.split(X, Y, agents, by)


def test_a_deal_by_label_needs_labels():
    with pytest.raises(ConfigError, match="labels y"):
        dpmpi.split(X, None, 2, "sorted")


@pytest.mark.parametrize(
    ("given", "found"),
    [((4,), "found 4"), ((Y[:9], 2), "found 9"), ((Y, Y), "number of agents"), ((Y, 0), "from 1 on")],
)
def test_arguments_out_of_place_are_named(given, found):
    with pytest.raises(ConfigError, match=rf"expected a .*{found}.*: split\(X, y, agents\)"):
        dpmpi.split(X, *given)
