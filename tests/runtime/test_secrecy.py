"""From flags to shares, seals and keys: what is refused and why, who agrees on what, and what a run adds up to."""

import json
import shutil

import numpy as np
import pytest
from plans import plan_of, settings_of

from dpmpi.commands.dispatch import main as command
from dpmpi.commands.plan import figures
from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.keys import key_name
from dpmpi.errors import ConfigError, DataError, SealBroken
from dpmpi.network.channel import TRAILER_BYTES
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.network.exchange.shares import SharesExchange
from dpmpi.network.graph import make_graph
from dpmpi.network.handshake import _check_claims, agree_on_secrets
from dpmpi.network.route import Routes
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.sealed import SealedTransport
from dpmpi.run import main
from dpmpi.runtime.assembly import claim_of
from dpmpi.runtime.job import Past
from dpmpi.runtime.loading import said_at_home


def check(ranks, *flags):
    plan = plan_of(settings_of("--exchange", "shares", *flags), [100] * ranks, 8)
    plan.settings.messages.check(plan)


REFUSED = [
    (2, ("--graph", "complete"), "expected at least 3 ranks for shares"),
    (1, ("--graph", "complete"), "found 1"),
    (5, ("--graph", "path", "--share-mode", "full"), "stays connected without any 1 ranks for full shares"),
    (9, ("--graph", "ring", "--share-mode", "full", "--colluders", 2), "stays connected without any 2 ranks"),
    (5, ("--graph", "ring", "--share-mode", "full", "--masks", "all"), "expected --graph complete for full shares"),
    (5, ("--graph", "ring", "--colluders", 4), "expected --colluders to leave 2 honest ranks of 5, found 4"),
    (5, ("--graph", "complete", "--algorithm", "ldp-gd"), "ldp-gd looks at each neighbour's vector"),
    (6, ("--graph", "complete", "--algorithm", "sampled-dda"), "sampled-dda mixes pairs of ranks"),
    (5, ("--graph", "complete", "--weights", "laplacian"), "equal weights 1/n for shares, found --weights laplacian"),
    (5, ("--graph", "complete", "--share-bits", 62), "use fewer --share-bits"),
]


@pytest.mark.parametrize(("ranks", "flags", "reason"), REFUSED)
def test_what_would_show_more_than_the_sum_of_all_is_refused_in_one_line(ranks, flags, reason):
    with pytest.raises(ConfigError) as caught:
        check(ranks, *flags)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", ["metropolis", "uniform"])
@pytest.mark.parametrize("name", ["dp-dda", "dgd", "admm", "ip-admm", "dp-admm", "ldp-admm", "rcd", "pvp-admm"])
def test_a_complete_graph_is_fine(name, weights):
    for ranks in (3, 20):
        check(ranks, "--graph", "complete", "--weights", weights, "--algorithm", name)


@pytest.mark.parametrize("name", ["dp-dda", "momentum", "dgd", "admm", "dp-admm"])
def test_sums_over_all_ranks_may_travel_along_any_graph(name):
    for graph in ("ring", "path", "star", "torus:rows=3,columns=3"):
        check(9, "--graph", graph, "--algorithm", name)
    for graph in ("ring", "torus:rows=3,columns=3"):
        check(9, "--graph", graph, "--algorithm", name, "--share-mode", "full")


def test_a_route_is_for_sums():
    with pytest.raises(
        ConfigError, match=r"^--route is for sums over all ranks, which momentum does not ask for in plain"
    ):
        plan_of(settings_of("--route", "tree"), [100] * 4, 8).check()
    plan_of(settings_of("--route", "tree", "--algorithm", "dp-admm"), [100] * 4, 8).check()


def test_plain_runs_are_not_looked_at():
    plan = plan_of(settings_of("--graph", "ring"), [100] * 2, 8)
    plan.settings.messages.check(plan)


# --- agreement -------------------------------------------------------------------------------------------------------


def test_nothing_is_agreed_on_where_nothing_is_secret():
    messages, transport = settings_of("--graph", "ring").messages, LoopbackTransport(4)
    assert not messages.secret
    assert messages.identities is None
    assert messages.carrier(transport, None) is transport
    assert isinstance(messages.exchange(transport, 0, None, routes=Routes(make_graph("ring", 4, 0))), PlainExchange)


def test_pairs_agree_and_no_two_secrets_are_the_same():
    first, second = (agree_on_secrets(LoopbackTransport(4)) for _ in range(2))
    seen = set()
    for secrets in (first, second):
        for i, j in ((i, j) for i in range(4) for j in range(4) if i != j):
            mine, theirs = secrets.keys[i][j], secrets.keys[j][i]
            assert (mine.outgoing, mine.incoming, mine.masks) == (theirs.incoming, theirs.outgoing, theirs.masks)
            seen |= {mine.outgoing, mine.incoming, mine.masks}
    assert len(seen) == 2 * 3 * 6  # two meetings, three secrets, six pairs


