"""The names that programs use: of the package, of its results, of the command line."""

import inspect
import runpy
import sys
from dataclasses import fields, is_dataclass

import pytest
import typer
from surface.built import built

import stallscope as ss

CLASSES = [name for name in ss.__all__ if name[0].isupper() and name != "StallscopeError"]
VERBS = [name for name in ss.__all__ if name[0].islower()]
PARTS = {
    "run.settings": lambda: built("run").settings,
    "ladder.circumstances": lambda: built("ladder").circumstances,
    "ladder.rates": lambda: next(iter(built("ladder").rates.values())),
    "flame.circumstances": lambda: built("flame").circumstances,
    "difference": lambda: built("difference"),
    "orders.circumstances": lambda: built("orders").circumstances,
    "orders.rest": lambda: built("orders").rest,
    "orders.counts": lambda: built("orders").counts,
    "tuning.circumstances": lambda: built("tuning").circumstances,
    "tuning.setting": lambda: built("tuning").setting(0),
    "storage.circumstances": lambda: built("storage").circumstances,
    "layouts.circumstances": lambda: built("layouts").circumstances,
    "lines.circumstances": lambda: built("lines").circumstances,
    "experiments.circumstances": lambda: built("experiments").circumstances,
    "diagnosis.circumstances": lambda: built("diagnosis").circumstances,
    "diagnosis.verdict": lambda: built("diagnosis").verdict,
    "diagnosis.verdict.cause": lambda: built("diagnosis").verdict.cause,
}
"""Values that results consist of."""


def members(cls: type) -> dict[str, str]:
    """Return the public attributes of a class, with the signatures of methods."""
    names = {name for name in dir(cls) if not name.startswith("_")}
    if is_dataclass(cls):
        names |= {field.name for field in fields(cls)}
    return {name: signature(getattr(cls, name, None)) for name in sorted(names)}


def signature(member: object) -> str:
    """Return the parameters of a function, with types and defaults; "" for other values."""
    return str(inspect.signature(member)) if callable(member) else ""


def test_verbs(golden):
    golden.json("names/verbs.json", {name: signature(getattr(ss, name)) for name in VERBS})


def test_classes(golden):
    golden.json("names/classes.json", {name: members(getattr(ss, name)) for name in CLASSES})


def test_parts_of_results(golden):
    golden.json("names/parts.json", {name: members(type(part())) for name, part in PARTS.items()})


def test_results_have_the_same_fields(golden):
    fields_by_class = {
        name: [field.name for field in fields(getattr(ss, name))] for name in CLASSES
    }

    golden.json("names/fields.json", fields_by_class)


def test_instrumented_has_a_run():
    """After the block the only attribute is the run."""
    with ss.instrumented() as watch:
        assert not hasattr(watch, "run")

    assert ["run"] == [name for name in dir(watch) if not name.startswith("_")]
    assert isinstance(watch.run, ss.Run)


class _FoundError(Exception):
    """Carries the command line out of the program."""


@pytest.fixture
def command_line(monkeypatch):
    """Return the command of `python -m stallscope`."""

    def caught(app, *_, **__):
        raise _FoundError(app)

    monkeypatch.setattr(typer.Typer, "__call__", caught)
    monkeypatch.setattr(sys, "argv", ["stallscope"])
    with pytest.raises(_FoundError) as error:
        runpy.run_module("stallscope", run_name="__main__")
    return typer.main.get_command(error.value.args[0])


def test_command_line(command_line, golden):
    commands = {name: parameters(command) for name, command in command_line.commands.items()}

    golden.json("names/command_line.json", {"": parameters(command_line), **commands})


def parameters(command) -> dict[str, dict[str, object]]:
    """Return the arguments and options of a command."""
    return {
        " ".join([*parameter.opts, *parameter.secondary_opts]): {
            "is": parameter.param_type_name,
            "shown": parameter.metavar,
            "default": None if parameter.default is None else str(parameter.default),
            "required": parameter.required,
            "values": parameter.nargs,
            "flag": getattr(parameter, "is_flag", False),
        }
        for parameter in command.params
    }
