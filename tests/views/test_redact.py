"""Redacted results: they leave out every piece of the user's names, and keep the rest."""

import getpass
import platform
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from support.build_diagnosis import a_diagnosis
from support.build_experiments import some_experiments
from support.build_flame import SHARES, STAGES, a_flame
from support.build_lines import some_lines
from support.build_orders import PlannedBench, some_orders
from support.build_storage import a_storage, some_layouts
from support.build_tuning import BROKEN, a_tuning
from surface.built import built

import stallscope as ss
from stallscope.store import KINDS
from stallscope.units import printable
from stallscope.verbs.diagnose.result import Finding
from stallscope.views import diagnosis as face

FOLDER = "/srv/Zyxquol Ospedalk/jvepnik"
NAMES = (
    *("Brzynt Wokulf.heic", "gthuld 1970-01-02.ckpt", "fjordz_nymphaq.dcm", "kwyjibodd"),
    *("plinfth-003.tar", "xofurt.jpeg", "0004711815"),
)
MODULE = "/home/vlimbar/dzorn_qwarts/mnolp.py"
SHARD = "plinfth-003.tar/uhyrrak 17.bmp"
LONG = "a_" + "skvorex_" * 30 + "end.png"
HOST, USER = "thwackbox-17", "vlimbar"
CODE = 'self.root = "/srv/Zyxquol Ospedalk"'
MODULE_TARGET = "dzorn_qwarts.mnolp:make_loader"
ALL = (FOLDER, *NAMES, MODULE, SHARD, LONG, HOST, USER, CODE, "ghastlux")
MARKS = {
    word.lower()
    for name in ALL
    for word in re.findall(r"[^\W\d_]{5,}|\d{6,}", name)
    if word not in {"make", "loader", "self", "root"}
}
"""Words of the user's names; no other name has them."""
SENTENCES = (
    f"3 images left out (could not be read): {FOLDER}/{NAMES[0]}, {SHARD}, ...",
    f"what was recorded cannot be read (OSError(2, 'gone: {NAMES[6]}', '{FOLDER}'))",
    f"'mine:loader' raised KeyError: 'ghastlux {NAMES[6]}' ({MODULE}, line 7)",
    f"left out are {NAMES[2]}, {FOLDER}/{NAMES[4]} and {NAMES[5]}",
    f"measured on {HOST} by {USER}, in ~/{NAMES[3]} and C:\\Ghastlux\\{NAMES[1]}",
    f"one sample in 50 waits: index 7 ({NAMES[0]}), index 8 ({printable(NAMES[0], 12)})",
    f"Dataset.__getitem__ (mnolp.py:31, 40): {printable(f'it is {LONG} that is slow', 60)}",
)


