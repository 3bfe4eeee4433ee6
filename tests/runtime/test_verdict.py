"""The verdict before a run: its thresholds, what it names, and that what would do does."""

import math
import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from plans import plan_of, settings_of

from dpmpi.algorithms import ALGORITHMS
from dpmpi.commands.report.headline import _expectations
from dpmpi.errors import ConfigError
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.problem.losses import LOSSES
from dpmpi.run import main
from dpmpi.runtime.derived import noise_rate
from dpmpi.runtime.expectation import expected, released_noise
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.verdict import (
    MOST_NOISE,
    WEAK_NOISE,
    Figures,
    hardness,
    no_better_than_majority,
    verdict,
    worse_than_nothing,
)

ORDER = ("good", "weak", "mostly noise")


def figures(N=10_000, epsilon=1.0, m=100, n=20, **more):
    nu = 2 * math.sqrt(n) / (N * gdp_mu(epsilon, 1e-5))
    return Figures(n, N, N // n, m, 0.5, nu, epsilon=epsilon, **more)


def planned(flags, records, columns):
    """Return the plan of a run of 20 ranks with logistic loss, and its noise."""
    plan = plan_of(settings_of("--loss", "logistic", *flags.split()), [records // 20] * 20, columns)
    return plan, noise_levels(plan)


def foretold(flags, records=10_000, columns=69):
    return expected(*planned(flags, records, columns))


def words(many):
    return [ORDER.index(verdict(each).word) for each in many]


def test_more_records_and_a_larger_epsilon_are_never_worse():
    by_records = words(figures(N) for N in (100, 200, 300, 500, 700, 2000, 100_000))
    by_epsilon = words(figures(500, epsilon) for epsilon in (0.1, 0.2, 0.7, 1.0, 2.0, 5.0, 20.0))
    for found in (by_records, by_epsilon):
        assert found == sorted(found, reverse=True)
        assert set(found) == {0, 1, 2}


def test_more_columns_rarer_classes_and_longer_ways_are_never_better():
    assert words(figures(1500, m=m) for m in (5, 5000, 500_000)) == [0, 1, 2]
    assert words(figures(share=share) for share in (0.5, 0.2, 0.05)) == [0, 0, 2]
    assert words(figures(flow=r * 500.0, advised=500.0) for r in (0.09, 1.0, 9.0, 11.0)) == [0, 0, 0, 2]


@pytest.mark.parametrize("share", [None, 0.3])
def test_the_words_change_at_the_thresholds(share):
    unit = hardness(replace(figures(share=share), nu=1.0))
    at = [replace(figures(share=share), nu=F / unit) for F in (0.99 * WEAK_NOISE, 1.01 * WEAK_NOISE, 1.01 * MOST_NOISE)]
    assert words(at) == [0, 1, 2]


def test_the_flagship_of_the_first_edition_is_mostly_noise_before_it_starts():
    """dp-dda, hinge, 2000 records of 100 columns, epsilon 0.2 in the sum: it ended at objective 13, zeros have 1."""
    nu = 2 * math.sqrt(20 / 19) / (2000 * gdp_mu(0.2, 1e-5))
    assert nu == pytest.approx(0.0177, rel=0.06)
    flagship = Figures(20, 2000, 100, 100, 1.0, nu, flow=1000.0, advised=17.0, epsilon=0.2)
    found = verdict(flagship)
    assert found.word == "mostly noise"
    assert "58.8 times" in found.line
    assert "auto" in found.line
    assert verdict(replace(flagship, flow=17.0)).word == "good"  # the settings are at fault, not the noise
    assert worse_than_nothing(LOSSES["hinge"].at_zero, 13.0) is not None


def test_a_run_that_stops_before_a_rare_class_shows_is_weak():
    rare = figures(1_000_000, share=0.1, flow=400.0, advised=13_333.0)
    assert verdict(rare).word == "weak"
    assert verdict(replace(rare, flow=13_333.0)).word == "good"
    assert verdict(replace(rare, share=None)).word == "good"


@pytest.mark.parametrize("N", [100, 300, 500])
def test_what_would_do_does(N):
    before = figures(N)
    found = verdict(before)
    assert found.word != "good"
    records, epsilon = found.figures["records_that_would_do"], found.figures["epsilon_that_would_do"]
    assert verdict(figures(records)).word == "good"
    assert verdict(figures(int(records * 0.85))).word != "good"  # two digits, no more than needed
    assert verdict(figures(N, epsilon)).word == "good"
    assert verdict(figures(N, 0.85 * epsilon)).word != "good"
    assert f"{records:,} records" in found.line
    assert f"epsilon {epsilon:.2g}" in found.line


def test_noise_that_is_given_falls_with_neither_records_nor_epsilon():
    found = verdict(replace(figures(300, share=0.5), epsilon=None))
    assert found.figures["records_that_would_do"] is found.figures["epsilon_that_would_do"] is None
    less = float(re.search(r"noise ([\d.]+) times smaller would do$", found.line).group(1))
    assert verdict(replace(figures(300), nu=figures(300).nu / (1.05 * less))).word == "good"
    assert verdict(replace(figures(300), nu=1.1 * figures(300).nu / less)).word == "weak"


def test_what_would_do_says_that_nobody_declared_a_share():
    assert verdict(replace(figures(300), share=None)).line.endswith("would do if classes are even")
    assert verdict(figures(300, share=0.5)).line.endswith("would do")


def test_a_model_that_is_no_better_than_a_constant_is_called_that():
    assert no_better_than_majority(None) is no_better_than_majority({"mean": {}}) is None
    assert no_better_than_majority({"rows": 1234, "mean": {"accuracy": 0.91, "majority": 0.9}}) is None
    said = no_better_than_majority({"rows": 1234, "mean": {"accuracy": 0.9, "majority": 0.9}})
    assert (
        said == "the accuracy 0.9000 on 1,234 held-out rows is not above the 0.9000 of always naming the largest class"
    )


def test_the_line_names_noise_smallest_rank_and_dimension():
    found = verdict(figures(10_000, m=1234))
    assert found.word == "good"
    assert "would do" not in found.line
    whole = found.figures["noise_of_mean_gradient"] * math.sqrt(1234)
    for number in ("1,234 columns", "500 on the smallest rank", f"mean gradient {whole:.2g} of the clip"):
        assert number in found.line


def test_without_noise_nothing_is_too_far():
    assert verdict(replace(figures(), nu=0.0, flow=1e6, advised=1.0)).word == "good"


def test_an_objective_above_that_of_zeros_is_called_that():
    zero = LOSSES["logistic"].at_zero
    assert worse_than_nothing(zero, 0.69) is None
    assert "0.6931" in str(worse_than_nothing(zero, 0.70))
    assert [worse_than_nothing(LOSSES[loss].at_zero, 1.5) is None for loss in ("hinge", "squared")] == [False, True]


@pytest.mark.parametrize("wrong", [{"ranks": 0}, {"nu": -1.0}, {"share": 0.7}, {"clip": 0.0}])
def test_figures_that_no_run_has_are_refused(wrong):
    with pytest.raises(ConfigError, match="expected"):
        verdict(replace(figures(), **wrong))


def test_the_pairs_of_neighbouring_words_are_adjacent():
    steps = pairwise(words(figures(N) for N in range(100, 4000, 50)))
    assert all(0 <= a - b <= 1 for a, b in steps)


def test_numbers_have_limits_of_their_own():
    good, weak, noise = (figures(N, m=11, n=4, numbers=True) for N in (5000, 400, 60))
    assert [verdict(each).word for each in (good, weak, noise)] == ["good", "weak", "mostly noise"]
    assert hardness(weak) == pytest.approx(weak.nu * math.sqrt(11))
    enough = verdict(noise).figures["records_that_would_do"]
    assert verdict(figures(enough, m=11, n=4, numbers=True)).word == "good"


def test_more_classes_are_harder_to_see():
    ten = figures(30_000, classes=10)
    assert hardness(ten) == pytest.approx(5 * hardness(figures(30_000)))
    assert verdict(figures(3_000)).word == "good"
    assert verdict(figures(3_000, classes=10)).word != "good"


def test_a_budget_that_ends_training_makes_it_worse():
    cut = [verdict(replace(figures(10_000), fits=s)) for s in (1.0, 0.6, 0.2, 0.01, 0.0)]
    assert [each.word for each in cut] == ["good", "good", "weak", "mostly noise", "mostly noise"]
    assert "room for 20% of the planned releases" in cut[2].line
    assert "budget" not in cut[0].line
    weak = next(N for N in range(4000, 100, -50) if verdict(figures(N)).word == "weak") + 50
    assert verdict(replace(figures(weak), fits=0.6)).word == "weak"  # fewer rounds of the same noise


@pytest.mark.parametrize("algorithm", ["dvp-admm", "r-admm"])
def test_noise_whose_radius_grows_with_the_columns_is_seen(algorithm):
    """On reuters_small both ended above an objective of 1000, where zeros have 0.69; with 69 columns they learn."""
    found = foretold(f"--algorithm {algorithm} --epsilon 1", 1800, 9948)
    assert found.word == "mostly noise"
    assert "times what Gaussian noise" in found.line
    assert foretold(f"--algorithm {algorithm} --epsilon 5").word == "good"
    gaussian = foretold(f"--algorithm {algorithm} --epsilon 1 --mechanism gaussian", 1800, 9948)
    assert gaussian.figures["noise_of_mean_gradient"] < found.figures["noise_of_mean_gradient"] / 10


@pytest.mark.parametrize("place", ["", "--graph complete --exchange shares --noise-in sum"])
@pytest.mark.parametrize("algorithm", ["momentum", "dp-dda", "dp-dgd"])
def test_gaussian_releases_of_all_records_have_the_noise_of_the_derived_settings(algorithm, place):
    """Whatever the rounds: the precisions of releases add up."""
    plan, sigmas = planned(f"--algorithm {algorithm} --batch full --epsilon 1 {place}", 10_000, 69)
    assert released_noise(plan, sigmas) == pytest.approx(
        noise_rate(plan.settings, plan.records, plan.lipschitz), rel=0.01
    )


def test_noise_on_minimisers_counts_as_that_of_the_gradients_behind_them():
    nu = [
        released_noise(*planned(f"--algorithm admm --rounds 1 --rho {rho} --penalty none --epsilon 1", 10_000, 69))
        for rho in (0.01, 1.0)
    ]
    assert nu[0] == pytest.approx(nu[1], rel=0.01)


@pytest.mark.parametrize("share", ["", "--smaller-class 0.43"])
def test_a_clip_so_small_that_steps_cannot_get_far_is_weak(share):
    """On phishing, the run with this clip ended with the larger class for every record."""
    found = foretold(f"--algorithm momentum --epsilon 1 --lipschitz 0.0001 {share}")
    assert found.word == "weak"
    assert "the steps cannot get far" in found.line
    assert foretold(f"--algorithm momentum --epsilon 1 {share}").word == "good"


def test_a_clip_far_above_the_usual_one_is_noise_alone():
    found = foretold("--algorithm momentum --epsilon 1 --lipschitz 50")
    assert found.word == "mostly noise"
    assert "clip is 100 times the usual one" in found.line


def test_small_batches_have_more_noise():
    alone, whole = (foretold(f"--algorithm dp-dda --epsilon 0.2 --batch {b}", 3000) for b in ("1", "full"))
    assert alone.figures["noise_of_mean_gradient"] > 1.1 * whole.figures["noise_of_mean_gradient"]
    assert ORDER.index(alone.word) > ORDER.index(whole.word)


def test_an_undeclared_class_is_named_in_the_line():
    """w8a has 3% of its records in one class: good if they were even, and below the majority in truth."""
    data = "--algorithm momentum --epsilon 1"
    told = foretold(data, 44_774, 301)
    assert told.word == "good"
    least = float(
        re.search(r"^expect a good model if no class is below ([\d.]+)% .*--smaller-class", told.line).group(1)
    )
    below, above = (foretold(f"{data} --smaller-class {least * factor / 100}", 44_774, 301) for factor in (0.97, 1.03))
    assert (below.word, above.word) == ("weak", "good")
    assert "smaller-class" not in above.line
    assert foretold(f"{data} --smaller-class 0.03", 44_774, 301).word == "mostly noise"


@pytest.mark.parametrize(("word", "kind"), [("good", "soft"), ("weak", "warn")])
def test_the_report_repeats_every_verdict(word, kind):
    told = {"word": word, "line": f"expect a {word} model: so it is", "afterwards": None}
    assert _expectations(SimpleNamespace(summary={"verdict": told})) == [(told["line"], kind)]
    after = {"word": None, "line": None, "afterwards": "above that of zeros"}
    assert _expectations(SimpleNamespace(summary={"verdict": after})) == [("above that of zeros", "warn")]


CELLS = {  # records, columns, share; and of docs/experiments/defaults.md, in percent: majority, no noise, the six cells
    "a9a": (29_305, 124, 0.241, 75.9, 84.6, (83.1, 82.1, 84.4, 83.4, 84.5, 84.4)),
    "phishing": (9949, 69, 0.443, 55.5, 94.1, (91.8, 86.9, 93.5, 91.5, 93.8, 93.3)),
    "w8a": (44_774, 301, 0.03, 97.1, 98.6, (96.8, 97.0, 97.5, 96.9, 97.6, 97.5)),
    "adult": (40_700, 105, 0.248, 75.3, 84.8, (82.3, 80.6, 83.5, 81.9, 83.6, 83.5)),
    "rcv1": (21_380, 47_237, 0.498, 50.2, 96.8, (86.8, 69.3, 93.2, 87.0, 95.5, 93.1)),
    "reuters_small": (1800, 9948, 0.5, 50.3, 97.4, (63.1, 53.5, 83.8, 63.9, 94.2, 83.2)),
    "breast_cancer": (512, 31, 0.373, 61.9, 97.1, (65.3, 58.6, 87.9, 63.9, 94.0, 88.1)),
    "digits": (1617, 65, 0.496, 50.1, 91.9, (80.5, 60.2, 87.6, 79.6, 90.3, 87.3)),
    "generated": (18_000, 41, 0.5, 50.0, 83.7, (81.5, 79.6, 83.4, 80.7, 83.7, 83.6)),
    "decaying": (9000, 101, 0.496, 50.7, 87.2, (78.0, 70.7, 84.2, 77.4, 86.9, 84.6)),
}


def test_at_least_52_of_60_simulated_cells_are_called_what_they_are():
    """From the flags to the word; the accuracies are those that the derived settings reach in simulations."""
    right = 0
    for N, columns, share, majority, free, reached in CELLS.values():
        places = ("--graph complete --exchange shares --noise-in sum", "")
        cells = [(epsilon, place) for epsilon in (0.2, 1, 5) for place in places]
        for (epsilon, place), accuracy in zip(cells, reached, strict=True):
            flags = f"--algorithm momentum --epsilon {epsilon} --smaller-class {share} {place}"
            way = (accuracy - majority) / (free - majority)
            true = "good" if way > 0.5 else "weak" if way > 0.2 else "mostly noise"
            right += foretold(flags, N, columns).word == true
    assert right >= 52


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"one-shot"}))
def test_every_method_says_how_far_it_goes_and_l2_holds_it_back(algorithm):
    graph = "--graph complete" if algorithm.startswith("ldp-gd") else ""
    flows = []
    for l2 in ("none", "l2:0.5"):
        flags = f"--algorithm {algorithm} --loss logistic --penalty {l2} --noise 1 {graph}"
        plan = plan_of(settings_of(*flags.split()), [400] * 4, 9)
        flows.append(plan.method.flow(plan.terms(0)))
    assert flows[0] > 0
    assert flows[1] <= 2.0 or algorithm == "momentum"  # 1/l2


@pytest.mark.parametrize(("colluders", "gained"), [(1, True), (2, False)])
def test_noise_between_neighbours_that_gains_nothing_says_so_at_the_start(tmp_path, capsys, colluders, gained):
    flags = (
        f"--loopback 6 --data synthetic:samples=300,features=3 --graph ring --noise-in pairs --colluders {colluders}"
    )
    more = ["--seal", "--rounds", "2", "--epsilon", "1", "--out", str(tmp_path / "run")]
    assert main([*flags.split(), *more]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("noise between neighbours")]
    assert ("nothing is gained" in line) != gained
