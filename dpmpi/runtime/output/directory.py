"""The run directory: what a run leaves behind, and where.

    config.toml             the whole effective configuration
    summary.json            the result; its names are a contract
    ledger/rank-003.jsonl   what rank 3 released, see dpmpi.privacy.ledger
    metrics/rank-003.jsonl  one line per evaluation
    waits/rank-003.json     whom rank 3 waited for, over time
    process/rank-003.json   how long rank 3 took, if it keeps that to itself, see process_figures.py
    model.npz               the model, see dpmpi.model.file
    .run                    the name of the run, by which ranks that share a disk know each other
    checkpoint/             what a run needs to go on, see dpmpi.runtime.recovery.checkpoint; gone when it has ended
    failure/rank-003.txt    the traceback of what rank 3 failed with, which may quote records: for its owner alone
    stall/                  who waited for whom when nothing moved any more, see dpmpi.network.stall
    ended.txt               why the run ended early, if it did

Files are written to a temporary name first and renamed, so that a reader never sees half of one.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from dpmpi.core.files import write_file, writing
from dpmpi.errors import ConfigError
from dpmpi.model import Model
from dpmpi.privacy.ledger import in_use
from dpmpi.runtime.output.console import say


def settings_of_run(path: Path) -> str:
    """Return the text of a run's config.toml, for --resume; raise `ConfigError` for what is no run."""
    try:
        return (path / "config.toml").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        found, name = f"no such directory {path}", nearest_run(path) or ": name one that was interrupted"
        if path.exists():
            found = f"{path} without a config.toml that can be read" if path.is_dir() else f"the file {path}"
        raise ConfigError(f"expected the directory of a run after --resume, found {found}{name}") from error


def nearest_run(path: Path) -> str:
    """Return, for an error, the run that may be meant by a path at which there is none, or else the last run."""
    summaries = [one for folder in (path.parent, Path("runs")) for one in folder.glob("*/summary.json")]
    runs = {one.parent.name: one.parent for one in sorted(summaries, key=lambda one: one.stat().st_mtime)}
    if path.exists() or not runs:
        return ""
    close = difflib.get_close_matches(path.name, runs, n=1)
    return f" (did you mean {runs[close[0]]}?)" if close else f": the last run here is {list(runs.values())[-1]}"


class RunDirectory:
    """The paths of a run, and how its files are written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, run: str) -> Path | None:
        """Make the directory. A run that is already there is kept under the name PATH.1, PATH.2 ...; return which.

        Anything else that is there is left alone: it is not ours to move. A host of the same run may share the disk.
        """
        kept: Path | None = None
        try:
            if (self.path / ".run").is_file() and (self.path / ".run").read_text() == run:
                return None
            kept = self._make_room()
            write_file(self.path / ".run", run)
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {self.path}: {error.strerror}") from error
        return kept

    def _make_room(self) -> Path | None:
        """Make the directory, empty; return where what was there has gone."""
        kept: Path | None = None
        if self.path.is_dir() and not any(self.path.iterdir()):
            return None
        if self.path.exists():
            if not (self.path / "config.toml").is_file():
                raise ConfigError(f"{self.path} is there and is not a run directory: give another --out")
            if any(in_use(ledger) for ledger in (self.path / "ledger").glob("rank-*.jsonl")):
                raise ConfigError(f"{self.path} is a run that has not ended: wait for it, or give another --out")
            names = (self.path.with_name(f"{self.path.name}.{number}") for number in count(1))
            kept = next(name for name in names if not name.exists())
            self.path.rename(kept)
        self.path.mkdir(parents=True)
        return kept

    def ledger(self, rank: int) -> Path:
        """Return the path of a rank's ledger."""
        return self.path / "ledger" / f"rank-{rank:03d}.jsonl"

    def metrics(self, rank: int) -> Path:
        """Return the path of a rank's metrics."""
        return self.path / "metrics" / f"rank-{rank:03d}.jsonl"

    def write_waits(self, rank: int, waits: Mapping[str, Any]) -> None:
        """Write a rank's waits, readable for its owner alone: how long others took may depend on their data."""
        path, text = self.path / "waits" / f"rank-{rank:03d}.json", json.dumps(waits, allow_nan=False) + "\n"
        write_file(path, text, private=True)

    def write_figures(self, rank: int, figures: Mapping[str, Any]) -> None:
        """Write the figures of a rank's process, for its owner alone."""
        text = json.dumps(figures, allow_nan=False) + "\n"
        write_file(self.path / "process" / f"rank-{rank:03d}.json", text, private=True)

    def write_private(self, rank: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write what a rank keeps to itself, one JSON object a line, readable for its owner alone."""
        with writing(self.path / "private" / f"rank-{rank:03d}.jsonl", private=True, exclusive=True) as file:
            file.writelines(f"{json.dumps(line, allow_nan=False)}\n".encode() for line in lines)

    def write_failure(self, rank: int, text: str) -> Path | None:
        """Write the traceback of an error for the rank's owner alone; return where, None if the disk does not allow."""
        path = self.path / "failure" / f"rank-{rank:03d}.txt"
        try:
            write_file(path, text, private=True)
        except OSError:
            return None
        return path

    def write_text(self, name: str, text: str) -> None:
        """Write a small file."""
        write_file(self.path / name, text)

    def note_end(self, text: str) -> bool:
        """Write to ended.txt why the run ended early; return False if another rank has done so already."""
        try:
            with (self.path / "ended.txt").open("x", encoding="utf-8") as file:
                file.write(text + "\n")
        except FileExistsError:
            return False
        except OSError:
            pass  # the message on the terminal must not depend on the disk
        return True

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        self.write_text("summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")

    def write_model(self, model: Model) -> None:
        """Write model.npz."""
        model.save(self.path / "model.npz")


class Metrics:
    """One rank's metrics file: a JSON object per line, flushed at once so that it can be followed."""

    def __init__(self, path: Path, after: int = 0, *, private: bool = False) -> None:
        """Create the file, for its owner alone if `private`; a run that goes on keeps the lines up to round `after`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept: list[str] = []
        if after and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # a crash may leave half a line
                    kept += [line] if json.loads(line)["round"] <= after else []
        self._file = path.open("w", encoding="utf-8")
        if private:
            path.chmod(0o600)
        self._file.writelines(line + os.linesep for line in kept)

    def write(self, **values: Any) -> None:
        """Append one line; if the disk is full, say so once, and go on without."""
        if self._file.closed:
            return
        try:
            self._file.write(json.dumps(values, allow_nan=False) + os.linesep)
            self._file.flush()
        except OSError as error:
            say(f"dpmpi: cannot write {self._file.name}: {error.strerror}; the run goes on without it", sys.stderr)
            with suppress(OSError):
                self._file.close()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
