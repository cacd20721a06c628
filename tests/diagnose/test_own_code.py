"""The user's own code in sampled stacks: its function, its lines, and what they do."""

from dataclasses import replace

import polars as pl
import pytest
from support.build_facts import SPIKES, known

from stallscope.verbs.diagnose.facts import with_stacks
from stallscope.verbs.diagnose.own_code import CALLS, OTHER, lock_share, loop_code, own_code
from stallscope.verbs.diagnose.verdict import STACKS, judge, next_question
from stallscope.verbs.flame.result import SAMPLES, Flame, FlameConditions


def a_flame(*rows, idle=False):
    """Return a flame of stacks with their stage and their hits."""
    full = [(0, 100, 0, stage, stack, hits) for stage, stack, hits in rows]
    return Flame(pl.DataFrame(full, SAMPLES, orient="row"), FlameConditions(idle=idle))


class TestLocks:
    ACQUIRES = "load (mine.py:7);SemLock.__enter__ (multiprocessing/synchronize.py:95)"

    def test_waiting_at_a_lock_is_seen(self):
        """Three of four samples of a stage wait in a semaphore's `__enter__`."""
        flame = a_flame(("Lookup", self.ACQUIRES, 30), ("Lookup", "load (mine.py:8)", 10))

        assert 0.75 == lock_share(flame)

    def test_a_call_of_flock_is_seen_by_its_line(self, tmp_path):
        """A file's lock has no frame of its own; the text of the user's line shows it."""
        mine = tmp_path / "mine.py"
        mine.write_text("def load():\n    fcntl.flock(file, fcntl.LOCK_EX)\n    copy()\n")
        flame = a_flame(("getitem", f"load ({mine}:2)", 30), ("getitem", f"load ({mine}:3)", 10))

        assert 0.75 == lock_share(flame)

    def test_the_thread_that_sends_is_no_lock(self):
        """A feeder thread waits at its condition between two batches, whatever is wrong."""
        waits = "Queue._feed (multiprocessing/queues.py:231);Condition.wait (threading.py:327)"
        flame = a_flame(("send", waits, 90), ("fetch", "load (mine.py:8)", 10))

        assert 0.0 == lock_share(flame)

    def test_few_samples_say_nothing(self):
        """Nine samples are too few for a share."""
        assert lock_share(a_flame(("fetch", self.ACQUIRES, 9))) is None


class TestFunction:
    def test_the_deepest_function_that_holds_most_is_named_with_its_lines(self):
        """Functions of libraries and callers that only pass on are not named."""
        flame = a_flame(
            ("Blur", "load (mine.py:7);blur (mine.py:31);conv (site-packages/torch/nn.py:5)", 30),
            ("Blur", "load (mine.py:7);blur (mine.py:40)", 10),
            ("decode", "load (mine.py:9)", 90),
        )
        function = own_code(flame, "Blur")

        assert "blur (mine.py:31, 40)" == function.place
        assert 1.0 == function.share

    def test_work_that_is_spread_over_functions_belongs_to_their_caller(self):
        """If no inner function holds half, their caller is named."""
        rows = [
            ("getitem", f"load (mine.py:{7 + i});part{i} (mine.py:{20 + i})", 10) for i in range(4)
        ]

        assert "load" == own_code(a_flame(*rows), "getitem").function

    def test_who_asked_for_the_measurement_is_none_of_the_loader(self):
        """The main process has the caller's frames above those of the loop."""
        asks = "main (mine.py:90);run (site-packages/stallscope/loops/training_loop.py:7)"
        flame = a_flame(("getitem", f"{asks};load (mine.py:7)", 30))

        assert "load (mine.py:7)" == own_code(flame, "getitem").place
        assert own_code(a_flame(("getitem", f"{asks};x (torch/a.py:1)", 30)), "getitem") is None

    def test_what_unpacks_is_not_told_to_open_less(self):
        """The stage was measured; its stacks show the call that opened the archive."""
        opens = "load (mine.py:7);load (site-packages/numpy/lib/npyio.py:9)"
        flame = a_flame(("unpack", opens, 30))

        assert "data is unpacked" == own_code(flame, "unpack").does

    def test_another_line_that_takes_a_good_part_is_named_with_what_helps(self, tmp_path):
        """A sample that is slow for two reasons is only as fast as the one that stays."""
        mine = tmp_path / "mine.py"
        mine.write_text("def load():\n    rows = df[df.name == i]\n    work(rows)\n")
        flame = a_flame(
            ("getitem", f"load ({mine}:3);work ({mine}:9)", 60),
            ("getitem", f"load ({mine}:2);eq (site-packages/pandas/core/ops.py:5)", 40),
        )
        function = own_code(flame, "getitem")

        assert "work" == function.function
        assert function.beside.startswith("then at load (mine.py:2), 40% of the same work: find")

    def test_few_samples_name_nothing(self):
        """Nine samples may be an accident."""
        assert own_code(a_flame(("getitem", "load (mine.py:7)", 9)), "getitem") is None

    def test_a_library_that_nobody_knows_is_called_by_its_package(self):
        """A dataset of a library has no line of the user's: no function is called the user's."""
        fetches = "fetch (torch/utils/data/_utils/fetch.py:52)"
        flame = a_flame(
            ("getitem", f"{fetches};load (braindecode/base.py:7);mean (numpy/a.py:1)", 90)
        )

        function = own_code(flame, "getitem")

        assert "braindecode: load (braindecode/base.py:7)" == function.place


