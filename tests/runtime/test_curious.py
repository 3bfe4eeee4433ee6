"""What curious ranks learn: real messages go on as the theorem needs, every condition has its reason, the figures."""

import json

import numpy as np
import pytest

from dpmpi.algorithms.dda import Dda, DpDda, SampledDda
from dpmpi.algorithms.dgd import Dgd, DpDgd
from dpmpi.algorithms.hmv_dgd import HmvDgd
from dpmpi.algorithms.momentum import Momentum
from dpmpi.commands.dispatch import main
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.runtime.curious import MODELS, parse_curious
from dpmpi.testing import random_shards, simulate
from dpmpi.testing.simulation import Tap, noisy

RANKS, ROUNDS, U = 6, 12, 3
PENALTY = Regulariser(l2=0.05)


def said(method, shards, loss):
    """All messages of a run under noise that is the same for every shard: an array by round and rank, and the terms."""
    tap = Tap(LoopbackTransport(RANKS))
    named = {"graph": "path", "loss": loss, "penalty": PENALTY, "mechanism": noisy("gaussian"), "transport": tap}
    engine = simulate(method, shards, ROUNDS, **named)
    found = np.zeros((ROUNDS + 1, RANKS, shards[0][0].dimension))
    for rank, t, _, message in tap.heard:
        found[t, rank] = np.frombuffer(message)[: found.shape[2]]
    return found, engine.seats[U].agent.terms, engine.algorithm


def excess(method, loss):
    """How far two worlds differ beyond |W| c(t-1) + b_t e_u, (5) of network_privacy.py, in the worst message."""
    worst = -np.inf
    for seed in range(4):
        shards = random_shards(RANKS, 3, 4, seed)
        rows, labels = shards[U]
        other = rows.matrix.copy()
        other[0] = -other[0]
        changed = [*shards[:U], (Dense(other), labels), *shards[U + 1 :]]
        (one, terms, used), (two, _, _) = (said(method, world, loss) for world in (shards, changed))
        distance = np.linalg.norm(one - two, axis=2)
        W = mixing_matrix(make_graph("path", RANKS, 0), "metropolis")
        sensitivities = [r.sensitivity for r in used.releases(terms) for _ in range(r.count)]
        try:
            weights = used.gossip(terms).weights
        except ConfigError:
            weights = np.ones(ROUNDS)
        for t in range(1, ROUNDS + 1):
            allowed = W @ distance[t - 1]
            allowed[U] += weights[t - 1] * sensitivities[t - 1]
            worst = max(worst, float(np.max(distance[t] - allowed)))
        assert distance[ROUNDS, 0] > 0  # the record has come to the end of the path
    return worst


STEPS = {"step": 1.9, "step_decay": "constant"}


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize(
    "method",
    [Dgd(**STEPS), Dgd(step=1.0), HmvDgd(step=1.0, step_ratio=0.95), DpDda(gamma=10.0), Dda(gamma=1.0)],
    ids=["dgd-constant", "dgd", "hmv-dgd", "dp-dda", "dda"],
)
def test_real_messages_go_on_as_the_theorem_needs(method, loss):
    assert excess(method, loss) <= 1e-9


@pytest.mark.parametrize(
    "method", [Dgd(step=4.0, step_decay="constant"), Momentum(mixes=1, closing_mixes=0, eta=1.9, beta=0.9)]
)
def test_messages_of_what_is_refused_do_not(method):
    """Steps beyond 2 over the curvature, and momentum."""
    assert excess(method, "squared") > 0.01


def terms_of(method, loss="logistic", penalty=PENALTY, **named):
    engine = simulate(method, random_shards(4, 5, 3, 0), ROUNDS, loss=loss, penalty=penalty, **named)
    return engine.algorithm, engine.seats[0].agent.terms


