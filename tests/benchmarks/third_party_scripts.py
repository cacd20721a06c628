"""Check that training scripts of other projects run the same under stallscope.

Each script comes unmodified from its package, in a virtual environment of its own, and trains for
seconds on data made here. It runs twice without stallscope and once under `stallscope run`. What it
leaves is compared bit by bit: the tensors of its checkpoint, or the losses that it prints. Where
the two plain runs differ, the script is not deterministic and nothing is compared.

    python tests/benchmarks/third_party_scripts.py
    python tests/benchmarks/third_party_scripts.py --only open_clip chemprop --folder /tmp/scripts
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchkit import TESTS
from benchkit.command import Option, arguments, table
from PIL import Image

ROOT = Path(TESTS).parent
LIMIT_S = 400.0
"""For a run of a script; those that take longer are named so."""
DIGEST = """
import hashlib, pathlib, sys, torch
def tensors(value):
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in value:
            yield from tensors(value[key])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)
digest, count = hashlib.sha256(), 0
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*")):
    if path.suffix in (".pt", ".ckpt", ".pth", ".model", ".bin"):
        kept = torch.load(path, map_location="cpu", weights_only=False)
    elif path.suffix == ".safetensors":
        from safetensors.torch import load_file
        kept = load_file(path)
    else:
        continue
    for tensor in tensors(kept):
        count += 1
        digest.update(tensor.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
print(count, digest.hexdigest() if count else "")
"""
"""Program of the script's own environment: number and hash of all tensors in its checkpoints."""
LOSS = re.compile(r"loss\D{0,12}(\d+\.\d+(?:e[+-]\d+)?)", re.IGNORECASE)
HEAD = ("script", "plain", "under stallscope", "compared", "result", "verdict")


class Script(NamedTuple):
    """A training script of a package."""

    packages: tuple[str, ...]
    command: str
    """Arguments of `python`; {bin}: folder of installed commands, {data}: the data made here."""
    data: Callable[[Path], None]


def nothing(_folder: Path) -> None:
    """Make no data: the script has its own."""


def photographs_with_boxes(folder: Path) -> None:
    """Make the folders of images and labels that YOLO's loaders read."""
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for i in range(16):
            pixels = rng.integers(0, 255, (120, 160, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / part / f"{i}.jpg")
            x, y = rng.uniform(0.3, 0.7, 2)
            (folder / "labels" / part / f"{i}.txt").write_text(f"0 {x:.3f} {y:.3f} 0.2 0.2\n")
    text = f"path: {folder}\ntrain: images/train\nval: images/val\nnc: 1\nnames: [thing]\n"
    (folder / "data.yaml").write_text(text)


def molecules(folder: Path) -> None:
    """Make a table of molecules and a number for each."""
    rng = random.Random(0)
    rows = [
        f"{'C' * rng.randint(1, 12)}O{'C' * rng.randint(1, 6)},{rng.random():.4f}"
        for _ in range(120)
    ]
    (folder / "molecules.csv").write_text("smiles,y\n" + "\n".join(rows) + "\n")


def structures(folder: Path) -> None:
    """Make atoms with energies and forces, as extended XYZ."""
    rng = np.random.default_rng(0)
    blocks = []
    for _ in range(24):
        places = rng.uniform(0, 4, (4, 3))
        lines = [f"H {x:.4f} {y:.4f} {z:.4f} 0.0 0.0 0.0" for x, y, z in places]
        about = (
            'Lattice="9 0 0 0 9 0 0 0 9" Properties=species:S:1:pos:R:3:REF_forces:R:3 '
            f'REF_energy={rng.normal():.4f} pbc="F F F"'
        )
        blocks.append("\n".join(["4", about, *lines]))
    (folder / "atoms.xyz").write_text("\n".join(blocks) + "\n")


def sentences_and_a_small_model(folder: Path) -> None:
    """Make lines of text, and a language model of a few thousand weights with its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "the", "cats", "count", "mice", "0", "1", "2", "3", "4", "5", "6"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=len(words), num_attention_heads=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    fast.save_pretrained(folder / "model")
    rows = [json.dumps({"text": f"the {i % 7} cats count {i % 5} mice " * 4}) for i in range(128)]
    (folder / "text").mkdir()
    (folder / "text" / "train.jsonl").write_text("\n".join(rows) + "\n")


def lines_of_text(folder: Path) -> None:
    """Make images of lines with their text, as Kraken's trainer reads them."""
    from PIL import ImageDraw

    rng = random.Random(0)
    for i in range(48):
        text = "".join(rng.choice("abcdef ") for _ in range(12)).strip() or "a"
        image = Image.new("L", (120, 24), 255)
        ImageDraw.Draw(image).text((4, 6), text, fill=0)
        image.save(folder / f"{i}.png")
        (folder / f"{i}.gt.txt").write_text(text)


SCRIPTS = {
    "accelerate test_script": Script(
        ("accelerate",), "-m accelerate.test_utils.scripts.test_script", nothing
    ),
    "open_clip": Script(
        ("open_clip_torch[training]",),
        "-m open_clip_train.main --dataset-type synthetic --train-num-samples 48 --batch-size 2 "
        "--workers 2 --model ViT-S-32 --epochs 1 --precision fp32 --seed 0 --logs logs --name a "
        "--save-frequency 1",
        nothing,
    ),
    "ultralytics": Script(
        ("ultralytics",),
        "{bin}/yolo detect train model=yolov8n.yaml data={data}/data.yaml epochs=4 imgsz=96 "
        "batch=4 workers=2 device=cpu plots=False amp=False project=out",
        photographs_with_boxes,
    ),
    "chemprop": Script(
        ("chemprop",),
        "{bin}/chemprop train --data-path {data}/molecules.csv --task-type regression "
        "--epochs 4 --warmup-epochs 1 --num-workers 2 --batch-size 8 --pytorch-seed 0 "
        "--accelerator cpu -o out",
        molecules,
    ),
    "mace": Script(
        ("mace-torch",),
        "{bin}/mace_run_train --name a --train_file {data}/atoms.xyz --valid_fraction 0.2 "
        "--E0s average --model MACE --hidden_irreps 8x0e --r_max 4 --batch_size 2 "
        "--max_num_epochs 2 --device cpu --num_workers 2 --seed 0",
        structures,
    ),
    "pykeen": Script(
        ("pykeen",),
        "-m pykeen train transe --dataset nations --training-loop slcwa --number-epochs 5 "
        "--random-seed 0 --output-directory out",
        nothing,
    ),
    "trl": Script(
        ("trl",),
        "-m trl.scripts.sft --model_name_or_path {data}/model --dataset_name {data}/text "
        "--output_dir out --max_steps 24 --per_device_train_batch_size 2 --use_cpu --bf16 False "
        "--dataloader_num_workers 2 --report_to none --max_length 64 --seed 0",
        sentences_and_a_small_model,
    ),
    "kraken": Script(
        ("kraken",),
        "{bin}/ketos --workers 2 -d cpu -s 0 train -f path -N 2 -B 2 -q fixed -o out {data}/*.png",
        lines_of_text,
    ),
}


def main() -> None:
    """Run each script three times, and print what came of it."""
    options = arguments(
        __doc__,
        only=Option([""], ["accelerate"], "scripts whose name holds one of these"),
        folder=Option("", "", "folder for environments and outputs, which is kept"),
    )
    folder = Path(options.folder or tempfile.mkdtemp(prefix="scripts-")).resolve()
    rows = []
    for name, script in SCRIPTS.items():
        if any(part in name for part in options.only):
            rows.append((name, *try_script(script, folder / name.replace(" ", "-"))))
            print(*rows[-1], sep=" | ", flush=True)
    if not options.folder:
        shutil.rmtree(folder)
    print("", table(HEAD, rows), sep="\n")


def try_script(script: Script, folder: Path) -> tuple[str, ...]:
    """Install and run a script; return the cells of its row after the name."""
    data, python = folder / "data", folder / "venv" / "bin" / "python"
    if not python.exists():
        shutil.rmtree(folder, ignore_errors=True)
        data.mkdir(parents=True)
        script.data(data)
    if missing := install(script.packages, python):
        return ("-", "-", "-", f"cannot be installed here: {missing}", "-")
    command = script.command.format(bin=python.parent, data=data)
    record = f"-m stallscope run --out {folder}/recorded "
    shutil.rmtree(folder / "recorded", ignore_errors=True)
    runs = [
        train(command, python, folder / "plain"),
        train(command, python, folder / "again"),
        train(record + command, python, folder / "under"),
    ]
    plain, again, under = runs
    if plain.error or again.error:
        return ("-", "-", "-", f"does not run here: {plain.error or again.error}", "-")
    if under.error:
        return (f"{plain.took_s:.0f} s", "-", "-", f"FAILS under stallscope: {under.error}", "-")
    what, left = plain.left
    if (what, left) != again.left:
        result = "two plain runs differ"
    else:
        same = "bit-identical" if left else "runs to its end"
        result = same if under.left == plain.left else "DIFFERS"
    times = (f"{plain.took_s:.0f} s", f"{under.took_s:.0f} s")
    return (*times, what, result, verdict(python, folder / "recorded"))


def install(packages: tuple[str, ...], python: Path) -> str:
    """Make an environment with the packages and this checkout; return why not, in short."""
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    into = [uv, "pip", "install", "-q", "-p", str(python)]
    steps = [[*into, str(ROOT), *packages]]
    if not python.exists():
        steps.insert(0, [uv, "venv", "-q", "-p", sys.executable, str(python.parents[1])])
    # A kept environment has an earlier checkout, of the same version
    steps.append([*into, "--no-deps", "--reinstall-package", "stallscope", str(ROOT)])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            return " ".join(done.stderr.split())[:160]
    return ""


class Outcome(NamedTuple):
    took_s: float
    left: tuple[str, str] = ("", "")
    """Compared result in words, and its hash or text."""
    error: str = ""


def train(command: str, python: Path, folder: Path) -> Outcome:
    """Run a command in a new folder, and hash what it leaves there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    environment = {**os.environ, "PYTHONHASHSEED": "0", "YOLO_CONFIG_DIR": str(folder)}
    for ours in ("PYTHONPATH", "TQDM_DISABLE"):  # a progress bar may be what prints the loss
        environment.pop(ours, None)
    began = time.monotonic()
    words = [word.strip("'") for word in command.split()]
    try:
        done = subprocess.run(
            [python, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(LIMIT_S, error=f"longer than {LIMIT_S:.0f} s")
    took_s = time.monotonic() - began
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "?").splitlines()[-1]
        return Outcome(took_s, error=f"exit {done.returncode}: {last[:120]}")
    digest = subprocess.run(
        [python, "-c", DIGEST, folder], env=environment, capture_output=True, text=True, check=False
    )
    # A package may greet first
    count, _, hashed = digest.stdout.strip().rpartition("\n")[2].partition(" ")
    if count.isdigit() and int(count):
        return Outcome(took_s, (f"{count} tensors", hashed))
    losses = LOSS.findall(done.stdout + done.stderr)
    if losses:
        return Outcome(took_s, (f"{len(losses)} losses", " ".join(losses)))
    return Outcome(took_s, ("its exit alone", ""))


def verdict(python: Path, recorded: Path) -> str:
    """Return the headline of the recorded run."""
    done = subprocess.run(
        [python, "-m", "stallscope", "diagnose", recorded],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout.strip() or done.stderr.strip() or "?").splitlines()
    return lines[0][:120]


if __name__ == "__main__":
    main()
