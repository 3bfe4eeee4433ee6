"""Frictionless Table Schemas (JSON) as codebooks, and back.

    in a Table Schema                                        in a codebook
    type number, integer or year, with minimum and maximum   range; there a limit, here numbers are clipped to it
    constraints.enum, or categories, or type boolean         categories, or the classes of a label
    constraints.required                                     missing values are an error
    missingValues                                            missing-words
    decimalChar ","                                          decimal = "comma"
    title, description                                       a comment

What a codebook has beside (which column is the label, persons, scale, other, bias, what missing values become) stands
in custom properties called `dpmpi`, which other programs ignore, so that a codebook comes back as it was. What a
codebook cannot say is left out, with a note.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpmpi.core.files import read_text
from dpmpi.data.codebook import Category, Classes, Codebook, Column, Count, build_codebook
from dpmpi.data.codebook_text import plain
from dpmpi.errors import ConfigError

_NUMBERS = ("number", "integer", "year")
_UNDERSTOOD = {"required", "minimum", "maximum", "enum", "exclusiveMinimum", "exclusiveMaximum"}


@dataclass
class Content:
    """A codebook as its TOML would be, with what is to be said about it."""

    book: dict[str, Any]
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """Comments by column."""
    notes: list[str] = field(default_factory=list)
    """What the codebook cannot say, one line each."""


def read_table_schema(path: Path, label: str | None) -> tuple[Codebook, Content]:
    """Read a Table Schema as a codebook; raise `ConfigError` if that is none, or has no label."""
    found = table_schema_content(path, label)
    if "label" not in found.book:
        fields = f"{label!r} among the fields that can be coded" if label is not None else "--label COLUMN"
        raise ConfigError(f"{path}: expected {fields}, found none: it says what is to be predicted")
    return build_codebook(found.book, str(path)), found


def table_schema_content(path: Path, label: str | None = None) -> Content:
    """Return the content of the codebook that a Table Schema describes, with a label if one is named."""
    try:
        schema = json.loads(read_text(path, "the Table Schema"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected a Table Schema as JSON, found other text") from error
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, list) or not all(isinstance(f, dict) and isinstance(f.get("name"), str) for f in fields):
        raise ConfigError(f'{path}: expected "fields": [{{"name": ...}}, ...], found something else')
    if len({one["name"] for one in fields}) < len(fields):
        raise ConfigError(f"{path}: expected fields of different names, found two of the same")
    own = _own(schema)
    content = Content({"columns": {}})
    content.book |= {key: own[key] for key in ("bias", "separator") if key in own}
    if "missingValues" in schema:
        words = schema["missingValues"]
        content.book["missing-words"] = _values(words) if isinstance(words, list) else words
    if any(one.get("decimalChar") == "," for one in fields):
        content.book["decimal"] = "comma"
    for one in fields:
        _take(one, label, content)
    for key in sorted({"primaryKey", "foreignKeys", "uniqueKeys"} & set(schema)):
        content.notes.append(f"{key}: left out, a codebook does not check it")
    return content


def _take(one: dict[str, Any], label: str | None, content: Content) -> None:
    """Add one field to the content of a codebook, or say why not."""
    name, own, constraints = one["name"], _own(one), one.get("constraints", {})
    constraints = constraints if isinstance(constraints, dict) else {}
    if "person" in own:
        content.book["person"] = {"column": name, "most": own["person"]}
    else:
        is_label = name == label if label is not None else own.get("label") is True
        rule = _rule(one, own, constraints, is_label=is_label)
        if rule is None:
            kind = one.get("type", "string")
            content.notes.append(f"{name}: left out, {kind} without {_wanted(kind)}")
            return
        if not constraints.get("required"):
            rule["missing"] = own.get("missing", "drop" if is_label else "column")
        if is_label:
            content.book["label"] = {"column": name, **rule}
        else:
            content.book["columns"][name] = rule
        for key in sorted(set(constraints) - _UNDERSTOOD):
            content.notes.append(f"{name}: constraint {key} left out, a codebook does not check it")
        if "missingValues" in one:
            content.notes.append(f"{name}: its own missingValues left out, a codebook has them for the whole table")
    said = [one[key] for key in ("title", "description") if isinstance(one.get(key), str) and one[key]]
    if said:
        content.remarks[name] = said


def _rule(
    one: dict[str, Any], own: dict[str, Any], constraints: dict[str, Any], *, is_label: bool
) -> dict[str, Any] | None:
    """Return the rule of a field; None if a codebook has none for it."""
    words = own.get("categories", constraints.get("enum", one.get("categories")))
    if words is None and one.get("type") == "boolean":
        listed = [one.get(key, [word]) for key, word in (("falseValues", "false"), ("trueValues", "true"))]
        words = [spellings[0] if isinstance(spellings, list) and spellings else None for spellings in listed]
    if isinstance(words, list):
        other = {"other": True} if own.get("other") is True and not is_label else {}
        return {"classes" if is_label else "categories": _values(words), **other}
    low = constraints.get("minimum", constraints.get("exclusiveMinimum"))
    high = constraints.get("maximum", constraints.get("exclusiveMaximum"))
    if one.get("type") not in _NUMBERS or not all(type(end) in (int, float) for end in (low, high)):
        return None
    if is_label and own.get("counts") is True:
        return {"most": high}
    return {"range": [low, high], **({"scale": own["scale"]} if "scale" in own else {})}


def _wanted(kind: object) -> str:
    return "minimum and maximum, or enum" if kind in _NUMBERS else "enum"


def _own(table: dict[str, Any]) -> dict[str, Any]:
    found = table.get("dpmpi", {})
    return found if isinstance(found, dict) else {}


def _values(values: Any) -> list[Any]:
    """Return the texts of values; they may be objects with a label, and whatever else is there is refused later."""
    plain_values = [one.get("value") if isinstance(one, dict) else one for one in values]
    return [json.dumps(one) if isinstance(one, bool | int | float) else one for one in plain_values]


def to_table_schema(book: Codebook) -> tuple[dict[str, Any], list[str]]:
    """Return a codebook as a Table Schema, and what of it other programs will not understand, one line each."""
    fields = [_field(one, book, is_label=one is book.label) for one in book.all]
    if book.person is not None:
        fields.append({"name": book.person.column, "type": "string", "dpmpi": {"person": book.person.most}})
    schema: dict[str, Any] = {"fields": fields, "missingValues": list(book.missing_words)}
    own: dict[str, Any] = {"bias": True} if book.bias else {}
    own |= {} if book.separator is None else {"separator": book.separator}
    schema |= {"dpmpi": own} if own else {}
    keys = sorted({*own, *(key for one in fields for key in one.get("dpmpi", {}))})
    notes = [f"said in properties called dpmpi, which other programs ignore: {', '.join(keys)}"]
    if any("minimum" in one.get("constraints", {}) for one in fields):
        notes.append("minimum and maximum are limits there: a codebook clips numbers to them")
    return schema, notes


def _field(column: Column, book: Codebook, *, is_label: bool) -> dict[str, Any]:
    constraints: dict[str, Any] = {} if column.missing is not None else {"required": True}
    own: dict[str, Any] = {"label": True} if is_label else {}
    usual = "drop" if is_label else "column"
    own |= {"missing": column.missing} if column.missing not in (None, usual) else {}
    if isinstance(column, Category | Classes):
        kind, words = "string", list(column.categories if isinstance(column, Category) else column.classes)
        if isinstance(column, Category) and column.other:
            own |= {"categories": words, "other": True}  # an enum would refuse the others
        else:
            constraints["enum"] = words
    elif isinstance(column, Count):
        kind, own["counts"] = "integer", True
        constraints |= {"minimum": 0, "maximum": column.most}
    else:
        kind = "number"
        constraints |= {"minimum": plain(column.low), "maximum": plain(column.high)}
        own |= {"scale": [int(end) for end in column.scale]}
    found: dict[str, Any] = {"name": column.column, "type": kind}
    found |= {"decimalChar": ","} if kind == "number" and book.decimal == "comma" else {}
    found |= {"constraints": constraints} if constraints else {}
    return found | ({"dpmpi": own} if own else {})
