"""Settings that are derived from public facts: the formulas, their limits, and where they end up."""

import math
from itertools import product

import numpy as np
import pytest
from plans import plan_of, settings_of

from dpmpi.algorithms import ALGORITHMS
from dpmpi.errors import ConfigError
from dpmpi.runtime.derived import noise_rate
from dpmpi.runtime.flags import from_text
from dpmpi.runtime.noise_levels import noise_levels

MU = 0.2681  # mu(1, 1e-5), as published
SUM = ("--exchange", "shares", "--graph", "complete", "--noise-in", "sum")


def derived(records, m, *flags):
    """The plan of a run on ranks with so many records, and a model of length m."""
    return plan_of(settings_of("--intercept", "none", *flags), records, m)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize(("flags", "c"), [((), 20**0.5), (SUM, (20 / 19) ** 0.5)])
def test_the_formulas(flags, c, loss):
    for q, m in product((15, 500, 1628, 25_000), (10, 123, 47_236)):
        L, part = {"logistic": (0.5, 1.0), "hinge": (1.0, 0.35)}[loss]
        tau = part * (2 * L * 2 * c / (20 * q * MU)) ** -1.5 * (10 / m) ** 0.5
        T = int(np.clip(np.ceil(np.sqrt(6 * tau / 8)), 10, 100))
        plan = derived([q] * 20, m, "--loss", loss, "--epsilon", 1, *flags)
        assert (plan.rounds, plan.config.lipschitz, plan.config.penalty) == (T, L, "none")
        assert plan.method.beta == pytest.approx(1 - 6 / T, rel=1e-3)
        assert plan.method.eta == pytest.approx(min(8, 6 * tau / T**2), rel=3e-3)


@pytest.mark.parametrize("weigh", ["records", "precision", "ranks"])
@pytest.mark.parametrize("flags", [(), SUM])
def test_the_noise_that_it_reckons_with_is_that_of_the_plan(flags, weigh):
    """(1), (2): the noise of the mean gradient is L nu sqrt(T), so tau tells nu."""
    records, m = [35, 35, 35, 351], 30
    plan = derived(records, m, "--loss", "logistic", "--epsilon", 0.5, "--weigh", weigh, *flags)
    sigmas, n, T, L = noise_levels(plan, cached=False), 4, plan.rounds, plan.lipschitz
    mean = sigmas[0] * math.sqrt(4 / 3) / n if flags else math.hypot(*sigmas) / n
    tau = (2 * mean / math.sqrt(T)) ** -1.5 * math.sqrt(10 / m)
    assert plan.method.flow(plan.terms(0)) == pytest.approx(tau, rel=2e-3)
    assert L == 0.5


def test_weights_by_records_give_all_ranks_the_same_noise():
    plan = derived([35, 35, 35, 351], 30, "--epsilon", 1, "--weigh", "records")
    assert sum(plan.weights) == pytest.approx(4)
    assert plan.weights[3] / plan.weights[0] == pytest.approx(351 / 35)
    assert len(set(noise_levels(plan, cached=False))) == 1
    assert derived([57] * 7, 3, "--epsilon", 1).weights == (1.0,) * 7
    assert derived([35, 351], 3, "--weigh", "ranks").weights == (1.0, 1.0)


@pytest.mark.parametrize("graph", ["ring", "complete"])
@pytest.mark.parametrize(("algorithm", "rounds"), [("admm", 10), ("admm", 3), ("pvp-admm", 1)])
def test_exact_admm_lets_scores_have_a_noise_of_a_half(algorithm, rounds, graph):
    """(5) of consensus_admm.py: rho makes the mean over the ranks of one released model so noisy, and no noisier."""
    flags = ("--algorithm", algorithm, "--rounds", rounds, "--graph", graph, "--mechanism", "gaussian")
    for q, epsilon in product((100, 2000), (0.2, 1.0)):
        plan = derived([q] * 20, 50, "--loss", "logistic", "--epsilon", epsilon, *flags)
        mean = math.hypot(*noise_levels(plan, cached=False)) / 20
        held = plan.method.quadratic(plan.terms(0)) / (plan.method.quadratic(plan.terms(0)) - plan.settings.penalty.l2)
        assert mean * held == pytest.approx(0.5, rel=3e-3)


