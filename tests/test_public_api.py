"""The public names: few, importable, documented."""

import inspect
import re

import pytest

import stallscope

NAMES = stallscope.__all__
"""Names that `surface/test_public_names.py` freezes."""


def test_there_are_no_others():
    """`dir` lists the public names and the version, and each has that name in its module."""
    assert sorted([*NAMES, "__version__"]) == dir(stallscope)
    assert NAMES == [getattr(stallscope, name).__name__ for name in NAMES]


def test_each_says_what_it_is():
    for name in NAMES:
        assert len(inspect.getdoc(getattr(stallscope, name)).splitlines()[0]) > len(name)


def test_a_verb_says_what_it_takes():
    for name in filter(str.islower, NAMES):
        verb = getattr(stallscope, name)
        text = inspect.getdoc(verb)
        assert "Raises:" in text, name
        for parameter in inspect.signature(verb).parameters:
            assert re.search(rf"^    {parameter}: ", text, re.MULTILINE), f"{name}: {parameter}"


def test_a_run_says_what_its_methods_take():
    for name, method in vars(stallscope.Run).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            text = inspect.getdoc(method)
            for taken in list(inspect.signature(method).parameters)[1:]:
                assert re.search(rf"(^    {taken}: |`{taken}`)", text, re.MULTILINE), (name, taken)


def test_an_unknown_name_is_named_in_the_error():
    with pytest.raises(AttributeError, match="No stallscope attribute orders_of"):
        stallscope.orders_of  # noqa: B018