@pytest.mark.parametrize(
    ("method", "named", "reason"),
    [
        (Momentum(), {}, "earlier rounds"),
        (SampledDda(gamma=50.0), {}, "edges are sampled"),
        (Dgd(mixes=3), {}, "no fresh noise .--mixes"),
        (DpDda(gamma=50.0, closing_mixes=2), {}, "no fresh noise .--mixes"),
        (DpDgd(), {}, "--consensus-rounds"),
        (Dgd(), {"penalty": Regulariser(l1=0.1, l2=0.1)}, "l2 alone"),
        (DpDda(gamma=50.0), {"penalty": Regulariser(l2=0.1, ball=2.0)}, "l2 alone"),
        (DpDda(gamma=50.0), {"loss": "hinge"}, "no bound"),
        (Dgd(step=9.0), {}, "a smaller --step"),
        (DpDda(gamma=0.1), {"penalty": Regulariser()}, "above 2 .--gamma 1.50"),
    ],
)
def test_methods_say_why_they_do_not(method, named, reason):
    method, terms = terms_of(method, **named)
    with pytest.raises(ConfigError, match=reason):
        method.gossip(terms)


def test_dual_averaging_needs_the_gamma_that_it_names():
    method, terms = terms_of(DpDda(gamma=0.1), penalty=Regulariser())
    with pytest.raises(ConfigError) as raised:
        method.gossip(terms)
    enough = float(str(raised.value).rsplit("--gamma ", 1)[1].rstrip(")"))
    assert list(DpDda(gamma=enough).gossip(terms).weights) == list(range(1, ROUNDS + 1))
    with pytest.raises(ConfigError):
        DpDda(gamma=0.99 * enough).gossip(terms)


GOOD = {"algorithm": "dgd", "loss": "logistic", "batch": "full", "rounds": 500, "step-decay": "constant", "epsilon": 1}
ON = ("--seal", "--no-evaluate")


def plan(capsys, flags=None, on=ON, curious="0", ranks=20):
    words = ["plan", "--json", f"--ranks={ranks}", "--samples-per-rank=20000", "--dimension=50", f"--curious={curious}"]
    given = GOOD | (flags or {})
    assert main([*words, *(f"--{k}={v}" for k, v in given.items() if v is not None), *on]) == 0
    return json.loads(capsys.readouterr().out)


def test_figures_of_a_plan(capsys):
    """Ring of 20: 1.0, .52, .39 at one, two, three hops, .20 at ten; a little more with the models at the end."""
    found = plan(capsys)
    told, (one,) = found["curious"], found["curious"]["sets"]
    assert told["reasons"] == []
    assert told["models"] is None
    assert told["wire"] == [pytest.approx(1.0, rel=1e-5)] * 20
    assert one["hops"][:4] + one["hops"][10:11] == [0, 1, 2, 3, 10]
    assert one["epsilon"][0] is None
    messages, models = one["epsilon_of_messages"], one["epsilon"]
    assert [messages[k] for k in (1, 2, 3, 10)] == pytest.approx([1.0, 0.52, 0.39, 0.20], abs=0.006)
    assert [models[k] for k in (1, 2, 3, 10)] == pytest.approx([1.0, 0.521, 0.401, 0.279], abs=0.002)
    assert found["sigma"] == plan(capsys, on=("--no-evaluate",))["sigma"]  # it never lowers the noise


@pytest.mark.parametrize(
    ("place", "colluders", "curious"), [("sum", 1, "3,4"), ("sum", 0, "3"), ("pairs", 1, "2,4"), ("pairs", 0, "2")]
)
def test_nothing_is_proven_of_more_ranks_than_shared_noise_is_made_for(capsys, place, colluders, curious):
    """They know their part of it: between two curious neighbours on a ring a rank has nothing but its own."""
    shares = ("--exchange=shares",) if place == "sum" else ()
    on = (*ON, *shares, f"--noise-in={place}", f"--colluders={colluders}")
    told = plan(capsys, on=on, curious=curious, ranks=9)["curious"]
    assert told["sets"][0]["epsilon"] == told["sets"][0]["epsilon_of_messages"] == [None] * 9
    assert "nothing is proven" in told["unproven"]
    assert told["unproven"] in told["reasons"]
    two = (*ON, *shares, f"--noise-in={place}", "--colluders=2")
    enough = plan(capsys, on=two, curious=curious, ranks=9)["curious"]
    assert enough["unproven"] is None
    assert [epsilon for epsilon in enough["sets"][0]["epsilon"] if epsilon is not None] == pytest.approx(
        [1.0] * (9 - len(curious.split(","))), rel=1e-4
    )


