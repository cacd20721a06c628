"""The public names: few, importable, documented."""

import inspect
import re

import pytest

import stallscope

NAMES = [
    *("Diagnosis", "Flame", "Ladder", "Lines", "Orders", "Run", "StallscopeError", "Target"),
    *("diagnose", "flame", "instrumented", "ladder", "lines"),
    *("load", "orders", "record", "simulated_step", "stage", "target"),
]
METHODS = [
    name
    for name, member in vars(stallscope.Run).items()
    if inspect.isfunction(member) and not name.startswith("_")
]
VERBS = [name for name in NAMES if name.islower()]


def test_there_are_no_others():
    """These names are public, and nothing else is."""
    assert NAMES == stallscope.__all__


def test_are_listed():
    """`dir` shows the public names and the version."""
    assert sorted([*NAMES, "__version__"]) == dir(stallscope)


@pytest.mark.parametrize("name", NAMES)
def test_can_be_imported(name):
    """Each public name is there, and is called that at home."""
    assert getattr(stallscope, name).__name__ == name


@pytest.mark.parametrize("name", NAMES)
def test_is_documented(name):
    """Each public name has a docstring that says more than its name."""
    first = inspect.getdoc(getattr(stallscope, name)).splitlines()[0]

    assert len(first) > len(name)


@pytest.mark.parametrize("name", VERBS)
def test_says_what_it_takes(name):
    """The docstring of a verb explains each parameter and the errors."""
    verb = getattr(stallscope, name)
    text = inspect.getdoc(verb)

    assert "Raises:" in text
    for parameter in inspect.signature(verb).parameters:
        assert re.search(rf"^    {parameter}: ", text, re.MULTILINE), parameter


@pytest.mark.parametrize("name", METHODS)
def test_a_run_says_what_it_takes(name):
    """Each method of a run is documented, and its parameters with it."""
    method = getattr(stallscope.Run, name)
    text = inspect.getdoc(method)

    taken = list(inspect.signature(method).parameters)[1:]
    assert all(re.search(rf"(^    {p}: |`{p}`)", text, re.MULTILINE) for p in taken)


def test_an_unknown_name_is_said():
    """A name that is not there is an AttributeError that names it."""
    with pytest.raises(AttributeError, match="'stallscope' has no attribute 'orders_of'"):
        stallscope.orders_of  # noqa: B018
