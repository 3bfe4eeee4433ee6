"""The model that a run leaves behind: its vector, with what it takes to use it without the run.

Privacy: beside the vector, which is made of releases, there are settings, public sizes, the codebook and the figures of
the summary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmpi import __version__
from dpmpi.core import Array
from dpmpi.model import Model, PrivacyStatement
from dpmpi.model.model import LINKS, Link
from dpmpi.runtime.job import Job
from dpmpi.runtime.output.coefficient_noise import coefficient_noise
from dpmpi.runtime.output.result_table import budget_ended

if TYPE_CHECKING:
    from dpmpi.data.codebook import Codebook

OUTSIDE = "read the data without noise, outside of the guarantee"
NO_EVALUATION = "none outside of the guarantee"
PRIVATE = "private, of rows that training did not read"
STATED = ("private", "epsilon", "delta", "unit", "adversary", "noise_in", "colluders")


def trained_model(job: Job, summary: Mapping[str, Any], x: Array, x_rank: Array | None) -> Model:
    """Return the model of a run that is through; `x_rank` is None where nobody sees a rank's own vector."""
    config, settings = job.config, job.settings
    text, codebook = _codebook(job)
    stopped = any(record["stopped"] is not None for record in summary["per_rank"])
    noise_std, noise_note = coefficient_noise(job, stopped)
    bounded = (config.normalize or codebook is not None) and settings.loss is not None
    return Model.of_vector(
        x.copy(),
        settings.constant,
        settings.task,
        loss=settings.loss_name,
        link=link_of(job),
        names=settings.source.feature_names() if codebook is None else codebook.features,
        norm_bound=1.0 if bounded else math.inf,
        scaling=None if codebook is None else _scaling(codebook),
        codebook=text,
        codebook_digest="" if codebook is None else codebook.digest,
        privacy=_statement(summary, config.digest()),
        noise_std=noise_std,
        noise_note=noise_note,
        x_rank=x_rank,
        version=__version__,
    )


def link_of(job: Job) -> Link:
    """Return how scores become probabilities or expectations."""
    of_numbers: Link = "identity" if job.settings.task.kind == "regression" else "none"
    return LINKS.get(job.settings.loss_name.partition(":")[0], of_numbers)


def _codebook(job: Job) -> tuple[str, Codebook | None]:
    """Return the codebook of the shards here, as text and parsed."""
    text = next((shard.codebook for shard in job.shards if shard.codebook), "")
    if not text:
        return "", None
    from dpmpi.data.codebook import parse_codebook  # noqa: PLC0415 - most runs have none

    return text, parse_codebook(text, "the codebook of the shard")


def _scaling(codebook: Codebook) -> Array:
    """Return (slope, offset, low, high) for each coded column."""
    from dpmpi.data.codebook import Number  # noqa: PLC0415

    rows: list[tuple[float, float, float, float]] = []
    for column in codebook.columns:
        coded = len(column.features)
        if isinstance(column, Number):
            slope = (column.scale[1] - column.scale[0]) / (column.high - column.low)
            rows.append((slope, column.scale[0] - slope * column.low, column.low, column.high))
            coded -= 1
        rows += [(1.0, 0.0, math.nan, math.nan)] * coded
    rows += [(1.0, 0.0, math.nan, math.nan)] * codebook.bias
    return np.array(rows)


def _statement(summary: Mapping[str, Any], config: str) -> PrivacyStatement:
    """Return the privacy statement of a summary."""
    privacy = summary["privacy"]
    figures = {name: privacy[name] for name in STATED}
    evaluation = OUTSIDE if privacy["evaluation_outside_guarantee"] else NO_EVALUATION
    if privacy["epsilon_evaluation"] is not None:
        evaluation = f"{PRIVATE}, epsilon {privacy['epsilon_evaluation']:.4g}"
    run = {name: summary[name] for name in ("algorithm", "ranks", "run")}
    ended = budget_ended(summary)
    return PrivacyStatement(**figures, **run, config=config, evaluation=evaluation, budget_ended=ended)
