"""What a reader must see first: warnings, headline numbers as tiles, and the table of several runs or of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from dpmpi.commands.report import page
from dpmpi.commands.report.charts import BYTES, group_numbers
from dpmpi.commands.report.drawing import Plots, by_thousands, csv_text, series
from dpmpi.commands.report.page import Section
from dpmpi.commands.report.ranks import spent
from dpmpi.runtime.output.progress import in_rate
from dpmpi.runtime.output.result_table import NOISE, to_two_digits
from dpmpi.runtime.output.results import COLUMNS, QUANTILES, RANGE, Group, Run, Spread, SweepResult, table_columns
from dpmpi.runtime.verdict import no_class_below

BYTES_OF = {"numbers": "payload", "shares": "share", "seals": "tag", "trailers": "trailer"}
MORE = {
    "relative error": ("error", ".3g"),
    "consensus error": ("consensus_error", ".3g"),
    "beta of the mixing matrix": ("graph.beta", ".4g"),
    "messages": ("communication.messages", ",.0f"),
    **{f"bytes of {what}": (f"communication.{kind}_bytes", ",.0f") for what, kind in BYTES_OF.items()},
}
"""Further numbers of one run: what it is called, its key in summary.json, and its form."""
HEADLINE = {"accuracy": "accuracy", "rmse": "RMSE", "deviance": "deviance"}
"""The metric that a tile shows: the first one that there is, and what it is called."""
GENERATED = frozenset({"synthetic", "mean"})
"""Sources of data that are drawn for the run, and about nobody."""
CSV_ONLY = ("consensus_error", "communication.messages")
"""Numbers of a sweep's file that its table has no room for."""


def warnings_of_runs(groups: Sequence[Group]) -> list[str]:
    """Return as HTML what must be known about the privacy of runs before anything else."""
    said = []
    for group in groups:
        for text, count in Counter(map(_privacy_warning, group.runs)).items():
            who = group.label if count == len(group.runs) else f"{group.label}, {count} of {len(group.runs)} runs"
            said += [(f"{who}: {text}", "alert" if text.startswith("NOT") else "warn")] if text else []
        for lost in filter(None, (run.summary.get("lost") for run in group.runs)):
            ranks = ", ".join(map(str, lost))
            said.append((f"{group.label}: rank {ranks} was lost on the way, and the others went on.", "warn"))
        for (text, kind), count in Counter(told for run in group.runs for told in _expectations(run)).items():
            said.append((f"{group.label}: {text}" + (f" ({count} runs)" if count > 1 else ""), kind))
        stopped = {r["rank"] for run in group.runs for r in run.summary["per_rank"] if r.get("stopped") is not None}
        if stopped:
            spent_by = f"{group.label}: the budget of {page.counted(len(stopped), 'rank')} was spent before the end."
            said.append((f"{spent_by} They went on without their data.", "warn"))
    return _warnings(said, groups)


def _expectations(run: Run) -> list[tuple[str, str]]:
    """Return a run's verdict, before and after training: a warning unless it promised a good model, and its kind."""
    told = run.summary.get("verdict") or {}
    found = [(told.get("line"), "soft" if told.get("word") == "good" else "warn"), (told.get("afterwards"), "warn")]
    return [(text, kind) for text, kind in found if text]


def warnings_of_sweep(sweep: SweepResult) -> list[str]:
    """Return the warnings about a sweep as HTML: what is missing, and what is not private."""
    said = []
    failed = [one for one in sweep.index["runs"] if one["state"] == "failed"]
    if failed:
        first = f"the first ({failed[0]['path']}): {failed[0]['error']}"
        said.append((f"{page.counted(len(failed), 'run')} failed, {first}", "alert"))
    waiting = sum(one["state"] == "waiting" for one in sweep.index["runs"])
    if waiting:
        those = f"{page.counted(waiting, 'run')} {'is' if waiting == 1 else 'are'}"
        said.append((f"{those} still to be made: the sweep goes on with the same command.", "warn"))
    if any(run.summary["privacy"]["insecure_noise"] for group in sweep.groups for run in group.runs):
        said.append(("NOT PRIVATE: the noise of some runs is repeatable (insecure-noise-seed).", "alert"))
    return _warnings(said, sweep.groups)


def _warnings(said: list[tuple[str, str]], groups: Sequence[Group]) -> list[str]:
    """Return texts as paragraphs of their kinds, and one more if runs were evaluated without noise."""
    runs = [run for group in groups for run in group.runs]
    evaluated = [run for run in runs if run.summary["privacy"]["evaluation_outside_guarantee"]]
    if evaluated:
        said = [*said, (_outside({str(run.settings["data"]).partition(":")[0] for run in evaluated}), "warn")]
    return [page.paragraph(text, kind) for text, kind in said]


