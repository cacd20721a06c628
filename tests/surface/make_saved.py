"""Write the saved results in `saved/<version>`, from real recordings.

    python tests/surface/make_saved.py

Run it once for a version whose folders others will open later, then
`pytest tests/surface --write-golden`. Folders of older versions stay as they are: they are there to
be read. Photographs and the training are in /tmp meanwhile, so that no path of a person's is saved.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

import stallscope as ss

HERE = Path(__file__).resolve().parent / "saved"
FLAME_S = 1.0


def main() -> None:
    saved = HERE / ss.__version__
    shutil.rmtree(saved, ignore_errors=True)
    saved.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        os.chdir(work)
        training = shutil.copy(HERE / "training.py", work)
        photographs(work / "photos")
        recorded(training, "--out", saved / "run")
        recorded(training, "--out", saved / "in_main_process", options=("--workers", "0"))
        for rank in "01":
            recorded(training, "--out", saved / "ranks", RANK=rank, WORLD_SIZE="2")
        recorded(training, "--out", work / "killed", options=("--kill",))
        with tarfile.open(saved / "killed.tar.xz", "w:xz") as tar:
            tar.add(work / "killed", "killed", filter=anonymous)
        flame(Path(training)).save(saved / "flame")


def photographs(folder: Path) -> None:
    """Ten small files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(10):
        pixels = rng.integers(0, 255, (40 + number, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")


def recorded(training: str, *asked: Any, options: tuple[str, ...] = (), **environment: str) -> None:
    """Run the training under `stallscope run`; it may be killed."""
    command = [sys.executable, "-m", "stallscope", "run", *map(str, asked), training, "photos"]
    subprocess.run([*command, *options], env=os.environ | environment, check=False)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names of a person and a group."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def flame(training: Path) -> ss.Flame:
    """Stacks of its workers, with the folders of this machine renamed."""
    spec = spec_from_file_location("training", training)
    module: Any = module_from_spec(spec)
    sys.modules["training"] = module
    spec.loader.exec_module(module)
    recording = ss.flame(module.loader(Path("photos"), 100_000), seconds=FLAME_S)
    stacks = pl.col("stack")
    for here, there in (
        (sysconfig.get_path("purelib"), "/opt/venv/lib/site-packages"),
        (sysconfig.get_path("stdlib"), "/usr/lib/python3"),
        (str(Path(ss.__file__).parent), "/opt/venv/lib/site-packages/stallscope"),
        (str(HERE.parent), "/home/me"),
        (str(training.parent), "/home/me"),
    ):
        stacks = stacks.str.replace_all(here, there, literal=True)
    return replace(recording, samples=recording.samples.with_columns(stack=stacks))


if __name__ == "__main__":
    main()