@pytest.mark.parametrize("n", [2, 20, 2000])
@pytest.mark.parametrize(("algorithm", "rounds"), [("dvp-admm", 1), ("dvp-admm", 10), ("r-admm", 10)])
def test_the_jacobian_uses_up_no_epsilon(algorithm, rounds, n):
    """(6) of objective_perturbation.py."""
    flags = ("--algorithm", algorithm, "--rounds", rounds, "--loss", "logistic")
    for q, epsilon in product((40, 3000), (0.2, 1.0, 5.0)):
        plan = derived([q] * n, 9, "--epsilon", epsilon, *flags)
        terms = plan.terms(0)
        assert plan.method.released(rounds) * plan.method.jacobian(terms) < 0.3 * epsilon


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_recycled_rounds_need_no_room_for_noise(rounds):
    flags = ("--epsilon", 1, "--loss", "logistic", "--rounds")
    free, paid = (derived([500] * 10, 9, "--algorithm", name, *flags, rounds) for name in ("r-admm", "dvp-admm"))
    assert free.method.rho / paid.method.rho == pytest.approx((rounds + 1) // 2 / rounds, rel=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "step", "least", "most"),
    [("ip-admm", 40, 8, 100), ("ldp-admm", 1.6, 100, 1000), ("ldp-gd", 4, 20, 1000), ("hmv-dgd", 8 / 3, 40, 300)],
)
def test_rounds_go_as_far_as_the_noise_allows(algorithm, step, least, most):
    flags, seen = ("--loss", "logistic", "--epsilon", 1, "--algorithm", algorithm, "--graph", "complete"), set()
    for q, m in product((5, 100, 500, 2000), (10, 20_000)):
        tau = (4 * 20**0.5 / (40 * q * MU)) ** -1.5 * (10 / m) ** 0.5
        plan = derived([q] * 20, m, *flags)
        assert plan.rounds == pytest.approx(np.clip(tau / step, least, most), rel=2e-3, abs=1)
        assert plan.settings.penalty.l2 == pytest.approx(1 / tau, rel=2e-3)
        seen.add(plan.rounds)
    assert {least, most} <= seen
    assert derived([500] * 20, 10, *flags[:2], *flags[4:]).rounds == {"ip-admm": 8, "hmv-dgd": 40}.get(algorithm, 100)


@pytest.mark.parametrize(("q", "m"), [(20, 10), (200, 100), (2000, 10)])
def test_geometric_steps_go_as_far_as_the_noise_allows(q, m):
    """(8) of hmv_dgd.py."""
    plan = derived([q] * 20, m, "--loss", "logistic", "--epsilon", 1, "--algorithm", "hmv-dgd")
    steps, scales = plan.method.plan(plan.terms(0))
    tau = 1 / plan.settings.penalty.l2
    assert steps[0] == pytest.approx(2 / (0.25 + 2 / tau), rel=1e-3)  # the penalty shortens it
    reach = steps[0] * min(max(tau / 8, 2), plan.rounds / 3)
    assert 0.94 * reach < steps.sum() < 1.01 * reach
    assert np.allclose(scales**2, steps / steps[0])


def test_rcd_has_ten_blocks_and_enough_passes():
    def rounds(*flags):
        return derived([500] * 20, 105, "--loss", "logistic", "--algorithm", "rcd", "--graph", "complete", *flags)

    plan = rounds("--epsilon", 1)
    passes = math.ceil(1 / plan.settings.penalty.l2 / 4)
    assert (plan.rounds, plan.width) == (10 * min(passes, 200), 11)
    assert rounds("--epsilon", 0.2).rounds < rounds("--epsilon", 5).rounds == 2000
    assert rounds("--epsilon", 0.01).rounds == 100
    assert rounds("--epsilon", 5, "--coordinates", 1).rounds == 200 * 105