class TestCalls:
    @pytest.mark.parametrize(
        ("line", "below", "name"),
        [
            ("row = self.frame.iloc[index]", "", "pandas"),
            ("row = self.x[index]", "get (site-packages/pandas/core/indexing.py:9)", "pandas"),
            ("return torch.tensor([one for one in rows])", "", "array by array"),
            ("return np.array(row['x'], np.float32)", "", "to an array"),
            ("x = np.load(self.path)['x']", "", "opening"),
            ("file = h5py.File(path)", "", "opening"),
            (
                "with zipfile.ZipFile(path) as archive:",
                "x (lib/python3.11/zipfile.py:9)",
                "opening",
            ),
            (
                "frame = pd.read_csv(path)",
                "a (site-packages/pandas/io/parsers/b.py:9);c (site-packages/pandas/core/d.py:9)",
                "opening",
            ),
            (
                "x = self.image.dataobj[:, :, index]",
                "read (site-packages/nibabel/fileslice.py:9);read (lib/python3.11/gzip.py:9)",
                "unpacking",
            ),
            (
                "x = self.set[index]",
                "a (site-packages/xarray/core/b.py:9);c (site-packages/pandas/core/d.py:9)",
                "labels",
            ),
            (
                "row = self.rows[index]",
                "row (site-packages/datasets/formatting/torch_formatter.py:9)",
                "formatting",
            ),
            ("names = list(self.folder.glob(name))", "x (lib/python3.11/pathlib.py:9)", "listing"),
            (
                'rows = self.df[self.df["customer"] == name]',
                "a (site-packages/pandas/core/b.py:9)",
                "searching",
            ),
            ("video.set(cv2.CAP_PROP_POS_FRAMES, index)", "", "codec"),
            ("image = Image.open(path)", "", "Python"),
            ("x = self.store[index]", "get (site-packages/zarr/core.py:9)", "reading"),
            ("wave = wavfile.read(path)", "x (site-packages/scipy/io/wavfile.py:9)", "reading"),
            ("chosen = np.random.choice(self.all, 64, replace=False)", "", "drawing"),
            ("_, near = self.tree.query(points)", "", "Python"),
            ("text = answer.read()", "readinto (lib/python3.11/socket.py:718)", "network"),
            ("row = json.loads(line)", "", "parsing"),
            ("ids = self.tokenizer(text)", "", "text"),
            ("sample = copy.deepcopy(self.rows[index])", "", "copying"),
            ("rows = self.connection.execute(query).fetchall()", "", "database"),
            ("sample = cut(row)", "deepcopy (lib/python3.11/copy.py:128)", "copying"),
            ("time.sleep(0.1)", "", "sleep"),
            ("with self.lock:", "", "lock"),
            ("block = self.blocks[index]", "", "Python"),
            ("return [self.vocab[token] for token in self.special_tokens]", "", "Python"),
            ("row = self.x[index]", "get (site-packages/scipy/sparse/_index.py:9)", "sparse"),
            ("return random.sample(self.buffer, 64)", "", "sequence"),
            ("chosen = self.draw(self.buffer)", "x (lib/python3.11/random.py:9)", "sequence"),
            ("image = resize(image, (224, 224))", "r (site-packages/skimage/a.py:9)", "image"),
            ("wave = resample_poly(wave, 2, 3)", "r (site-packages/scipy/signal/a.py:9)", "signal"),
            ("mel = melspectrogram(wave)", "f (site-packages/librosa/a/b.py:9)", "signal"),
            ("mel = self.mel(wave)", "f (site-packages/torchaudio/functional/b.py:9)", "signal"),
            ("wave = read(path)", "f (dist-packages/soundfile.py:9)", "codec"),
            ("first = pairs[number].item()", "", "element by element"),
            ("near = distance_matrix(a, a) < 1", "", "distances"),
        ],
    )
    def test_the_kind_of_a_call_follows_from_its_text_or_the_library_below(
        self, tmp_path, line, below, name
    ):
        """Each kind of call has its own remedy; a recording has files from their package on."""
        mine = tmp_path / "mine.py"
        mine.write_text(f"def load():\n    {line}\n")
        recorded = below.replace("site-packages/", "").replace("lib/python3.11/", "")

        for frames in {below, recorded}:
            stack = f"load ({mine}:2)" + (f";{frames}" if frames else "")
            call = own_code(a_flame(("getitem", stack, 30)), "getitem").call
            assert call == CALLS.get(name, OTHER)


