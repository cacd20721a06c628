"""How long 50,000 distinct stacks take to be seen: from Python to the first paint in a browser.

    python tests/benchmarks/flame_paint.py

Prints the steps in Python and, for five fresh pages, the time from opening the exported file to the
frame after the one in which the viewer drew; then what a zoom and a search take. Without Chromium
and playwright these are left out.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from benchkit.command import Option, arguments
from support.build_flame import many_stacks

from stallscope.flame.tree import of_flame
from stallscope.views.flame_viewer import page

PAINTED = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>
    done(performance.now()))))"""
ZOOM = """async () => {
    const frames = [...document.querySelectorAll('g.frame')], begin = performance.now();
    frames[1].dispatchEvent(new MouseEvent('click', { bubbles: true }));
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return performance.now() - begin;
}"""
SEARCH = """async () => {
    const field = document.querySelector('input[type=search]'), begin = performance.now();
    field.value = 'f3_2';
    field.dispatchEvent(new Event('input'));
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return performance.now() - begin;
}"""


def timed(name, work):
    """Do it once, and print how long it took."""
    begin = time.perf_counter()
    made = work()
    print(f"{name}: {time.perf_counter() - begin:.2f} s")
    return made


def opened(browser, path):
    """Milliseconds to the first paint, of a zoom and of a search, in a new page."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_selector("g.frame")
    found = [page.evaluate(PAINTED), page.evaluate(ZOOM), page.evaluate(SEARCH)]
    page.close()
    return found


def paint(text, chromium, pages):
    """Open a page so often, each time anew; what `opened` gives."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "flame.html"
        path.write_text(text, encoding="utf-8")
        print(f"page: {path.stat().st_size / 1e6:.1f} MB")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        found = [opened(browser, path) for _ in range(pages)]
        browser.close()
    return found


def main():
    """Print all of it."""
    given = arguments(
        __doc__,
        stacks=Option(50_000, 500, "distinct ones"),
        pages=Option(5, 1, "fresh ones that are opened"),
    )
    flame = many_stacks(given.stacks)
    print(f"{flame.stacks()['stack'].n_unique():,} distinct stacks")
    timed("shares and their intervals", flame.table)
    data = timed("merged, cut and put into lists", lambda: of_flame(flame))
    print(f"{len(data['parents']):,} frames are given to the viewer; {data['notes'][-1]}")
    chromium = shutil.which("chromium")
    if not chromium or find_spec("playwright") is None:
        print("Chromium or playwright is not installed: what the browser takes is left out")
        return
    painted = zip(*paint(page(data), chromium, given.pages), strict=True)
    for name, times in zip(("first paint", "a zoom", "a search"), painted, strict=True):
        shown = ", ".join(f"{one:.0f}" for one in sorted(times))
        print(f"{name}: median {statistics.median(times):.0f} ms of {given.pages} pages ({shown})")


if __name__ == "__main__":
    main()
