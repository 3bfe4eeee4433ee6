"""What a configuration means is decided once, and what `auto` became is part of it."""

import pytest
from plans import plan_of, settings_of

from dpmpi.algorithms import ALGORITHMS
from dpmpi.errors import ConfigError
from dpmpi.problem.batches import Batch
from dpmpi.runtime.flags import from_text, parse
from dpmpi.runtime.messages import PlainMessages, SharedSums
from dpmpi.runtime.noise import LocalNoise, SumNoise
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.settings import Settings

SUM = ("--graph", "complete", "--exchange", "shares", "--noise-in", "sum")


def test_settings_are_objects():
    settings = settings_of("--batch", 20, "--penalty", "elastic:0.1,0.2", "--domain", "ball:3", "--seal")
    assert settings.batch == Batch("poisson", 20)
    assert (settings.penalty.l1, settings.penalty.l2) == (0.1, 0.2)
    assert settings.noise == LocalNoise("gaussian")
    assert settings.messages == PlainMessages(asked_to_seal=True)
    assert settings.checkpoints.never
    assert settings_of(*SUM, "--colluders", 2).noise == SumNoise(2, 40)
    assert settings_of(*SUM).messages == SharedSums()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_knows_its_noise(name):
    settings = settings_of("--algorithm", name)
    assert settings.noise.kind == ALGORITHMS[name].mechanisms[0]
    assert type(settings.method) is ALGORITHMS[name]


def test_what_auto_became_is_in_the_configuration_and_its_digest():
    settings = settings_of("--batch", "auto", "--epsilon", 1, "--rounds", 500)
    assert settings.batch is None
    with pytest.raises(ConfigError, match="expected a batch, found auto"):
        _ = settings.drawn
    plan = plan_of(settings, [2000] * 4, 10)
    assert plan.settings.batch.kind == "poisson"
    text = plan.config.to_toml()
    assert f'batch = "{plan.settings.batch.describe()}"' in text
    again = from_text(text, "config.toml", {})
    assert again.digest() == plan.config.digest() != settings.config.digest()
    assert plan_of(Settings.of(again), [2000] * 4, 10).terms(0) == plan.terms(0)


def test_a_few_records_make_auto_a_full_batch():
    plan = plan_of(settings_of("--batch", "auto", "--epsilon", 8, "--rounds", 1), [20] * 4, 10)
    assert plan.settings.batch == Batch("full")
    assert plan.config.batch == "full"


def test_one_sum_has_one_noise_and_ranks_have_their_own():
    assert settings_of(*SUM).noise.common([1.0, 3.0, 2.0]) == [3.0, 3.0, 3.0]
    assert settings_of().noise.common([1.0, 3.0, 2.0]) == [1.0, 3.0, 2.0]


def test_files_of_an_older_edition_are_read():
    text = parse(["--noise", "1"]).to_toml() + 'adversary = "final"\n'
    assert from_text(text, "config.toml", {}).digest() == parse(["--noise", "1"]).digest()


@pytest.mark.parametrize("flag", ["--pair-noise=3", "--share-mode=full", "--share-bits=30"])
def test_flags_of_another_mode_are_refused(flag):
    with pytest.raises(ConfigError, match=rf"^{flag.partition('=')[0]} is for .*: add --"):
        Settings.of(parse(["--epsilon", "1", flag]))


@pytest.mark.parametrize("algorithm", ["dvp-admm", "r-admm"])
def test_noise_inside_an_objective_does_not_advise_a_clip_for_several_scores(algorithm):
    flags = ("--algorithm", algorithm, "--loss", "softmax", "--classes", "a,b,c", "--epsilon", 1)
    with pytest.raises(ConfigError, match="expected a loss of one score") as refused:
        plan_of(settings_of(*flags), (100,) * 4, 15).check()
    assert "1.415" not in str(refused.value)


def test_noise_in_the_sum_names_only_methods_that_can():
    with pytest.raises(ConfigError, match="--noise-in sum is for methods") as refused:
        settings_of("--algorithm", "sampled-dda", "--exchange", "shares", "--noise-in", "sum", "--epsilon", 1)
    able = str(refused.value).split("(")[1].split(")")[0].split(", ")
    assert "sampled-dda" not in able
    assert "momentum" in able


def test_narrow_words_take_as_many_fractional_bits_as_leave_room():
    flags = ("--algorithm", "dp-dda", "--loss", "logistic", "--batch", 4, "--epsilon", 0.2, *SUM, "--share-words", 32)
    plan = plan_of(settings_of(*flags), (400,) * 20, 51)
    plan.settings.noise.check_room(plan, max(noise_levels(plan)))  # does not raise
    bits = plan.config.share_bits
    assert plan.settings.noise.bits == plan.settings.messages.bits == bits < 24
    one_more = plan_of(settings_of(*flags, "--share-bits", bits + 1), (400,) * 20, 51)
    with pytest.raises(ConfigError, match="share-bits"):
        one_more.settings.noise.check_room(one_more, max(noise_levels(one_more)))
