"""Ladder, lines and tables: picture, text, page and panel agree, and names are text."""

import json

import pytest
from support.build_ladder import a_ladder
from support.build_lines import some_lines
from support.chart_texts import check_texts
from surface.built import BUILT, EACH_KIND, built

import stallscope as ss
from stallscope.verbs.ladder.result import AS_IT_IS, BATCHES, FETCHED, RUNGS, TRANSFORMED, WARM
from stallscope.verbs.lines.result import in_order
from stallscope.views.code import listing
from stallscope.views.document import ExportError

HOSTILE = "<img src=x onerror=alert(1)>"
FULL = {AS_IT_IS: 0.4, WARM: 0.4, FETCHED: 0.2, TRANSFORMED: 0.15, BATCHES: 0.1}
LADDERS = {
    "full": a_ladder(FULL, noise=0.2, start_noise=0.1),
    "simulated": a_ladder(FULL, simulated_step_s=0.1),
    "no step": a_ladder({AS_IT_IS: 0.4, FETCHED: 0.2}, has_step=False),
    "two": a_ladder({AS_IT_IS: 1e-6, BATCHES: 1e-7}),
    "one": a_ladder({AS_IT_IS: 400.0}, starts=1, blocks=1),
    "none": a_ladder({}),
    "alike": a_ladder(dict.fromkeys(FULL, 0.1)),
    "alike on a simulated device": a_ladder(
        dict.fromkeys(RUNGS, 0.1),
        simulated_step_s=0.1,
        device="simulated device behind the host",
    ),
    "hostile": a_ladder(FULL, notes=(HOSTILE,)),
}
LONG = {
    "f": [
        ("def f():", None),
        *[(f"    x{line} = 0", (0.0001, 0.0001)) for line in range(60)],
        ("    slow()", (0.5, 0.5)),
        *[(f"    y{line} = 0", (0.0001, 0.0001)) for line in range(40)],
    ]
}
MANY = {
    f"Module{n}.very_long_method_name_of_mine": [("x = " + "1 + " * 60, (0.05, 0.05))]
    for n in range(9)
}
LINES = {
    "usual": some_lines(),
    "many": some_lines(MANY, notes=("a note",)),
    "one": some_lines({"f": [("return slow()", (1.0, 1.0))]}),
    "none": some_lines({}),
    "no source": some_lines(why_not="it was made from text"),
    "not measured": some_lines({}, samples=0, wall_s=0.0, looks=0),
    "hostile": some_lines({HOSTILE: [(HOSTILE + "\x1b[31m$x$", (0.5, 0.5))]}, notes=(HOSTILE,)),
}
TABLES = ("ladder", "tuning", "storage", "layouts", "experiments")
RESULTS = {
    **{f"ladder, {name}": ladder for name, ladder in LADDERS.items()},
    **{f"lines, {name}": lines for name, lines in LINES.items()},
    **{name: built(name) for name in BUILT if name.startswith(TABLES)},
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_text_of_the_pictures_has_a_place_of_its_own(name):
    result = RESULTS[name]
    for kind in result._face().pictures:
        check_texts(result.plot(kind))


@pytest.mark.parametrize("name", ["ladder, full", "lines, many", "lines, hostile", *TABLES[1:]])
def test_the_answer_comes_first_everywhere(name):
    result = RESULTS[name]
    page = result._repr_mimebundle_()["text/html"]

    assert str(result).startswith(result.plot().title.split("\x1b")[0])
    assert page.count("<details open") <= 1


@pytest.mark.parametrize("name", [name for name in EACH_KIND if name != "run"])
def test_a_panel_has_a_picture_for_places_without_widgets(name):
    assert "image/png" in built(name).panel()._repr_mimebundle_()


@pytest.mark.parametrize("name", ["ladder, hostile", "lines, hostile"])
def test_user_text_is_escaped(name):
    result = RESULTS[name]
    children = result.panel().children[1:]

    assert "<img" not in result._repr_mimebundle_()["text/html"]
    assert "\x1b" not in str(result)
    assert all(HOSTILE not in child.value for child in children)


@pytest.mark.parametrize("name", EACH_KIND)
def test_json_is_json(name):
    """The JSON of every kind of result has an answer, its basis, and no NaN."""
    result = built(name)
    read = json.loads(result._face().as_json(result), parse_constant=pytest.fail)

    assert ss.__version__ == read["stallscope"]
    assert {"answer", "verdict"} & set(read)
    assert list(getattr(result, "notes", ())) == read["notes"]


@pytest.mark.parametrize("name", ["flame", "diagnosis"])
@pytest.mark.parametrize("ending", [".png", "", ".html.gz"])
def test_an_export_refuses_another_ending(name, ending, tmp_path):
    """One sentence lists the endings that exist, and nothing is written."""
    with pytest.raises(ExportError, match=r"ends in none of \.html, \.json"):
        built(name).export(tmp_path / f"x{ending}")
    assert not list(tmp_path.iterdir())


class TestLadder:
    def test_panel_compares_any_two_rungs(self):
        panel = LADDERS["simulated"].panel()
        upper, lower = panel.children[0].children
        text = panel.children[2]

        assert "is 4.0× as fast as &#39;as it is&#39;" in text.value
        upper.value = "fetched samples in memory"
        assert "2.0× as fast as &#39;as it is&#39;" in text.value
        lower.value = "storage warm"
        assert "2.0× as fast as &#39;storage warm&#39;" in text.value
        lower.value = upper.value
        assert "two different rungs" in text.value

    def test_panel_says_when_there_is_nothing_to_compare(self):
        assert "Only the current loader" in LADDERS["one"].panel().children[0].value


class TestLines:
    def test_a_listing_has_heat_and_a_percentage(self):
        """The hottest line is filled and bold."""
        html = LINES["usual"]._repr_mimebundle_()["text/html"]

        hot = next(row for row in html.split("<tr ") if ">hits = conv2d" in row)
        assert all(word in hot for word in ("linear-gradient", "100.0%", "bold", "60%"))

    def test_a_listing_is_short_around_the_hot_lines(self):
        lines = some_lines(LONG)

        shown = listing(lines, in_order(lines)[0])
        rows = [row if isinstance(row, str) else row.source.strip() for row in shown]
        assert "def f():" == rows[0]
        assert {"slow()", "… 56 lines not shown"} <= set(rows)
        assert len(rows) < 12
        assert "… 38 lines not shown" in str(lines)

    def test_panel_shows_the_function_that_is_chosen(self):
        """The function with the hottest line comes first."""
        panel = LINES["usual"].panel()
        (choice,) = panel.children[0].children
        text = panel.children[2]

        assert "hits = conv2d" in text.value
        choice.value = 1
        assert "return self.t(index)" in text.value

    def test_panel_says_when_there_is_nothing_to_choose(self):
        assert "No line was measured" in LINES["none"].panel().children[0].value