@pytest.mark.parametrize(
    ("flags", "seals", "shares"),
    [
        (("--seal",), True, False),
        (("--exchange", "shares"), False, True),
        (("--exchange", "shares", "--seal"), True, True),
        (("--exchange", "shares", "--share-mode", "full"), True, True),  # who hears all shares knows the vectors
    ],
)
def test_full_shares_are_always_sealed(flags, seals, shares):
    messages, transport = settings_of("--graph", "complete", *flags).messages, LoopbackTransport(3)
    assert messages.secret
    assert messages.sealed == seals
    secrets = agree_on_secrets(transport)
    carrier = messages.carrier(transport, secrets)
    assert isinstance(carrier, SealedTransport) == seals
    routes = Routes(make_graph("complete", 3, 0))
    assert isinstance(messages.exchange(carrier, 0, secrets, routes=routes), SharesExchange) == shares


def test_room_is_left_for_the_noise_of_a_sum():
    flags, transport = ["--graph", "complete", "--exchange", "shares"], LoopbackTransport(3)
    inside, alone = settings_of(*flags, "--noise-in", "sum"), settings_of(*flags)
    secrets = agree_on_secrets(transport)

    def make(settings, sigma):
        tail = settings.noise.tail(plan_of(settings, [50] * 3, 2), sigma)
        routes = Routes(make_graph("complete", 3, 0))
        return settings.messages.exchange(transport, 0, secrets, routes=routes, tail=tail)

    make(alone, 1e5)
    make(inside, 1e3)
    with pytest.raises(ConfigError, match=r"use (fewer --share-bits|at most \d+ fractional bits)$"):
        make(inside, 1e5)  # 40 deviations do not fit into 2^22
    rounds = ("--noise-in", "sum", "--noise-schedule", "optimal", "--rounds", "100")
    make(inside, 5e4)
    with pytest.raises(ConfigError, match=r"use (fewer --share-bits|at most \d+ fractional bits)$"):
        make(settings_of(*flags, *rounds), 5e4)  # some rounds have more noise


class Relay(LoopbackTransport):
    """Gives everybody another text than rank 1 said."""

    change = staticmethod(lambda texts: texts)

    def collect(self, texts):
        return self.change(list(texts))


def flipped(texts):
    if not is_hello(texts):
        return texts
    name, message, card = json.loads(texts[1])
    card["hello"] = card["hello"][:-1] + ("0" if card["hello"][-1] != "0" else "1")
    return [texts[0], json.dumps([name, message, card]), *texts[2:]]


def repeated(texts):
    return [texts[0], texts[0], *texts[2:]]


@pytest.mark.parametrize(
    ("change", "reason"), [(flipped, "expected the signature of rank 1"), (repeated, "found that of rank 0")]
)
def test_a_changed_hello_is_noticed(change, reason):
    transport = Relay(3)
    transport.change = change
    with pytest.raises(SealBroken, match=reason):
        agree_on_secrets(transport)


def test_a_changed_hello_ends_a_run_with_one_line_and_code_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(LoopbackTransport, "collect", lambda self, texts: flipped(list(texts)))
    assert start(tmp_path / "run", "--seal") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("dpmpi: expected the signature of rank 1")
    assert not (tmp_path / "run").exists()


def is_hello(texts):
    return '"hello"' in texts[1]


# --- key files -------------------------------------------------------------------------------------------------------


def start(out, *flags, ranks=3):
    data = [
        "--data",
        "synthetic:samples=300,features=5",
        "--rounds",
        4,
        "--lipschitz",
        1,
        "--no-evaluate",
        "--out",
        out,
    ]
    return main(list(map(str, ["--loopback", ranks, "--graph", "complete", "--noise", 0.1, *data, *flags])))


@pytest.fixture
def keys(tmp_path, capsys):
    folder = tmp_path / "keys"
    assert command(["keys", "make", "3", str(folder)]) == 0
    capsys.readouterr()
    return folder


def test_keys_of_a_roster_seal_a_run(tmp_path, capsys, keys):
    assert start(tmp_path / "run", "--seal", "--keys", keys) == 0
    assert "sealed messages, keys of the roster" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["secrecy"] == {
        "exchange": "plain", "shares": None, "sealed": True, "identities": "roster",
    }  # fmt: skip


def open_to_all(folder):
    (folder / "rank-001.key").chmod(0o644)


def missing(folder):
    (folder / "rank-001.key").unlink()


def another_ranks(folder):
    (folder / "rank-001.key").unlink()
    shutil.copy(folder / "rank-002.key", folder / "rank-001.key")


def strangers(folder):
    (folder / "rank-001.key").unlink()
    assert command(["keys", "one", "1", str(folder)]) == 0


def not_a_key(folder):
    (folder / "rank-001.key").write_text("no key\n")


def broken_roster(folder):
    text = (folder / "roster.toml").read_text()
    (folder / "roster.toml").write_text(text.replace(f"{key_name(1)} =", f"{key_name(7)} ="))


def garbled_roster(folder):
    (folder / "roster.toml").write_text("[public\n")


def no_roster(folder):
    (folder / "roster.toml").unlink()


def roster_of_two(folder):
    lines = (folder / "roster.toml").read_text().splitlines()
    (folder / "roster.toml").write_text("\n".join(lines[:-1]))