@pytest.mark.parametrize("records", [[35, 35, 35, 351], [300, 290, 120, 200], [1000], [20] * 19 + [2000]])
def test_weights_by_precision_have_the_least_noise_and_never_more_than_a_rank_alone(records):
    def nu(weigh, counts=records):
        settings = derived(counts, 30, "--epsilon", 1, "--weigh", weigh).settings
        return noise_rate(settings, counts, 0.5)

    assert nu("precision") == pytest.approx(2 / MU / math.hypot(*records), rel=1e-3)
    assert nu("precision") <= min(nu("records"), nu("ranks"), nu("records", [max(records)])) * (1 + 1e-12)
    plan = derived(records, 30, "--epsilon", 1, "--weigh", "precision")
    assert sum(plan.weights) == pytest.approx(len(records))
    parts = np.array(plan.weights) / len(records)
    assert np.sum(parts**2 / records) <= (1 + 1e-12) / max(records)  # the variance of sampling
    sigmas = np.array(noise_levels(plan, cached=False))  # of the weighted gradients: ~ w_i / q_i
    np.testing.assert_allclose(sigmas / sigmas[0], np.array(records) / records[0], rtol=1e-5)


def test_automatic_weights_follow_the_noise():
    records = [35, 35, 35, 351]
    for flags, weigh in (
        (("--epsilon", 1), "precision"),
        (("--epsilon", 1, *SUM), "records"),
        (("--noise", 1), "records"),
        ((), "records"),
    ):
        plan, given = derived(records, 30, *flags), derived(records, 30, *flags, "--weigh", weigh)
        assert plan.config.weigh == weigh
        assert plan.config.digest() == given.config.digest()
        assert plan.derivation().endswith(", weights by precision") == (weigh == "precision")
        assert "weights" not in given.derivation()
    even = [derived([57] * 7, 3, "--epsilon", 1, "--weigh", weigh) for weigh in ("auto", "records", "precision")]
    assert len({plan.weights for plan in even}) == 1
    assert "weights" not in even[0].derivation()


def test_more_records_or_a_larger_epsilon_never_go_less_far():
    def far(q, epsilon):
        plan = derived([q] * 20, 50, "--loss", "logistic", "--epsilon", epsilon, "--delta", 1e-7)
        return plan.method.flow(plan.terms(0))

    reach = [far(q, 1.0) for q in (5, 50, 500, 5000, 50_000)]
    assert reach == sorted(reach)
    reach = [far(500, epsilon) for epsilon in (0.1, 0.2, 1.0, 5.0)]
    assert reach == sorted(reach)


def test_noise_in_the_sum_with_all_but_one_colluding_is_local_noise():
    flags = ("--epsilon", 1)
    one, other = derived([450] * 20, 9, *flags), derived([450] * 20, 9, *flags, *SUM, "--colluders", 19)
    assert (one.rounds, one.method) == (other.rounds, other.method)


def test_what_is_given_stays():
    flags = ("--rounds", 77, "--eta", 0.1234567, "--beta", 0.2, "--lipschitz", 3, "--penalty", "l2:0.1", "--mixes", 2)
    plan = derived([500] * 20, 68, "--epsilon", 1, *flags)
    assert (plan.rounds, plan.method.eta, plan.method.beta, plan.method.mixes) == (77, 0.1234567, 0.2, 2)
    assert (plan.lipschitz, plan.settings.penalty.l2) == (3.0, 0.1)
    assert plan.derivation() is None


