"""A person looks into a flamegraph: as a widget in JupyterLab, and as a page without a kernel."""

import re
from pathlib import Path

import pytest
from browser.page import SCREENSHOTS
from support.build_flame import COLLATE, CROP, HOSTILE, JPEG, a_flame, named

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TESTS = Path(__file__).parents[1]
CELLS = [
    f"import sys; sys.path.insert(0, {str(TESTS)!r})\nfrom support.build_flame import *",
    "flame = a_flame()\npanel = flame.panel()\npanel",
    "named(HOSTILE).panel()",
]


class Viewer:
    """One flamegraph, in a page or in the output of a cell."""

    def __init__(self, shown, keyboard):
        self.shown, self.keyboard = shown, keyboard
        shown.locator("g.frame").first.wait_for()

    def frame(self, name):
        return self.shown.locator(f'g.frame[name="{name}"]')

    def width(self, name):
        return self.frame(name).locator("rect").bounding_box()["width"]

    def share(self, name):
        """Return the frame's share of the whole width, which may change with the page."""
        return pytest.approx(self.width(name) / self.width("all"), abs=0.01)

    def click(self, name):
        """Click near the frame's left end, where no other frame lies."""
        self.frame(name).locator("rect").click(position={"x": 5, "y": 5})

    def choose(self, label, option):
        self.shown.locator("label", has_text=label).locator("select").select_option(label=option)

    @property
    def search(self):
        return self.shown.locator("input[type=search]")

    @property
    def details(self):
        return self.shown.locator(".stallscope-flame-details").inner_text()


def assert_every_control_works(viewer):
    """Zoom, reset, search, worker switch, stage filter, keys; each shows what it should."""
    assert 0.428 == viewer.share("dilate")

    viewer.click("dilate")
    assert 1 == viewer.share("dilate")
    assert "dilate (me/data.py): 42.8%, 214 stacks, your code" == viewer.details
    viewer.shown.get_by_role("button", name="Reset").click()
    assert 0.428 == viewer.share("dilate")

    viewer.search.fill("DATA.PY")
    assert "3 frames found" in viewer.details
    assert "rgb(240, 228, 66)" == viewer.frame("dilate").locator("rect").evaluate(
        "rect => getComputedStyle(rect).fill"
    )
    viewer.search.fill("(")  # no pattern: just a letter
    assert "Nothing found" in viewer.details
    viewer.search.fill("")

    viewer.choose("Worker", "worker 1")
    assert viewer.share("dilate") != 0.428
    assert "250 stacks" in viewer.frame("all").get_attribute("aria-label")
    viewer.choose("Stage", "RandomMask")
    assert 1 == viewer.share("dilate")
    assert 0 == viewer.frame("default_collate").count()
    viewer.choose("Worker", "all, merged")
    viewer.choose("Stage", "all")

    viewer.search.focus()
    press = viewer.keyboard.press
    for key in ("Tab", "Tab", "ArrowDown", "ArrowDown", "ArrowDown"):
        press(key)
    assert viewer.details.startswith("dilate")
    press("ArrowRight")
    assert viewer.details.startswith("load")
    press("Enter")
    assert 1 == viewer.share("load")
    press("Escape")
    assert 0.428 == viewer.share("dilate")


def test_every_control_of_the_widget_works(lab):
    from nbformat import v4  # takes seconds: for those who run a browser

    asked = []
    lab.page.on("request", lambda request: asked.append(request.url))
    notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    lab.put("flame.ipynb", notebook)
    lab.open("flame.ipynb")
    assert lab.run_all() == []

    shown = lab.page.locator(".stallscope-flame")
    viewer = Viewer(shown.first, lab.page.keyboard)
    assert_every_control_works(viewer)
    lab.settle()
    lab.shot("flame-widget", shown.first)
    assert HOSTILE in shown.last.inner_text()
    assert lab.page.evaluate("window.broken") is None
    away = [
        url
        for url in asked
        if not re.match(r"(https?|ws)://(127\.0\.0\.1|localhost)|data:|blob:", url)
    ]
    assert not away


def test_an_exported_page_works_without_a_kernel(page, tmp_path):
    """The controls work in a page from a file, which fetches nothing else."""
    path = a_flame().export(tmp_path / "flame.html")
    page.goto(path.as_uri())

    assert_every_control_works(Viewer(page.locator(".stallscope-flame"), page.keyboard))

    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "flame-page.png", full_page=True)
    assert [path.as_uri()] == page.asked
    assert not page.wrong


def test_a_difference_shows_both(page, tmp_path):
    """A frame that is gone is still shown, with its share before."""
    after = a_flame({JPEG: 0.5, CROP: 0.2, COLLATE: 0.3}, seed=1)
    page.goto(after.diff(a_flame()).export(tmp_path / "difference.html").as_uri())
    viewer = Viewer(page.locator(".stallscope-flame"), page.keyboard)

    viewer.frame("dilate").hover()

    assert "dilate (me/data.py): 42.8% before, 0.0% after" == viewer.details
    page.screenshot(path=SCREENSHOTS / "flame-difference.png", full_page=True)


@pytest.mark.parametrize("text", [HOSTILE, "</script><script>window.broken=1</script>", "'\"><b>"])
def test_names_are_shown_as_text(page, tmp_path, text):
    page.goto(named(text).export(tmp_path / "flame.html").as_uri())
    page.wait_for_timeout(300)  # for what must not happen there is nothing to wait for

    assert page.evaluate("window.broken") is None
    assert 0 == page.locator("img, b").count()
    assert text in page.locator("body").inner_text()
    assert not page.wrong


def test_the_notebook_runs_and_its_viewers_work(lab):
    """Run All works; its viewers zoom; the listing shows another function's lines.

    Screenshots are saved for a person.
    """
    lab.open("4_worker_flamegraphs.ipynb")
    assert lab.run_all() == []

    lab.page.set_default_timeout(20_000)
    for number in range(2):
        shown = lab.page.locator(".stallscope-flame").nth(number)
        shown.scroll_into_view_if_needed()
        viewer = Viewer(shown, lab.page.keyboard)
        frame = shown.locator("g.frame").nth(1)
        before = frame.locator("rect").bounding_box()["width"]
        frame.locator("rect").click(position={"x": 2, "y": 5})
        assert frame.locator("rect").bounding_box()["width"] >= before
        shown.get_by_role("button", name="Reset").click()
        lab.shot(f"04-viewer-{number}", viewer.shown)
    listing = lab.page.locator(".jp-OutputArea-output").filter(
        has=lab.page.locator(".widget-dropdown", has_text="Function")
    )
    listing.last.scroll_into_view_if_needed()
    before = listing.last.locator("summary").inner_text()
    listing.last.locator("select").select_option(index=1)
    listing.last.locator("summary", has_not_text=before).wait_for()
    assert listing.last.locator("td", has_text="%").count()
    lab.shot("04-listing", listing.last)
    lab.shots("04")
    lab.shot("04-table", lab.page.locator(".stallscope-flames:visible").first)
    lab.shot("04-change", lab.page.locator(".stallscope-flames:visible").last)
