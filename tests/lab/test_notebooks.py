"""The notebooks are copied with the user's target, and no user's file is lost."""

import os
from pathlib import Path

import pytest
from support.build_notebook import NAME, a_notebook, install, read, write

from stallscope import files
from stallscope.errors import StallscopeError
from stallscope.files import packaged_folder
from stallscope.lab.notebooks import _pointed_notebook, copy_notebooks


@pytest.fixture
def source(tmp_path, monkeypatch):
    """The notebooks of an installed package; the current folder is empty."""
    module = install(tmp_path / "site")
    monkeypatch.setattr(files, "__file__", str(module))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return module.parent / "_share" / "notebooks"


def target_in(path):
    """Return the notebook's target, read from `my_target.py`."""
    names = {}
    exec(read(path)["cells"][1]["source"], names)  # noqa: S102
    assert "my_target:target" == names["TARGET"]
    exec(path.with_name("my_target.py").read_text(), names)  # noqa: S102
    return names["TARGET"]


def edit(path, change):
    notebook = read(path)
    change(notebook)
    write(notebook, path)


def rewrite(notebook):
    notebook["cells"][2]["source"] = "my own code"


class TestFolder:
    def test_prefers_the_notebooks_inside_the_wheel(self, source):
        assert packaged_folder("notebooks") == source.resolve()

    @pytest.mark.parametrize("empty", [[], ["src/stallscope/_share/notebooks"]])
    def test_finds_those_of_a_source_checkout(self, tmp_path, monkeypatch, empty):
        """A checkout or an editable install finds the notebooks at its top.

        An empty folder of notebooks in the package is passed over.
        """
        top = tmp_path / "checkout"
        for folder in ("notebooks", *empty):
            (top / folder).mkdir(parents=True)
        write(a_notebook(), top / "notebooks" / NAME)
        monkeypatch.setattr(files, "__file__", str(top / "src" / "stallscope" / "files.py"))

        assert packaged_folder("notebooks") == top / "notebooks"

    def test_says_where_it_looked(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "__file__", str(tmp_path / "a" / "b" / "files.py"))

        with pytest.raises(StallscopeError, match=r"_share.notebooks and .*notebooks"):
            packaged_folder("notebooks")


def test_the_first_notebook_is_start_here():
    """`stallscope lab` opens the first notebook, which names the cause and links to the rest."""
    names = sorted(path.name for path in packaged_folder("notebooks").glob("*.ipynb"))

    assert "1_start_here.ipynb" == names[0]


class TestTarget:
    def test_is_the_sample_by_default(self, source):
        assert target_in(copy_notebooks(Path("x")).notebooks[0]) == "sample"

    @pytest.mark.parametrize(
        "name", ["plain", "it's", 'say "hi"', "back\\slash", "tür {1}", "a\nb"]
    )
    def test_survives_any_folder_name(self, source, name):
        Path(name).mkdir()

        copies = copy_notebooks(Path("x"), name)

        assert target_in(copies.notebooks[0]) == str(Path.cwd() / name)

    def test_keeps_comments_and_other_parameters(self, source):
        """The comment behind TARGET and the other parameters stay."""
        Path("photos").mkdir()

        cell = read(copy_notebooks(Path("x"), "photos").notebooks[0])["cells"][1]

        assert cell["source"].endswith('"my_target:target"  # yours\nBUDGET_S = 20')
        assert Path("x/my_target.py").read_text().endswith("photos'  # yours\n")

    def test_makes_shard_patterns_absolute(self, source):
        copies = copy_notebooks(Path("x"), "../data/x-*.tar")

        assert target_in(copies.notebooks[0]) == str(Path.cwd().parent / "data/x-*.tar")

    def test_brings_the_folder_of_a_factory(self, source):
        Path("train.py").write_text("def make_loader(): ...")

        copy_notebooks(Path("x"), "train:make_loader")

        module = Path("x/my_target.py").read_text()
        assert f"sys.path.insert(0, {str(Path.cwd())!r})" in module
        assert "TARGET = 'train:make_loader'" in module

    def test_leaves_an_installed_factory_alone(self, source):
        copy_notebooks(Path("x"), "package.module:factory")

        assert "sys" not in Path("x/my_target.py").read_text()

    def test_that_does_not_exist_is_one_sentence(self, source):
        with pytest.raises(StallscopeError, match=r"there is no 'smaple' \(looked in"):
            copy_notebooks(Path("x"), "smaple")
        assert not Path("x").exists()

    @pytest.mark.parametrize("path", sorted(packaged_folder("notebooks").glob("*.ipynb")))
    def test_is_set_once_in_every_notebook(self, path):
        """The copies measure what `my_target.py` says."""
        assert 1 == _pointed_notebook(path).count("my_target:target")


