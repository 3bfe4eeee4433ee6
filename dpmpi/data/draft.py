"""A private description for people: a table to read, and a draft of a codebook to edit.

The draft takes the lower end (7) of the 5% quantile and the upper end (8) of the 95% quantile of `description.py` as a
range: those are edges, hence round numbers, and nine in ten numbers lie between them, unless the noise was unusual. The
ends of quantiles further out lie where the noise of many empty cells puts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpmpi.data.codebook import Category, Classes, Column, Count
from dpmpi.data.codebook_text import to_toml
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
    top = [f"A draft, made from {how}.", "Edit it, and agree on it: from then on it is a public rule."]
    remarks: dict[str, list[str]] = {"": top}
    rules: list[Any] = []
    for column, figures in zip(schema.columns, found, strict=True):
        narrow, said = _rule(column, figures)
        label = schema.labelled and column is schema.codebook.label
        rules.append(replace(narrow, missing="drop" if label else "column"))
        remarks[column.column] = [*said, f"{_percent(figures['missing'])} are missing"]
    label_rule = rules.pop(0) if schema.labelled else schema.codebook.label
    book = replace(schema.codebook, label=label_rule, columns=tuple(rules))
    return to_toml(book, remarks, labelled=schema.labelled)


def _rule(column: Column, figures: dict[str, Any]) -> tuple[Column, list[str]]:
    """Return the rule that a description suggests for a column, and remarks."""
    if isinstance(column, Category | Classes):
        counts = ", ".join(f"{word} {max(count, 0.0):.0f}" for word, count in figures["counts"].items())
        said = [f"+- {figures['count_error']:.0f}: {counts}", f"{_percent(figures['other'])} are another"]
        return (replace(column, other=True) if isinstance(column, Category) else column), said
    known = {one["p"]: one for one in figures["quantiles"]}
    low, high, median = known[0.05]["low"], known[0.95]["high"], known[0.5]
    said = [f"half are below {median['value']:.4g} ({median['low']:g} to {median['high']:g})"]
    if isinstance(column, Count):
        return replace(column, most=max(1, int(high))), said
    return replace(column, low=low, high=high), said


def _percent(rate: dict[str, float]) -> str:
    return f"{rate['value']:.1%} +- {rate['error']:.1%}"
