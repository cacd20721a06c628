"""The picture of the resources, and the line of the table that names the saturated one."""

from dataclasses import replace

import polars as pl
import pytest
from matplotlib.colors import to_rgba
from support.build_run import a_run, resources_of, steps_of
from support.chart_texts import check_texts, texts, words

from stallscope import stages
from stallscope.charts.resources import NOT_SAMPLED
from stallscope.run.result import Run
from stallscope.stages import STALL_COLOUR

LENGTH_S = 20
WAITS = [0.4, 0.0] * 20
CALM = {
    **{(stages.CORE, str(core)): 0.2 + core / 100 for core in range(4)},
    **{(stages.WORKER, str(pid)): 0.3 for pid in range(100, 104)},
    **{(stages.QUEUED, str(pid)): 0.4 for pid in range(100, 104)},
    (stages.LOOP, "99"): 0.1,
    (stages.MEMORY, "machine"): (8e9, 32e9),
    (stages.SHM, "/dev/shm"): (2e6, 16e9),
    (stages.DISK_BUSY, "vda"): (0.1, 1.0),
    (stages.DISK_READ, "vda"): 5e6,
    (stages.DISK_WRITE, "vda"): 5e4,
    (stages.DISK_OPERATIONS, "vda"): 120.0,
    (stages.RECEIVED, "eth0"): 2e3,
    (stages.SENT, "eth0"): 1e3,
    (stages.SAMPLER, ""): 0.003,
}
BUSY = CALM | {(stages.CORE, str(core)): 0.99 for core in range(4)}
FULL = CALM | {
    **{(stages.DISK_BUSY, f"a_very_long_name_of_a_disk$\x1b{n}"): (0.5, 1.0) for n in range(9)},
    **{(stages.GPU, str(gpu)): (0.9, 1.0) for gpu in range(8)},
    **{(stages.GPU_MEMORY, str(gpu)): (70e9, 80e9) for gpu in range(8)},
    (stages.MEMORY, "container"): (31e9, 32e9),
    (stages.WORKER_MEMORY, "100"): [1e9 + 1e8 * second for second in range(20)],
    (stages.WORKER_MAPPED, "100"): 9e9,
    (stages.QUOTA, "container"): (1.2, 1.5),
    (stages.RECEIVED, "eth0"): (1.2e8, 1.25e8),
    (stages.DISK_READ, "vda"): [0.0, 3e9] * 10,
}


def sampled(use, *, waits=WAITS, **columns):
    """Return a run with steps and resources alone."""
    run = a_run([], steps=steps_of(waits, step_s=0.3, **columns), workers=4)
    return replace(run, all_resources=resources_of(use, LENGTH_S))


RUNS = {
    "calm": sampled(CALM),
    "busy": sampled(BUSY),
    "everything": sampled(FULL),
    "no stall": sampled(CALM, waits=[0.0] * 60),
    "a core alone": sampled({(stages.CORE, "0"): 0.5}),
    "nothing used": sampled(dict.fromkeys(CALM, 0.0)),
    "a moment": sampled(CALM, waits=[0.1]),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_text_has_a_place_of_its_own(name):
    check_texts(Run.plot(RUNS[name], "resources"))


def test_the_title_names_the_saturated_resource():
    """The row of that resource has the stall's colour."""
    figure = Run.plot(RUNS["busy"], "resources")

    assert figure.title.startswith("The 4 usable cores were saturated for 100% of the stall time")
    loud = [text.get_text() for text in texts(figure) if text.get_color() == STALL_COLOUR]
    assert ["loop stalls", "cores"] == loud


def test_says_what_is_missing():
    """A missing GPU has no row, rather than a zero."""
    run = RUNS["calm"]
    nothing = run.all_resources.head(1).with_columns(
        resource=pl.lit(stages.GPU), device=None, value=None
    )
    rows = pl.concat([nothing.cast(run.all_resources.schema), run.all_resources])

    figure = Run.plot(replace(run, all_resources=rows), "resources")

    assert "missing, or not read: GPU busy" in figure.notes
    assert "GPU busy" not in words(figure)


def test_a_row_has_its_mean_and_its_capacity():
    shown = "\n".join(words(Run.plot(RUNS["calm"], "resources"))).split("\n")

    assert {"8.0 GB of 32 GB", "22% of 4 cores", "5.0 MB/s read"} <= set(shown)
    assert "network" not in shown  # which carries next to nothing


def test_the_loop_is_the_first_row():
    """The filled part of the row is the stall share."""
    first = Run.plot(RUNS["calm"], "resources").axes[0]

    (filled,) = first.patches
    assert to_rgba(STALL_COLOUR) == filled.get_facecolor()
    heights = (filled.get_data().baseline - filled.get_data().values) / 0.8
    assert 0.4 == pytest.approx(heights.mean(), abs=0.02)


def test_a_run_without_resources_says_so():
    run = replace(RUNS["calm"], all_resources=RUNS["calm"].all_resources[:0])

    assert NOT_SAMPLED == Run.plot(run, "resources").title


def html(run):
    return run._repr_mimebundle_()["text/html"]


class TestTable:
    @pytest.mark.parametrize("face", [str, html])
    def test_names_the_saturated_resource(self, face):
        """One line names the resource, in a terminal and in a notebook."""
        assert 1 == face(RUNS["busy"]).count("The 4 usable cores were saturated")

    @pytest.mark.parametrize("face", [str, html])
    @pytest.mark.parametrize("name", ["calm", "no stall", "a moment"])
    def test_names_no_resource_without_saturation(self, face, name):
        assert "saturated" not in face(RUNS[name])
