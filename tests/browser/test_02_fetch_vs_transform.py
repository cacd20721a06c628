"""A person opens a guided notebook in JupyterLab, runs it twice, and uses its widgets."""

import pytest
from browser.page import Panel

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOKS = {
    # notebook: labels of its panel's dropdown and slider
    "02_fetch_vs_transform": ("Stage", "Percentile"),
}
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_runs_twice_and_answers_the_hand(lab, name):
    """Run All works twice in a row, and each time another choice gives another picture."""
    lab.open(f"{name}.ipynb")
    lab.theme(THEMES["light"])

    for _ in range(2):
        assert lab.run_all() == []

        panel = Panel(lab, *NOTEBOOKS[name])
        panel.choose_another()
        panel.slide("ArrowLeft")
        panel.slide("ArrowRight")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_can_be_looked_at(lab, name, theme):
    """The notebook has pictures, and they are saved for a person to look at."""
    lab.open(f"{name}.ipynb")
    lab.theme(THEMES[theme])
    lab.shot(f"{name}-{theme}-top")

    assert lab.run_all() == []

    pictures = lab.pictures()
    assert pictures
    for number, picture in enumerate(pictures):
        lab.shot(f"{name}-{theme}-picture-{number}", picture)
    lab.shot(f"{name}-{theme}-panel", Panel(lab, *NOTEBOOKS[name]).shown)
