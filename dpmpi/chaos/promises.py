"""The promises of each kind of failure, and one run of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpmpi.chaos import checks
from dpmpi.chaos.faults import PAYLOAD, Fault, Plan, Record, fired, pauses_file, record_file
from dpmpi.chaos.launch import Ended, launch
from dpmpi.config import Config
from dpmpi.core import Array
from dpmpi.graphs import make_graph
from dpmpi.planning import schedule_of
from dpmpi.training import SLACK_LOOKS

CORRUPT_SECONDS = 5.0
INTERVALS = 10
"""A run that is to be resumed and does not say how often it checkpoints does so about so many times."""

PROMISES = {
    "finished": "the run finished",
    "ended": "all ranks ended in time",
    "survivors": "those went on who could",
    "objective": "the objective is that of an undisturbed run",
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


@dataclass(frozen=True)
class Setting:
    """What all runs have in common."""

    ranks: int
    launcher: str
    flags: tuple[str, ...]
    config: Config
    limit: float
    within: float
    out: Path

    @cached_property
    def reference(self) -> Array:
        """The models of the run to which nothing happens, for repeatable noise."""
        return checks.undisturbed(self.config, self.ranks, range(self.ranks))[1]


class Scene:
    """One run that is broken: its starts, and what was found."""

    def __init__(
        self, setting: Setting, faults: Sequence[Fault], folder: Path, promises: dict[str, str | None],
        notes: dict[str, Any],
    ) -> None:  # fmt: skip
        self.setting, self.folder, self.faults = setting, folder, tuple(faults)
        self.config, self.run = setting.config, folder / "run"
        self.flags: tuple[str, ...] = (*setting.flags, "--out", str(self.run))
        self._promises, self.notes = promises, notes
        self._plans: list[tuple[Path, Plan]] = []

    def start(
        self, *flags: str, faults: Sequence[Fault] = (),
        kill_now: Callable[[float, int], bool] = lambda _seconds, _round: False,
    ) -> Ended:  # fmt: skip
        """Start all ranks, and check that none is left when they have ended."""
        plan, file = Plan(tuple(range(self.setting.ranks)), tuple(faults)), self.folder / f"start-{len(self._plans)}"
        self._plans.append((file.with_suffix(".json"), plan))
        ended = launch(self.setting.launcher, plan, file.with_suffix(".json"), flags, self.setting.limit, kill_now)
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
        wrong = _not_finished(ended, self.setting.limit)
        if wrong is None and not (self.run / "summary.json").exists():
            wrong = "there is no summary.json"
        self.need(promise, wrong)
        summary: dict[str, Any] = json.loads((self.run / "summary.json").read_text(encoding="utf-8"))
        return summary

    @property
    def fired(self) -> dict[int, float]:
        """When something happened to the ranks of the first start."""
        file, plan = self._plans[0]
        return fired(file, plan.names)

    @property
    def tolerant(self) -> bool:
        """Whether the survivors of a death are to go on."""
        file, plan = self._plans[0]
        able = any(Record(record_file(file, name)).tolerant for name in plan.names)
        return able and self.config.on_failure == "shrink"

    @property
    def carried(self) -> dict[int, int]:
        """How many releases of each rank went over the wire, in all starts."""
        found: Counter[int] = Counter()
        for file, plan in self._plans:
            found.update({name: Record(record_file(file, name)).releases for name in plan.names})
        return dict(found)

    def pauses(self) -> list[dict[int, int]]:
        """Return in which round each rank was at the end of each pause."""
        file = pauses_file(self._plans[0][0])
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [{int(name): round_ for name, round_ in json.loads(line).items()} for line in lines]

    def check_books(self, most: Mapping[int, int] | None = None, *, whole: bool) -> None:
        """Check the ledgers against the wire and, of a run that finished, against the accountant."""
        self.check("counts", checks.wrong_counts(self.run, self.config, self.carried))
        if most is not None:
            self.check("interval", checks.wrong_counts(self.run, self.config, self.carried, most))
        if whole:
            self.check("ledgers", checks.wrong_ledgers(self.run))


def keep_promises(
    setting: Setting, kind: str, faults: Sequence[Fault], folder: Path, promises: dict[str, str | None],
    notes: dict[str, Any],
) -> None:  # fmt: skip
    """Run what was drawn and fill in the promises; raise `Broken` where there is no way on."""
    play = {"kill": _kill, "stop": _stop, "slow": _slow, "corrupt": _corrupt, "restart": _restart}[kind]
    play(Scene(setting, faults, folder, promises, notes))


def _kill(scene: Scene) -> None:
    setting, config = scene.setting, scene.config
    ended = scene.start(*scene.flags, faults=scene.faults)
    dead = sorted(scene.fired)
    scene.notes |= {"dead": dead, "tolerant": scene.tolerant}
    graph = make_graph(config.graph, setting.ranks, config.seed)
    too_few = bool(ended.code) and () in checks.possible_survivors(graph, dead)
    if not dead or (scene.tolerant and not too_few):
        summary = scene.finished("finished", ended)
        if scene.check("survivors", checks.wrong_survivors(summary, config, setting.ranks, dead)):
            _compare(scene, summary)
        scene.check_books(whole=True)
        return
    since = ended.gone - max(scene.fired.values())
    scene.notes["seconds_to_end"] = since
    late = f"the last rank ended {since:.1f} s after the death, the deadline is {config.deadline:g} s"
    killed = _not_finished(ended, setting.limit) if ended.code is None else None
    scene.need("ended", killed or (late if since > config.deadline else None))
    scene.check_books(whole=False)
    if config.checkpoint_every is not None:
        scene.finished("resumed", scene.start("--resume", str(scene.run)))
        scene.check_books(whole=True)


def _compare(scene: Scene, summary: Mapping[str, Any]) -> None:
    """Compare the objective with an undisturbed run's among the same ranks."""
    if summary["objective"] is None:
        return
    names = [record["rank"] for record in summary["per_rank"]]
    expected, _ = checks.undisturbed(scene.config, scene.setting.ranks, names)
    scene.notes |= {"objective": summary["objective"], "undisturbed": expected, "starts": summary["starts"]}
    scene.check("objective", checks.wrong_objective(summary, expected, scene.setting.within))


