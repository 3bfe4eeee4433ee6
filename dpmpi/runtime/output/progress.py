"""How far a run is, while it runs: one line on a terminal, a line now and then in a log, or JSON for programs."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, TypeAlias

from dpmpi.runtime.evaluation import Evaluation
from dpmpi.runtime.live_epsilon import LiveEpsilon
from dpmpi.runtime.output.console import launcher_terminal, say
from dpmpi.runtime.plan import Plan
from dpmpi.runtime.verdict import Verdict

Listener: TypeAlias = Callable[[str, dict[str, Any]], None]
"""Is told what happens, as `--log-json` prints it: "start", "round" or "evaluation", and the figures."""

PIECE_SECONDS = 0.25
USUAL_COLUMNS, USUAL_ROWS = 79, 24
"""Of a terminal that does not know its size, as on serial lines and after `stty cols 0`."""
GLANCE_SECONDS = 1.0
"""The figures beside a bar are renewed so often."""
DELAY_SECONDS = 0.5
"""Before a bar is drawn beside a launcher, which takes a while to pass on what was said before it."""
BAR = "round {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}{postfix}"
LINE_SECONDS, LATER_SECONDS = 2.0, 30.0
"""Lines of a log are so far apart, and later on so far."""
EARLY_SECONDS = 300.0


PACES = ("round", "rounds", "seconds", "rounds_per_second", "seconds_left", "bytes")
"""The figures of every round."""


@dataclass
class Figures:
    """What is known of a run that is under way, null where it is not."""

    round: int
    rounds: int
    seconds: float = 0.0
    """Since the start, or since the run went on."""
    seconds_left: float | None = None
    rounds_per_second: float | None = None
    objective: float | None = None
    suboptimality: float | None = None
    accuracy: float | None = None
    epsilon: float | None = None
    budget: float | None = None
    epsilon_with_earlier_runs: float | None = None
    """Of the rank that has spent most, by its ledger."""
    budget_of_all_runs: float | None = None
    """What that rank may spend in all of them."""
    bytes: int | None = None
    """Sent by all ranks, as foreseen."""

    def text(self) -> str:
        """Return the figures beside rounds and pace, on one line."""
        parts = []
        if self.objective is not None:
            parts.append(f"objective {self.objective:.5g}")
        if self.suboptimality is not None:
            parts.append(f"suboptimality {self.suboptimality:.2e}")
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.4f}")
        if self.epsilon is not None:
            parts.append(self._spent(self.epsilon))
        if self.bytes is not None:
            parts.append(f"{in_bytes(self.bytes)} sent")
        return "  ".join(parts)

    def _spent(self, epsilon: float) -> str:
        """Return the epsilon spent and its budget, which is for all runs of a ledger together."""
        total, limit = self.epsilon_with_earlier_runs, self.budget_of_all_runs
        if total is not None and limit is not None:
            return f"epsilon {total:.3g} of {limit:.3g} with earlier runs, {epsilon:.3g} in this one"
        of = "" if self.budget is None else f" of {self.budget:.3g}"
        return f"epsilon {epsilon:.3g}{of}" + ("" if total is None else f", {total:.3g} with earlier runs")

    def line(self) -> str:
        """Return everything, on one line."""
        parts = [f"round {self.round}/{self.rounds}"]
        if self.rounds_per_second is not None:
            parts.append(in_rate(self.rounds_per_second))
        parts += [text] if (text := self.text()) else []
        if self.seconds_left is not None:
            parts.append(f"{in_time(self.seconds_left)} left")
        return "  ".join(parts)


class Progress:
    """Shows the rounds of a run on the rank that is to show them; silent on the others."""

    def __init__(
        self,
        rounds: int,
        *,
        shown: bool,
        completed: int = 0,
        as_json: bool = False,
        bytes_a_round: float | None = None,
        live: LiveEpsilon | None = None,
        listen: Listener | None = None,
        bar: bool = False,
    ) -> None:
        """Begin after round `completed`. Without `live` no epsilon is shown.

        `listen` is told every round, on whatever rank. `bar`: one that suits terminals and notebooks, wherever it is.
        """
        self._shown = shown
        self._json = shown and as_json
        self._bytes_a_round = bytes_a_round
        self._live = live
        self._listen = listen
        self._begin = self._spoke = time.monotonic()
        self._first = completed
        self._figures = Figures(completed, rounds)
        self._bar: Any = None
        if shown and not as_json:
            self._bar = _make_bar(rounds, completed, bar)
        if self._bar is not None:
            self._spoke -= GLANCE_SECONDS - PIECE_SECONDS  # the first figures come sooner

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def pieces(self, done: int, stop: int) -> Iterator[int]:
        """Yield the rounds up to which to run next, so that a piece takes a fraction of a second.

        Pieces are no barriers: a rank that is not shown runs to `stop` at once. Who listens hears of every round.
        """
        if self._listen is not None:
            yield from range(done + 1, stop + 1)
            return
        size = 1
        while done < stop:
            piece = min(stop, done + size) if self._shown else stop
            begin = time.monotonic()
            yield piece
            seconds = max(time.monotonic() - begin, 1e-6)
            size = max(1, min(4 * size, int((piece - done) * PIECE_SECONDS / seconds)))
            done = piece

    def update(self, done: int) -> None:
        """Note that the rounds up to `done` are complete; speak if it is time to."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(done - self._figures.round)
        self._figures.round = done
        if self._listen is not None:
            self._keep_pace(now)
            paces = {name: getattr(self._figures, name) for name in PACES}
            self._listen("round", paces)
        if not self._shown:
            return
        if now - self._spoke < self._silence(now):
            return
        self._spoke = now
        self._look(now)
        if self._json:
            self.tell("progress", **vars(self._figures))
        elif self._bar is not None:
            self._bar.set_postfix_str(self._beside(), refresh=False)
        else:
            say(self._figures.line(), sys.stderr)

    def note(self, evaluation: Evaluation, optimum: float | None) -> None:
        """Show the latest figures next to the rounds."""
        if not self._shown and self._listen is None:
            return
        figures = self._figures
        figures.objective, figures.accuracy = evaluation.objective, evaluation.accuracy
        figures.suboptimality = evaluation.above(optimum)
        if self._json or self._bar is not None or self._listen is not None:
            self._look(time.monotonic())
        if self._listen is not None:
            self._listen("evaluation", vars(figures) | asdict(evaluation))
        if self._bar is not None:
            self._bar.set_postfix_str(self._beside(), refresh=False)
        self.tell("evaluation", **vars(figures))

    def _beside(self) -> str:
        """Return the pace and the figures that stand beside a bar."""
        pace = self._figures.rounds_per_second
        return "  ".join(filter(None, [in_rate(pace) if pace else "", self._figures.text()]))

    def _silence(self, now: float) -> float:
        """Return how many seconds must lie between two lines."""
        if self._bar is not None:
            return GLANCE_SECONDS
        return LINE_SECONDS if now - self._begin < EARLY_SECONDS else LATER_SECONDS

    def _look(self, now: float) -> None:
        """Bring the figures that change with every round up to date."""
        self._keep_pace(now)
        if self._live is not None:
            figures, live = self._figures, self._live
            figures.epsilon, figures.budget = live.epsilon(figures.round), live.budget
            figures.epsilon_with_earlier_runs, figures.budget_of_all_runs = live.with_earlier_runs(figures.round)

    def _keep_pace(self, now: float) -> None:
        """Bring those up to date that cost nothing."""
        figures = self._figures
        figures.seconds = now - self._begin
        if figures.round > self._first and figures.seconds > 0.0:
            figures.rounds_per_second = (figures.round - self._first) / figures.seconds
            figures.seconds_left = (figures.rounds - figures.round) / figures.rounds_per_second
        if self._bytes_a_round is not None:
            figures.bytes = round(self._bytes_a_round * figures.round)

    def tell(self, kind: str, **fields: Any) -> None:
        """Print a JSON object, if they are asked for."""
        if self._json:
            finite = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in fields.items()}
            say(json.dumps({"type": kind, **finite}))


