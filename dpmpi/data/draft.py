"""A private description for people: a table to read, and a draft of a codebook to edit.

The draft takes the lower end (7) of the 5% quantile and the upper end (8) of the 95% quantile of `description.py` as a
range: those are edges, hence round numbers, and nine in ten numbers lie between them, unless the noise was unusual. The
ends of quantiles further out lie where the noise of many empty cells puts them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dpmpi.data.codebook import Category, Classes, Column, Count
from dpmpi.data.description import Schema


def lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the description as lines of text."""
    said = []
    for one in found:
        rates = [f"missing {_percent(one['missing'])}"]
        if one["kind"] == "number":
            rates += [f"{name.replace('_', ' ')} {_percent(one[name])}" for name in ("below", "above", "no_number")]
            said.append(f"{one['column']}: number in [{one['range'][0]:g}, {one['range'][1]:g}], {', '.join(rates)}")
            for quantile in one["quantiles"]:
                ends = f"{quantile['low']:g} to {quantile['high']:g}"
                said.append(f"  {quantile['p']:>5.0%} of them below {quantile['value']:<10.4g} {ends}")
        else:
            rates.append(f"another {_percent(one['other'])}")
            said.append(f"{one['column']}: category, {', '.join(rates)}")
            for word, count in sorted(one["counts"].items(), key=lambda item: -item[1]):
                said.append(f"  {max(count, 0.0):>10.0f} +- {one['count_error']:<8.0f} {word}")
    return said


def draft_codebook(schema: Schema, found: Sequence[dict[str, Any]], how: str) -> str:
    """Return a codebook as text, for people to edit; `how` says in one line where it comes from."""
    book = schema.codebook
    said = [f"# A draft, made from {how}.", "# Edit it, and agree on it: from then on it is a public rule."]
    said.append(f"missing-words = {_toml(book.missing_words)}")
    said += [f'{key} = "{value}"' for key, value in (("separator", book.separator), ("decimal", book.decimal)) if value]
    if not schema.labelled:
        said += ["", "# [label] is missing: name the column to predict, with classes, range or most."]
    if book.person is not None:
        said += ["", "[person]", f"column = {_toml(book.person.column)}", f"most = {book.person.most}"]
    for column, figures in zip(schema.columns, found, strict=True):
        label = schema.labelled and column is book.label
        name = _toml(column.column)
        said += ["", "[label]", f"column = {name}"] if label else ["", f"[columns.{name}]"]
        said += _rule(column, figures)
        said.append(f'missing = "{"drop" if label else "column"}"  # {_percent(figures["missing"])} are missing')
    return "\n".join(said) + "\n"


def _rule(column: Column, figures: dict[str, Any]) -> list[str]:
    """Return the lines of a codebook for one column, but for its missing values."""
    if isinstance(column, Category):
        counts = ", ".join(f"{word} {max(count, 0.0):.0f}" for word, count in figures["counts"].items())
        other = f"other = true  # {_percent(figures['other'])} are another"
        noisy = f"# +- {figures['count_error']:.0f}: {counts}"
        return [noisy, f"categories = {_toml(column.categories)}", other]
    if isinstance(column, Classes):
        return [f"classes = {_toml(column.classes)}"]
    known = {one["p"]: one for one in figures["quantiles"]}
    low, high, median = known[0.05]["low"], known[0.95]["high"], known[0.5]
    middle = f"  # half are below {median['low']:g} to {median['high']:g}"
    if isinstance(column, Count):
        return [f"most = {max(1, int(high))}{middle}"]
    scale = f"scale = {_toml([int(end) for end in column.scale])}"
    return [f"range = {_toml([_short(low), _short(high)])}{middle}", scale]


def _percent(rate: dict[str, float]) -> str:
    return f"{rate['value']:.1%} +- {rate['error']:.1%}"


def _short(value: float) -> int | float:
    """Return a whole number as such."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _toml(value: Any) -> str:
    """Return strings, numbers and lists of them as TOML, which JSON is for these."""
    return json.dumps(value, ensure_ascii=False)
