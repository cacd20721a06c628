"""A person opens the notebook about the step itself, and chooses a change."""

import pytest
from browser.page import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.thorough]


def test_runs_twice_and_says_what_each_change_takes(lab):
    """Another change is another line of code, in both themes."""
    lab.open("05_when_data_is_not_it.ipynb")
    for theme, called in THEMES.items():
        lab.theme(called)
        assert lab.run_all() == []

        panel = lab.page.locator(".jp-OutputArea-output").filter(
            has=lab.page.locator(".widget-dropdown", has_text="Change")
        )
        panel.last.scroll_into_view_if_needed()
        before = panel.last.locator("pre").inner_text()
        panel.last.locator("select").select_option(index=1)
        panel.last.locator("pre", has_not_text=before).wait_for()
        lab.shot(f"05_when_data_is_not_it-{theme}-panel", panel.last)
        lab.shot(
            f"05_when_data_is_not_it-{theme}-answer",
            lab.page.locator(".stallscope-experiments").first,
        )
        for number, picture in enumerate(lab.pictures()):
            lab.shot(f"05_when_data_is_not_it-{theme}-picture-{number}", picture)