def _outside(sources: Set[str]) -> str:
    """Return the warning about figures without noise: whose they are is known of drawn data and of shards alone."""
    if sources <= GENERATED:
        return "Objective and accuracy have no noise and are outside of the guarantee; the data are synthetic."
    if "shards" in sources:
        return "Objective and accuracy read private data without noise: they are outside of the guarantee."
    return "Objective and accuracy have no noise and are outside of the guarantee: keep them if the data are private."


def tiles(run: Run) -> str:
    """Return the headline numbers of one run: how good, how private and what was expected; then what it cost."""
    summary, privacy, sent = run.summary, run.summary["privacy"], run.summary["communication"]
    shown = _quality_tile(summary)
    if privacy["epsilon"] is None or privacy["insecure_noise"]:
        shown.append(page.tile("certified epsilon", "none", "NOT PRIVATE", "tile bad"))
    else:
        worst, epsilon = max(summary["per_rank"], key=spent), privacy["epsilon"]
        allowed = privacy["budget"] if worst["budget"] is None else worst["budget"]
        budget = "" if allowed is None else f" of {allowed:g}"
        earlier = f" earlier runs included; {epsilon:.3g} in this one;" if spent(worst) > epsilon else ""
        below = f"worst rank,{earlier} at delta = {privacy['delta']:g}"
        shown.append(page.tile("certified epsilon", f"{max(epsilon, spent(worst)):.3g}{budget}", below))
    shown += _verdict_tile(summary.get("verdict"))
    below = f"{sent['messages']:,} messages; {by_thousands(sent['bytes'] / summary['ranks'], 'B')} a rank"
    shown.append(page.tile("bytes sent", by_thousands(sent["bytes"], "B"), below))
    if summary["wall_seconds"] is not None:
        training, speed = summary["rounds"] / summary["rounds_per_second"], summary["rounds_per_second"]
        below = f"training {training:.3g} s, {in_rate(speed)}"
        shown.append(page.tile("time", f"{summary['wall_seconds']:.3g} s", below))
    if summary["suboptimality"] is not None:
        below = f"objective {summary['objective']:.4g}, optimum {summary['optimum']:.4g}"
        shown.append(page.tile("suboptimality", f"{summary['suboptimality']:.3g}", below))
    elif summary["objective"] is not None:
        shown.append(page.tile("objective", f"{summary['objective']:.4g}", "no optimum to compare with (--reference)"))
    return page.tiles(shown)


def _verdict_tile(told: Mapping[str, Any] | None) -> list[str]:
    """Return the tile of a run's verdict, in a word; the warnings have the line of all but a good one."""
    if not told or told.get("word") is None:
        return []
    if told.get("afterwards"):
        see = ", but see" if told["word"] == "good" else ": see"
        return [page.tile("verdict", told["word"], f"was expected{see} the warning", "tile bad")]
    least = told.get("least_share")
    only = "from public figures" if least is None else f"if {no_class_below(least)}"
    return [page.tile("verdict", told["word"], f"expected before training, {only}")]


def _quality_tile(summary: Mapping[str, Any]) -> list[str]:
    """Return how good the model is in one number, with what to compare it with; a private one has its error."""
    exact, private = (summary.get("metrics") or {}).get("mean") or {}, summary.get("private_evaluation")
    exact = {"accuracy": summary["accuracy"]} | exact
    for name in (name for name in HEADLINE if exact.get(name) is not None):
        count = (summary.get("metrics") or {}).get("rows")
        value = f"{exact[name]:.2%}" if name == "accuracy" else f"{exact[name]:.4g}"
        return [
            page.tile(
                HEADLINE[name], value, _beside(exact, f"on {count:,} held-out rows" if count else "on held-out rows")
            )
        ]
    if private is None:
        return []
    if private["metrics"] is None:
        return [page.tile("quality", "not known", "no budget was left to evaluate the model")]
    name = next(name for name in HEADLINE if name in private["metrics"])
    one, rows = private["metrics"][name], f"on {private['rows']:,} held-out rows, privately"
    if one["value"] is None:
        return [page.tile(HEADLINE[name], NOISE, rows)]
    value = " \u00b1".join(to_two_digits(one["value"], one["error"], "%" if name == "accuracy" else ""))
    return [page.tile(HEADLINE[name], value, _beside({key: x["value"] for key, x in private["metrics"].items()}, rows))]


