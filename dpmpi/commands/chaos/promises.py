"""The promises of each kind of failure, and one run of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpmpi.commands.chaos import checks
from dpmpi.commands.chaos.faults import PAYLOAD, Fault, Start
from dpmpi.commands.chaos.start import Ended, Moment, run_start
from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.network.launcher import Launcher
from dpmpi.runtime.config import Config
from dpmpi.runtime.flags import from_text
from dpmpi.runtime.recovery.resume import fewest_ranks
from dpmpi.runtime.settings import Settings
from dpmpi.runtime.trainer import SLACK_LOOKS

CORRUPT_SECONDS = 5.0
INTERVALS = 10
"""How many checkpoints a run makes that is to be resumed and does not say."""

PROMISES = {
    "finished": "the run finished",
    "ended": "all ranks ended in time",
    "survivors": "those went on who could",
    "objective": "the objective is that of an undisturbed run",
    "agreed": "no sum was used by some ranks only",
    "crowd": "no shared sum was of fewer than n - c ranks",
    "bits": "the models are those of an undisturbed run, bit for bit",
    "resumed": "the run finished after --resume",
    "named": "the error is the right one, and names the rank",
    "waits": "the summary names the slow rank",
    "others": "nobody waited for what it did not need",
    "no process left": "no process was left behind",
    "ledgers": "every ledger checks out",
    "counts": "no ledger charges less than the wire carried",
    "interval": "a crash charged at most one interval in vain",
}


class Broken(Exception):
    """A promise was broken without which the others cannot be checked."""


@frozen
class Setting:
    """What all runs have in common."""

    ranks: int
    launcher: Launcher
    flags: tuple[str, ...]
    config: Config
    limit: float
    within: float
    out: Path

    @cached_property
    def reference(self) -> Array:
        """The models of the run to which nothing happens, for repeatable noise."""
        return checks.undisturbed(self.config, self.ranks, range(self.ranks))[1]


@dataclass
class Outcome:
    """One run: what happened to it, and of each promise None if it was kept, or what was found instead."""

    number: int
    kind: str
    faults: tuple[Fault, ...]
    folder: str
    seconds: float = 0.0
    promises: dict[str, str | None] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """What was broken, a line each."""
        return [f"{name}: {why}" for name, why in self.promises.items() if why is not None]


class Scene:
    """One run that is broken: its starts, and what was found."""

    def __init__(self, setting: Setting, outcome: Outcome) -> None:
        self.setting, self.faults, self.notes = setting, outcome.faults, outcome.notes
        self.config, self.folder = setting.config, Path(outcome.folder)
        self.run = self.folder / "run"
        self.flags: tuple[str, ...] = (*setting.flags, "--out", str(self.run))
        self._promises, self._starts = outcome.promises, list[Start]()

    def start(self, *flags: str, kill_now: Moment | None = None) -> Ended:
        """Start all ranks, the first time with the faults, and check that none is left when they have ended."""
        file, faults = self.folder / f"start-{len(self._starts)}.json", () if self._starts else self.faults
        self._starts.append(Start(file, tuple(range(self.setting.ranks)), faults))
        ended = run_start(self.setting.launcher, self._starts[-1], flags, self.setting.limit, kill_now)
        self.check("no process left", f"processes {list(ended.left)} are left" if ended.left else None)
        self.notes.setdefault("said", []).append(ended.said)
        return ended

    def check(self, promise: str, wrong: str | None) -> bool:
        """Note whether a promise was kept; once broken it stays so."""
        self._promises[promise] = self._promises.get(promise) or wrong
        return wrong is None

    def need(self, promise: str, wrong: str | None) -> None:
        """Note a promise, and leave if it was broken."""
        if not self.check(promise, wrong):
            raise Broken

    def finished(self, promise: str, ended: Ended) -> dict[str, Any]:
        """Check that a start ended as it should; return the summary."""
        file = self.run / "summary.json"
        missing = None if file.exists() else "there is no summary.json"
        self.need(promise, _not_finished(ended, self.setting.limit) or missing)
        return dict(json.loads(file.read_text(encoding="utf-8")))

    @property
    def first(self) -> Start:
        """The start to which something happens."""
        return self._starts[0]

    @property
    def tolerant(self) -> bool:
        """Whether the survivors of a death are to go on."""
        able = any(record.tolerant for record in self.first.records().values())
        return able and self.config.on_failure == "shrink"

    @property
    def carried(self) -> dict[int, int]:
        """How many releases of each rank went over the wire, in all starts."""
        starts = [start.records() for start in self._starts]
        return {name: sum(records[name].releases for records in starts) for name in self.first.names}

    def derived(self) -> Config:
        """Return the settings of the run with what it derived for all its ranks, which stays when some are lost."""
        path = self.run / "config.toml"
        return from_text(path.read_text(encoding="utf-8"), path, {})

    def check_books(self, most: Mapping[int, int] | None = None, *, whole: bool) -> None:
        """Check the ledgers against the wire and, of a run that finished, against the accountant."""
        self.check("counts", checks.wrong_counts(self.run, self.config, self.carried))
        if most is not None:
            self.check("interval", checks.wrong_counts(self.run, self.config, self.carried, most))
        if whole:
            self.check("ledgers", checks.wrong_ledgers(self.run))


def _kill(scene: Scene) -> None:
    setting, config = scene.setting, scene.config
    ended = scene.start(*scene.flags)
    fired = scene.first.fired()
    dead = sorted(fired)
    scene.notes |= {"dead": dead, "tolerant": scene.tolerant}
    settings = Settings.of(config)
    graph, fewest = settings.graph(setting.ranks), fewest_ranks(settings, setting.ranks)
    too_few = bool(ended.code) and () in checks.possible_survivors(graph, dead, fewest)
    if settings.messages.hides:
        scene.check("crowd", checks.wrong_crowd(scene.run, config, setting.ranks))
    if not dead or (scene.tolerant and not too_few):
        summary = scene.finished("finished", ended)
        if settings.messages.hides and summary["consensus_error"] is not None:
            scene.check("agreed", checks.wrong_agreement(summary))
        as_expected = scene.check("survivors", checks.wrong_survivors(summary, config, setting.ranks, dead))
        if as_expected and summary["objective"] is not None:
            names = [record["rank"] for record in summary["per_rank"]]
            objectives = checks.undisturbed_objectives(scene.derived(), setting.ranks, names)
            wrong, some = checks.wrong_objective(summary["objective"], objectives, setting.within)
            scene.notes |= {"objective": summary["objective"], "undisturbed": some[0], "starts": summary["starts"]}
            scene.notes["references"] = some
            scene.check("objective", wrong)
        scene.check_books(whole=True)
        return
    since = ended.gone - max(fired.values())
    scene.notes["seconds_to_end"] = since
    late = f"the last rank ended {since:.1f} s after the death, the deadline is {config.deadline:g} s"
    killed = _not_finished(ended, setting.limit) if ended.code is None else None
    scene.need("ended", killed or (late if since > config.deadline else None))
    scene.check_books(whole=False)
    if config.checkpoint_every is not None:
        scene.finished("resumed", scene.start("--resume", str(scene.run)))
        scene.check_books(whole=True)


def _stop(scene: Scene) -> None:
    config = scene.config
    summary = scene.finished("finished", scene.start(*scene.flags))
    settings = Settings.of(config)
    evaluating = settings.evaluating
    every = evaluating.every or (max(1, config.known_rounds // 20) if evaluating.kind == "open" else 0)
    schedule, pauses = settings.schedule(scene.setting.ranks), scene.first.pauses()
    scene.notes |= {"pauses": pauses, "rounds_per_second": summary["rounds_per_second"]}
    # With checkpoints a rank may not get far ahead of the others; a round of several exchanges waits in any of them.
    if pauses and config.checkpoint_every is None and config.exchange == "plain":
        [fault] = scene.faults
        # Whoever may have to go back remembers so many looks.
        ahead = SLACK_LOOKS if scene.tolerant else config.known_rounds
        for pause in pauses:
            limit = min(config.known_rounds, pause[fault.rank] + ahead)
            scene.check("others", checks.idle_ranks(schedule, limit, fault.rank, pause, every))
    scene.check_books(whole=True)


def _slow(scene: Scene) -> None:
    found = checks.most_waited_for(scene.finished("finished", scene.start(*scene.flags)))
    slow = scene.faults[0].rank
    wrong = f"rank {slow} was slow, but the others waited most for rank {found}"
    scene.check("waits", None if found == slow else wrong)
    scene.check_books(whole=True)


def _corrupt(scene: Scene) -> None:
    ended = scene.start(*scene.flags)
    fired = scene.first.fired()
    if not fired:
        scene.finished("finished", ended)
        return
    [(rank, since)] = [(rank, ended.gone - when) for rank, when in fired.items()]
    scene.notes["seconds_to_end"] = since
    wrong = f"the last rank ended {since:.1f} s after the message, expected {CORRUPT_SECONDS:g} s"
    if ended.code == 0:
        wrong = "the run finished as if nothing had happened"
    scene.check("ended", None if ended.code and since <= CORRUPT_SECONDS else wrong)
    file = scene.run / "ended.txt"
    said = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    sealed = scene.faults[0].moment == PAYLOAD
    right = f"could not open the message of rank {rank} " if sealed else f"from rank {rank}, "
    wrong = f"rank {rank} sent it, but the run ended with: {said or 'nothing'}"
    scene.check("named", None if right in said else wrong)
    scene.check_books(whole=False)


def _restart(scene: Scene) -> None:
    setting, [fault] = scene.setting, scene.faults
    if scene.config.checkpoint_every is None:
        every = str(max(1, scene.config.known_rounds // INTERVALS))
        scene.config = replace(scene.config, checkpoint_every=every)
        scene.flags = (*scene.flags, "--checkpoint-every", every)

    def now(seconds: float, round_: int) -> bool:
        return round_ >= fault.round if fault.round else seconds >= fault.seconds

    ended = scene.start(*scene.flags, kill_now=now)
    if not ended.killed:  # it was faster
        summary = scene.finished("finished", ended)
    else:
        scene.check_books(whole=False)
        ended = scene.start("--resume", str(scene.run))
        unborn = ended.code == 2 and len(ended.said) == 1 and not any(scene.carried.values())
        scene.notes["unborn"] = unborn
        if unborn:  # it was killed before it had begun, and resume says so
            ended = scene.start(*scene.flags)
        summary = scene.finished("resumed", ended)
    if scene.config.insecure_noise_seed is not None:
        scene.check("bits", checks.wrong_bits(scene.run, setting.reference))
    scene.check_books(checks.releases_of_an_interval(scene.config, setting.ranks, summary), whole=True)


def _not_finished(ended: Ended, limit: float) -> str | None:
    said = f": {ended.last_words}" if ended.last_words else ""
    if ended.code is None:
        return f"it did not end within {limit:g} s and was killed{said}"
    return None if ended.code == 0 else f"exit code {ended.code}{said}"


PLAYS = {"kill": _kill, "stop": _stop, "slow": _slow, "corrupt": _corrupt, "restart": _restart}
"""Run what was drawn and fill in the promises; raise `Broken` where there is no way on."""
