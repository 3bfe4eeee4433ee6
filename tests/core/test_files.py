"""One writer for every file: whole or not there, with the mode and the durability that were asked for."""

import errno
import os
import stat

import pytest

from dpmpi.core.files import parse_toml, read_toml, sync_folder, write_file, writing
from dpmpi.errors import ConfigError, DataError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_into_folders_that_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_file(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    write_file(path, b"\0new")
    assert path.read_bytes() == b"\0new"
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_crash_in_the_block_leaves_what_was_there(tmp_path, before, failure):
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)

    def write():
        with writing(path) as stream:
            stream.write(b"half")
            stream.flush()
            assert len(names(tmp_path)) == 1 + (before is not None)
            raise failure

    with pytest.raises(failure):
        write()
    assert names(tmp_path) == ([] if before is None else ["file"])
    assert before is None or path.read_bytes() == before


def test_nobody_sees_a_file_before_it_is_whole(tmp_path):
    path = tmp_path / "file"
    with writing(path) as stream:
        stream.write(b"1")
        stream.flush()
        assert not path.exists()
    assert path.read_bytes() == b"1"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_private_file_is_for_its_owner_and_another_as_the_umask_says(tmp_path, umask):
    old = os.umask(umask)
    try:
        write_file(tmp_path / "secret" / "file", "x", private=True)
        write_file(tmp_path / "shared" / "file", "x")
    finally:
        os.umask(old)
    modes = {
        name: stat.S_IMODE((tmp_path / name).stat().st_mode)
        for name in ("secret", "secret/file", "shared", "shared/file")
    }
    assert modes == {"secret": 0o700, "secret/file": 0o600, "shared": 0o777 & ~umask, "shared/file": 0o666 & ~umask}


def test_a_private_file_replaces_one_that_all_can_read(tmp_path):
    path = tmp_path / "file"
    path.touch(0o644)
    write_file(path, "x", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_exclusive_file_replaces_nothing(tmp_path):
    path = tmp_path / "file"
    write_file(path, "first", exclusive=True)
    with pytest.raises(FileExistsError):
        write_file(path, "second", exclusive=True)
    with pytest.raises(DataError, match=r"^cannot write .*/file: File exists, and is not replaced: name another one$"):
        write_file(path, "second", exclusive=True, error=DataError)
    assert path.read_text() == "first"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_file_is_synced_before_it_has_its_name_and_its_folder_after(tmp_path, monkeypatch, durable):
    path, calls = tmp_path / "file", []
    sync = os.fsync

    def fsync(handle):
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        calls.append((kind, os.fstat(handle).st_size if kind == "file" else None, path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_file(path, "12345", durable=durable)
    assert calls == ([("file", 5, False), ("folder", None, True)] if durable else [])


def test_what_a_killed_writer_left_is_no_obstacle_and_not_reused(tmp_path, monkeypatch):
    tokens = iter([bytes(4), b"\x11" * 4])
    monkeypatch.setattr("os.urandom", lambda _: next(tokens))
    left = tmp_path / ".file.00000000.part"
    left.write_text("of another")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", "x")
    write_file(tmp_path / "file", "x")
    assert (tmp_path / "file").read_text() == "x"


def test_errors_of_the_system_become_ours_if_asked_for(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        write_file(tmp_path / "file" / "inside", "x")
    with pytest.raises(DataError, match=r"^cannot write .*/inside: Not a directory$"):
        write_file(tmp_path / "file" / "inside", "x", error=DataError)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "none")


def test_toml_is_read_or_refused_in_one_line(tmp_path):
    path = tmp_path / "x.toml"
    with pytest.raises(ConfigError, match=r"^cannot read the budget .*x\.toml: No such file or directory$"):
        read_toml(path, "the budget")
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"^expected the budget in TOML, found text that is not UTF-8 in .*x\.toml"):
        read_toml(path, "the budget", DataError)
    for text in ("x = [", "x = " + "[" * 5000, "x = " + "9" * 5000):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"^the budget .*x\.toml is not TOML: [^\n]{1,200}$"):
            read_toml(path, "the budget")
    path.write_text('x = "é"\n[y]\nz = 1', encoding="utf-8")
    assert read_toml(path, "the budget") == {"x": "é", "y": {"z": 1}}
    assert parse_toml("x = 1", "the budget") == {"x": 1}


def test_a_full_disk_is_told_with_the_file(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*/result.json'"), writing(tmp_path / "result.json"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