def _beside(metrics: Mapping[str, float | None], rows: str) -> str:
    """Return the line below a headline metric: the accuracy of the most frequent class alone, or R^2."""
    majority, r2 = metrics.get("majority"), metrics.get("r2")
    if majority is not None:
        return f"most frequent class {majority:.1%}; {rows}"
    return rows if r2 is None else f"R^2 {r2:.3g}; {rows}"


def results_of_run(run: Run) -> list[str]:
    """Return the tiles of one run, and its further numbers folded below them."""
    numbers = {name: format(number, form) for name, (key, form) in MORE.items() if (number := run.number(key))}
    privacy = run.summary["privacy"]
    epsilons = {"epsilon by the paper's theorem": privacy["epsilon_theorem"]}
    epsilons |= {f"epsilon of Laplace noise, by {name}": x for name, x in (privacy.get("laplace") or {}).items()}
    numbers |= {name: f"{value:.4g}" for name, value in epsilons.items() if value is not None}
    rows = [[page.cell(name), page.cell(text)] for name, text in numbers.items()]
    return [tiles(run), page.fold("Further numbers", page.table(["number", "value"], rows))]


def results_of_groups(groups: Sequence[Group]) -> Section:
    """Return the table of several runs: a line for each group of repetitions."""
    many = len(groups) < sum(len(group.runs) for group in groups)
    note = "Means over the repetitions, smallest to largest below where they differ."
    rows = []
    for style, group in enumerate(groups):
        summary = group.runs[0].summary
        facts = f"{summary['algorithm']}, {summary['ranks']} ranks, {summary['graph']['name']}"
        name = page.cell(group.label, facts, series(style, line=""))
        rows.append([name, str(len(group.runs)), f"{summary['rounds']:,}"])
    table = _results(["run", "runs", "rounds"], rows, groups, RANGE)
    return Section("Results", note if many else "What each run came to.", (table,))


def results_of_sweep(sweep: SweepResult, plots: Plots) -> Section:
    """Return the table of a sweep: a line per series and point of the grid; its file has a line per run."""
    keys, names = list(sweep.index["grid"]), [*(key for key, _, _ in COLUMNS), *CSV_ONLY]
    styles = {one["name"]: position for position, one in enumerate(sweep.index["series"])}
    rows: list[list[str]] = []
    lines: list[list[Any]] = []
    for group in sweep.groups:
        where = [page.cell(str(group.grid.get(key, "-"))) for key in keys]
        name = page.cell(group.label, key=series(styles[group.series], line=""))
        rows.append([name, *where, str(len(group.runs))])
        point = [group.series, *(group.grid.get(key, "") for key in keys)]
        lines += [[*point, run.path.relative_to(sweep.path), *map(run.number, names)] for run in group.runs]
    address = plots.write(f"{sweep.index['name']}-results.csv", csv_text(["series", *keys, "run", *names], lines))
    note = "One run for each line; the file has them all."
    if sweep.index["repetitions"] > 1:
        note = "Medians over the repetitions, the 10% to 90% quantiles below where they differ; the file has every run."
    table = _results(["series", *keys, "runs"], rows, sweep.groups, QUANTILES)
    return Section("Results", note, (table, page.files([address])))


def _results(headings: list[str], rows: list[list[str]], groups: Sequence[Group], spread: Spread) -> str:
    """Return a table with the columns of results for each group after those that are given."""
    columns = table_columns([run for group in groups for run in group.runs])
    for row, group in zip(rows, groups, strict=True):
        for key, _, form in columns:
            found = group_numbers(group, key, spread)
            texts = [by_thousands(v, "B") if key in BYTES else format(v, form) for v in found or ()]
            range_ = f"{texts[0]} to {texts[-1]}" if texts and texts[0] != texts[-1] else ""
            row.append(page.cell(texts[1] if texts else "-", range_))
    return page.table([*headings, *(heading for _, heading, _ in columns)], rows)


def _privacy_warning(run: Run) -> str:
    privacy = run.summary["privacy"]
    if privacy["insecure_noise"]:
        return "NOT PRIVATE: its noise is repeatable (--insecure-noise-seed)."
    if not privacy["private"]:
        return "NOT PRIVATE: no finite epsilon is certified for it."
    if privacy["calibration"] == "theorem":
        claim = "-" if privacy["epsilon_theorem"] is None else f"{privacy['epsilon_theorem']:.4g}"
        return f"the paper's theorem claims epsilon {claim}, certified is {privacy['epsilon']:.4g}. Rely on the latter."
    return ""