def test_a_set_learns_no_less_than_its_members(capsys):
    both, first = (plan(capsys, curious=who, ranks=9)["curious"]["sets"][0]["epsilon"] for who in ("0,4", "0"))
    assert both[0] is both[4] is None
    assert all(both[k] >= first[k] * (1 - 1e-9) for k in (1, 2, 3, 5, 6, 7, 8))
    assert both[6] > 1.05 * first[6]


def test_unequal_steps_and_noise_are_covered_too(capsys):
    """Falling steps and noise, the default of dgd with a penalty."""
    found = plan(capsys, {"step-decay": "harmonic", "penalty": "l2:0.01"})["curious"]
    assert found["reasons"] == []
    assert max(found["sets"][0]["epsilon"][2:19]) < 0.9


def test_models_of_dual_averaging_are_as_the_wire(capsys):
    found = plan(capsys, {"algorithm": "dp-dda", "step-decay": None})["curious"]
    (one,) = found["sets"]
    assert found["models"] == MODELS
    assert one["epsilon"][1:] == found["wire"][1:]
    assert one["epsilon_of_messages"][2] < 0.52


@pytest.mark.parametrize(
    ("flags", "on", "reason"),
    [
        ({}, ("--no-evaluate",), "not sealed"),
        ({"wire": "float32"}, ON, "rounding on the wire"),
        ({"batch": "256", "rounds": 5}, ON, "batches are drawn"),
        ({}, ("--seal",), "evaluations tell all ranks more"),
        ({}, (*ON, "--reference"), "reference solver"),
        ({"insecure-noise-seed": 1}, ON, "repeatable"),
        ({"budget": 2}, ON, "budget is spent"),
        ({"epsilon": None}, ON, "no message has Gaussian noise"),
        ({"algorithm": "hmv-dgd", "step-decay": None}, ON, "no message has Gaussian noise"),
        ({"loss": "hinge"}, ON, "curvature of the loss has no bound"),
        (
            {"noise-in": "pairs", "pair-noise": 3, "algorithm": "dp-dda", "step-decay": None},
            ON,
            "noise that neighbours share comes back",
        ),
        ({"loss": "softmax", "classes": "a,b,c", "lipschitz": 0.5}, ON, "of no convex function"),
        (
            {"algorithm": "dp-dda", "step-decay": None, "graph": "complete", "exchange": "shares", "noise-in": "sum"},
            ON,
            "sums over all ranks",
        ),
        ({"algorithm": "momentum", "step-decay": None}, ON, "earlier rounds"),
    ],
)
def test_every_condition_has_its_reason_and_the_wire_figure(capsys, flags, on, reason):
    found = plan(capsys, flags, on)["curious"]
    assert any(reason in why for why in found["reasons"])
    (one,) = found["sets"]
    assert one["epsilon"][1:] == one["epsilon_of_messages"][1:] == found["wire"][1:]


def test_the_table(capsys):
    words = [f"--{k}={v}" for k, v in GOOD.items()]
    common = ["plan", "--ranks=6", "--samples-per-rank=20000", "--dimension=50", *words, "--no-evaluate"]
    assert main([*common, "--seal", "--curious=3,4"]) == 0
    table = capsys.readouterr().out
    assert "ranks 3, 4 curious: epsilon at delta 1e-05" in table
    assert table.count("\n") > 15
    assert main([*common, "--curious=3"]) == 0
    assert "the wire's figure, because messages are not sealed" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "6", "-1", "1,1", "0,1,2,3,4,5", "x", "1,", "1e9", "99999999999"])
def test_ranks_that_are_none(text):
    with pytest.raises(ConfigError, match="for --curious, found"):
        parse_curious(text, 6)


def test_ranks_are_sorted():
    assert parse_curious("4,1", 6) == (1, 4)
    assert gdp_mu(1.0, 1e-5) == pytest.approx(0.2681, abs=1e-4)