def test_auto_is_what_is_not_given():
    words = ("rounds", "lipschitz", "penalty", "beta", "eta", "mixes", "closing-mixes")
    flags = [word for name in words for word in (f"--{name}", "auto")]
    one, other = derived([500] * 20, 68, "--epsilon", 1), derived([500] * 20, 68, "--epsilon", 1, *flags)
    assert one.config.digest() == other.config.digest()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_config_toml_holds_what_was_derived_and_gives_the_same_plan(algorithm, tmp_path):
    graph = "complete" if algorithm in ("ldp-gd", "rcd", "dp-admm") else "ring"
    data = ("--data", "mean:samples=900") if algorithm == "one-shot" else ("--loss", "logistic")
    settings = settings_of("--algorithm", algorithm, "--graph", graph, "--epsilon", 1, *data)
    plan = plan_of(settings, [30, 30, 40], 8)
    plan.check()
    text = plan.config.to_toml()
    again = from_text(text, tmp_path / "config.toml", {})
    assert again.digest() == plan.config.digest()
    assert "None" not in text
    assert (again.rounds, again.penalty) == (plan.rounds, plan.config.penalty)
    assert "auto" not in (again.penalty, again.batch, again.intercept)
    second = plan_of(settings_of("--config", write(tmp_path, text)), [30, 30, 40], 8)
    assert [second.terms(rank) for rank in range(3)] == [plan.terms(rank) for rank in range(3)]
    parts, found_again = filter(None, (second.derivation() or "").split(", ")), plan.method.counts(plan.terms(0))
    assert all(any(name in part for name in found_again) for part in parts)


def test_an_automatic_batch_is_full_where_a_method_needs_all_records():
    for algorithm, batch in (("admm", "full"), ("rcd", "full"), ("dp-dda", "poisson:6")):
        graph = "complete" if algorithm == "rcd" else "ring"
        flags = ("--algorithm", algorithm, "--graph", graph, "--loss", "logistic", "--rounds", 500, "--batch", "auto")
        plan = derived([300] * 4, 8, "--epsilon", 1, *flags)
        plan.check()
        assert plan.config.batch == batch


def test_automatic_mixes_are_one_where_edges_change():
    flags = ("--algorithm", "sampled-dda", "--epsilon", 1, "--mixes", "auto", "--closing-mixes", "auto")
    plan = derived([300] * 4, 8, *flags)
    plan.check()
    assert (plan.method.mixes_per_release(plan.terms(0)), plan.method.mixes_at_the_end(plan.terms(0))) == (1, 0)
    with pytest.raises(ConfigError, match="for sampled edges take sampled-dda with --mixes 1"):
        derived([300] * 4, 8, *flags[:4], "--mixes", 2).check()


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("dgd", "step 3.488"),
        ("ldp-gd", "step 1.75"),
        ("rcd", "curvature 0.25"),
        ("ip-admm", "rho 0.007844, eta 0.1439 to 0.5724"),
        ("dp-admm", "rho 0.03138, eta 0.07193 to 0.2862"),
        ("ldp-admm", "damping 1.431, zeta 0.3578, noise-growth 1, weights by precision"),
    ],
)
def test_what_methods_find_by_themselves_is_in_the_derivation(algorithm, words):
    graph = "complete" if algorithm in ("ldp-gd", "rcd", "dp-admm") else "ring"
    flags = ("--algorithm", algorithm, "--graph", graph, "--loss", "logistic", "--epsilon", 1)
    assert words in derived([300, 300, 300, 600], 8, *flags, "--penalty", "l2:0.001").derivation()


def write(folder, text):
    (folder / "config.toml").write_text(text)
    return folder / "config.toml"


def test_the_derivation_in_words():
    plan = plan_of(settings_of("--loss", "logistic", "--epsilon", 1), [497] * 20, 69)
    assert plan.derivation() == "39 rounds, beta 0.8462, eta 7.719, clip 0.5, 13 mixes"


def test_an_intercept_is_a_number_none_or_auto():
    assert settings_of("--intercept", "0.5").constant == 0.5
    assert settings_of().dimension(7) == 8
    assert settings_of("--intercept", "none").dimension(7) == 7
    for wrong in ("-1", "0", "nan", "much"):
        with pytest.raises(ConfigError, match="expected --intercept auto, none or a number above 0"):
            settings_of("--intercept", wrong)
    with pytest.raises(ConfigError, match="expected no --intercept for points without labels"):
        settings_of("--data", "mean", "--intercept", "0.3")
