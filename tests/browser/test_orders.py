"""A person tries orders in JupyterLab: by mouse and keyboard, measures one, takes its code."""

import json
import urllib.request
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TESTS = Path(__file__).parents[1]
CELLS = [
    f"import sys; sys.path.insert(0, {str(TESTS)!r})\nfrom orderings_built import *",
    "orders = some_orders(bench=PlannedBench(), measured=(0, 5, 9))\norders",
    "panel = orders.panel()\npanel",
    "panel.still",
    "orders.plot('pictures')",
    "orders.plot('ops')",
    "orders.plot('predicted')",
]
AS_IT_IS = ["PILToTensor", "RandomCrop", "RandomMask", "ConvertColor", "Scale"]
CROP_FIRST = ["RandomCrop", "PILToTensor", "RandomMask", "ConvertColor", "Scale"]


class TryPanel:
    """The panel in which orders are tried."""

    def __init__(self, lab):
        self.lab, self.page = lab, lab.page
        self.shown = lab.page.locator(".stallscope-orders-panel").last
        self.shown.scroll_into_view_if_needed()
        self.tags = self.shown.locator(".jupyter-widget-tag[draggable]")

    def order(self):
        return [tag.strip() for tag in self.tags.all_inner_texts()]

    def drag(self, name, onto):
        corner = {"x": 3, "y": 5}
        self.tag(name).drag_to(self.tag(onto), target_position=corner)

    def tag(self, name):
        return self.tags.filter(has_text=name)

    def choose(self, op):
        self.shown.get_by_label("Op", exact=True).select_option(op)

    def press(self, name):
        """Press a button by the keyboard."""
        button = self.shown.get_by_role("button", name=name)
        button.focus()
        self.page.keyboard.press("Enter")

    def waits_for(self, text):
        self.shown.get_by_text(text).first.wait_for(timeout=60_000)

    def waits_for_picture(self, text):
        self.shown.locator(f"img[alt*='{text}']").first.wait_for(timeout=60_000)


def put_notebook(address, name, cells):
    """Write a notebook through JupyterLab's own door."""
    base, _, token = address.partition("?")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    request = urllib.request.Request(  # noqa: S310 - the address of our own server
        f"{base.rpartition('/lab/tree/')[0]}/api/contents/{name}?{token}",
        json.dumps({"type": "notebook", "content": notebook}).encode(),
        method="PUT",
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        assert 201 == answer.status


def tried_by_hand(lab):
    """Drag, keyboard, measure, copy; each shows what it should."""
    panel = TryPanel(lab)
    assert AS_IT_IS == panel.order()

    panel.drag("RandomCrop", onto="PILToTensor")
    panel.waits_for("identical: the same bits on 16 samples")
    panel.waits_for_picture("This order should be 1.06× as fast: predicted, not measured")
    assert CROP_FIRST == panel.order()

    panel.press("Measure for real")
    panel.waits_for_picture("and is 1.06× as fast, measured in workers")

    panel.press("Copy the code")
    panel.waits_for("copied")
    copied = lab.page.evaluate("() => navigator.clipboard.readText()")
    assert "RandomCrop → PILToTensor → RandomMask" in copied

    panel.choose("Scale")
    panel.press("Earlier")
    panel.waits_for("close: values differ by at most 1")
    panel.waits_for_picture("This order · close")
    assert [*CROP_FIRST[:3], "Scale", "ConvertColor"] == panel.order()
    return panel


def test_orders_are_tried_by_hand(lab, address, browser):
    """Mouse, keyboard, a measurement and the clipboard work, also after a second Run All."""
    browser.grant_permissions(["clipboard-read", "clipboard-write"])
    put_notebook(address, "orders.ipynb", CELLS)
    lab.open("orders.ipynb")
    for theme, called in {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}.items():
        lab.theme(called)
        assert lab.run_all() == []
        panel = tried_by_hand(lab)
        panel.press("Later")
        panel.waits_for("identical: the same bits on 16 samples")

        lab.page.set_viewport_size({"width": 1400, "height": 1500})
        lab.shot(f"orders-{theme}-panel", panel.shown)
        lab.shot(f"orders-{theme}-answer", lab.page.locator(".stallscope-orders").first)
        for number, picture in enumerate(lab.pictures()):
            lab.shot(f"orders-{theme}-picture-{number}", picture)
