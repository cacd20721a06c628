"""A person tries orders in JupyterLab: by mouse and keyboard, measures one, takes its code."""

import re

import pytest
from browser.page import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

AS_IT_IS = ["ToTensor", "Normalize", "Resize", "RandomCrop", "RandomHorizontalFlip"]
RESIZED_FIRST = ["ToTensor", "Resize", "Normalize", "RandomCrop", "RandomHorizontalFlip"]


class TryPanel:
    """The panel in which orders are tried."""

    def __init__(self, lab):
        self.lab, self.page = lab, lab.page
        self.shown = lab.page.locator(".stallscope-orders-panel").last
        self.shown.scroll_into_view_if_needed()
        self.tags = self.shown.locator(".jupyter-widget-tag[draggable]")

    def order(self):
        return [tag.strip() for tag in self.tags.all_text_contents()]

    def drag(self, name, onto):
        """Drag an op before another one; once more where the notebook scrolled meanwhile."""
        wanted = [op for op in self.order() if op != name]
        wanted.insert(wanted.index(onto), name)
        for _ in range(5):
            self.tag(name).drag_to(self.tag(onto), target_position={"x": 3, "y": 5})
            if self.order() == wanted:
                return

    def choose(self, op):
        self.shown.get_by_label("Op", exact=True).select_option(op)

    def waits_for_order(self, names):
        self.page.wait_for_function(
            "([root, names]) => [...root.querySelectorAll('.jupyter-widget-tag[draggable]')]"
            ".map(tag => tag.textContent.trim()).join() === names.join()",
            arg=[self.shown.element_handle(), names],
            timeout=60_000,
        )

    def tag(self, name):
        return self.tags.filter(has_text=name)

    def slide(self, key, grade):
        """Move the slider by a key; the grade stands beside it then."""
        self.shown.get_by_role("slider").first.focus()
        self.page.keyboard.press(key)
        self.shown.locator(".widget-readout").filter(has_text=grade).wait_for(timeout=60_000)

    def press(self, name):
        button = self.shown.get_by_role("button", name=name)
        button.click(trial=True)  # waits until it can be pressed
        button.focus()
        self.page.keyboard.press("Enter")

    def waits_for(self, text):
        self.shown.get_by_text(text).first.wait_for(timeout=60_000)

    def waits_for_picture(self, text):
        self.shown.locator(f"img[alt*='{text}']").first.wait_for(timeout=60_000)


def reordered_by_hand(lab):
    """Move an op by mouse, and one back and on by keyboard; return the panel."""
    panel = TryPanel(lab)
    assert AS_IT_IS == panel.order()

    panel.tag("Normalize").locator("i").click()
    panel.waits_for("the change was undone")
    assert AS_IT_IS == panel.order()

    panel.drag("Resize", onto="Normalize")
    # Of smaller images, where the notebook on storage has kept them, Resize changes nothing
    panel.waits_for(re.compile("rounding: |identical: the same bits"))
    assert RESIZED_FIRST == panel.order()

    panel.choose("Normalize")
    panel.press("Earlier")
    panel.waits_for_order(AS_IT_IS)
    panel.press("Later")
    panel.waits_for_order(RESIZED_FIRST)
    return panel


def measured_longer(panel):
    panel.waits_for_picture("interval")
    panel.press("Measure longer")
    panel.waits_for_picture("interval")


def test_orders_are_tried_by_hand(lab):
    """Mouse, keyboard and a measurement work, also after a second Run All."""
    lab.open("5_transform_orders.ipynb")
    for theme, called in THEMES.items():
        lab.theme(called)
        assert lab.run_all() == []
        panel = reordered_by_hand(lab)
        if theme == "light":
            measured_longer(panel)

        lab.page.set_viewport_size({"width": 1400, "height": 1500})
        lab.shot(f"5-{theme}-panel", panel.shown)
        for number, answer in enumerate(lab.page.locator(".stallscope-orders").all()):
            lab.shot(f"5-{theme}-answer-{number}", answer)
        lab.shots(f"5-{theme}")