@pytest.fixture(scope="module")
def planted():
    """Return a result of each kind, with a name of the user's in every place that can hold one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "node", lambda: HOST)
        patch.setattr(getpass, "getuser", lambda: USER)
        machine = {"cores": 2, "system": "Linux x86_64", "hostname": HOST, "torch": "2.15.0"}
        about = {"notes": SENTENCES, "machine": machine}
        stacks = {stack.replace("/home/me/data.py", MODULE): at for stack, at in SHARES.items()}
        stages = {stack.replace("/home/me/data.py", MODULE): at for stack, at in STAGES.items()}
        flame = replace(a_flame(stacks, stages=stages, name=MODULE_TARGET), notes=SENTENCES)
        paths = [f"{FOLDER}/{name}" for name in (*NAMES, SHARD, LONG)]
        run = built("run_of_patterns")
        path = pl.Series([paths[at % len(paths)] for at in range(run.all_samples.height)])
        run = replace(
            run,
            all_samples=run.all_samples.with_columns(path=path.cast(pl.Categorical)),
            settings=replace(run.settings, name=f"{FOLDER} (stallscope's default pipeline)"),
            **about,
        )
        findings = [
            Finding("slow-samples", sentence, 0.2, {"stall_share": 0.5}, 0.9, sentence)
            for sentence in SENTENCES
        ]
        diagnosis = a_diagnosis(*findings, name=MODULE_TARGET, machine=machine, notes=SENTENCES)
        lines = some_lines(
            {"Items.__getitem__": [("def __getitem__(self, index):", None), (CODE, (0.9, 0.9))]},
            notes=SENTENCES,
            name=MODULE_TARGET,
            machine=machine,
        )
        orders = some_orders(bench=PlannedBench())
        trials = orders.trials.with_columns(why=pl.lit(SENTENCES[2]), code=pl.lit(CODE))
        ops = orders.ops.with_columns(file=pl.lit(MODULE), settings=pl.lit(f"Crop({MODULE!r})"))
        tried = some_experiments(notes=SENTENCES, name=MODULE_TARGET, machine=machine)
        waits = tried.waits.with_columns(file=pl.lit(MODULE), source=pl.lit(CODE))
        trials_of_step = tried.trials.with_columns(why_not=pl.lit(SENTENCES[2]))
        tuning = a_tuning(
            settings=(BROKEN,),
            failed={BROKEN: SENTENCES[2]},
            notes=SENTENCES,
            name=MODULE_TARGET,
            machine=machine,
        )
        storage = a_storage(name=MODULE_TARGET, machine=machine, notes=SENTENCES)
        places = storage.places.with_columns(path=pl.lit(FOLDER), device=pl.lit(f"{HOST}:{FOLDER}"))
        layouts = some_layouts(name=MODULE_TARGET, machine=machine, notes=SENTENCES)
        why_not = layouts.written.with_columns(why_not=pl.lit(SENTENCES[2]))
        yield {
            "run": replace(run, others=(run,)),
            "flame": flame,
            "diagnosis": replace(diagnosis, run=run, flame=flame),
            "ladder": replace(built("ladder"), notes=SENTENCES),
            "lines": replace(lines, functions=lines.functions.with_columns(file=pl.lit(MODULE))),
            "experiments": replace(tried, waits=waits, trials=trials_of_step),
            "orders": replace(orders, trials=trials, ops=ops, notes=SENTENCES),
            "tuning": tuning,
            "layouts": replace(layouts, written=why_not),
            "storage": replace(storage, places=places),
        }


def everything(result, folder):
    """Yield all that can be shown, exported and saved of a result, by its kind."""
    saved = result.save(folder / "saved")
    tables = {
        str(path.relative_to(saved)): repr(pl.read_ipc(path).rows())
        for path in saved.rglob("*.arrow")
    }
    heads = {str(path): path.read_text() for path in saved.rglob("*.json")}
    shown = {"text": str(result), **result._repr_mimebundle_()}
    pictures = {kind: _texts(result.plot(kind)) for kind in result._face().pictures}
    written = {}
    if isinstance(result, ss.Run):
        written["trace"] = result.trace(folder / "trace.json").read_text()
    if isinstance(result, ss.Flame):
        for name in ("f.html", "f.json"):
            written[name] = result.export(folder / name).read_text()
    if isinstance(result, ss.Diagnosis):
        written["report"] = face.page(result)
        written["json"] = face.as_json(result)
    return {**tables, **heads, **shown, **pictures, **written}


def _texts(figure):
    return " ".join(
        text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))
    )


def found_in(texts):
    return {
        (place, mark) for place, text in texts.items() for mark in MARKS if mark in text.lower()
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS])
def test_no_piece_of_a_name_is_left(planted, kind, tmp_path):
    before = {mark for _, mark in found_in(everything(planted[kind], tmp_path / "plain"))}

    assert kind == "lines" or MARKS - {"hostname"} <= before
    assert set() == found_in(everything(planted[kind].redacted(), tmp_path))


def test_reports_leave_them_out(planted):
    """`redact` of a report covers its HTML and its JSON."""
    shown = {
        "html": face.page(planted["diagnosis"], redact=True),
        "json": face.as_json(planted["diagnosis"], redact=True),
    }

    assert set() == found_in(shown)


@pytest.mark.parametrize(
    "name", ("run_of_patterns", "run_of_samples", "ladder", "orders", "diagnosis", "flame")
)
def test_text_without_names_stays(name):
    """Numbers, sentences, and names of stages and functions are unchanged."""
    shown = str(built(name).redacted())

    if not name.startswith(("flame", "lines", "diagnosis")):  # of code they show files and lines
        assert str(built(name)) == shown
    assert str(built(name)).count("%") == shown.count("%")


@pytest.mark.parametrize(
    ("note", "left"),
    [
        ("at 3 MB/s, 120 samples/s; /dev/shm is small", None),
        ("see 2_fetch_vs_transform.ipynb: 2 of 10, 60 s of 1.5 times", None),
        ("num_workers=4, np.load(..., mmap_mode='r') or torch.stack", None),
        ("the workers' own reading waits", None),
        ("read /home/me/photos twice", "read … twice"),
        (r"read C:\Users\me\x.png", "read …"),
        ("in data/train and (train.py:31)", "in … and (…)"),
        ("read 1.heic and shard-{000..009}.tar", "read … and …"),
        ("on patient_smith or smith@x.org", "on … or …"),
    ],
)
def test_of_texts(note, left):
    """Rates and stallscope's own words stay; anything that may name a file goes."""
    clean = replace(built("run"), notes=(note,)).redacted()
    assert (left or note) == clean.notes[0]


def test_functions_that_were_sampled_stay():
    """A sentence that names a sampled function keeps its name."""
    stack = "Ward.qrumble_wug (/home/me/mine.py:3)"
    finding = Finding("slow-samples", "most of it is in qrumble_wug (mine.py:3)", 0.5, {}, 0.9, "")
    diagnosis = replace(a_diagnosis(finding, parts=False), flame=a_flame({stack: 1.0}))

    assert "most of it is in qrumble_wug (…)" == diagnosis.redacted().verdict.title


def test_equal_names_stay_equal():
    """Different files stay different, and equal ones equal: patterns and counters need that."""
    run = built("run_of_samples")

    paths = run.redacted().all_samples["path"]

    assert run.all_samples["path"].n_unique() == paths.n_unique()
    assert run.patterns().height == run.redacted().patterns().height
    assert Path(paths.drop_nulls()[0]).suffix == ""