MODEL = "Module._call_impl (torch/nn/modules/module.py:9);forward (mine.py:4)"


class TestLoop:
    def test_own_code_among_transforms_is_named_whatever_is_longest(self):
        """The title names the user's function beside the transforms; its remedy comes first."""
        facts = known(
            work={
                ("ToTensor", "transform"): 0.4,
                ("getitem", "getitem"): 0.35,
                ("Resize", "transform"): 0.25,
            }
        )
        assert "transforms" == judge(facts)[0].code
        assert STACKS == next_question(facts, judge(facts), ()).phase
        stack = "__getitem__ (mine.py:50);remap (mine.py:39)"

        finding = judge(with_stacks(facts, a_flame(("getitem", stack, 90))))[0]

        assert "ToTensor alone 40%, remap (mine.py:39) 35%" in finding.title
        assert finding.next_step.startswith("in remap (mine.py:39): ")

    def test_what_the_loop_computes_beside_its_model_is_named(self):
        """The deepest function is named, with its share of all computing."""
        step = ("step", "train (mine.py:7);count (mine.py:31)", 60)
        model = ("step", f"train (mine.py:6);{MODEL}", 30)
        after = (None, "train (mine.py:7);count (mine.py:32)", 10)

        function = loop_code(a_flame(step, model, after).samples)

        assert "count (mine.py:31)" == function.place
        assert 0.7 == pytest.approx(function.share)

    def test_the_main_process_is_named_with_what_helps(self):
        """The verdict on a step that computes names the function and where else it could run."""
        flame = a_flame(("step", "train (mine.py:7);mask (mine.py:31)", 60))
        use = {"worker_cpu": 0.1, "loop_cpu": 0.5}
        facts = known(
            stalled=0.01, load=0.4, setup={"simulated": False}, use=use, own_parts={"step": 0.95}
        )

        verdict = judge(replace(facts, loop_code=loop_code(flame.samples)))[0]

        assert "main-process" == verdict.code
        assert "mask (mine.py:31)" in verdict.title
        assert "collate_fn" in verdict.next_step
        assert "look at mask (mine.py:31)" in verdict.next_step


BLUR = ("Blur", "transform")


def verdict_on(folder, code, work, below=""):
    """Return the verdict if the first stage runs the second line of the user's function."""
    mine = folder / "mine.py"
    mine.write_text(code)
    name = code.removeprefix("def ").partition("(")[0]
    flame = a_flame((next(iter(work))[0], f"{name} ({mine}:2){below}", 30))
    return judge(known(work=work, flame=flame))[0]