def _make_bar(rounds: int, completed: int, anywhere: bool) -> Any:
    """Return a bar if standard error ends on a terminal, be it through the launcher, or if it suits anywhere."""
    if anywhere:
        from tqdm.auto import tqdm  # noqa: PLC0415 - one rank only

        return tqdm(total=rounds, initial=completed, bar_format=BAR, leave=False, **_width(sys.stderr))
    own = sys.stderr.isatty()
    terminal = sys.stderr if own else launcher_terminal()
    if terminal is None:
        return None
    from tqdm import tqdm  # noqa: PLC0415 - likewise

    tqdm.monitor_interval = 0  # no thread beside MPI
    return tqdm(
        total=rounds,
        initial=completed,
        bar_format=BAR,
        leave=False,
        miniters=1,
        file=terminal,
        delay=0.0 if own else DELAY_SECONDS,
        **_width(terminal),
    )


def _width(terminal: Any) -> dict[str, Any]:
    """Return the settings of a bar's width: that of the terminal, or a usual one where the terminal says 0."""
    try:
        known = min(os.get_terminal_size(terminal.fileno())) > 0
    except (OSError, ValueError, AttributeError):  # no terminal, as in a notebook: tqdm knows best
        known = True
    return {"dynamic_ncols": True} if known else {"ncols": USUAL_COLUMNS, "nrows": USUAL_ROWS}


