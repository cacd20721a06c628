"""A person opens a guided notebook in JupyterLab, runs it twice, and uses its widgets."""

import re

import pytest
from browser.page import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_the_first_notebook_shows_the_verdict_and_links_on(lab):
    """Run All works twice in a row, in both themes; the panel shows other pictures.

    The verdict is the first result, and a link opens the notebook that goes deeper.
    """
    lab.open("1_start_here.ipynb")

    for theme, called in THEMES.items():
        lab.theme(called)
        assert lab.run_all() == []

        panel = lab.page.locator(".jp-OutputArea-output").filter(
            has=lab.page.locator(".widget-dropdown", has_text="Show")
        )
        panel.last.scroll_into_view_if_needed()
        assert not lab.stills()
        before = panel.last.locator("img").get_attribute("src")
        panel.last.locator("select").select_option(label="what the machine did meanwhile")
        lab.redrawn(panel.last, before)

        lab.shot(f"1_start_here-{theme}-answer", lab.answer())
        lab.shot(f"1_start_here-{theme}-page")
        assert "Verdict:" in lab.answer().inner_text()
        lab.page.locator("summary", has_text="All causes").click()
        causes = lab.page.locator(".jp-RenderedMarkdown table", has_text="what shows it").first
        assert causes.locator("code", has_text="one-transform").count()
        lab.shot(f"1_start_here-{theme}-causes", causes)
        lab.shots(f"1_start_here-{theme}")
        lab.shot(f"1_start_here-{theme}-panel", panel.last)

    # The answer may name no notebook; the table under the panel, near what is shown, has them all
    link = lab.page.locator("a[href*='.ipynb']", has_text="Fetch against transform").last
    link.scroll_into_view_if_needed()
    wanted = re.search(r"\w+\.ipynb", link.get_attribute("href"))[0]
    link.click()
    lab.page.wait_for_function(
        "name => window.jupyterapp.shell.currentWidget?.context?.path === name", arg=wanted
    )


def test_storage_and_layouts_of_the_data(lab):
    """Run All works twice in a row, in both themes: what the disk gives, and other layouts."""
    lab.open("a_storage.ipynb")

    for theme, called in THEMES.items():
        lab.theme(called)
        assert lab.run_all() == []

        layouts = lab.page.locator(".stallscope-layouts").first
        lab.shot(f"a_storage-{theme}-answer", lab.answer())
        assert "samples/s" in lab.answer().inner_text()  # what is out of sight has none
        lab.shot(f"a_storage-{theme}-layouts", layouts)
        assert "LMDB" in layouts.text_content()
        lab.shots(f"a_storage-{theme}")


class Sliders:
    """The panel over the replay."""

    def __init__(self, lab):
        self.page = lab.page
        self.shown = lab.page.locator(".stallscope-tuning-panel").last
        self.shown.scroll_into_view_if_needed()

    def numbers(self):
        return self.shown.locator("p", has_text="samples/s").first.inner_text()

    def handle(self, label):
        return self.shown.locator(".widget-slider", has_text=label).locator(".noUi-handle")

    def changes(self, act, *arguments):
        before = self.numbers()
        act(*arguments)
        self.page.wait_for_function(
            "([root, before]) => [...root.querySelectorAll('p')]"
            ".find(line => line.innerText.includes('samples/s')).innerText !== before",
            arg=[self.shown.element_handle(), before],
        )

    def key(self, label, key):
        self.handle(label).focus()
        self.page.keyboard.press(key)

    def click(self, label, share):
        track = self.shown.locator(".widget-slider", has_text=label).locator(".noUi-target")
        box = track.bounding_box()
        self.page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def test_the_replay_of_settings_follows_its_sliders(lab):
    """Run All works twice; the sliders move by keyboard and by mouse. Screenshots are kept."""
    name = "3_cached_baseline"
    lab.open(f"{name}.ipynb")
    for theme, called in THEMES.items():
        lab.theme(called)
        assert lab.run_all() == []

        panel = Sliders(lab)
        panel.changes(panel.click, "Step, ms", 0.9)
        panel.changes(panel.key, "Step, ms", "Home")
        panel.changes(panel.key, "Workers", "Home")
        assert panel.shown.locator("svg.stallscope-replay rect").count() > 4

        lab.shots(f"{name}-{theme}")
        lab.shot(f"{name}-{theme}-answer", lab.answer())
        lab.shot(f"{name}-{theme}-panel", panel.shown)
