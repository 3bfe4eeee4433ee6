"""What the pages name is there: links and anchors, files and functions, commands and flags; and words are few."""

import contextlib
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dpmpi
from dpmpi.commands.dispatch import COMMANDS, main

ROOT = Path(dpmpi.__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[a-z]*/README.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
PLACEHOLDERS = {
    *("dpmpi/algorithms/mixed_gd.py", "dpmpi.algorithms.mixed_gd"),
    *("dpmpi.methods", "dpmpi.losses", "dpmpi.penalties"),  # groups of entry points
    *("dpmpi/algorithms/my_method.py", "tests/algorithms/test_my_method.py", "algorithms/my-method.md"),
}
"""Names of what a reader makes."""
SUBCOMMANDS = {"data": ("list", "shard", "adult", "table", "codebook", "describe"), "keys": ("make", "one")}
ALSO_A_RUNS = {"audit", "chaos", "join"}  # take the flags of a run beside their own
NOT_OURS = {"--bind-to", "--hostfile", "--map-by", "--mpi", "--strict", "--wait", "--with-ft"}  # of mpirun, Slurm, mypy
NOT_OURS |= {"--my-step"}  # of a plug-in

pages = pytest.mark.parametrize("page", PAGES, ids=NAMES)
linking = pytest.mark.parametrize("page", [p for p in PAGES if p.name != "tutorial.md"])  # it has its own test


@cache
def prose(page: Path) -> str:
    """The text of a page; of the changelog the latest section, but for what it removed."""
    text = page.read_text(encoding="utf-8")
    return text.split("\n## ")[1].split("\n### Removed")[0] if page.name == "CHANGELOG.md" else text


@cache
def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@linking
def test_links_and_anchors_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target) and target not in PLACEHOLDERS:
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


@pages
def test_files_that_are_named_exist(page):
    named = set(re.findall(r"(?<![\w/.])(?:dpmpi|tests)/[\w/]+\.\w+", prose(page))) - PLACEHOLDERS
    assert not [path for path in named if not (ROOT / path).is_file()]


@pages
def test_functions_that_are_named_are_in_their_module(page):
    for module, name in re.findall(r"`([\w/]+\.py):\s+([\w.]+)", prose(page)):
        found = [file for file in ROOT.glob("dpmpi/**/*.py") if f"/{file.as_posix()}".endswith(f"/{module}")]
        last = name.split(".")[-1]
        defined = [file for file in found if re.search(rf"\b(?:class|def) {last}\b", file.read_text(encoding="utf-8"))]
        assert defined, f"{module}: {name}"


@pages
def test_modules_that_are_named_can_be_imported(page):
    for name in set(re.findall(r"\bdpmpi(?:\.\w+)+", prose(page))) - PLACEHOLDERS:
        words = name.split(".")
        while words and not any((ROOT / "/".join(words)).with_suffix(end).exists() for end in ("", ".py")):
            last = words.pop()
        if len(words) < name.count(".") + 1:  # the rest is a name in a module
            path = ROOT / "/".join(words)
            module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            assert re.search(rf"\b{last}\b", module.read_text(encoding="utf-8")), name


@cache
def help_of(*words: str) -> str:
    """The help of a command, by running it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue()


@cache
def flags_of(command: str) -> set[str]:
    """The flags of a command and its actions, as the left column of its help lists them."""
    texts = [help_of(command), *(help_of(command, action) for action in SUBCOMMANDS.get(command, ()))]
    listed = "\n".join(line for text in texts for line in text.splitlines() if re.match(r"  (-\w, )?--", line))
    taken = set(re.findall(r"(?<![\w(-])--[a-z][\w-]*", listed))
    return taken | flags_of("run") if command in ALSO_A_RUNS else taken


def command_lines(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, its words) of every `python -m dpmpi COMMAND ...` and `python -m dpmpi.run ...`."""
    joined = re.sub(r"\\\n\s*", " ", text)
    joined = re.sub(r"(python)\s+(-m)\s+(dpmpi)", r"\1 \2 \3", joined)
    for dot, rest in re.findall(r"python -m dpmpi(\.run)?\b([^`\n]*)", joined):
        words = re.split(r"\s+#|\s{3,}|[;&|)]", rest)[0].split()
        if dot:
            yield "run", words
        elif words and words[0] not in ("COMMAND", "..."):
            yield words[0].strip(".,:"), words[1:]


@pages
def test_commands_and_their_flags_exist(page):
    for command, words in command_lines(prose(page)):
        assert command in COMMANDS, command
        given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        assert given <= flags_of(command) | {"--help"}, (command, given - flags_of(command))


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "cli.md"])  # it is made of the flags themselves
def test_flags_in_prose_exist(page):
    known = set().union(NOT_OURS, *(flags_of(command) for command in COMMANDS))
    scripts = " ".join(path.read_text(encoding="utf-8") for path in ROOT.glob("launch/*"))
    for flag in set(re.findall(r"(?<![\w(-])--[a-z][\w-]*\w", prose(page))) - known:
        assert re.search(rf"{flag}\b", scripts), flag


def test_the_glossary_is_short_and_has_each_word_once():
    glossary = (ROOT / "docs/design.md").read_text(encoding="utf-8").split("\n## Glossary\n")[1].split("\n## ")[0]
    words = re.findall(r"^\| ([\w-]+) \| .+ \|$", glossary, flags=re.MULTILINE)[1:]  # the first row is the heading
    assert 20 <= len(words) <= 25
    assert len(set(words)) == len(words)
    assert glossary.count("\n|") == len(words) + 2


def test_one_version():
    version = re.escape(dpmpi.__version__)
    assert re.match(rf".*?\n## \[{version}\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)
