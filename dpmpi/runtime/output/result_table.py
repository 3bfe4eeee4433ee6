"""The last output of a run: its summary as a table, as one line of JSON, or only where it lies."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmpi.runtime.config import Config
from dpmpi.runtime.noise import condition
from dpmpi.runtime.output.progress import in_rate


def closing(summary: dict[str, Any], directory: Path, config: Config) -> str:
    """Return the last output of a run: the table, only where the results are, or a JSON object.

    `summary` has the figures of this rank's own process.
    """
    if config.quiet:
        return str(directory)
    if not config.log_json:
        return table(summary, directory)
    names = ("algorithm", "ranks", "rounds", "objective", "suboptimality", "accuracy", "rounds_per_second")
    told = {name: summary[name] for name in names}
    privacy, sent = summary["privacy"], summary["communication"]
    told |= {name: privacy[name] for name in ("private", "epsilon", "budget", "delta")}
    told["epsilon_with_earlier_runs"] = (_spent_most(summary["per_rank"]) or {}).get("epsilon_with_earlier_runs")
    told |= {"messages": sent["messages"], "bytes": sent["bytes"], "seconds": summary["wall_seconds"]}
    return json.dumps({"type": "end", **told, "results": str(directory)})


def table(summary: dict[str, Any], directory: Path) -> str:
    """Return the one table that a run ends with."""
    privacy, communication = summary["privacy"], summary["communication"]
    rows = [
        ("objective", _number(summary["objective"], ".6g")),
        ("suboptimality", _number(summary["suboptimality"], ".3e")),
        ("accuracy", _number(summary["accuracy"], ".4f")),
        ("ranks' own", _number(summary["rank_accuracy"], ".4f")),
        ("metrics", _metrics(summary.get("metrics"), "mean")),
        ("worst rank", _metrics(summary.get("metrics"), "ranks_worst")),
        ("optimum", _metrics(summary.get("metrics"), "reference")),
        *_privately(summary.get("private_evaluation")),
        ("expected", _expected(summary["verdict"])),
        ("WARNING", (summary["verdict"] or {}).get("afterwards")),
        ("relative error", _number(summary["error"], ".3e")),
        ("consensus error", _number(summary["consensus_error"], ".3e")),
        ("privacy", _privacy(summary)),
        ("with earlier runs", _all_runs(summary["per_rank"])),
        ("secrecy", _secrecy(summary["secrecy"])),
        ("counted otherwise", _otherwise(privacy["laplace"])),
        ("budgets", _budgets(summary)),
        ("messages", f"{communication['messages']:,}"),
        ("bytes", f"{communication['bytes']:,}"),
        ("seconds", f"{summary['wall_seconds']:.2f} ({in_rate(summary['rounds_per_second'])})"),
        ("lost", _lost(summary["lost"])),
        ("results", str(directory)),
    ]
    ranks = "1 rank" if summary["ranks"] == 1 else f"{summary['ranks']} ranks"
    title = (
        f"{summary['algorithm']}, {ranks}, {summary['graph']['name']}, {summary['rounds']} rounds, "
        f"dimension {summary['dimension']}"
    )
    lines = [f"  {name:<17} {value}" for name, value in rows if value is not None]
    return "\n".join([title, *lines])


SHOWN = ("majority", "balanced_accuracy", "auc", "f1", "log_loss", "rmse", "mae", "r2", "deviance")
"""The metrics that the table at the end shows."""
NOISE = "not told from noise"
"""A figure of a private evaluation that is null."""


def _metrics(found: Mapping[str, Any] | None, whose: str) -> str | None:
    """Return the metrics of a model in one line; None if there are none."""
    known = (found or {}).get(whose) or {}
    shown = ("accuracy", *SHOWN) if whose != "mean" else SHOWN
    told = [f"{name.replace('_', ' ')} {known[name]:.4g}" for name in shown if known.get(name) is not None]
    return ", ".join(told) or None


def _privately(found: Mapping[str, Any] | None) -> list[tuple[str, str | None]]:
    """Return the rows of a private evaluation, with error bars."""
    if found is None:
        return []
    if found["metrics"] is None:
        return [("held-out rows", "not evaluated: no budget is left for it")]
    told = {name: found["metrics"].get(name) for name in ("accuracy", *SHOWN)}
    rows: list[tuple[str, str | None]] = [
        (name.replace("_", " "), with_error(one)) for name, one in told.items() if one is not None
    ]
    return [*rows, ("held-out rows", f"{found['rows']:,}, evaluated privately")]


def with_error(one: Mapping[str, float | None]) -> str:
    """Return a figure of a private evaluation and its error, in words if it is null."""
    value, error = one["value"], one["error"]
    return NOISE if value is None or error is None else " +- ".join(to_two_digits(value, error))


def to_two_digits(value: float, error: float, unit: str = "") -> tuple[str, str]:
    """Return a value and its error, both to the second digit of the error; in percent if that is the `unit`."""
    scale = 100.0 if unit == "%" else 1.0
    value, error = scale * value, scale * error
    if not (math.isfinite(value) and math.isfinite(error) and error > 0.0):
        return f"{value:.4g}{unit}", f"{error:.2g}{unit}"
    places = 1 - int(f"{error:.1e}".partition("e")[2])  # of the error as it is after rounding
    texts = (f"{round(one, places):.{max(places, 0)}f}{unit}" for one in (value, error))
    return next(texts), next(texts)


def _expected(told: Mapping[str, Any] | None) -> str | None:
    """Return the verdict's line; None if there is none."""
    return None if told is None or told["word"] is None else str(told["line"]).removeprefix("expect ")


