"""The trace: it obeys its format, and its slices match the rows of the run's tables."""

import json
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import trace_format
from support.build_run import a_run, resources_of, steps_of
from support.loaders import Jitter, Noise
from support.trace_format import faults, ns, slices, trace_of
from support.virtual_loop import a_loop, on_device, together
from torch.utils.data import DataLoader

import stallscope as ss
from stallscope.errors import TraceFileError
from stallscope.run.result import Settings
from stallscope.stages import LOOP, SAMPLER
from stallscope.views import trace as view
from stallscope.views.trace import us

MAKING = {"fetch": 5.0, "decode": 40.0, "RandomMask": 70.0, "collate": 5.0}
USING = {"forward": 20.0, "backward": 11.0, "logging": 2.0, "garbage collection": 1.0}


def elsewhere(run):
    """Return the run with other workers."""
    tables = ("all_spans", "batches", "deliveries", "side_spans")
    pids = pl.when(pl.col("worker").is_null()).then("pid").otherwise(pl.col("pid") + 50)
    return replace(run, **{name: getattr(run, name).with_columns(pid=pids) for name in tables})


PLANTED = {
    "loop": a_loop(MAKING, workers=2, using=USING, h2d=3.0),
    "on a device": on_device(a_loop(MAKING, workers=2, using=USING), 0.002, 0.03),
    "main process": a_loop(MAKING, workers=0, using=USING),
    "thinned": a_loop(MAKING, recorded=5),
    "epochs": a_loop(MAKING, batches=6, epochs=5),
    "slow to send": a_loop(MAKING, workers=2, send=90.0, unpickle=20.0),
    "ranks": together(*(a_loop(MAKING, rank=rank) for rank in range(3))),
    "validation, too": replace(
        a_loop(MAKING), others=(elsewhere(a_loop(MAKING, batches=8)), a_loop(MAKING, workers=0))
    ),
    "samples": a_run([{"decode": 2.0, "Crop": 1.0}] * 24, workers=2, collate_ms=1.0),
    "samples that cannot be told apart": a_run([{"decode": 2.0}] * 8, per_batch=True),
    "only steps": a_run([], steps=steps_of([0.2, 0.0, 0.3] * 5, step_s=0.1, other_s=0.02)),
    "a loop that never came to a step": replace(
        a_run([{"decode": 2.0}] * 8),
        all_steps=a_run([]).all_steps,
        all_resources=resources_of({(LOOP, "7"): 0.5}, 1),
    ),
    "nothing": a_run([]),
}


@pytest.fixture(scope="module")
def recorded():
    """Return a real recording with two workers."""
    loader = DataLoader(Noise(96, Jitter()), 4, num_workers=2)
    return ss.record(loader, lambda _: sum(range(30_000)), batches=8)


def names(trace, what):
    """Return the names of the processes or threads, by number."""
    metadata = [e for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == what]
    return {event["tid"] or event["pid"]: event["args"]["name"] for event in metadata}


class TestFormat:
    @pytest.mark.parametrize("name", PLANTED)
    def test_is_obeyed(self, name):
        """Keys are there, slices are nested, arrows are paired and bound, tracks are named."""
        assert faults(trace_of(PLANTED[name])) == []

    def test_is_obeyed_by_a_real_recording(self, recorded, tmp_path):
        trace = trace_format.read(recorded.trace(tmp_path / "trace.json.gz"))

        assert faults(trace) == []
        assert trace["traceEvents"] == trace_of(recorded)["traceEvents"]

    @given(st.integers(0, 1 << 50))
    def test_times_keep_their_nanoseconds(self, time_ns):
        """Times keep their nanoseconds for readers that cut or round, also from a file."""
        micros = json.loads(json.dumps(us(time_ns)))

        assert (time_ns, time_ns) == (int(micros * 1000), round(micros * 1000))


class TestFigures:
    @pytest.mark.parametrize("run", PLANTED.values(), ids=list(PLANTED))
    def test_of_waits_are_those_of_the_steps(self, run):
        """Each step's wait and each stall agree to the nanosecond."""
        run = replace(run, others=())
        trace = trace_of(run)
        durations = {cat: [ns(e["dur"]) for e in slices(trace, cat)] for cat in ("wait", "stall")}
        waits = [ns(e["dur"]) for e in slices(trace, "wait") if e["name"] == "wait"]

        steps = run.all_steps.drop_nulls("start_ns")
        assert sorted(waits) == sorted((steps["wait_s"] * 1e9).round().cast(int))
        assert sorted(durations["stall"]) == sorted(
            (run.stalls()["stall_s"] * 1e9).round().cast(int)
        )

    def test_of_the_machine_are_those_of_the_table(self, recorded):
        """Each sampled resource has a counter, but the sampling itself has none."""
        read = recorded.resources(steady=False).drop_nulls("value")
        wanted = read.filter(pl.col("resource").cast(pl.String) != SAMPLER)["value"].to_list()

        counters = [e for e in trace_of(recorded)["traceEvents"] if e["ph"] == "C"]
        values = [e["args"] for e in counters if "batches" not in e["args"]]
        assert sorted(wanted) == sorted(value for args in values for value in args.values())


