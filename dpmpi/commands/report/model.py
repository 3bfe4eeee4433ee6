"""The sections of a report about what came out: how good the model is, its coefficients, and what was promised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpmpi.commands.report import page
from dpmpi.commands.report.charts import Chart, Curve, Panel, legend_entries
from dpmpi.commands.report.drawing import Plots
from dpmpi.commands.report.page import Section
from dpmpi.commands.report.sections import chart_panels
from dpmpi.model import Model
from dpmpi.model.coefficients import HEADINGS, Coefficient, by_size, cells
from dpmpi.model.metrics import CALIBRATION_BINS
from dpmpi.runtime.output.result_table import NOISE, to_two_digits
from dpmpi.runtime.output.results import Run

MOST_COEFFICIENTS = 20
TOLD_APART = 2.0
"""From so many standard deviations of the noise on a coefficient is hardly noise alone."""
SIDE = 10
"""More rows than this stand in two tables, side by side where there is room."""


def model_sections(run: Run, plots: Plots) -> list[Section]:
    """Return the metrics and the coefficients of a run, as far as it has them."""
    found = _metrics_sections(run.summary.get("metrics"), plots)
    found += _private_section(run.summary.get("private_evaluation"))
    if (run.path / "model.npz").is_file():
        found.append(_coefficients_section(Model.load(run.path), plots, wide=len(found) != 1))
    return found


def _metrics_sections(metrics: Mapping[str, Any] | None, plots: Plots) -> list[Section]:
    """Return a table with a line for each metric, and the reliability curve."""
    if metrics is None:
        return []
    mean, own, worst = (metrics.get(one) or {} for one in ("mean", "ranks_mean", "ranks_worst"))
    columns = {"ranks' own": own, "optimum": metrics.get("reference") or {}}
    kept = [heading for heading, values in columns.items() if values]
    rows, apart = [], False
    for name in (name for name in mean if name != "auc_error"):
        line = [page.cell(name.replace("_", " "), _auc_error(mean) if name == "auc" else ""), _number(mean[name])]
        for heading in kept:
            text, least = _number(columns[heading].get(name)), _number(worst.get(name))
            differs = columns[heading] is own and least not in ("-", text)
            apart = apart or differs
            line.append(page.cell(text, least if differs else ""))
        rows.append(line)
    about = f"On {metrics['rows']:,} held-out rows of all ranks"
    about += "; majority is the accuracy of the most frequent class" if "majority" in mean else ""
    about += "; small, below the mean of the ranks' own: the worst of them" if apart else ""
    table = page.table(["", "mean model", *kept], rows)
    sections = [Section("How good the model is", f"{about}.", (table,), wide=False)]
    if metrics.get("reliability"):
        sections.append(_reliability_section(metrics["reliability"], plots))
    return sections


def _private_section(found: Mapping[str, Any] | None) -> list[Section]:
    """Return a table of the metrics of a private evaluation, each with its error."""
    if found is None:
        return []
    heading = "How good the model is"
    if found["metrics"] is None:
        return [Section(heading, "It was not evaluated: no budget was left for it.", (), wide=False)]
    rows, unknown = [], []
    for name, one in found["metrics"].items():
        said = name.replace("_", " ")
        if one["value"] is None:
            unknown.append(said)
        else:
            value, error = to_two_digits(one["value"], one["error"])
            rows.append([page.cell(text) for text in (said, value, f"\u00b1{error}")])
    about = (
        f"The mean model on {found['rows']:,} held-out rows of {page.counted(found['ranks'], 'rank')}, counted under "
        "noise, inside of the guarantee. The error is a standard deviation, of the noise and of the rows."
    )
    if "majority" in found["metrics"]:
        about += " Majority is the accuracy of the most frequent class."
    pieces = [page.table(["", "value", "error"], rows)] if rows else []
    pieces += [page.paragraph(f"{NOISE.capitalize()}: {', '.join(unknown)}.")] if unknown else []
    return [Section(heading, about, tuple(pieces), wide=False)]


def _reliability_section(bins: Sequence[Sequence[float]], plots: Plots) -> Section:
    """Return the chart of observed frequencies against predicted probabilities."""
    p, share, _ = np.array(bins).T
    ends = np.array([0.0, 1.0])
    curves = (
        Curve("mean model", 0, p, share, share, share, 1),
        Curve("perfect", 1, ends, ends, ends, ends, 1, dashed=True),
    )
    panel = Panel("", "probability", "predicted probability", curves)
    chart = Chart("reliability", "Calibration", "share", "share that came true", (panel,))
    about = f"How often predictions came true, in {CALIBRATION_BINS} bins of the predicted probability."
    content = page.figure(page.panels(chart_panels(chart, plots)), "", legend_entries(chart))
    return Section("Calibration", about, (content,), wide=False)


def _coefficients_section(model: Model, plots: Plots, *, wide: bool) -> Section:
    """Return the largest coefficients, those that are not told from noise folded, and the privacy statement.

    It is not wide where it can stand beside a section that is alone.
    """
    rows = by_size(model.coefficient_table())
    clear = [row for row in rows if _stands_out(row)]
    unclear = [row for row in rows if not _stands_out(row)]
    shown = _largest(clear)
    halves = [shown[: (len(shown) + 1) // 2], shown[(len(shown) + 1) // 2 :]] if len(shown) > SIDE else [shown]
    tables = [_coefficient_table(half) for half in halves if half]
    notes = [_unclear(unclear, len(rows))] if unclear else []
    sigma = next((row.noise for row in rows if not row.intercept), None)
    size = "" if sigma is None else f"{sigma:.3g}, "
    notes.append(page.paragraph(f"Noise: {size}{model.noise_note}.", "soft"))
    notes.append(page.paragraph(f"Privacy: {model.privacy.text}."))
    notes.append(page.files([plots.write("coefficients.csv", model.to_csv())]))
    below = f"<div>{''.join(notes)}</div>"
    pieces = (
        (page.panels([*tables, below]),) if len(tables) == 1 else (*([page.panels(tables)] if tables else []), below)
    )
    to = "prediction, in units of the label" if model.task.kind == "regression" else "score"
    to += f" of class {model.task.classes[1]}" if model.task.kind == "binary" else ""
    some = f"; {len(shown):,} of the {len(clear):,} that stand out from the noise" if len(shown) < len(clear) else ""
    return Section(
        "Coefficients", f"What one unit of each coded feature adds to the {to}, largest first{some}.", pieces, wide
    )


def _stands_out(row: Coefficient) -> bool:
    """Return whether a coefficient is hardly noise alone, or has no noise that is known."""
    return row.times_noise is None or row.times_noise >= TOLD_APART


def _largest(rows: Sequence[Coefficient]) -> list[Coefficient]:
    """Return the first rows of features, and those of intercepts."""
    return [row for row in rows if not row.intercept][:MOST_COEFFICIENTS] + [row for row in rows if row.intercept]


def _unclear(rows: Sequence[Coefficient], all_: int) -> str:
    """Return the coefficients that are not told from noise in one line, folded."""
    count = f"All {all_:,}" if len(rows) == all_ else f"{len(rows):,} of {all_:,}"
    said = f"{count} coefficients are {NOISE}: below {TOLD_APART:g} times its standard deviation"
    shown = _largest(rows)
    more = page.paragraph(f"The largest {len(shown):,} of them.", "soft") if len(shown) < len(rows) else ""
    return page.fold(said, more + _coefficient_table(shown))


def _coefficient_table(rows: Sequence[Coefficient]) -> str:
    """Return a table that fits a telephone: the range below the name, and columns that say nothing left out."""
    several = any(row.several for row in rows)
    scaled = any(row.per_unit != row.value for row in rows)
    known = any(row.times_noise is not None for row in rows)
    columns = {"class": several, "coefficient": True, "per unit": scaled, "times noise": known}
    lines = []
    for row in rows:
        text = dict(zip(HEADINGS, cells(row), strict=True))
        lines.append(
            [page.cell(row.feature, text["range"]), *(page.cell(text[k]) for k, kept in columns.items() if kept)]
        )
    return page.table(["feature", *(heading for heading, kept in columns.items() if kept)], lines)


def _auc_error(metrics: Mapping[str, Any]) -> str:
    """Return by how much the AUC of a histogram can be off, rounded up; nothing if that is not known."""
    error = metrics.get("auc_error")
    return "" if error is None else f"within {math.ceil(1e4 * error) / 1e4:.4f}"


def _number(value: float | None) -> str:
    """Return a figure with four decimals, or with four digits where these say too much or too little."""
    if value is None:
        return "-"
    if abs(value) >= 1e4:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 10 or value == 0 else f"{value:.4g}"
