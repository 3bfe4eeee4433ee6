"""The noise in coefficients: what is said beforehand against what noise does to whole runs, and closed forms."""

import math

import numpy as np
import pytest
from plans import plan_of, settings_of

import dpmpi
from dpmpi.algorithms import ALGORITHMS
from dpmpi.data.shards import write_npz
from dpmpi.problem.rows import Dense
from dpmpi.run import main
from dpmpi.runtime.output import coefficient_noise
from dpmpi.runtime.output.coefficient_noise import mean_model_noise

RANKS, FEATURES, ROUNDS = 4, 400, 24


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Rows so short that no score comes near the hinge's kink: gradients are the same at every model."""
    folder = tmp_path_factory.mktemp("shards")
    draw = np.random.default_rng(0)
    for rank in range(RANKS):
        count = 10 + 5 * rank
        X = draw.standard_normal((count, FEATURES))
        X *= 1e-6 / np.linalg.norm(X, axis=1, keepdims=True)
        write_npz(folder / f"{rank}.npz", Dense(X), draw.choice([-1.0, 1.0], count))
    return folder


def trained(shards, out, *flags):
    words = ["--loopback", RANKS, "--data", f"shards:{shards}/{{rank}}.npz", "--rounds", ROUNDS, "--quiet"]
    words += ["--delta", 1e-2, "--insecure-noise-seed", 3, "--lipschitz", 1, "--out", out, *flags]
    assert main(list(map(str, words))) == 0
    return dpmpi.Model.load(out)


SHARES = ("--exchange", "shares", "--noise-in", "sum", "--graph", "complete")
CASES = {
    "momentum": ("--algorithm", "momentum", "--eta", 0.5),
    "momentum, many mixes": ("--algorithm", "momentum", "--eta", 0.5, "--mixes", 3, "--closing-mixes", 2),
    "momentum in the sum": ("--algorithm", "momentum", "--eta", 0.5, *SHARES),
    "dp-dda": ("--algorithm", "dp-dda", "--gamma", 4),
    "dda": ("--algorithm", "dda", "--gamma", 2, "--penalty", "l2:0.3"),
    "dda in the sum": ("--algorithm", "dda", "--gamma", 2, *SHARES, "--colluders", 2),
    "sampled-dda": ("--algorithm", "sampled-dda", "--gamma", 4, "--penalty", "l2:0.1"),
    "dgd": ("--algorithm", "dgd", "--step", 0.5, "--penalty", "l2:0.1"),
    "hmv-dgd": ("--algorithm", "hmv-dgd", "--step", 0.5, "--mechanism", "laplace"),
    "dp-dgd": ("--algorithm", "dp-dgd", "--step", 0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_is_what_noise_does_to_runs_with_fixed_gradients(shards, tmp_path, name):
    flags = (*CASES[name], "--intercept", "none")
    noisy = trained(shards, tmp_path / "noisy", *flags, "--noise", 0.3)
    quiet = trained(shards, tmp_path / "quiet", *flags)
    moved = (noisy.coefficients - quiet.coefficients)[:, 0]
    assert noisy.noise_std[1] == 0.0
    assert np.sqrt(np.mean(moved**2)) == pytest.approx(noisy.noise_std[0], rel=4.0 / math.sqrt(2 * FEATURES))
    assert noisy.noise_note.startswith("at most about this standard deviation")
    assert "gradients held fixed; later rounds take part of it back" in noisy.noise_note
    assert "exact" not in noisy.noise_note
    assert quiet.noise_std == (0.0, 0.0)


def test_later_gradients_take_part_of_the_noise_back(tmp_path):
    """On steep records the figure is a bound: over many runs coefficients have less noise than it, here under half."""
    draw, count = np.random.default_rng(1), 200
    parts = []
    for _ in range(RANKS):
        X = draw.standard_normal((count, 4))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        parts.append((X, np.clip(X @ [0.5, -0.5, 0.2, 0.0], -1.0, 1.0)))
    how = {"algorithm": "momentum", "eta": 1.0, "loss": "squared", "label_range": (-1, 1), "intercept": "none"}
    how |= {"rounds": 60, "noise": 0.05, "delta": 1e-5, "batch": "full", "evaluate": 0}
    models = [dpmpi.simulate(parts, **how, insecure_noise_seed=seed).model for seed in range(12)]
    observed = np.sqrt(np.mean(np.var([model.coefficients[:, 0] for model in models], axis=0, ddof=1)))
    assert 0.02 * models[0].noise_std[0] < observed < 0.5 * models[0].noise_std[0]


def test_every_method_that_says_it_is_linear_is_tested():
    tested = {flags[1] for flags in CASES.values()}
    assert {name for name, method in ALGORITHMS.items() if method.linear} == tested


def test_a_method_that_is_not_as_linear_as_it_says_ends_all_the_same(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(ALGORITHMS["ip-admm"], "linear", True)
    model = trained(shards, tmp_path / "run", "--algorithm", "ip-admm", "--noise", 0.3)
    assert "not known: expected a linear method to mix in place" in model.noise_note


def test_draws_agree_with_the_exact_figure(monkeypatch):
    plan = plan_of(settings_of("--rounds", 30, "--algorithm", "dp-dda", "--gamma", 3, "--noise", 1), [50] * 6, 8)
    exact = mean_model_noise(plan, [0.5] * 6)
    monkeypatch.setattr(coefficient_noise, "MOST_EXACT", 0)
    assert mean_model_noise(plan, [0.5] * 6) == pytest.approx(exact, rel=0.06)


def test_momentum_has_its_closed_form():
    T, beta, eta, n, sigma = 20, 0.7, 0.25, 5, 2.0
    flags = ("--rounds", T, "--algorithm", "momentum", "--beta", beta, "--eta", eta, "--noise", sigma)
    plan = plan_of(settings_of(*map(str, flags)), [50] * n, 8)
    k = eta * (1.0 - beta ** np.arange(T, 0, -1)) / (1.0 - beta)
    assert mean_model_noise(plan, [sigma] * n) == pytest.approx(sigma / math.sqrt(n) * np.sqrt(np.sum(k**2)))


def test_the_intercept_has_the_noise_of_its_own_column(shards, tmp_path):
    model = trained(shards, tmp_path / "run", "--algorithm", "momentum", "--eta", 0.5, "--noise", 0.3)
    assert model.noise_std[1] == pytest.approx(0.3 * model.noise_std[0])


UNKNOWN = {
    "is not a linear function of its releases": ("--algorithm", "ip-admm"),
    "with another penalty than l2, or a domain": ("--algorithm", "dda", "--gamma", 1, "--penalty", "l1:0.01"),
    "ran out of its budget": ("--algorithm", "dda", "--gamma", 1, "--budget", 1),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_what_is_not_known_is_not_said(shards, tmp_path, why):
    model = trained(shards, tmp_path / "run", *UNKNOWN[why], "--noise", 0.3)
    assert model.noise_std is None
    assert why in model.noise_note
    assert all(row.noise is None for row in model.coefficient_table())
