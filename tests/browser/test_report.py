"""The report in a real browser: its flamegraph works, and markup in a name does not run."""

import pytest
from browser.page import SCREENSHOTS
from support.build_diagnosis import DECODE, a_diagnosis
from support.build_flame import HOSTILE, named

from stallscope.verbs.diagnose.result import Finding

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MEDIA = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "paper": {"media": "print"},
}


@pytest.fixture
def opened(page, tmp_path):
    """Return a function that opens a report."""

    def show(diagnosis):
        page.goto(diagnosis.export(tmp_path / "report.html").as_uri())
        return page

    return show


def asked_for(page):
    """Return the addresses that the page fetched beside itself and its pictures."""
    return [url for url in page.asked if not url.startswith(("file:", "data:"))]


def test_the_flamegraph_works_and_nothing_is_fetched(opened):
    """A click zooms; on paper there is a picture instead; light and dark can be looked at."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page = opened(a_diagnosis(DECODE, simulated_step_s=0.05))
    frame = page.locator("#flame g.frame", has_text="dilate").first
    frame.click()

    assert "dilate" in page.locator(".stallscope-flame-details").inner_text()
    assert ([], []) == (asked_for(page), page.wrong)
    for name, media in MEDIA.items():
        page.emulate_media(**media)
        assert page.locator("#flame").is_visible() == (name != "paper")
        assert page.locator("img.paper").is_visible() == (name == "paper")
        page.screenshot(path=SCREENSHOTS / f"report-{name}.png", full_page=True)


def test_markup_in_a_name_does_not_run(opened):
    finding = Finding("lock", HOSTILE, 0.5, {HOSTILE: 1.0}, 0.5, HOSTILE)
    diagnosis = a_diagnosis(finding, finding, name=HOSTILE, notes=[HOSTILE])
    object.__setattr__(diagnosis, "flame", named(HOSTILE))

    page = opened(diagnosis)

    assert HOSTILE == page.locator("h1").inner_text()
    assert page.locator("#flame g.frame").count()
    assert page.evaluate("window.broken") is None
    assert ([], []) == (asked_for(page), page.wrong)