def _stop(scene: Scene) -> None:
    config = scene.config
    summary = scene.finished("finished", scene.start(*scene.flags, faults=scene.faults))
    every = config.evaluate if config.evaluate is not None else max(1, config.rounds // 20)
    schedule, pauses = schedule_of(config, scene.setting.ranks), scene.pauses()
    scene.notes |= {"pauses": pauses, "rounds_per_second": summary["rounds_per_second"]}
    # With checkpoints a rank may not get far ahead of the others; a round of several exchanges waits in any of them.
    if pauses and config.checkpoint_every is None and config.exchange == "plain":
        [fault] = scene.faults
        ahead = SLACK_LOOKS if scene.tolerant else config.rounds  # whoever may have to go back remembers so many looks
        limits = [min(config.rounds, pause[fault.rank] + ahead) for pause in pauses]
        found = [
            checks.idle_ranks(schedule, limit, fault.rank, pause, every)
            for limit, pause in zip(limits, pauses, strict=True)
        ]
        scene.check("others", next((wrong for wrong in found if wrong is not None), None))
    scene.check_books(whole=True)


def _slow(scene: Scene) -> None:
    summary = scene.finished("finished", scene.start(*scene.flags, faults=scene.faults))
    [fault] = scene.faults
    found = checks.most_waited_for(summary)
    wrong = f"rank {fault.rank} was slow, but the others waited longest for rank {found}"
    scene.check("waits", None if found == fault.rank else wrong)
    scene.check_books(whole=True)


def _corrupt(scene: Scene) -> None:
    ended = scene.start(*scene.flags, faults=scene.faults)
    if not scene.fired:
        scene.finished("finished", ended)
        return
    [(rank, when)] = scene.fired.items()
    since = ended.gone - when
    scene.notes["seconds_to_end"] = since
    wrong = f"the last rank ended {since:.1f} s after the message, expected {CORRUPT_SECONDS:g} s"
    if ended.code == 0:
        wrong = "the run finished as if nothing had happened"
    scene.check("ended", None if ended.code and since <= CORRUPT_SECONDS else wrong)
    file = scene.run / "ended.txt"
    said = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    if scene.faults[0].moment == PAYLOAD:
        right = f"could not open the message of rank {rank} " in said
    else:
        right = f"from rank {rank}, got round" in said
    scene.check("named", None if right else f"rank {rank} sent it, but the run ended with: {said or 'nothing'}")
    scene.check_books(whole=False)


def _restart(scene: Scene) -> None:
    setting, [fault] = scene.setting, scene.faults
    if scene.config.checkpoint_every is None:
        every = str(max(1, scene.config.rounds // INTERVALS))
        scene.config = replace(scene.config, checkpoint_every=every)
        scene.flags = (*scene.flags, "--checkpoint-every", every)
    ended = scene.start(
        *scene.flags,
        kill_now=lambda seconds, round_: round_ >= fault.round if fault.round else seconds >= fault.seconds,
    )
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
