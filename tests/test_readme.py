"""The README and its pages: their examples run, and their lists are complete."""

import re

import pytest
import readme_examples
import seen_table
import support_table


@pytest.mark.thorough
def test_the_example_runs():
    """The README's Python prints a verdict with its next step, and the measured gain."""
    printed = readme_examples.output()

    assert "next: " in printed
    assert "measured" in printed


def test_ci_runs_the_command_of_the_readme():
    commands = re.findall(r"```sh\n(.*?)\n```", readme_examples.README.read_text(), re.DOTALL)
    script = (readme_examples.ROOT / ".ci" / "run").read_text()

    (tests,) = (command for command in commands if "pytest" in command)
    venv, install, run = (part.strip() for part in tests.split("&&"))
    assert venv in script
    assert install.replace("[test]", "[ci]") in script
    assert f"\n{run}  #" in script
    assert '"stallscope[test]"' in (readme_examples.ROOT / "pyproject.toml").read_text()


def test_it_is_short():
    assert len(readme_examples.README.read_text().splitlines()) <= 150


def test_every_file_that_is_named_is_there():
    """Files and links of the pages exist, and a file has the name that follows it."""
    root = readme_examples.ROOT
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").glob("*.md")]
    for page in pages:
        text = page.read_text()
        for path in re.findall(r"]\((?!https?:)([^)#]+)\)", text):
            assert (page.parent / path).exists(), f"{page.name}: {path}"
        for path, name in re.findall(r"`([\w/]+\.py)`(?:: `(\w+)`)?", text):
            places = (root / path, root / "src/stallscope" / path, root / "tests/benchmarks" / path)
            there = [place for place in places if place.is_file()]
            assert there, f"{page.name}: {path}"
            assert not name or re.search(rf"\b{name}\b", there[0].read_text()), f"{path}: {name}"


def test_its_pictures_are_there():
    shown = re.findall(r"!\[[^]]+]\(([^)]+)\)", readme_examples.README.read_text())

    assert {f"notebooks/pictures/{name}.png" for name in readme_examples.PICTURES} == set(shown)
    assert all((readme_examples.ROOT / path).is_file() for path in shown)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_support_table_is_true():
    assert support_table.table() == support_table.on_page()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["OpenCV", "h5py"])
def test_time_in_a_library_has_a_stage(library, tmp_path):
    """Batches are the plain loader's, and most of the library's time is outside `getitem`."""
    if why := seen_table.why_absent(library):
        pytest.skip(why)

    seen = seen_table.seen(library, tmp_path, verdict=False)

    assert seen.identical
    assert seen.named > seen.by_hand / 2


def test_every_row_of_what_is_seen_is_a_reader():
    page = seen_table.PAGE.read_text(encoding="utf-8")
    rows = page.partition(seen_table.BEGIN)[2].partition(seen_table.END)[0].splitlines()[3:]

    libraries = [row.split("|")[1].strip().partition(" ")[0] for row in rows if row]

    assert list(seen_table.READERS) == libraries
