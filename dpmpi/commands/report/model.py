"""The sections of a report about what came out: how good the model is, its coefficients, and what was promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpmpi.commands.report import page
from dpmpi.commands.report.charts import Chart, Curve, Panel, legend_entries
from dpmpi.commands.report.drawing import Plots
from dpmpi.commands.report.page import Section
from dpmpi.commands.report.sections import chart_panels
from dpmpi.model import Model
from dpmpi.model.coefficients import HEADINGS, by_size, cells
from dpmpi.model.metrics import CALIBRATION_BINS
from dpmpi.runtime.output.result_table import NOISE, to_two_digits
from dpmpi.runtime.output.results import Run

MOST_COEFFICIENTS = 20
WHOSE = {"mean": "mean model", "ranks_mean": "ranks' own, mean", "ranks_worst": "worst", "reference": "optimum"}
"""The columns of the table of metrics."""


def model_sections(run: Run, plots: Plots) -> list[Section]:
    """Return the metrics and the coefficients of a run, as far as it has them."""
    found = _metrics_sections(run.summary.get("metrics"), plots)
    found += _private_section(run.summary.get("private_evaluation"))
    if (run.path / "model.npz").is_file():
        found.append(_coefficients_section(Model.load(run.path), plots))
    return found


def _metrics_sections(metrics: Mapping[str, Any] | None, plots: Plots) -> list[Section]:
    """Return a table with a line for each metric, and the reliability curve."""
    if metrics is None:
        return []
    columns = {whose: heading for whose, heading in WHOSE.items() if metrics.get(whose)}
    rows = []
    for name in metrics["mean"]:
        values = [metrics[whose].get(name) for whose in columns]
        rows.append([page.cell(name.replace("_", " ")), *(page.cell(_number(value)) for value in values)])
    about = f"On {metrics['rows']:,} held-out rows of all ranks; majority is the accuracy of the most frequent class."
    sections = [Section("How good the model is", about, (page.table(["", *columns.values()], rows),), wide=False)]
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
    rows = []
    for name, one in found["metrics"].items():
        known = one["value"] is not None
        value, error = to_two_digits(one["value"], one["error"]) if known else (NOISE, "")
        texts = (name.replace("_", " "), value, f"+- {error}" if known else "-")
        rows.append([page.cell(text) for text in texts])
    about = (
        f"The mean model on {found['rows']:,} held-out rows of {page.counted(found['ranks'], 'rank')}, counted under "
        "noise, inside of the guarantee. The error is a standard deviation, of the noise and of the rows."
    )
    if "majority" in found["metrics"]:
        about += " Majority is the accuracy of the most frequent class."
    return [Section(heading, about, (page.table(["", "value", "error"], rows),), wide=False)]


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


def _coefficients_section(model: Model, plots: Plots) -> Section:
    """Return the largest coefficients with their noise, and the privacy statement."""
    rows = by_size(model.coefficient_table())
    shown = [row for row in rows if not row.intercept][:MOST_COEFFICIENTS] + [row for row in rows if row.intercept]
    texts = [cells(row) for row in shown]
    kept = [k for k in range(len(HEADINGS)) if any(row[k] for row in texts)]
    table = page.table([HEADINGS[k] for k in kept], [[page.cell(row[k]) for k in kept] for row in texts])
    files = page.files([plots.write("coefficients.csv", model.to_csv())])
    notes = [page.paragraph(f"Noise: {model.noise_note}.", "soft"), page.paragraph(f"Privacy: {model.privacy.text}.")]
    about = "What one unit of each coded feature adds to the score, largest first"
    if model.task.kind == "regression":
        about = "What one unit of each coded feature adds to the prediction, in units of the label, largest first"
    many = f"; the largest of {len(model.features):,} features" if len(model.features) > MOST_COEFFICIENTS else ""
    return Section("Coefficients", f"{about}{many}.", (table, files, *notes), wide=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
