"""The cases of the whole-process contract, and how a test runs them: see two_worlds.py."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
from launcher import finish, start
from plans import plan_of, settings_of
from seen import leaks, read_files, read_seen

from dpmpi.algorithms import ALGORITHMS
from dpmpi.errors import ConfigError
from dpmpi.privacy.releases import first_releases, spent_epsilon, tally
from dpmpi.problem.task import Task

RANKS, RECORDS, FEATURES, ROUNDS = 3, 12, 4, 12
DRIVER = Path(__file__).with_name("two_worlds.py")

SMOOTH = ("--loss", "logistic")
NEEDS = {"one-shot": ("--loss", "mean", "--data", f"mean:samples={RANKS * RECORDS},dimension={FEATURES}")}
NEEDS |= dict.fromkeys(("admm", "pvp-admm", "dvp-admm", "r-admm", "ldp-admm", "ldp-gd", "ldp-gd-minmax", "rcd"), SMOOTH)
NEEDS |= dict.fromkeys(("dgd", "dp-dgd", "hmv-dgd"), (*SMOOTH, "--domain", "ball:1"))

SHARES = ("--exchange", "shares")
CODEBOOK = '[label]\ncolumn = "y"\nclasses = ["no", "yes"]\n' + "".join(
    f"[columns.x{k}]\nrange = [-1, 1]\n" for k in range(FEATURES)
)
WAYS = {
    "plain": (),
    "sealed": ("--seal", "--keys", "{keys}"),
    "shares": (*SHARES, "--keys", "{keys}"),
    "full shares": (*SHARES, "--share-mode", "full", "--keys", "{keys}"),
    "sum": (*SHARES, "--keys", "{keys}", "--noise-in", "sum"),
    "full sum": (*SHARES, "--share-mode", "full", "--keys", "{keys}", "--noise-in", "sum"),
}


def flags_of(folder, name, *flags, data=".npz"):
    """Return the flags of a run in a folder of its own."""
    place = folder / name
    known = ["--data", f"shards:{place}/data-{{rank}}{data}", "--out", f"{place}/run", "--rounds", ROUNDS, "--quiet"]
    known += ["--graph", "complete", "--penalty", "l2:0.1", "--lipschitz", 1, "--intercept", "none", "--deadline", 60]
    known += [] if "--algorithm" in flags else ["--algorithm", "dp-dda"]
    known += [] if "--epsilon" in flags else ["--noise", 0.5]
    return [
        str(flag).replace("{keys}", str(folder / "keys")).replace("{place}", str(place)) for flag in (*known, *flags)
    ]


def case(folder, name, *flags, data="classes", suffix=".npz", **more):
    """Return a case: one run; `more` may name a leak to plant, or ask for trust domains of one rank each."""
    return {"name": name, "data": data, "starts": [{"flags": flags_of(folder, name, *flags, data=suffix)}], **more}


def interrupted(folder, name, *flags, **more):
    """Return a case that is told to stop and is resumed."""
    found = case(folder, name, "--checkpoint-every", 2, *flags, **more)
    found["starts"][0]["stops"] = True
    out = [flag for before, flag in pairwise(found["starts"][0]["flags"]) if before == "--out"][-1]
    found["starts"].append({"flags": ["--resume", out, "--quiet"]})
    return found


def called(folder, name, *, stops=False, data="classes", **keywords):
    """Return a case that calls `dpmpi.train`; one that is told to stop goes on by a second call."""
    known = {"algorithm": "dp-dda", "rounds": ROUNDS, "noise": 0.5, "graph": "complete", "lipschitz": 1.0}
    known |= {"penalty": "l2:0.1", "intercept": "none", "deadline": 60, "out": str(folder / name / "run")}
    known |= {"checkpoint_every": "2"} if stops else {}
    found = {"name": name, "data": data, "starts": [{"keywords": known | keywords, "stops": stops}]}
    if stops:
        found["starts"].append({"keywords": {"resume": known["out"]}})
    return found


def half_a_budget(*flags):
    """Return the budget of half of what a run would release, as a flag; nothing if a plan has no noise to price."""
    plan = plan_of(settings_of(*flags), [RECORDS] * RANKS, FEATURES)
    planned = plan.releases(plan.terms(0), 0.5)
    count = sum(times for _, times in planned)
    epsilon = spent_epsilon(tally(first_releases(planned, max(1, count // 2))), 1e-5)
    return [] if epsilon is None else ["--budget", str(1.0001 * epsilon)]


def all_cases(folder):
    """Return a case for every method and way to speak that goes with it: one that runs out of budget, and is resumed.

    What does not go together is what the settings or the plan refuse; a plain run of a method never is.
    """
    found = []
    for algorithm in ALGORITHMS:
        for way, how in WAYS.items():
            flags = ["--algorithm", algorithm, *NEEDS.get(algorithm, ()), *how]
            name = f"{algorithm} {way}".replace(" ", "-")
            try:
                known = flags_of(folder, name, *flags)
                plan_of(settings_of(*known), [RECORDS] * RANKS, FEATURES).check()
            except ConfigError:
                if way == "plain":
                    raise
                continue
            found.append(interrupted(folder, name, *flags, *half_a_budget(*known)))
    return found


def write_worlds(folder, ranks=RANKS):
    """Write the shards of two worlds, which have nothing in common but their sizes."""
    for world in (0, 1):
        for rank in range(ranks):
            draw = np.random.default_rng([world, rank])
            X = draw.uniform(-0.9, 0.9, (RECORDS, FEATURES))
            y = draw.choice([-1.0, 1.0], RECORDS)
            np.savez(folder / f"classes-{world}-{rank}.npz", X=X, y=y)
            np.savez(folder / f"persons-{world}-{rank}.npz", X=X, y=y, person=np.arange(RECORDS) // 3, most=3)
            np.savez(folder / f"coded-{world}-{rank}.npz", X=X, y=y, codebook=np.array(CODEBOOK))
            np.savez(folder / f"tasks-{world}-{rank}.npz", X=X, y=(2 * world + rank + np.arange(RECORDS)) % 3)
            bad = y.copy()
            bad[3 + 4 * world] = np.nan
            np.savez(folder / f"nan-{world}-{rank}.npz", X=X, y=bad if rank == 1 else y)
            wrong = X.copy()
            wrong[5 - 2 * world, world] = np.inf
            np.savez(folder / f"infinite-{world}-{rank}.npz", X=wrong if rank == 1 else X, y=y)
            other = np.where(np.arange(RECORDS) == 2 + world, 7.0 + world, y)
            np.savez(folder / f"labels-{world}-{rank}.npz", X=X, y=other if rank == 1 else y)
            said = np.array(json.dumps(Task().to_dict()))
            np.savez(folder / f"said-{world}-{rank}.npz", X=X, y=other if rank == 1 else y, task=said)
            kept = draw.random((RECORDS, FEATURES)) < 0.2 + 0.6 * world
            indices = [np.flatnonzero(row) for row in kept]
            sparse = {
                "indptr": np.concatenate(([0], np.cumsum([len(row) for row in indices]))),
                "indices": np.concatenate(indices),
                "data": X[kept],
                "dimension": FEATURES,
            }
            np.savez(folder / f"sparse-{world}-{rank}.npz", y=y, **sparse)
            lines = [
                f"{label:+.0f} " + " ".join(f"{k + 1}:{x[k]:.3f}" for k in row)
                for label, row, x in zip(y, indices, X, strict=True)
            ]
            (folder / f"text-{world}-{rank}.svm").write_text("\n".join(lines) + "\n")
            if rank == 1:
                lines[4 + world] = f"{lines[4 + world]} x{world}:y"
            (folder / f"garbled-{world}-{rank}.svm").write_text("\n".join(lines) + "\n")


def run_cases(folder, cases, limit, ulfm=False):
    """Run all cases in one start; return the verdicts, of each case one of each rank."""
    write_worlds(folder)
    (folder / "cases.json").write_text(json.dumps(cases))
    done = finish(start(RANKS, folder / "cases.json", folder, program=(DRIVER,), ulfm=ulfm), limit)
    told = [json.loads((folder / f"verdict-{rank}.json").read_text()) for rank in range(RANKS)]
    missing = [one["name"] for one in cases if any(one["name"] not in rank for rank in told)]
    assert not missing, (missing, done.out, done.err)
    return {one["name"]: [rank[one["name"]] for rank in told] for one in cases}


def run_tolerant(folder, one, limit):
    """Run a case once in each world where a rank may die; return the ranks' exit codes, and the leaks.

    The code of a rank that was killed is None.
    """
    ranks = RANKS + 1
    write_worlds(folder, ranks)
    (folder / "cases.json").write_text(json.dumps([one]))
    files, codes, found = [], [], []
    for world in (0, 1):
        finish(start(ranks, folder / "cases.json", folder, world, program=(DRIVER,), ulfm=True), limit)
        files.append(read_files(folder / one["name"]))
    for rank in range(ranks):
        sights = [folder / f"seen-{world}-{rank}" for world in (0, 1)]
        assert sights[0].exists() == sights[1].exists()
        if not sights[0].exists():
            codes.append(None)
            continue
        first, second = (read_seen(path, files[world] if rank == 0 else {}) for world, path in enumerate(sights))
        codes += first.codes
        found += [f"rank {rank}: {leak}" for leak in leaks(first, second)]
    return codes, found


def leaks_of(verdicts):
    """Return the leaks of a case, with the rank that they are of."""
    return [f"rank {rank}: {leak}" for rank, found in enumerate(verdicts) for leak in found["leaks"]]
