"""The page in a browser: headless Chromium (Debian's package `chromium`, or CHROMIUM=/path/to/it).

Without it these tests are skipped.
"""

from pathlib import Path

import pytest

from cluster.explain.page import explain_page, visible
from tests.unit.cluster.explain.chromium import browser
from tests.unit.cluster.explain.explained import counted, of_text, of_tokens
from tests.unit.cluster.explain.test_page import HOSTILE, data_of

TOKENS = 32_000
SHOWN = "[...document.querySelectorAll('#text [data-at]')].filter(n => n.textContent && n.offsetWidth > 0 && {}).length"

# Two frames: events of the last scroll have been handled.
SETTLED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
async def tab(tmp_path_factory):
    async with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(scope="module")
def long_page(tmp_path_factory):
    """A page of 32k tokens and the explanation behind it."""
    explanation, prompt = of_tokens(TOKENS, later_turn=True, protected=[[0, 40], [TOKENS - 60, TOKENS]])
    return explanation, write(
        tmp_path_factory.mktemp("page"), explain_page(explanation, prompt, notes=[("Question", "Why?")])
    )


def write(folder: Path, page: str) -> Path:
    file = folder / "page.html"
    file.write_text(page, encoding="ascii")
    return file


@pytest.mark.parametrize("dark", [False, True])
async def test_a_page_of_32k_tokens_loads_alone_and_without_errors(tab, long_page, dark):
    explanation, file = long_page
    await tab.open(file, dark=dark)
    assert tab.problems == []
    assert tab.requests == [file.as_uri()]
    kept = [piece for piece in data_of(file.read_text())["pieces"] if piece[2] < 4]
    assert await tab.run("document.querySelectorAll('#text mark').length") == len(kept)
    assert await tab.run("document.querySelectorAll('#text *').length") < TOKENS / 8
    assert await tab.run("document.querySelectorAll('#text .message').length") == 3
    assert f"{explanation['kept_tokens']:,} kept" in await tab.run("document.getElementById('facts').textContent")
    # Ink on paper: bright in the dark.
    shades = await tab.run(
        "[document.body, document.querySelector('#text')].map((n, i) =>"
        " getComputedStyle(n)[['backgroundColor', 'color'][i]].match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))"
    )
    assert (shades[0] < shades[1]) == dark


async def test_the_strip_is_drawn_in_the_colours_of_the_reasons(tab, long_page):
    await tab.open(long_page[1])
    colours = await tab.run("""(() => {
      const c = document.querySelector('#strip canvas');
      const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      const seen = new Set();
      for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add([d[i], d[i + 1], d[i + 2]].join());
      return [...seen];
    })()""")
    assert {"123,92,214", "212,112,10", "42,114,216"} <= set(colours)  # reused, late and new, as in the style sheet


async def test_filters_hide_and_show(tab, long_page):
    explanation, file = long_page
    await tab.open(file)
    everything = await tab.run(SHOWN.format("true"))
    assert everything > 1000
    dropped = await tab.run(SHOWN.format("n.tagName === 'SPAN'"))
    assert dropped > 0
    await tab.run("document.querySelector('[data-group=dropped]').click()")
    assert await tab.run("document.querySelector('[data-group=dropped]').getAttribute('aria-pressed')") == "false"
    assert await tab.run("document.querySelector('#text .of-dropped:not(.first)').offsetWidth") == 0
    assert await tab.run(SHOWN.format("n.tagName === 'MARK'")) == everything - dropped
    await tab.run("document.querySelector('[data-group=reused]').click()")
    assert await tab.run(SHOWN.format("n.matches('mark.group1:not(.first)')")) == 0
    await tab.run("document.getElementById('all').click()")
    assert await tab.run(SHOWN.format("true")) == everything
    await tab.run("document.getElementById('only').click()")
    assert await tab.run(SHOWN.format("n.tagName === 'MARK'")) == everything - dropped
    labels = await tab.run("[...document.querySelectorAll('#chips [data-group]')].map(n => n.textContent)")
    assert f"Dropped {counted(explanation).dropped:,}" in labels
    assert tab.problems == []


async def test_pointing_shows_reason_and_score(tab, long_page):
    await tab.open(long_page[1])
    x, y = await tab.run("""(() => {
      const mark = document.querySelector('mark.group1');
      mark.scrollIntoView({ block: 'center' });
      const box = mark.getClientRects()[0];
      return [box.x + 4, box.y + 6];
    })()""")
    assert await tab.run("getComputedStyle(document.getElementById('tip')).visibility") == "hidden"
    await tab.run(SETTLED)  # scrolling hides the tip
    await tab.point(x, y)
    await tab.until("getComputedStyle(document.getElementById('tip')).visibility === 'visible'")
    tip = await tab.run("document.getElementById('tip').textContent")
    assert "Reused" in tip
    assert "of 32,000" in tip
    assert "of 1,000 chunks" in tip


async def test_the_page_is_used_by_keyboard(tab, long_page):
    """Tab reaches the details, the strip, each filter and the text; arrows move the strip and step through marks."""
    await tab.open(long_page[1])
    reached = []
    for _ in range(10):
        await tab.press("Tab")
        reached.append(await tab.run("document.activeElement.id || document.activeElement.dataset.group"))
        if reached[-1] == "strip":
            await tab.press("End")
            await tab.until("scrollY > 1000")
            await tab.until(f"+document.getElementById('strip').getAttribute('aria-valuenow') > {TOKENS // 2}")
            await tab.press("Home")
        if reached[-1] == "dropped":
            await tab.press("Enter")
            assert await tab.run("document.activeElement.getAttribute('aria-pressed')") == "false"
    assert reached[1:] == ["strip", "protected", "reused", "appended", "new", "dropped", "only", "all", "text"]
    for _ in range(3):
        await tab.press("ArrowRight")
    third = await tab.run("[...document.querySelectorAll('#text mark')].indexOf(document.activeElement)")
    assert third == 2
    await tab.press("ArrowLeft")
    assert await tab.run("[...document.querySelectorAll('#text mark')].indexOf(document.activeElement)") == 1
    assert tab.problems == []


async def test_a_hostile_prompt_is_only_text(tab, tmp_path):
    explanation, prompt = of_text(HOSTILE * 5)
    await tab.open(write(tmp_path, explain_page(explanation, prompt, title=HOSTILE, notes=[("Note", HOSTILE)])))
    assert tab.problems == []
    shown = await tab.run("[...document.querySelectorAll('#text [data-at]')].map(n => n.textContent).join('')")
    assert shown == visible(HOSTILE * 5)
    assert await tab.run("document.querySelectorAll('img, #text script, #text b, h1 *').length") == 0
    assert await tab.run("document.title") == " ".join(visible(HOSTILE).split())


async def test_the_control_a_script_in_the_page_would_be_noticed(tab, tmp_path):
    page = explain_page(*of_text("x" * 100)).replace("</main>", "</main><script>missing()</script>")
    await tab.open(write(tmp_path, page))
    assert any("missing is not defined" in problem for problem in tab.problems)


async def test_a_page_without_scores_is_shown(tab, tmp_path):
    explanation, prompt = of_tokens(1000)
    explanation["unit_scores"] = None
    await tab.open(write(tmp_path, explain_page(explanation, prompt)))
    assert tab.problems == []
    assert await tab.run("document.querySelectorAll('#text mark').length") > 0
    assert await tab.run("document.getElementById('scale')") is None
