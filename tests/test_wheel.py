"""The wheel holds the notebooks and the sample data, works from there, and replaces no torch."""

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import stallscope

pytest.importorskip("hatchling")
pytestmark = pytest.mark.slow

ROOT = Path(stallscope.__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel of this checkout."""
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("needs a source checkout")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """Return a folder with the installed wheel, without its dependencies."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def metadata(site):
    (folder,) = site.glob("*.dist-info")
    return Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))


def run(site, folder, *command):
    return subprocess.run(
        [sys.executable, *command],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
    ).stdout


def names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def tracked(*folders):
    """Return the files of the checkout that belong to the project."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *folders]
    out = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if out.returncode:
        pytest.skip("needs a git checkout")
    return sorted(name for name in out.stdout.split("\0") if name and (ROOT / name).exists())


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("stallscope/_share/notebooks", "notebooks"),
        ("stallscope/_share/sample_data", "sample_data"),
        ("stallscope", "src/stallscope"),
    ],
)
def test_holds_the_files_of_the_checkout(site, there, here):
    """The package, its notebooks and its photographs are in the wheel, and no other file is."""
    packed = [name for name in names(site / there) if there != "stallscope" or "_share" not in name]

    assert packed == [name.removeprefix(f"{here}/") for name in tracked(here)]


def test_installing_never_replaces_the_users_torch(metadata):
    """Torch is required without a version; torchvision, which pins one, is an extra only."""
    required = metadata.get_all("Requires-Dist")
    pins = [line for line in required if "torchvision" in line]

    assert ["torch"] == [line for line in required if re.fullmatch(r"torch\b(?!-).*", line)]
    assert pins
    assert all("extra ==" in line for line in pins)


def test_finds_its_notebooks_and_photographs(site, tmp_path):
    """An installed package copies its notebooks and finds its sample data in itself."""
    run(site, tmp_path, "-m", "stallscope", "notebooks", "x", "--target", "sample")

    where = run(
        site, tmp_path, "-c", "from stallscope.targets.sample import sample_folder as f; print(f())"
    )
    assert list((tmp_path / "x").glob("*.ipynb"))
    assert Path(where.strip()) == (site / "stallscope" / "_share" / "sample_data").resolve()
