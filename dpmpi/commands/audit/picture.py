"""The picture of an audit: what was heard in the two worlds, and where that lies beside the claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.commands.audit.figures import Figures
from dpmpi.commands.audit.one_run import Guesses
from dpmpi.commands.audit.statistics import Claim, Counts
from dpmpi.commands.audit.two_worlds import Worlds


def draw(path: Path, result: dict[str, Any], found: Worlds | Guesses | Figures) -> str:
    """Draw the audit; return a line that says where."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, one rank only
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        return "  no plot: matplotlib is not installed (pip install 'dpmpi[report]')"
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    if isinstance(found, Worlds):
        _scores(left, found)
        _trade_off(right, found, result)
    elif isinstance(found, Guesses):
        counts = [found.right, found.guesses - found.right, found.canaries - found.guesses]
        left.bar(["right", "wrong", "not guessed"], counts)
        left.set(ylabel="canaries", title="guesses from one run")
        _epsilons(right, result)
    else:
        names, chances = zip(*found.clearest, strict=True) if found.clearest else ((), ())
        left.barh(list(names), [-np.log10(max(p, 1e-300)) for p in chances])
        left.set(xlabel="-log10 of the probability of chance", title=f"clearest of {found.count} figures")
        right.set_axis_off()
    figure.savefig(path, dpi=120)
    return f"  {'plot':<20} {path}"


def _scores(axes: Any, found: Worlds) -> None:
    rule = found.certified.rule
    plus, minus = (world[rule.score] for world in found.scores.count)
    bins = np.histogram_bin_edges(np.concatenate([plus, minus]), 40).tolist()
    axes.hist([minus, plus], bins, histtype="stepfilled", alpha=0.5, label=["canary -", "canary +"])
    axes.axvline(rule.sign * rule.threshold, color="black", linestyle="--", label="threshold")
    axes.set(xlabel=rule.score, ylabel="runs", title="what was heard")
    axes.legend()


def _trade_off(axes: Any, found: Worlds, result: dict[str, Any]) -> None:
    alarms = np.linspace(0.0, 1.0, 201)
    claims: list[tuple[str, Claim, Counts]] = [("certified", found.certified.claim, found.certified.counts)]
    if found.claimed is not None:
        claims.append(("claimed", found.claimed.claim, found.claimed.counts))
    for name, claim, counts in claims:
        [line] = axes.plot(alarms, claim.least_misses(alarms), label=f"{name}: no test can get below")
        a, b = counts.corner(result["confidence"])
        colour = line.get_color()
        axes.plot([0, a, a], [b, b, 0], color=colour, linestyle=":")
        axes.plot(counts.false_alarms / counts.trials, counts.misses / counts.trials, "o", color=colour)
    axes.set(xlabel="false alarms", ylabel="misses", xlim=(0, 1), ylim=(0, 1), title=result["verdict"].split(":")[0])
    axes.legend()


def _epsilons(axes: Any, result: dict[str, Any]) -> None:
    names = {"claimed": "claimed", "certified": "certified", "lower": "measured,\nat least"}
    bars = {text: result[name] for name, text in names.items() if result[name] is not None}
    axes.bar_label(axes.bar(list(bars), list(bars.values())), fmt="%.3g")
    axes.set(ylabel=f"epsilon at delta {result['delta']:g}", title=result["verdict"].split(":")[0])
    axes.set_yscale("symlog")
    axes.margins(y=0.15)