WRONG = [
    (open_to_all, "rank-001.key: use chmod 600"),
    (missing, "rank-001.key, found none that can be read: No such file"),
    (another_ranks, "expected the key that the roster has for rank 1, found that of rank 2"),
    (strangers, "expected the key that the roster has for rank 1, found one that it lacks"),
    (not_a_key, "expected an Ed25519 private key"),
    (broken_roster, "expected rank-001 = 64 hexadecimal digits, found nothing"),
    (garbled_roster, "is not TOML"),
    (no_roster, "roster.toml, found none that can be read: No such file"),
    (roster_of_two, "expected a roster of 3 ranks, found 2 keys"),
]


@pytest.mark.parametrize(("break_it", "reason"), WRONG)
def test_wrong_keys_are_one_line_and_exit_code_2(tmp_path, capsys, keys, break_it, reason):
    break_it(keys)
    capsys.readouterr()
    assert start(tmp_path / "run", "--exchange", "shares", "--keys", keys) == 2
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert line.startswith("dpmpi: ")
    assert reason in line
    assert said.out == ""
    assert not (tmp_path / "run").exists()


def test_keys_without_seals_are_refused(tmp_path, capsys, keys):
    assert start(tmp_path / "run", "--keys", keys) == 2
    assert "--keys is for sealed messages: add --seal" in capsys.readouterr().err


# --- what a run sends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--seal",),
        ("--exchange", "shares"),
        ("--exchange", "shares", "--seal"),
        ("--exchange", "shares", "--share-mode", "full"),
    ],
)
def test_the_summary_adds_up_and_is_what_the_plan_says(tmp_path, capsys, flags):
    assert start(tmp_path / "run", *flags) == 0
    capsys.readouterr()
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    sent = found["communication"]
    hops, seals = 2 if "full" in flags else 1, "--seal" in flags or "full" in flags
    assert sent["messages"] == 3 * 2 * 4 * hops
    assert sent["payload_bytes"] == sent["messages"] * 8 * 6
    assert sent["tag_bytes"] == (sent["messages"] * SEAL_BYTES if seals else 0)
    assert sent["trailer_bytes"] == sent["messages"] * TRAILER_BYTES
    assert sent["share_bytes"] == (sent["payload_bytes"] // 2 if hops == 2 else 0)
    assert sent["bytes"] == sent["payload_bytes"] + sent["tag_bytes"] + sent["trailer_bytes"]
    assert found["secrecy"]["sealed"] == seals
    settings = settings_of(
        "--graph", "complete", "--noise", 0.1, "--data", "synthetic:samples=300,features=5", "--rounds", 4, *flags
    )
    plan = figures(plan_of(settings, [100] * 3, 6), 5)
    for name in ("messages", "payload_bytes", "bytes"):
        assert plan[name] == sent[name]


def test_shares_and_seals_do_not_change_the_noise(tmp_path, capsys):
    """The same seeds with and without: seals change no bit, shares none above their rounding."""
    models = []
    for k, flags in enumerate(
        [(), ("--seal",), ("--exchange", "shares"), ("--exchange", "shares", "--share-mode", "full")]
    ):
        assert start(tmp_path / str(k), "--insecure-noise-seed", 1, *flags) == 0
        with np.load(tmp_path / str(k) / "model.npz") as model:
            assert ("x_rank" in model) == ("shares" not in flags)  # with shares nobody sees a rank's own model
            models.append(model["x_rank" if "x_rank" in model else "x"].copy())
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[2], models[3])
    rounding = 2.0**-41  # of each summand of the model, and of each round's sums
    assert 0 < np.abs(models[2] - models[0].mean(axis=0)).max() <= rounding + 4 * 3 * 2.0**-41
    capsys.readouterr()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--checkpoint-every", 5), "--checkpoint-every and --on-failure"),
        (("--ledger", "books"), "--out and --ledger given or not"),
        (("--epsilon", 2), "settings"),
        (("--seal",), "settings"),
    ],
)
def test_what_ranks_must_have_in_common_is_on_their_cards(flags, words):
    """Else they would take different steps together, and wait for each other."""
    mine, theirs = (claim_of(settings_of("--epsilon", 1, *more), Past.none(2)) for more in ((), flags))
    card = theirs.card() | {"hello": None}
    with pytest.raises(ConfigError) as caught:
        _check_claims(mine, 0, [mine.card() | {"hello": None}, card])
    assert words in str(caught.value)
    assert "found others on rank 1 than on rank 0" in str(caught.value)


def test_what_is_wrong_with_a_private_record_is_said_on_its_own_terminal_alone(capsys):
    """A loss, which may be a plug-in, quotes the label that it does not take."""
    source = settings_of("--data", "shards:{rank}.npz").source
    with pytest.raises(DataError) as caught, said_at_home(source, [1], 3):
        raise DataError("expected labels -1 and +1, found 42 in row 7")
    assert str(caught.value) == "rank 1 cannot use its shard, and says why on its own terminal"
    assert "found 42 in row 7" in capsys.readouterr().err