class TestSlices:
    def test_say_what_the_sample_was(self):
        run = a_run([{"A": 1.0}] * 4, paths=["/data/a.jpg"])

        args = slices(trace_of(run), "sample")[2]["args"]
        assert (0, 2, 2, "/data/a.jpg") == tuple(
            args[name] for name in ("batch", "sample", "index", "path")
        )

    def test_a_device_that_works_behind_the_host_has_a_track_of_its_own(self):
        """The track shows the device's work by kind, and where it is unknown."""
        run = PLANTED["on a device"]
        trace = trace_of(run)
        threads = {
            number for number, name in names(trace, "thread_name").items() if name == "device"
        }
        drawn = [
            (event["name"], ns(event["ts"]))
            for cat in ("h2d", "step")
            for event in slices(trace, cat)
            if event["tid"] in threads
        ]

        assert sorted(drawn) == sorted(run.device_work.select("kind", "start_ns").rows())

    def test_of_a_simulated_step_say_so(self):
        run = replace(PLANTED["loop"], settings=Settings(simulated_step_s=0.02))

        trace = trace_of(run)
        assert {"forward (simulated)", "backward (simulated)"} == {
            event["name"] for event in slices(trace, "step")
        }
        assert "simulated" in " ".join(trace["otherData"]["notes"])


class TestNames:
    def test_differ_between_ranks_with_the_same_pids(self):
        """On two machines, two processes may have one pid."""
        processes = names(trace_of(PLANTED["ranks"]), "process_name")

        assert 15 == len(processes) == len(set(processes.values()))
        assert "rank 2: worker 3 (pid 103)" in processes.values()

    def test_carry_notes_settings_and_machine(self):
        run = replace(a_run([], notes=("a note",)), machine={"cores": float("nan")})

        about = trace_of(run)["otherData"]
        assert ("NaN", ["a note"]) == (about["machine"]["cores"], about["notes"])


@pytest.fixture
def short_run():
    return a_run([{"decode": 2.0}] * 8)


class TestWriting:
    @pytest.mark.parametrize("name", ["trace.json", "new/folder/trace.json.gz"])
    def test_gives_the_file_that_was_asked_for(self, short_run, tmp_path, name):
        path = short_run.trace(tmp_path / name)

        assert tmp_path / name == path
        assert {"displayTimeUnit", "otherData", "traceEvents"} == set(trace_format.read(path))
        assert [path] == list(path.parent.iterdir())

    def test_of_nothing_is_a_trace(self, tmp_path):
        assert [] == trace_format.read(a_run([]).trace(tmp_path / "trace.json"))["traceEvents"]

    def test_that_fails_leaves_what_was_there(self, short_run, tmp_path, monkeypatch):
        path = short_run.trace(tmp_path / "trace.json")
        before = path.read_bytes()

        def broken(_run):
            yield {"ph": "X"}
            raise KeyboardInterrupt

        monkeypatch.setattr(view, "events", broken)
        with pytest.raises(KeyboardInterrupt):
            short_run.trace(path)
        assert ([path], before) == (list(tmp_path.iterdir()), path.read_bytes())

    @pytest.mark.parametrize("name", ["trace", "trace.txt", "trace.gz", "trace.pftrace"])
    def test_another_ending(self, short_run, tmp_path, name):
        """One sentence lists the good names."""
        with pytest.raises(TraceFileError, match=r"is \.json or \.json\.gz.*give one such as"):
            short_run.trace(tmp_path / name)
        assert [] == list(tmp_path.iterdir())

    @pytest.mark.parametrize("place", ["/proc/trace.json", "file/trace.json"])
    def test_a_place_that_cannot_be_written(self, short_run, tmp_path, monkeypatch, place):
        """The place has no write permission, or a file where a folder must be."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").write_text("mine")

        with pytest.raises(TraceFileError, match=r"cannot be written to .*: give another place"):
            short_run.trace(place)
