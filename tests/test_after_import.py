"""Something is done right after a package was imported, and no hook is left."""

import sys
from pathlib import Path

import pytest

import stallscope
from stallscope.hooks.patches import once_imported

SOURCE = str(Path(stallscope.__file__).parents[1])


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that nobody has imported."""
    (tmp_path / "late_package").mkdir()
    (tmp_path / "late_package" / "__init__.py").write_text("from late_package import part")
    (tmp_path / "late_package" / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "late_package"
    for name in ("late_package", "late_package.part"):
        sys.modules.pop(name, None)


class TestOnceImported:
    def test_is_called_after_the_import(self, package):
        """The call comes when the package is complete, once, and its loader is as it was."""
        calls = []
        with once_imported(package, lambda: calls.append(sys.modules[package].part)):
            assert calls == []
            import late_package

            assert calls == [late_package.part]
        assert not vars(late_package.__spec__.loader).keys() - {"name", "path"}

    def test_is_called_at_once_for_an_imported_package(self):
        """A package that was imported before needs no waiting."""
        calls = []
        with once_imported("sys", lambda: calls.append(1)):
            assert calls == [1]

    def test_leaves_nothing(self, package):
        """Python's finders are the same afterwards, imported or not, found or not."""
        finders = list(sys.meta_path)
        with once_imported(package, lambda: None):
            assert sys.meta_path != finders
        assert sys.meta_path == finders
        with once_imported(package, lambda: None):
            __import__(package)
            assert sys.meta_path == finders
        with once_imported("no_such_package", lambda: None), pytest.raises(ImportError):
            __import__("no_such_package")
        assert sys.meta_path == finders
