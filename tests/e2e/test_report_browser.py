"""The report of 20 ranks in a real browser: no error, nothing too wide, no text on top of other text."""

import json

import needs
import pytest

from dpmpi.commands.report import drawing
from dpmpi.commands.report.command import write_report
from dpmpi.run import main as train

pytestmark = needs.chromium

RANKS = 20
SIZES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
# Pairs of texts of one drawing that share more than a pixel in both directions.
OVERLAPS = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()])
    .filter(([, box]) => box.width > 0)
  return boxes.flatMap(([a, p], i) => boxes.slice(0, i)
    .filter(([, q]) => Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 &&
                       Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1)
    .map(([b]) => [svg.getAttribute('aria-label'), a, b]))
})"""
OUTSIDE = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect()
  return [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()])
    .filter(([, box]) => box.width > 0 && (box.left < frame.left - 1 || box.right > frame.right + 1 ||
                                           box.bottom > frame.bottom + 1))
    .map(([text]) => [svg.getAttribute('aria-label'), text])
})"""
# Whether a table that is wider than its box shows so: its last column is out of sight, and the box scrolls.
CUT = """() => [...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth + 1)
  .map(box => [getComputedStyle(box).overflowX, getComputedStyle(box).backgroundAttachment])"""
# Tables about the model that are wider than the screen, and flags that are broken into two lines.
HIDDEN = """() => [...document.querySelectorAll('section')]
  .filter(part => /How good|Coefficients/.test(part.querySelector('h2').textContent))
  .flatMap(part => [...part.querySelectorAll('.scroll')]).filter(box => box.scrollWidth > box.clientWidth + 1).length"""
FLAGS = """() => [...document.querySelectorAll('p code, small code')].map(one => one.getClientRects().length)"""
BROKEN = """() => [...document.querySelectorAll('td:not(:first-child), table:not(.names) td')].map(cell => {
  const range = document.createRange(); range.selectNodeContents(cell.firstChild ?? cell)
  return [cell.textContent, range.getClientRects().length]
}).filter(([text, lines]) => /^[\\d.,]+$/.test(text) && lines > 1)"""


def add_waits(path):
    """Give a run of one process the waits that processes of their own would have left."""
    summary = json.loads((path / "summary.json").read_text()) | {"cost": None}
    (path / "waits").mkdir(exist_ok=True)
    for record in summary["per_rank"]:
        peers = list(record["neighbours"])
        record["wait_seconds"] = 0.6 * record["training_seconds"]
        for peer in peers:
            record["neighbours"][peer]["wait_seconds"] = record["wait_seconds"] / len(peers)
        width = record["training_seconds"] / 100
        buckets = [{peers[k % len(peers)]: width * (0.2 + 0.8 * (k * 7 % 11) / 11)} for k in range(100)]
        waits = {"rank": record["rank"], "started": summary["started"], "width": width, "buckets": buckets}
        (path / f"waits/rank-{record['rank']:03d}.json").write_text(json.dumps(waits))
    (path / "summary.json").write_text(json.dumps(summary))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of one run and of three side by side, one of which is not private."""
    folder = tmp_path_factory.mktemp("runs")
    common = ["--data=synthetic:samples=2000,features=10", "--rounds=60", "--evaluate=5", "--allow-large-delta"]
    common += ["--reference", "--quiet", f"--loopback={RANKS}"]
    runs = {
        "ring": ["--epsilon=1"],
        "dense": ["--epsilon=4", "--graph=erdos-renyi:p=0.4", "--seed=3"],
        "gossip": ["--algorithm=sampled-dda", "--graph=complete", "--insecure-noise-seed=1", "--epsilon=1"],
    }
    for name, flags in runs.items():
        assert train([*common, *flags, f"--out={folder / name}"]) == 0
        add_waits(folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "FORMATS", ("svg",))  # the others are not looked at here
        return {
            "one": write_report([folder / "ring"], None),
            "three": write_report([folder / name for name in runs], folder / "three.html"),
        }


@pytest.fixture(scope="module")
def browser():
    with needs.package("playwright.sync_api", "test").sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=needs.CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "theme"), SIZES)
@pytest.mark.parametrize("name", ["one", "three"])
def test_a_page_can_be_read(pages, browser, name, width, theme):
    assert pages[name].stat().st_size < 3_000_000
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(pages[name].as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert said == []
    assert asked == [pages[name].as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('figure svg[role=img]').length") >= 13
    for choice in page.locator(".choice>label").all():
        choice.click()
        assert page.locator(".choice>div:visible").count() == 1
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate(OUTSIDE) == []
    assert all(look == ["auto", "local, scroll"] for look in page.evaluate(CUT))
    assert page.evaluate(BROKEN) == []
    assert page.evaluate(HIDDEN) == 0
    assert set(page.evaluate(FLAGS)) <= {1}
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if theme == "light" else "rgb(13, 17, 23)")
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('figure svg[role=img]')].filter(s => s.getClientRects().length)"
        ".map(s => 9 * s.getBoundingClientRect().width / s.viewBox.baseVal.width))"
    )
    assert smallest >= 10  # pixels of the letters in drawings
    page.close()


def test_a_pointer_shows_for_whom_a_rank_waited(pages, browser):
    page = browser.new_page()
    page.goto(pages["one"].as_uri())
    titles = page.evaluate("[...document.querySelectorAll('svg g>title')].map(t => t.textContent)")
    for rank in range(RANKS):
        assert sum(title.startswith(f"rank {rank} waited ") for title in titles) == 2
    page.close()


def test_the_keyboard_chooses_what_curves_are_against(pages, browser):
    page = browser.new_page()
    page.goto(pages["one"].as_uri())
    page.locator(".choice>input").first.focus()
    for label in ("round", "time (s)", "bytes sent by all ranks"):
        assert page.locator(".choice>div:visible svg text", has_text=label).count() >= 3
        page.keyboard.press("ArrowRight")
    page.close()


@pytest.mark.parametrize(("width", "theme"), SIZES)
def test_what_curious_ranks_learn_can_be_read(curious_page, browser, width, theme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.goto(curious_page.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert page.locator("svg[aria-label^='What a curious rank learns']").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS) == page.evaluate(OUTSIDE) == page.evaluate(BROKEN) == []
    assert all(look == ["auto", "local, scroll"] for look in page.evaluate(CUT))
    page.close()


@pytest.fixture(scope="module")
def curious_page(tmp_path_factory):
    """The page of a run whose messages qualify, with a set of curious ranks."""
    run = tmp_path_factory.mktemp("curious") / "run"
    flags = ["--algorithm=dgd", "--loss=logistic", "--step-decay=constant", "--batch=full", "--seal", "--no-evaluate"]
    flags += ["--data=synthetic:samples=2000,features=10", "--rounds=60", "--epsilon=1", "--allow-large-delta"]
    assert train([*flags, "--quiet", f"--loopback={RANKS}", f"--out={run}"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "FORMATS", ("svg",))
        return write_report([run], None, "0,10")
