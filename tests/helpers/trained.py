"""What the ranks of tests/api/test_train.py do: functions for `dpmpi.launch`."""

import numpy as np

import dpmpi

SEEDED = {"loss": "logistic", "epsilon": 1.0, "insecure_noise_seed": 3}


def shards(agents=4):
    draw = np.random.default_rng(0)
    X = draw.standard_normal((240, 6))
    return dpmpi.split(X, (X @ draw.standard_normal(6) > 0).astype(int), agents)


def mine():
    return shards(dpmpi.ranks())[dpmpi.rank()]


def told(value):
    """The values of all ranks."""
    from mpi4py import MPI  # noqa: PLC0415 - importing initialises MPI

    return MPI.COMM_WORLD.allgather(value)


def attempt(*arrays, **settings):
    try:
        result = dpmpi.train(*arrays, **settings)
    except dpmpi.DpmpiError as error:
        return f"{type(error).__name__}: {error}"
    return result.path.name


def whole(out):
    """Train once; return the result of the first rank, and the rank and model of all."""
    heard = []
    result = dpmpi.train(*mine(), **SEEDED, out=out, evaluate=9, callback=lambda kind, _: heard.append(kind))
    facts = {"rank": result.rank, "ledger": result.ledger.name, "epsilon": result.privacy.epsilon}
    facts |= {"x": result.model.x.tolist(), "rounds": heard.count("round"), "ends": heard.count("end")}
    return result, told(facts)


def refusals(out):
    """What all ranks are told when one of them cannot do what it is asked for."""
    X, y = mine()
    rank = dpmpi.rank()
    bad = np.where(np.arange(len(y)) == 5, np.nan, y) if rank == 1 else y
    found = {
        "typed by all": attempt(X, y, epsilonn=1.0),
        "typed by one": attempt(X, y, **SEEDED | ({"epsilon": -1.0} if rank == 2 else {}), out=out),
        "other settings": attempt(X, y, **SEEDED | {"seed": rank // 3}, out=out),
        "a bad label": attempt(X, bad, **SEEDED, out=out),
        "a narrow matrix": attempt(X[:, : 6 - (rank == 3)], y, **SEEDED, out=out),
        "well": attempt(X, y, **SEEDED, rounds=3, out=out),
    }
    return told(found)


def halves(out):
    """Train in two groups at once, on communicators of their own; a message of the user's travels meanwhile."""
    from mpi4py import MPI  # noqa: PLC0415 - importing initialises MPI

    world, rank = MPI.COMM_WORLD, dpmpi.rank()
    comm = world.Split(rank % 2, rank)
    buffer, note = np.zeros(1), np.array([float(rank)])
    requests = [comm.Irecv(buffer, 1 - comm.rank, 0), comm.Isend(note, 1 - comm.rank, 0)]
    found = dpmpi.train(*shards(2)[comm.rank], **SEEDED, comm=comm, out=f"{out}-{rank % 2}")
    MPI.Request.Waitall(requests)
    return told((found.model.x.tolist(), float(buffer[0])))


def often(out, times):
    """Train many times in one process: what MPI keeps for a run is given back."""
    X, y = mine()
    return [attempt(X, y, **SEEDED, rounds=1, out=out) for _ in range(times)][-1]


def unnamed():
    """Train twice within a second, without a name for the directory."""
    return [attempt(*mine(), **SEEDED, rounds=1) for _ in range(2)]


def stopped(out):
    """Stop a run from outside, and go on with the same arrays; return why it stopped, and the model."""
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415

    def stop(kind, figures):
        if figures.get("round") == 5 and dpmpi.rank() == 2:
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.getsignal(signal.SIGTERM)
    settings = SEEDED | {"rounds": 400, "checkpoint_every": "2", "out": out}
    why = attempt(*mine(), **settings, callback=stop)
    result = dpmpi.train(*mine(), resume=out)
    return told((why, result.model.x.tolist(), signal.getsignal(signal.SIGTERM) == before))


def alone(where, out):
    """Fail on one rank alone: in a round, or before the run."""

    def callback(kind, figures):
        if where == "round" and dpmpi.rank() == 3 and figures.get("round") == 4:
            raise ZeroDivisionError("of my own")

    if where == "before" and dpmpi.rank() == 1:
        raise LookupError("no such table")
    dpmpi.train(*mine(), **SEEDED, callback=callback, out=out)


def answer(*args, **kwargs):
    print(f"rank {dpmpi.rank()} speaks")
    return dpmpi.rank(), dpmpi.ranks(), args, kwargs


def forever():
    import time  # noqa: PLC0415

    time.sleep(1000)


def estimator(out):
    """Fit an estimator on this rank's records; return what all ranks found."""
    from mpi4py import MPI  # noqa: PLC0415 - importing initialises MPI

    from dpmpi.sklearn import PrivateLogisticRegression  # noqa: PLC0415

    model = PrivateLogisticRegression(
        bounds=4.0, classes=[0, 1], graph="ring", insecure_noise_seed=3, comm=MPI.COMM_WORLD, out=out
    )
    X, y = mine()
    return told({"coef": model.fit(X, y).coef_.tolist(), "score": model.score(X, y)})