def watch(
    plan: Plan,
    *,
    shown: bool,
    completed: int = 0,
    live: LiveEpsilon | None = None,
    results: str | None = None,
    listen: Listener | None = None,
    bar: bool = False,
    foretold: tuple[Verdict | None, str | None] = (None, None),
) -> Progress:
    """Return the display of a run after round `completed`, as its settings ask for; `results` is its directory.

    `foretold` are the verdict and the line on what fits the budgets.
    """
    expected, budget = foretold
    config, graph = plan.config, plan.schedule.graph
    shown = shown and (bar or not config.quiet)
    derived = plan.derivation()
    if shown and not config.quiet and not config.log_json and not completed:
        made_up = "data: synthetic, made up: name others with --data" if config.data == "synthetic" else None
        pairs = plan.settings.noise.describe() if config.epsilon is not None or config.noise else None
        between = f"noise between neighbours {pairs['line']}" if pairs else None
        for line in (made_up, f"derived: {derived}" if derived else None, between, budget, expected and expected.line):
            if line:
                say(line)
    progress = Progress(
        plan.rounds,
        shown=shown,
        completed=completed,
        as_json=config.log_json,
        live=live,
        bytes_a_round=plan.bytes() / plan.rounds if shown or listen is not None else None,
        listen=listen,
        bar=bar,
    )
    told = {
        "algorithm": config.algorithm,
        "ranks": graph.size,
        "rounds": plan.rounds,
        "completed": completed,
        "dimension": plan.dimension,
        "graph": graph.name,
        "derived": derived,
        "verdict": expected and expected.word,
        "least_share": expected and expected.figures["least_share"],
        "budget": budget,
        "results": results,
    }
    progress.tell("start", **told)
    if listen is not None:
        listen("start", told)
    return progress


class RunsLine:
    """One line that shows how many runs are done: tqdm on a terminal, plain lines elsewhere."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._begin = total, 0, time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm  # noqa: PLC0415 - only where there is somebody to look

            form = "{n_fmt}/{total_fmt} runs |{bar}| {elapsed}, {remaining} left{postfix}"
            self._bar = tqdm(total=total, leave=False, bar_format=form, **_width(sys.stderr))

    def begins(self, name: str) -> None:
        """Name the run that is under way."""
        if self._bar is not None:
            self._bar.set_postfix_str(name)

    def ended(self, name: str, error: str | None) -> None:
        """Count a run, and say what went wrong if something did."""
        self._done += 1
        seconds = time.monotonic() - self._begin
        left = seconds / self._done * (self._total - self._done)
        if self._bar is not None:
            if error is not None:
                self._bar.write(f"failed: {name}: {error}", file=sys.stderr)
            self._bar.update()
        elif error is not None:
            say(f"{self._done}/{self._total} runs  failed: {name}: {error}", sys.stderr)
        else:
            say(f"{self._done}/{self._total} runs  {seconds:.0f} s  {left:.0f} s left  {name}", sys.stderr)

    def close(self) -> None:
        """Leave the terminal's line."""
        if self._bar is not None:
            self._bar.close()


def in_bytes(count: float) -> str:
    """Return a number of bytes as people write it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def in_rate(rounds_per_second: float) -> str:
    """Return a pace as people write it, with three digits."""
    pace = float(f"{rounds_per_second:.3g}")
    return f"{pace:,.0f} rounds/s" if pace >= 100 else f"{pace:g} rounds/s"


def in_time(seconds: float) -> str:
    """Return seconds as people write them."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
