import pytest

from dpmpi.network.stall import Stall, explain, read_stalls, write_stall


def test_the_silent_rank_is_named_with_its_first_victim():
    found = [(0, 9, 1), (1, 8, 2), (2, 7, 3), (4, 7, 3)]
    waits = {rank: Stall(rank, round_, 0, (peer,)) for rank, round_, peer in found}
    assert explain(waits) == "rank 3 is silent and waits for nobody: rank 2 waits for it in round 7, hop 0"


def test_a_cycle_is_shown_in_order():
    waits = {rank: Stall(rank, 5, rank, (peer,)) for rank, peer in [(0, 1), (1, 2), (2, 3), (3, 1)]}
    said = explain(waits)
    assert said.endswith("1 (round 5, hop 1) -> 2 (round 5, hop 2) -> 3 (round 5, hop 3) -> 1 (round 5, hop 1)")


def test_no_waits_and_waits_for_all():
    assert explain({}) == explain({0: Stall(0, 1, 0, ())}) == "no rank said for whom it waits"


def test_what_is_written_is_read_and_garbage_is_left_out(tmp_path):
    folder = tmp_path / "stall"
    wait = Stall(3, 77, 1, (2, 4))
    write_stall(folder, wait)
    for name, text in {"rank-001.json": "{", "rank-002.json": '{"rank": 2}', "rank-004.json": "[]"}.items():
        (folder / name).write_text(text)
    assert read_stalls(folder) == {3: wait}


@pytest.mark.parametrize("folder", ["file/stall", "file"])
def test_a_disk_that_fails_hides_nothing(tmp_path, folder):
    (tmp_path / "file").write_text("")
    write_stall(tmp_path / folder, Stall(0, 1, 0, (1,)))