def _lost(ranks: Sequence[int]) -> str | None:
    """Return who died, or could not be reached any more by the others."""
    return f"rank {', '.join(map(str, ranks))}: the others went on without" if ranks else None


def _spent_most(ranks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the rank that has spent most in all runs of its ledger; None if there was none before this one."""
    known = [record for record in ranks if record.get("epsilon_with_earlier_runs") is not None]
    return max(known, key=lambda record: float(record["epsilon_with_earlier_runs"]), default=None)


def _all_runs(ranks: Sequence[dict[str, Any]]) -> str | None:
    """Return the epsilon spent in all runs of the ledgers, and its budget."""
    most = _spent_most(ranks)
    if most is None:
        return None
    of = "" if most["budget"] is None else f" of the budget {most['budget']:g}"
    return f"epsilon {most['epsilon_with_earlier_runs']:.4g}{of}, on the rank that has spent most"


def _budgets(summary: Mapping[str, Any]) -> str | None:
    if all(record["budget"] is None for record in summary["per_rank"]):
        return None
    ended = budget_ended(summary)
    return f"{ended}; they went on without data" if ended else "kept by all ranks"


def budget_ended(summary: Mapping[str, Any]) -> str:
    """Return in which round budgets ended training, and on how many ranks; nothing if they did not."""
    ranks = summary["per_rank"]
    stopped = [record["stopped"] for record in ranks if record["stopped"] is not None]
    if not stopped or all(record["budget"] is None for record in ranks):
        return ""
    first, last = min(stopped), max(stopped)
    when = f"round {first}" if first == last else f"rounds {first} to {last}"
    return f"the budget ended training in {when} of {summary['rounds']}, on {len(stopped)} of {len(ranks)} ranks"


def _secrecy(secrecy: dict[str, Any]) -> str | None:
    if secrecy["identities"] is None:
        return None
    parts = [f"{secrecy['shares']} shares"] if secrecy["shares"] else []
    parts += ["sealed messages"] if secrecy["sealed"] else []
    known = "keys of the roster" if secrecy["identities"] == "roster" else "keys without a roster: listeners only"
    return ", ".join([*parts, known])


def _otherwise(figures: dict[str, float | None] | None) -> str | None:
    if figures is None:
        return None
    names = {"worst_case": "pure, worst case", "l1": "pure, L1", "zcdp": "zCDP", "pld": "PLD (even shifts, no bound)"}
    return ", ".join(f"{name} {figures[key]:.3g}" for key, name in names.items() if figures[key] is not None)


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _privacy(summary: Mapping[str, Any]) -> str:
    privacy = summary["privacy"]
    if privacy["insecure_noise"]:
        return "NOT PRIVATE: repeatable noise (--insecure-noise-seed)"
    if any(record["sigma"] is None for record in summary["per_rank"]):
        return "NOT PRIVATE: no noise (--epsilon or --noise adds it)"
    if not privacy["private"]:
        return "NOT PRIVATE: no finite epsilon can be certified for this noise"
    text = f"epsilon {privacy['epsilon']:.4g} at delta {privacy['delta']:g}, certified"
    text += condition(privacy["colluders"])
    if privacy["unit"] != "record":
        text += f"; unit: {privacy['unit']}"
    if privacy["epsilon_evaluation"] is not None:
        training, evaluation = privacy["epsilon_training"], privacy["epsilon_evaluation"]
        text += f"; training {training:.4g}, evaluation {evaluation:.4g} on other rows"
    if privacy["calibration"] == "theorem":
        claim = privacy["epsilon_theorem"]
        if claim is None or privacy["epsilon"] > claim:
            text += f"; WARNING: the paper's theorem claims {claim}, do not rely on it"
        else:
            text += f"; the paper's theorem claims {claim:.4g}"
    outside = "evaluation" if privacy["epsilon_evaluation"] is None else "--reference"
    return text + (f"; {outside} is outside of it" if privacy["evaluation_outside_guarantee"] else "")
