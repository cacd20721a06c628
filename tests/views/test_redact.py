"""What a report for others leaves out: paths; and what it keeps."""

from __future__ import annotations

import re

import pytest
from support.build_diagnosis import a_diagnosis

from stallscope.diagnose.result import Finding
from stallscope.views.redact import html_without_paths, redacted, value_without_paths, without_paths


@pytest.mark.parametrize(
    "path",
    [
        *("/home/me/photos", "~/photos", "./train.py", "../x", r"C:\Users\me\x.png", "data/train"),
        *("train.py", "train.py:31", "my.model.pt", "a/b.py:3", "shard-{000..009}.tar"),
        *("file:///home/me/x", "//server/share", r"\\server\share", "/home/me/shm", "mine.ipynb"),
    ],
)
def test_a_path_is_left_out(path):
    """Absolute, relative, of another system, with a line or alone: the sentence stays."""
    assert "read … twice" == without_paths(f"read {path} twice")
    assert "(…)" == without_paths(f"({path})")


@pytest.mark.parametrize(
    "words",
    [
        *("120 samples/s", "3 MB/s", "torch.nn.functional", "mine:loader", "/dev/shm is small"),
        *("02_fetch_vs_transform.ipynb", "2.15.0", "e.g. 3.5 ms", "a 1:2 split", "end. Then"),
        *("PIL.convert", "num_workers=4", "60 s of 1.5 times", "9 of 10"),
    ],
)
def test_what_is_no_path_stays(words):
    """Rates, modules, numbers, shared memory, guided notebooks."""
    assert words == without_paths(words)


def test_a_known_path_goes_whatever_it_looks_like():
    """With spaces, or without anything that makes it look like a path."""
    known = ("/home/me/my own photos", "holiday")

    assert "in … and …" == without_paths("in /home/me/my own photos and holiday", known)


def test_a_known_name_goes_as_a_whole_only():
    """What only begins or ends like it is another word."""
    assert "training on … is done" == without_paths("training on train is done", ("train",))


def test_what_is_said_has_no_paths_before_it_is_shortened():
    """A long name, of which only the ends would be shown, and a folder given without a slash."""
    name = f"patient_john_smith_{'1970_' * 20}slice_0001.png"
    slow = Finding("slow-samples", f"one in 50 takes 3 s: {name}", 0.3, {}, 0.9, f"look at {name}")
    target = "patients_smith (stallscope's default pipeline, not yours)"

    told = redacted(a_diagnosis(slow, name=target, notes=[f"{name} is gone"], parts=False))

    shown = str(told) + told._repr_mimebundle_()["text/html"]
    assert not re.search("john|slice|smith", shown)
    assert "one in 50 takes 3 s: …" in shown


def test_html_stays_html():
    """Texts and titles are cleaned; tags, styles, scripts and escapes are not touched."""
    page = (
        "<!DOCTYPE html><style>a > b { c: url(/x/y) }</style><p title='/a/b' style='x:1/2'>"
        "&lt;b&gt; /home/me/x &amp; more</p><br><td>1</td>"
    )

    assert html_without_paths(page) == (
        '<!DOCTYPE html><style>a > b { c: url(/x/y) }</style><p title="…" style="x:1/2">'
        "&lt;b&gt; … &amp; more</p><br><td>1</td>"
    )


def test_values_are_cleaned_inside():
    """Lists and mappings keep their shape; numbers stay numbers."""
    assert {"a": ["…", 1, None]} == value_without_paths({"a": ["/x/y", 1, None]})
