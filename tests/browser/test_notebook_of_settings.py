"""A person opens the notebook about settings, moves its sliders, and measures one setting."""

import pytest
from browser.page import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAME = "3_cached_baseline"


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
            ".find(one => one.innerText.includes('samples/s')).innerText !== before",
            arg=[self.shown.element_handle(), before],
        )

    def key(self, label, key):
        self.handle(label).focus()
        self.page.keyboard.press(key)

    def click(self, label, share):
        track = self.shown.locator(".widget-slider", has_text=label).locator(".noUi-target")
        box = track.bounding_box()
        self.page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def test_runs_twice_and_the_replay_follows_the_hand(lab):
    """By keyboard and by mouse. Screenshots are kept."""
    lab.open(f"{NAME}.ipynb")
    for theme, called in THEMES.items():
        lab.theme(called)
        assert lab.run_all() == []

        panel = Sliders(lab)
        panel.changes(panel.click, "Step, ms", 0.9)
        panel.changes(panel.key, "Step, ms", "Home")
        panel.changes(panel.key, "Workers", "Home")
        assert panel.shown.locator("svg.stallscope-replay rect").count() > 4

        lab.shots(f"{NAME}-{theme}")
        lab.shot(f"{NAME}-{theme}-answer", lab.answer())
        lab.shot(f"{NAME}-{theme}-panel", panel.shown)
