import pytest

from dpmpi.algorithms import ALGORITHMS
from dpmpi.algorithms.dda import Dda, DpDda
from dpmpi.errors import ConfigError
from dpmpi.runtime.config import Config
from dpmpi.runtime.flags import from_values, parse


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('rounds = 7\nsample-edges = 2\nalgorithm = "sampled-dda"\ngamma = 3\n')
    config = parse(["--config", str(file), "--rounds", "9"])
    assert (config.rounds, config.sample_edges, config.make_method().gamma) == (9, 2, 3.0)


def test_the_effective_configuration_repeats_the_run(tmp_path):
    flags = "--algorithm dda --gamma 0.5 --rounds 11 --noise 0.1 --no-normalize --domain ball:2"
    config = parse(flags.split())
    file = tmp_path / "config.toml"
    file.write_text(config.to_toml())
    again = parse(["--config", str(file)])
    assert again.to_toml() == config.to_toml()
    assert again.digest() == config.digest()
    assert again.make_method() == config.make_method() == Dda(gamma=0.5)


def test_the_digest_ignores_where_but_not_what():
    base = parse([])
    assert parse(["--out", "elsewhere", "--deadline", "5"]).digest() == base.digest()
    assert parse(["--rounds", "3"]).digest() != base.digest()
    assert parse(["--eta", "3"]).digest() != base.digest()


def test_hyperparameters_reach_the_algorithm():
    flags = ["--algorithm", "dp-dda", "--gamma", "2", "--weighting", "constant", "--mixes", "auto"]
    assert parse(flags).make_method() == DpDda(weighting="constant", gamma=2.0, mixes=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--rounds 0", "--rounds must be at least 1, got 0"),
        ("--rounds many", "expected a whole number for --rounds, found 'many'"),
        ("--epsilon -1", "--epsilon must be greater than 0, got -1"),
        ("--delta 1", "--delta must be less than 1"),
        ("--epsilon 1 --noise 1", "not both"),
        ("--noise nan", "finite"),
        ("--eta -1", "--eta must be a finite number of at least 0"),
        ("--rounds 1000000000", "--rounds must be at most 10000000"),
        ("--loopback 1000000000", "--loopback must be at most 10000"),
        ("--ranks 1000000000", "--ranks must be at most 10000"),
        ("--mixes 1000000000", "expected --mixes of at most 10,000, found 1,000,000,000: long before, the ranks agree"),
        ("--closing-mixes 1000000000", "expected --closing-mixes of at most 10,000, found 1,000,000,000"),
        ("--algorithm dda --mixes 1000000000", "expected --mixes of at most 10,000, found"),
        ("--algorithm ip-admm --inner-steps 1000000000", "of at most 10,000, found 1,000,000,000: each is a pass over"),
        ("--eta inf", "--eta must be a finite number of at least 0"),
        ("--weighting cubic", "invalid choice"),
        ("--algorithm dpdda", "did you mean dp-dda"),
        ("--round 3", "unknown flag --round (did you mean --rounds?)"),
        ("--sample-edges 2", "does not apply to momentum"),
        ("--test-fraction 1", "--test-fraction must be less than 1"),
        ("--evaluate -1", "--evaluate must be at least 0"),
        ("--config /nowhere/x.toml", "cannot read the configuration"),
    ],
)
def test_impossible_flags(arguments, message):
    with pytest.raises(ConfigError) as caught:
        parse(arguments.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("roundss = 3", "unknown key 'roundss' (did you mean rounds?)"),
        ('rounds = "three"', "expected rounds = a whole number, found"),
        ("rounds = 3.5", "expected rounds = a whole number, found"),
        ("rounds = true", "expected rounds = a whole number, found"),
        ("normalize = 1", "expected normalize = true or false, found 1"),
        ('weighting = "cubic"', 'expected weighting = "linear" or "constant", found'),
        ("rounds = [1]", "expected rounds = a whole number, found"),
        ("rounds =", "is not TOML"),
        ("[table]\nx = 1", "unknown key 'table'"),
    ],
)
def test_impossible_files(tmp_path, text, message):
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse(["--config", str(file)])
    assert message in str(caught.value).replace("\n", " ")


def test_a_hyperparameter_of_another_algorithm_is_refused():
    with pytest.raises(
        ConfigError, match="does not apply to dp-dda, which takes --mixes, --closing-mixes, --noise-schedule, "
    ):
        Config(algorithm="dp-dda", options=(("inner_steps", 3),)).make_method()


def test_a_flag_that_means_something_else_to_each_algorithm():
    """The parser takes every algorithm's words; the algorithm takes its own."""
    assert parse(["--algorithm", "ldp-gd", "--average", "mean"]).make_method().average == "mean"
    assert parse(["--algorithm", "ip-admm", "--average", "tail"]).make_method().average == "tail"
    with pytest.raises(ConfigError, match="ldp-gd takes --average last or mean, got tail"):
        parse(["--algorithm", "ldp-gd", "--average", "tail"])


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_survives_its_own_configuration(name, tmp_path):
    config = parse(["--algorithm", name])
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert parse(["--config", str(tmp_path / "config.toml")]).make_method() == config.make_method()


def test_pure_noise_has_no_delta():
    assert parse(["--algorithm", "ldp-admm", "--delta", "0", "--epsilon", "1"]).delta == 0
    with pytest.raises(ConfigError, match="needs pure noise"):
        parse(["--algorithm", "dp-dda", "--delta", "0", "--epsilon", "1"])
    with pytest.raises(ConfigError, match="dp-dda takes --mechanism gaussian, got laplace"):
        parse(["--algorithm", "dp-dda", "--mechanism", "laplace"])


def test_numbers_that_no_float_holds_are_refused_for_hyperparameters_too():
    with pytest.raises(ConfigError, match=r"--coordinates must be less than 2\^63"):
        from_values({"algorithm": "rcd", "coordinates": 10**400})
