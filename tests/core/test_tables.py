"""Tables are checked key by key; an error names the file, the table, the key, what was expected and what was found."""

import pytest

from dpmpi.core.tables import TomlTable
from dpmpi.errors import ConfigError, DataError

CONTENT = {
    "flag": True,
    "count": 3,
    "real": 0.5,
    "text": "x",
    "list": [1],
    "one": {"two": {"key": 1}},
    "many": [{}, {}],
}
TABLE = TomlTable(CONTENT, "file.toml")


def refused(call):
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_values_of_their_kinds_are_returned():
    kinds = {"flag": bool, "count": int, "real": float, "text": str, "list": list}
    assert {key: TABLE.get(key, kind) for key, kind in kinds.items()} == {key: CONTENT[key] for key in kinds}
    assert TABLE.get("text", ("w", "x")) == "x"
    assert isinstance(TABLE.get("count", float), float)  # a whole number serves as a float


@pytest.mark.parametrize(
    ("key", "kind", "says"),
    [
        ("flag", int, "flag = a whole number, found True"),
        ("flag", float, "flag = a number, found True"),
        ("count", bool, "count = true or false, found 3"),
        ("real", int, "real = a whole number, found 0.5"),
        ("text", float, "text = a number, found 'x'"),
        ("count", str, 'count = "TEXT", found 3'),
        ("text", list, "text = [...], found 'x'"),
        ("text", ("y", "z"), 'text = "y" or "z", found \'x\''),
        ("list", ("y", "z"), 'list = "y" or "z", found [1]'),
        ("none", int, "none = a whole number, found nothing"),
    ],
)
def test_a_value_of_another_kind_or_a_missing_one_is_refused(key, kind, says):
    assert refused(lambda: TABLE.get(key, kind)) == f"file.toml: expected {says}"


def test_a_default_is_for_a_missing_key_only():
    assert TABLE.get("none", int, 7) == 7
    assert TABLE.get("none", int, None) is None
    assert refused(lambda: TABLE.get("text", int, None)) == "file.toml: expected text = a whole number, found 'x'"


def test_a_value_must_be_valid_too():
    assert TABLE.get("count", int, valid=lambda n: n > 2) == 3
    says = refused(lambda: TABLE.get("count", int, expected="a count above 3", valid=lambda n: n > 3))
    assert says == "file.toml: expected count = a count above 3, found 3"


def test_numbers_beyond_all_floats_and_long_values_make_short_errors():
    huge = TomlTable({"x": 10**5000, "y": "a" * 10**6}, "file.toml")
    assert refused(lambda: huge.get("x", float)).endswith(
        "expected x = a number, found a number of thousands of digits"
    )
    assert len(refused(lambda: huge.get("y", int))) < 200


def test_unknown_keys_are_refused_with_the_nearest_known_one():
    TABLE.only(*CONTENT)
    says = refused(lambda: TomlTable({"rouns": 1}, "file.toml").only("rounds", "seed"))
    assert says == "file.toml: expected some of rounds, seed, found the unknown key 'rouns' (did you mean rounds?)"
    many = [f"key-{number}" for number in range(50)]
    says = refused(lambda: TomlTable({"x\n": 1}, "file.toml").only(*many))
    assert says == "file.toml: expected known keys, found the unknown key 'x\\n'"


def test_inner_tables_carry_their_names():
    assert TABLE.table("one").table("two").get("key", int) == 1
    says = refused(lambda: TABLE.table("one").table("two").get("key", str))
    assert says == 'file.toml: [one.two]: expected key = "TEXT", found 1'
    assert refused(lambda: TABLE.table("text")) == "file.toml: expected a table [text], found 'x'"
    assert refused(lambda: TABLE.table("none")) == "file.toml: expected a table [none], found nothing"
    assert TABLE.table("none", {}).content == {}
    assert [one.where for one in TABLE.tables("many")] == ["file.toml: [many 1]", "file.toml: [many 2]"]
    assert TABLE.tables("none") == []
    assert refused(lambda: TABLE.tables("list")) == "file.toml: expected tables [[list]], found [1]"


def test_the_error_is_of_the_type_that_was_asked_for_in_inner_tables_too():
    table = TomlTable(CONTENT, "file.json", DataError)
    with pytest.raises(DataError, match=r"^file.json: \[one.two\]: expected "):
        table.table("one").table("two").get("other", str)
