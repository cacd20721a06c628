"""Stage and shown frames of a raw stack."""

from pathlib import Path

import pytest
import torch

import stallscope
from stallscope.hooks.find_ops import is_librarys
from stallscope.run import stacks
from stallscope.run.stacks import StackFrame, collapsed, short, shown
from stallscope.stages import DECODE, GETITEM, STEP, Stage, frame_name, of_frame
from stallscope.verbs.flame.classify import frame, is_library

TORCH = Path(torch.__file__).parent
OURS = Path(stallscope.__file__).parent
MINE = StackFrame("Mine.__getitem__", "/home/me/datasets/mine.py", 7)
LOOP = StackFrame("_worker_loop", str(TORCH / "utils/data/_utils/worker.py"), 300)
START = [
    StackFrame("<module>", "/home/me/train.py", 90),
    StackFrame("BaseProcess._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314),
]
THREAD = StackFrame("Thread._bootstrap", "/usr/lib/python3.11/threading.py", 1002)


def hook(stage: Stage) -> StackFrame:
    """Return the recorder's frame around a stage."""
    return StackFrame(frame_name(stage), str(OURS / "hooks/hot_path.py (passed over by …)"), 200)


def test_begins_at_the_workers_loop():
    """Frames that a forked worker has from its parent are left out."""
    begin = "_worker_loop (torch/utils/data/_utils/worker.py:300)"

    assert (None, f"{begin};{MINE}") == collapsed([*START, LOOP, MINE])


def test_begins_at_a_threads_function():
    assert collapsed([THREAD, MINE]) == (None, str(MINE))


def test_a_stack_of_the_loop_begins_inside_the_loop():
    """Callers of the diagnosis are no part of the step or of the loader."""
    ours = StackFrame("replay", str(OURS / "loops/training_loop.py"), 200)
    stack = [START[0], ours, hook(STEP), MINE]

    assert (STEP.name, str(MINE)) == collapsed(stack, of_loop=True)
    assert (None, str(MINE)) == collapsed([START[0], ours, MINE], of_loop=True)
    assert collapsed([START[0], ours], of_loop=True) is None
    assert collapsed(START, of_loop=True) is None


def test_leaves_out_frames_of_ours():
    """Every file that is listed as ours exists, so a moved file fails here."""
    named = (*stacks._OURS, *stacks._WATCHING, *stacks._PIPELINES)
    assert all([*OURS.parent.glob(f"{file.rstrip('/')}*")] for file in named)
    for file in ("verbs/flame/flame.py", "verbs/ladder/ladder.py", "bench/loops.py"):
        assert (None, str(MINE)) == collapsed([StackFrame("run", str(OURS / file), 1), MINE])
    sampler = StackFrame("poll", str(OURS / "verbs/flame/pyspy.py"), 1)
    assert collapsed([THREAD, sampler, MINE]) is None


def test_keeps_the_path_of_the_users_code():
    assert "/home/me/datasets/mine.py" == shown("/home/me/datasets/mine.py")
    assert "datasets/load.py" == shown("/x/lib/python3.12/site-packages/datasets/load.py")
    assert "json/decoder.py" == shown("/usr/lib/python3.12/json/decoder.py")
    assert "torch/__init__.py" == short(str(TORCH / "__init__.py"))


@pytest.mark.parametrize(
    ("module", "file", "is_users"),
    [
        ("soundfile", "/v/lib/python3.12/site-packages/soundfile.py", False),
        ("six", "/usr/lib/python3/dist-packages/six.py", False),
        ("gzip", "/usr/lib/python3.12/gzip.py", False),
        ("gzip", r"C:\Python312\Lib\gzip.py", False),
        ("calendar", "/home/me/calendar.py", True),
        ("mine", "/home/me/mine.py", True),
    ],
)
def test_stacks_and_hooks_agree_on_whose_a_file_is(module, file, is_users):
    """A one-file library is none of the user's code; the user's file may have Python's name."""
    assert is_users != is_librarys(module, file, "")
    assert is_users != is_library(frame(str(StackFrame("read", file, 1))))


def test_the_innermost_stage():
    crop, decode = Stage("RandomCrop", "transform"), DECODE
    stack = [LOOP, hook(GETITEM), MINE, hook(crop), MINE, hook(decode), MINE]

    assert "decode" == collapsed(stack)[0]
    assert "RandomCrop" == collapsed(stack[:-2])[0]
    assert "getitem" == collapsed(stack[:3])[0]


def test_in_a_notebook_the_cell_comes_first():
    """Frames of the kernel above the cell are left out: they would hide those below."""
    kernel = [
        StackFrame("run_code", f"/v/site-packages/{file}.py", 1)
        for file in ("ipykernel_launcher", "IPython/core/interactiveshell")
    ]
    cell = StackFrame("<module>", "/tmp/ipykernel_7/1.py", 1)

    stack = collapsed([*kernel, cell, hook(GETITEM), MINE])

    assert stack == collapsed([cell, hook(GETITEM), MINE])


def test_a_helper_gives_way_to_its_transform():
    """Inside of a transform with a name a helper is part of that transform."""
    helper, crop = Stage("resize", "transform", gives_way=True), Stage("Crop", "transform")

    assert "Crop" == collapsed([LOOP, hook(crop), hook(helper), MINE])[0]
    assert "resize" == collapsed([LOOP, hook(helper), MINE])[0]


@pytest.mark.parametrize(
    ("name", "file", "stage"),
    [
        ("default_collate", str(TORCH / "utils/data/_utils/collate.py"), "collate"),
        ("Queue._feed", "/usr/lib/python3.11/multiprocessing/queues.py", "send"),
        ("ImageFile.load", "/v/site-packages/PIL/ImageFile.py", "decode"),
    ],
)
def test_well_known_code_has_its_stage(name, file, stage):
    assert stage == collapsed([LOOP, StackFrame(name, file, 1)])[0]


def test_a_name_cannot_break_the_form():
    assert "a: b (/x/c: d.py:1)" == str(StackFrame("a; b", "/x/c; d.py", 1))


@pytest.mark.parametrize(
    "stage", [GETITEM, Stage("Resize #2", "transform", gives_way=True), Stage("a: b", "other")]
)
def test_a_stage_goes_through_its_frame(stage):
    assert stage == of_frame(frame_name(stage))
