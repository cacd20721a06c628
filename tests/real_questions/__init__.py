"""Questions that PyTorch users asked in public: a folder a kind of cause, a file a question."""

from importlib import import_module
from pkgutil import walk_packages

from real_questions.question import Question


def all_questions(name_contains: str = "") -> list[Question]:
    """Return the questions by cause and name; the libraries of others are imported when made."""
    found = walk_packages(__path__, f"{__name__}.")
    modules = [import_module(module.name) for module in found if "__main__" not in module.name]
    values = [value for module in modules for value in vars(module).values()]
    return [each for each in values if isinstance(each, Question) and name_contains in each.name]