class TestFinding:
    def test_slow_samples_that_are_most_of_the_work_are_named(self):
        """Occasional work is found where most of all samples' time is."""
        facts = known(
            work={("getitem", "getitem"): 1.0},
            load=1.2,
            patterns={"slow_samples": 0.9},
            spikes=SPIKES,
        )
        flame = a_flame(("getitem", "get_shard (mine.py:31)", 30))

        asked = next_question(facts, judge(facts), ())
        verdict = judge(replace(facts, flame=flame))[0]

        assert "slow-samples" == verdict.code
        assert "most of it in get_shard (mine.py:31)" in verdict.title
        assert "ahead, in a thread" in verdict.next_step
        assert STACKS == asked.phase

    def test_the_caller_of_what_runs_many_times_is_named_where_no_part_leads(self):
        """Sixteen images are decoded for a label; full cores only follow from that."""
        work = {("decode", "decode"): 0.35, ("Tensor", "transform"): 0.35, ("read", "fetch"): 0.3}
        facts = known(work=work, load=2.5, calls={"decode": 16.0})
        label, item = "label (mine.py:12);", "__getitem__ (mine.py:40);"
        stacks = [
            (stage, f"{item}{label}{stage} (site-packages/a/b.py:1)", 40) for stage, _ in work
        ]
        rest = ("read", f"{item}read (site-packages/a/b.py:1)", 10)

        asked = next_question(facts, judge(facts), ())
        verdict = judge(replace(facts, flame=a_flame(*stacks, rest)))[0]

        assert ["cpu-saturated", STACKS] == [judge(facts)[0].code, asked.phase]
        assert "one-transform" == verdict.code
        assert "label (mine.py:12) is the bottleneck" in verdict.title
        assert "decode runs 16 times for each sample" in verdict.title

    @pytest.mark.parametrize(
        ("alone_s", "cause"),
        [(0.05, "lock"), (0.19, "storage-latency")],
        ids=["much longer than alone", "as long as alone"],
    )
    def test_workers_that_slow_each_other_down_at_a_database_wait_for_its_lock(
        self, tmp_path, alone_s, cause
    ):
        """SQLite waits in C: stacks show the query, and no lock."""
        mine = tmp_path / "mine.py"
        mine.write_text("def rows(self, ids):\n    self.db.execute('CREATE TEMP TABLE t')\n")
        flame = a_flame(("getitem", f"rows ({mine}:2)", 30), idle=True)
        work = {("getitem", "getitem"): (0.9, 0.6), BLUR: 0.1}
        facts = known(work=work, use={"worker_cpu": 0.5}, alone_waiting_s=alone_s, flame=flame)

        verdict = judge(replace(facts, lock_frames=0.0))[0]

        assert cause == verdict.code
        assert "read-only connection" in verdict.next_step

    def test_what_the_loader_itself_calls_is_not_named_for_all_its_work(self):
        """All work happens below `__getitem__`, so its name says nothing."""
        work = {("decode", "decode"): 0.35, ("Tensor", "transform"): 0.35, ("read", "fetch"): 0.3}
        stacks = [(stage, f"__getitem__ (mine.py:40);{stage} (a/b.py:1)", 40) for stage, _ in work]
        facts = known(work=work, load=2.5, calls={"decode": 16.0}, flame=a_flame(*stacks))

        assert "cpu-saturated" == judge(facts)[0].code

    def test_a_place_is_named_in_the_next_step(self):
        flame = a_flame(("Blur", "load (mine.py:7);blur (mine.py:31)", 30))
        transform = known(work={("Blur", "transform"): 1.0}, flame=flame)

        assert "blur (mine.py:31)" in judge(transform)[0].next_step

    def test_a_transform_with_a_known_call_gets_its_remedy(self, tmp_path):
        """A method of the dataset called `crop` may spend its time on copies."""
        code = "def crop(subject):\n    return copy.deepcopy(subject)\n"

        verdict = verdict_on(tmp_path, code, {("crop", "transform"): 1.0})

        assert "crop is the bottleneck" in verdict.title
        assert "shallow copy" in verdict.next_step

    def test_own_code_that_leads_is_named_in_the_title_with_what_helps(self, tmp_path):
        """Function, line and kind of call; the next step is the remedy for that kind."""
        code = "def load():\n    return frame.iloc[3]\n"

        verdict = verdict_on(tmp_path, code, {("getitem", "getitem"): 0.9, BLUR: 0.1})

        assert "one-transform" == verdict.code
        assert "load (mine.py:2) is the bottleneck: 90% of the stall time" in verdict.title
        assert "pandas" in verdict.title
        assert "to_numpy" in verdict.next_step
