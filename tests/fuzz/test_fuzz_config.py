"""Configurations: a file or flags mean one configuration, which its own file repeats, or are refused."""

from __future__ import annotations

import math
from dataclasses import fields

from hostile import attempt, damaged, examples
from hypothesis import given
from hypothesis import strategies as st

from dpmpi.algorithms import ALGORITHMS
from dpmpi.errors import DpmpiError
from dpmpi.runtime.config import Config
from dpmpi.runtime.flag_parser import make_parser
from dpmpi.runtime.flags import from_values, parse
from dpmpi.runtime.settings import Settings

VALID = [
    parse(["--algorithm", name, "--rounds=40", "--noise=0.5", "--data=synthetic:samples=60,features=4"]).to_toml()
    for name in ALGORITHMS
]


def understood(config: Config) -> Config:
    """Let all settings that are small languages of their own be read; return the configuration."""
    settings = Settings.of(config)
    assert settings.source is not None
    settings.schedule(4)
    return config


def check(config: Config, path) -> None:
    """Assert that a configuration is finite, and that its own file means the same."""
    values = [*vars(config).values(), *(value for _, value in config.options)]
    assert all(math.isfinite(value) for value in values if isinstance(value, int | float))
    path.write_text(config.to_toml(), encoding="utf-8")
    again = from_values({"config": str(path)})
    assert again.to_toml() == config.to_toml()
    assert again.digest() == config.digest()


@given(text=st.sampled_from(VALID).flatmap(lambda text: damaged(text.encode())))
@examples(120)
def test_configuration_file(text, tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(text)
    config = attempt("configuration file", lambda: understood(parse(["--config", str(path)])))
    if not isinstance(config, DpmpiError):
        check(config, path)


HUGE = "9" * 400, "9" * 5000
WORDS = (
    "1", "0", "-1", "2", "4", "1e3", "1e-5", "0.5", "nan", "inf", "-inf", "1e999", *HUGE, "", " ", "x", "\0", "\udcff",
    "a\nb", "\x1b[2J", *ALGORITHMS, "synthetic:samples=5", "synthetic:features=1e9", "mean:radius=nan", "synthetic:=",
    f"synthetic:samples={HUGE[1]}", "libsvm:", "libsvm:/dev/null", "shards:{rank}", "shards:{rank:9d}{rank}", "adult:.",
    "l2:0", "l2:-1", "l1:nan", "elastic:1,2", "elastic:1", "l2:1e999", "none", "box:1", "ball:0", "box:inf", "box:",
    "grid:rows=2", "grid:rows=0", "torus:columns=-2", "erdos-renyi:p=1e-9", "erdos-renyi:p=nan", "random:edges=3",
    "random:edges=-1", f"random:edges={HUGE[0]}", "file:", "file:/dev/null", "file:\0", "full", "auto", "fixed:2",
    "fixed:0", f"fixed:{HUGE[1]}", "sum", "shares", "--seal", "-", "--", "=", "%s", "{}",
)  # fmt: skip
FLAGS = sorted({flag for action in make_parser("", "")._actions for flag in action.option_strings} - {"-h", "--help"})
LIKELY = [
    (f"--{f.name.replace('_', '-')}", str(word))
    for f in fields(Config) if f.name not in ("options", "seed") and f.metadata["kind"] is not bool
    for word in (*f.metadata["choices"], f.default, *("1", "3", "0.25")) if word is not None
]  # fmt: skip


@given(
    words=st.lists(st.sampled_from(LIKELY) | st.tuples(st.sampled_from(FLAGS), st.sampled_from(WORDS)), max_size=5).map(
        lambda pairs: [f"{flag}={word}" for flag, word in pairs]
    )
    | st.lists(st.sampled_from(FLAGS) | st.sampled_from(WORDS) | st.text(max_size=12), max_size=6)
)
@examples(120)
def test_flags(words, tmp_path):
    if "-h" not in words and "--help" not in words:
        config = attempt("flags", lambda: understood(parse(words)))
        if not isinstance(config, DpmpiError):
            check(config, tmp_path / "config.toml")