class TestSecondTime:
    def test_takes_the_target_of_the_last_time(self, source):
        Path("photos").mkdir()
        copy_notebooks(Path("x"), "photos")

        copies = copy_notebooks(Path("x"))

        assert target_in(copies.notebooks[0]) == str(Path.cwd() / "photos")

    def test_leaves_outputs_where_nothing_changes(self, source):
        path = copy_notebooks(Path("x")).notebooks[0]
        output = {"output_type": "stream", "name": "stdout", "text": ["a picture"]}
        after_run = {"execution_count": 3, "outputs": [output]}
        edit(path, lambda notebook: notebook["cells"][2].update(after_run))

        copies = copy_notebooks(Path("x"))

        assert copies.notes == (f"the target is that of {Path.cwd() / 'x' / 'my_target.py'}",)
        assert read(path)["cells"][2]["outputs"]

    def test_never_replaces_a_notebook_that_the_user_changed(self, source):
        path = copy_notebooks(Path("x")).notebooks[0]
        edit(path, rewrite)
        Path("photos").mkdir()

        copies = copy_notebooks(Path("x"), "photos")
        copy_notebooks(Path("x"))

        assert read(path)["cells"][2]["source"] == "my own code"
        assert f"kept, because you changed them: {NAME}; --force" in copies.notes[1]

    def test_puts_a_target_aside_for_another_one(self, source):
        """A `my_target.py` that the user edited is moved aside, not overwritten."""
        path = copy_notebooks(Path("x")).notebooks[0]
        path.with_name("my_target.py").write_text('TARGET = "mine:loader"')
        Path("photos").mkdir()

        copies = copy_notebooks(Path("x"), "photos")

        assert target_in(path) == str(Path.cwd() / "photos")
        assert Path("x/earlier/my_target.1.py").read_text() == 'TARGET = "mine:loader"'
        assert str(Path("earlier/my_target.1.py")) in copies.notes[0]

    def test_force_puts_changes_aside(self, source):
        path = copy_notebooks(Path("x")).notebooks[0]
        for _ in range(2):
            edit(path, rewrite)
            copy_notebooks(Path("x"), force=True)

        assert read(path)["cells"][2]["source"] == "TARGET"
        for number in (1, 2):
            aside = Path(f"x/earlier/2_fetch_vs_transform.{number}.ipynb")
            assert read(aside)["cells"][2]["source"] == "my own code"

    @pytest.mark.parametrize("text", ["", "{}", "[1]", "not json", '{"nbformat": 4}'])
    def test_keeps_a_file_that_is_no_notebook(self, source, text):
        Path("x").mkdir()
        path = Path("x") / NAME
        path.write_text(text)

        copies = copy_notebooks(Path("x"))

        assert path.read_text() == text
        assert "kept" in copies.notes[-1]


class TestStrangersFolder:
    def test_puts_nothing_aside_through_a_link(self, source):
        """The folder for older notebooks may be a link to somewhere else."""
        copies = copy_notebooks(Path("x"))
        copies.notebooks[0].write_text("mine")
        Path("elsewhere").mkdir()
        Path("x/earlier").symlink_to(Path("elsewhere").resolve())

        with pytest.raises(StallscopeError, match="earlier is a link"):
            copy_notebooks(Path("x"), force=True)

        assert "mine" == copies.notebooks[0].read_text()
        assert [] == list(Path("elsewhere").iterdir())

    def test_notebook_that_is_no_file(self, source):
        """A pipe in the place of a notebook is the user's, and stays."""
        Path("x").mkdir()
        os.mkfifo(Path("x") / NAME)

        assert "kept" in copy_notebooks(Path("x")).notes[-1]


class TestPlace:
    def test_is_not_the_package(self, source):
        with pytest.raises(StallscopeError, match="own notebooks"):
            copy_notebooks(source)

    def test_is_a_folder(self, source):
        Path("x").write_text("")

        with pytest.raises(StallscopeError, match=r"cannot be copied into .*x: File exists"):
            copy_notebooks(Path("x"))
