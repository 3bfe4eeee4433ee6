"""All contracts of a method, and the table of which it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpmpi.errors import DpmpiError
from dpmpi.privacy.mechanisms import SumMechanism
from dpmpi.rng import insecure_key
from dpmpi.runtime.flags import from_text, from_values
from dpmpi.runtime.output.console import say
from dpmpi.runtime.plugin_source import one_line
from dpmpi.runtime.plugins import settings_of, user_line
from dpmpi.testing.hooks import check_allocations, check_exchanges, check_regroup, check_resume
from dpmpi.testing.releases import Make, check_no_leak, check_releases, check_sensitivity, check_work
from dpmpi.testing.simulation import DeafAgent, shared

Contracts = Mapping[str, tuple[str, Callable[[], None]]]
"""Name -> what is promised, and the check, which raises if it is not kept."""

_PROMISES = {
    "check_settings": "its name and hyperparameters are settings, as in config.toml",
    "check_no_leak": "what it sends depends on the data through releases alone",
    "check_sensitivity": "one record moves a query no further than it declares",
    "check_work": "its passes over the records do not depend on them",
    "check_releases": "it charges what `releases` foresaw",
    "check_exchanges": "it sends what `exchanges` and `asks` foresaw",
    "check_resume": "it goes on from a checkpoint with the same bits",
    "check_regroup": "after a death the others come to what they would alone",
    "check_allocations": "a round allocates no vector of the model's length",
    "check_no_leak, noise in the sum": "the same, where noise is inside a shared sum",
}


def check_settings(make: Make) -> None:
    """Raise AssertionError if a method is not the same after its settings were written to a file and read again."""
    method = make()
    config = from_values(settings_of(method))
    again = from_text(config.to_toml(), Path("config.toml"), {}).make_method()
    if again != method:
        raise AssertionError(f"expected {method} of its settings, found {again}: keep all that it is in its fields")


def check_method(make: Make, *, normalized: bool = False, settled: int = 400, **settings: Any) -> None:
    """Print a table of all contracts of a method, for one graph, loss and batch; raise AssertionError if one is broken.

    `make()` returns the method, `settings` are those of `simulate`; `normalized` as in `check_sensitivity`. What
    happens after a death, and what is allocated, is looked at with the mean loss, which has a closed form; without
    noise the method has settled on it after `settled` rounds.
    """
    graph = {"graph": settings["graph"]} if "graph" in settings else {}
    checks: dict[str, Callable[[], None]] = {
        "check_settings": lambda: check_settings(make),
        "check_no_leak": lambda: check_no_leak(make, **settings),
        "check_sensitivity": lambda: check_sensitivity(
            make, rounds=3, lipschitz=0.5, normalized=normalized, **settings
        ),
        "check_work": lambda: check_work(make, **settings),
        "check_releases": lambda: check_releases(make, **settings),
        "check_exchanges": lambda: check_exchanges(make, **settings),
        "check_resume": lambda: check_resume(make, **settings),
        "check_regroup": lambda: check_regroup(make, rounds=settled, **graph),
        "check_allocations": lambda: check_allocations(make, **graph),
    }
    if make().adds_up and make().schedule == "static":  # a sum of two gives each of them away

        def inside(rank: int, width: int) -> SumMechanism:
            return SumMechanism(0.3, 4, 40, insecure_key(0, rank), width)

        hidden = dict[str, Any](graph="complete", exchange=shared(noise_tail=40.0), mechanism=inside)
        checks["check_no_leak, noise in the sum"] = lambda: check_no_leak(
            make, **settings | hidden, make_agent=DeafAgent
        )
    run_contracts(type(make()).__name__, {name: (_PROMISES[name], check) for name, check in checks.items()})


def run_contracts(title: str, contracts: Contracts) -> None:
    """Run all contracts and print a table of them; raise AssertionError if one was broken."""
    broken: dict[str, str] = {}
    lines = [f"contracts of {title}"]
    for name, (promise, check) in contracts.items():
        try:
            check()
        except Exception as error:
            words = _words(error)
            broken[name] = words if words not in broken.values() else "the same"
        lines.append(f"  {'BROKEN' if name in broken else 'ok':<6}  {name:<{max(map(len, contracts))}}  {promise}")
        if name in broken:
            lines.append(f"          {broken[name]}")
    lines.append(f"{len(contracts) - len(broken)} of {len(contracts)} contracts kept")
    say("\n".join(lines))
    if broken:
        found = "\n".join(f"{name}: {words}" for name, words in broken.items())
        raise AssertionError(f"{title} breaks {len(broken)} of {len(contracts)} contracts\n{found}")


def _words(error: Exception) -> str:
    """Return an error's message, with the line of the plug-in for one that dpmpi does not raise itself."""
    if isinstance(error, AssertionError | DpmpiError) and str(error):
        return str(error)
    place = user_line(error)
    return one_line(error) if place is None else f"{place}: {one_line(error)}"
