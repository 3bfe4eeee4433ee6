"""Table Schemas and codebooks: a codebook comes back as it was, a foreign schema says what is left out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmpi.commands.dispatch import main
from dpmpi.data.codebook import Category, Classes, Codebook, Count, Number, Person, parse_codebook, read_codebook
from dpmpi.data.codebook_text import to_toml
from dpmpi.data.description import read_schema
from dpmpi.data.table_schema import read_table_schema, to_table_schema
from dpmpi.errors import ConfigError

FOREIGN = {
    "fields": [
        {"name": "id", "type": "string", "constraints": {"unique": True}},
        {"name": "age", "type": "integer", "description": "in years", "constraints": {"minimum": 0, "maximum": 120}},
        {"name": "glucose", "type": "number", "constraints": {"required": True, "minimum": 2.5, "maximum": 30}},
        {"name": "lab", "type": "number"},
        {"name": "ward", "type": "string", "constraints": {"enum": ["medicine", "surgery"], "pattern": ".*"}},
        {"name": "grade", "type": "integer", "constraints": {"enum": [1, 2, 3]}},
        {"name": "smoker", "type": "boolean"},
        {"name": "seen", "type": "date"},
        {"name": "readmitted", "type": "string", "constraints": {"enum": ["no", "yes"], "required": True}},
    ],
    "missingValues": ["", "NA"],
    "primaryKey": "id",
}
SIMPLE = {"name": "b", "constraints": {"enum": ["x"]}}


def put(path, schema):
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return path


def test_a_foreign_schema_becomes_a_codebook_and_says_what_does_not(tmp_path, capsys):
    schema, out = put(tmp_path / "schema.json", FOREIGN), tmp_path / "book.toml"
    assert main(["data", "codebook", str(out), "--from", str(schema), "--label", "readmitted"]) == 0
    book = read_codebook(out)
    assert book == Codebook(
        Classes("readmitted", ("no", "yes"), None),
        (
            Number("age", 0.0, 120.0, (0.0, 1.0), "column"),
            Number("glucose", 2.5, 30.0, (0.0, 1.0), None),
            Category("ward", ("medicine", "surgery"), False, "column"),
            Category("grade", ("1", "2", "3"), False, "column"),
            Category("smoker", ("false", "true"), False, "column"),
        ),
        ("", "NA"),
    )
    assert "# in years" in out.read_text()
    assert capsys.readouterr().out.splitlines() == [
        f"12 columns of 5 fields: {out}".replace("12", str(len(book.features))),
        "id: left out, string without enum",
        "lab: left out, number without minimum and maximum, or enum",
        "ward: constraint pattern left out, a codebook does not check it",
        "seen: left out, date without enum",
        "primaryKey: left out, a codebook does not check it",
        f"codebook {book.digest}: all parties must see the same",
    ]
    assert main(["data", "codebook", str(out), "--from", str(schema), "--label", "readmitted"]) == 2
    assert "expected a new name for the codebook" in capsys.readouterr().err


WORDS = st.text("abcäß \"'\\#=[]", min_size=1, max_size=8).filter(lambda w: w == w.strip())
LISTS = st.lists(WORDS, min_size=2, max_size=4, unique=True).map(tuple)
ENDS = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda e: (e[0] + 0.0, e[0] + e[1]))
SCALES = st.sampled_from([(0.0, 1.0), (-1.0, 1.0)])
MISSING = st.sampled_from([None, "drop", "column"])
DROP = st.sampled_from([None, "drop"])


@st.composite
def codebooks(draw):
    names = draw(st.lists(WORDS, min_size=4, max_size=6, unique=True))
    label = draw(
        st.one_of(
            st.builds(Classes, st.just(names[0]), LISTS, DROP),
            st.builds(Count, st.just(names[0]), st.integers(1, 99), DROP),
            st.builds(lambda e, s, m: Number(names[0], *e, s, m), ENDS, SCALES, DROP),
        )
    )
    columns = [
        draw(
            st.one_of(
                st.builds(Category, st.just(name), LISTS, st.booleans(), MISSING),
                st.builds(lambda e, s, m, name=name: Number(name, *e, s, m), ENDS, SCALES, MISSING),
            )
        )
        for name in names[2:]
    ]
    person = draw(st.sampled_from([None, Person(names[1], 3)]))
    separator, decimal = draw(st.sampled_from([None, "tab"])), "point"
    if any(isinstance(one, Number) for one in (label, *columns)):
        decimal = draw(st.sampled_from(["point", "comma"]))
    words = draw(st.sampled_from([("",), ("", "N/A"), ("-99",)]))
    return Codebook(label, tuple(columns), words, draw(st.booleans()), separator, decimal, person)


@given(codebooks())
def test_a_codebook_comes_back_from_its_text_and_from_its_table_schema(tmp_path_factory, book):
    assert parse_codebook(to_toml(book), "book.toml") == book
    path = put(tmp_path_factory.getbasetemp() / "round.json", to_table_schema(book)[0])
    back, content = read_table_schema(path, None)
    assert back == book
    assert back.digest == book.digest
    assert content.notes == []


def test_the_command_writes_a_table_schema_and_says_what_others_will_not_understand(tmp_path, capsys):
    text = '[label]\ncolumn = "y"\nclasses = ["no", "yes"]\n[columns.a]\nrange = [0, 4]\n'
    text += '[columns.b]\ncategories = ["x"]\nother = true\n'
    book, schema, back = put(tmp_path / "book.toml", text), tmp_path / "schema.json", tmp_path / "back.toml"
    assert main(["data", "codebook", str(book), "--to", str(schema)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "said in properties called dpmpi, which other programs ignore: categories, label, other, scale"
    assert said[2] == "minimum and maximum are limits there: a codebook clips numbers to them"
    fields = {one["name"]: one for one in json.loads(schema.read_text())["fields"]}
    assert fields["a"]["constraints"] == {"required": True, "minimum": 0, "maximum": 4}
    assert fields["y"]["constraints"]["enum"] == ["no", "yes"]
    assert "enum" not in fields["b"]["constraints"]
    assert main(["data", "codebook", str(back), "--from", str(schema)]) == 0
    assert read_codebook(back) == read_codebook(book)


@pytest.mark.parametrize(
    ("schema", "label", "said"),
    [
        ("no json", None, "expected a Table Schema as JSON"),
        ([], None, 'expected "fields"'),
        ({"fields": [{"type": "string"}]}, None, 'expected "fields"'),
        ({"fields": [{"name": "a"}, {"name": "a"}]}, None, "of different names"),
        (FOREIGN, None, "expected --label COLUMN"),
        (FOREIGN, "nothing", "expected 'nothing' among the fields"),
        (FOREIGN, "lab", "expected 'lab' among the fields"),
        (FOREIGN | {"missingValues": 7}, "ward", "missing-words"),
        (FOREIGN | {"missingValues": ["surgery"]}, "ward", "expected no value among missing-words"),
        ({"fields": [SIMPLE, {"name": "a", "constraints": {"enum": [None, {}]}}]}, "a", "expected classes"),
        (
            {"fields": [SIMPLE, {"name": "a", "type": "number", "constraints": {"minimum": 3, "maximum": 1}}]},
            "a",
            "expected range",
        ),
    ],
)
def test_what_is_no_codebook_is_refused_in_one_line(tmp_path, schema, label, said):
    with pytest.raises(ConfigError) as caught:
        read_table_schema(put(tmp_path / "schema.json", schema), label)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_schema_is_a_schema_to_describe_by(tmp_path):
    schema = read_schema(put(tmp_path / "schema.json", FOREIGN))
    assert [one.column for one in schema.histograms] == ["age", "glucose", "ward", "grade", "smoker", "readmitted"]
    assert not schema.labelled


def test_the_commands_of_the_page_work_as_they_stand(tmp_path):
    page = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
    block = page.split("\n### Table Schemas\n")[1].split("\nA [Frictionless]")[0]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["timeout", "60", "bash", "-ec", block.replace("\n    ", "\n")]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "seen: left out, date without enum" in done.stdout
    assert read_table_schema(tmp_path / "again.json", None)[0] == read_codebook(tmp_path / "book.toml")


def test_a_negative_zero_is_a_zero():
    text = '[label]\ncolumn = "y"\nclasses = ["no", "yes"]\n[columns.a]\nrange = [{}, 4]\n'
    assert parse_codebook(text.format("-0.0"), "").digest == parse_codebook(text.format("0"), "").digest
