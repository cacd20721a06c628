"""From marks to the steps of a loop, with planted times."""

import numpy as np
import pytest

from stallscope.hooks.event_log import CODE_SHIFT, INDEX_OFFSET, LogPages, Mark, Tag, numbers
from stallscope.hooks.recording_folder import AROUND, OUTER, ProcessNames, epoch_key
from stallscope.run.loop_events import events
from stallscope.run.steps import loaders, loop
from stallscope.stages import BACKWARD, FORWARD, GARBAGE, H2D, OPTIMIZER, PIN, STEP, Stage

LOOP, ELSEWHERE = 1, 2
TRAIN, VALIDATE = 1, 2
PARTS = [BACKWARD, OPTIMIZER, STEP, H2D, FORWARD, GARBAGE, PIN, Stage("logging", "other")]
CODES = {stage.name: code for code, stage in enumerate(PARTS, 1)}


class Marks:
    """Writer of the marks of a loop with chosen times; milliseconds."""

    def __init__(self, worker=-1):
        self.words = {LOOP: [], ELSEWHERE: []}
        self.at = 1
        self.worker = worker

    def __call__(self, what, loader=TRAIN, number=0, extra=0, *, takes=0, epoch=0, thread=LOOP):
        """Write the mark of an event, and let time go by."""
        code = extra << CODE_SHIFT if what >= Mark.BEGIN else 0
        self.words[thread] += [
            Tag.EPOCH | epoch_key(loader, epoch) + INDEX_OFFSET,
            Tag.NUMBER | numbers(number, extra),
            what | code | self.at * 1_000_000,
        ]
        self.at += takes

    def wait(self, number, takes, *, loader=TRAIN, epoch=0):
        self(Mark.WAIT, loader, epoch=epoch, takes=takes)
        self(Mark.GOT, loader, number, epoch=epoch)

    def part(self, name, takes, thread=LOOP):
        self(Mark.BEGIN, extra=CODES[name], takes=takes, thread=thread)
        self(Mark.END, extra=CODES[name], thread=thread)

    def pages(self):
        names = ProcessNames({code: PARTS[code - 1] for code in CODES.values()})
        return [
            LogPages(
                pid=7,
                worker=self.worker,
                born_ns=0,
                thread=thread,
                words=np.array(words),
                names=names,
            )
            for thread, words in self.words.items()
            if words
        ]


def read(*marks):
    return events(page for writer in marks for page in writer.pages())


def tables(*marks, loader=TRAIN):
    return loop(read(*marks), loader)


def ms(frame, column):
    return [None if value is None else round(value * 1e3) for value in frame[column]]


def spent(loop):
    """Return the milliseconds of each stage of the loop."""
    spans = loop.side_spans
    total = {}
    for stage, start, end in spans.select("stage", "start_ns", "end_ns").iter_rows():
        total[stage] = total.get(stage, 0) + (end - start) // 1_000_000
    return total


class TestAStep:
    def test_is_a_wait_and_its_use(self):
        """The use of a batch lasts until the loop asks for the next one."""
        marks = Marks()
        for number in range(3):
            marks.wait(number, takes=5)
            marks.part("backward", 20)
            marks.part("optimizer", 3)
            marks.at += 2

        steps = tables(marks).steps

        assert [5, 5, 5] == ms(steps, "wait_s")
        assert [23, 23] == ms(steps, "step_s")[:2]
        assert [2, 2] == ms(steps, "other_s")[:2]

    def test_parts_are_exclusive(self):
        marks = Marks()
        marks.wait(0, takes=1)
        marks(Mark.BEGIN, extra=CODES["forward"], takes=4)
        marks.part("logging", 2)
        marks.at += 4
        marks(Mark.END, extra=CODES["forward"])
        marks.part("backward", 9)
        marks.wait(1, takes=1)

        loop_tables = tables(marks)

        assert {"forward": 8, "logging": 2, "backward": 9} == spent(loop_tables)
        assert (17, 2) == (ms(loop_tables.steps, "step_s")[0], ms(loop_tables.steps, "other_s")[0])

    def test_forward_is_the_time_before_backward(self):
        """Without a mark of its beginning, forward begins at the batch or after a part."""
        marks = Marks()
        marks.wait(0, takes=1)
        marks.at += 8
        marks.part("backward", 9)  # of one network
        marks.at += 2  # clipping, say
        marks.part("optimizer", 3)
        marks.at += 6
        marks.part("logging", 5)
        marks.part("backward", 7)  # of another one
        marks.part("optimizer", 3)
        marks.at += 4
        marks.wait(1, takes=1)

        spent_ms = spent(tables(marks))

        forward = {"forward (until backward)": 14}
        named = {"backward": 16, "optimizer": 6, "logging": 5, "step": 2, "other": 4}
        assert forward | named == spent_ms

    def test_validation_is_no_part_of_it(self):
        """A loop over another loader in between is never charged to a training step."""
        marks = Marks()
        marks.wait(0, takes=1)
        marks.part("backward", 9)
        marks(Mark.ITER, VALIDATE, takes=2)
        marks(Mark.ITERATED, VALIDATE)
        for number in range(2):
            marks.wait(number, takes=30, loader=VALIDATE)
            marks.at += 10
        marks(Mark.WAIT, VALIDATE, takes=1)
        marks(Mark.ENDED, VALIDATE)
        marks.wait(1, takes=1)

        loop_tables = tables(marks)

        assert (9, 83) == (ms(loop_tables.steps, "step_s")[0], ms(loop_tables.steps, "other_s")[0])
        assert 83 == spent(loop_tables)["another loader"]
        assert [30, 30] == ms(tables(marks, loader=VALIDATE).steps, "wait_s")
        assert [TRAIN, VALIDATE] == loaders(read(marks))

    def test_the_end_of_an_epoch_is_no_step(self):
        """The last, empty `next` and the next iterator are no step's own time."""
        marks = Marks()
        for epoch in range(2):
            marks(Mark.ITER, epoch=epoch, takes=6)
            marks(Mark.ITERATED, epoch=epoch)
            marks.wait(0, takes=1, epoch=epoch)
            marks.part("backward", 9)
            marks(Mark.WAIT, epoch=epoch, takes=50)
            marks(Mark.ENDED, epoch=epoch)

        loop_tables = tables(marks)

        assert [6, 6] == ms(loop_tables.steps, "restart_s")
        assert [9, 9] == ms(loop_tables.steps, "step_s")
        assert 100 == spent(loop_tables)["end of epoch"]

    def test_garbage_collection_is_its_own_part(self):
        """Garbage collection is subtracted from the part that it interrupts."""
        marks = Marks()
        marks.wait(0, takes=1)
        marks(Mark.BEGIN, extra=CODES["backward"], takes=3)
        marks.part("garbage collection", 40, thread=ELSEWHERE)
        marks.at += 3
        marks(Mark.END, extra=CODES["backward"])
        marks.wait(1, takes=1)

        assert {"backward": 6, "garbage collection": 40} == spent(tables(marks))

    def test_without_training_all_is_the_step(self):
        """In a loop that trains nothing and names no part, all use of a batch is the step."""
        marks = Marks()
        for number in range(2):
            marks.wait(number, takes=1)
            marks.at += 8
        marks.wait(2, takes=1)

        assert [8, 8] == ms(tables(marks).steps, "step_s")[:2]


class TestAWrapper:
    def wait(self, marks, inner, *, epoch, loader=TRAIN, begins_loader=False):
        """Wait as a library, then work 5 ms; its loader may begin inside of that."""
        marks(Mark.WAIT, AROUND, epoch=epoch, takes=1)
        if begins_loader:
            marks(Mark.ITER, loader, takes=2)
            marks(Mark.ITERATED, loader)
        for number in inner:
            marks.wait(number, takes=10, loader=loader)
        marks.at += 5
        marks(Mark.GOT, AROUND, epoch=epoch)

    def test_waits_for_the_loader_inside(self):
        """The wrapper's work is the loop's wait; its batch is the loader's."""
        marks = Marks()
        self.wait(marks, [0, 1], epoch=0, begins_loader=True)
        marks.part("backward", 7)
        self.wait(marks, [], epoch=0)
        marks.part("backward", 7)

        loop_tables = tables(marks)

        assert [28, 6] == ms(loop_tables.steps, "wait_s")
        assert [1, 1] == loop_tables.steps["batch"].to_list()
        assert [(0, 0), (0, 1)] == loop_tables.waits.select("step", "batch").rows()
        assert {"backward": 14} == spent(loop_tables)


class TestTheRecordingsOwnLoop:
    def outer(self, marks, inner, takes=2):
        marks(Mark.WAIT, OUTER, takes=takes)
        for number in inner:
            marks.wait(number, takes=10)
        marks(Mark.GOT, OUTER)

    def test_stands_for_the_loader_inside(self):
        """A step's batch is the one that came last inside of its wait."""
        marks = Marks()
        self.outer(marks, [0, 1])
        marks.part("step", 7)
        self.outer(marks, [2])
        marks.part("step", 7)

        loop_tables = tables(marks)

        assert [1, 2] == loop_tables.steps["batch"].to_list()
        assert [22, 12] == ms(loop_tables.steps, "wait_s")
        assert [(0, 0), (0, 1), (1, 2)] == loop_tables.waits.select("step", "batch").rows()

    def test_copies_have_their_own_column(self):
        marks = Marks()
        self.outer(marks, [0])
        marks.part("h2d", 3)
        marks.part("step", 7)
        self.outer(marks, [1])

        steps = tables(marks).steps

        assert (3, 7) == (ms(steps, "h2d_s")[0], ms(steps, "step_s")[0])


class TestDeliveries:
    def test_have_all_their_times(self):
        """The loop's marks and the worker's make one row."""
        marks, worker = Marks(), Marks(worker=3)
        marks(Mark.ASKED, number=0, extra=3, takes=1)
        worker.at = marks.at
        for what in (Mark.TAKEN, Mark.MADE, Mark.PICKLE, Mark.SENT):
            worker(what, takes=10)
        marks.at = worker.at
        marks(Mark.ARRIVED)
        marks.wait(0, takes=1)

        loop_tables = tables(marks, worker)

        (row,) = loop_tables.deliveries.iter_rows(named=True)
        times = [value // 1_000_000 for name, value in row.items() if name.endswith("_ns")]
        assert [1, 2, 12, 22, 32, 42] == times
        assert (3, 10) == (row["worker"], spent(loop_tables)["send"])

    def test_pinned_in_the_order_of_arrival(self):
        """The thread that pins names no batch: the first that it pins is the first to arrive."""
        marks = Marks()
        marks(Mark.PINS, number=ELSEWHERE)
        for _ in range(2):
            marks.part("pin", 4, thread=ELSEWHERE)
            marks.at += 1
        for number in (1, 0):
            marks(Mark.ARRIVED, number=number, takes=1)
        for number in (0, 1):
            marks.wait(number, takes=1)

        loop_tables = tables(marks)

        assert [4, 4] == ms(loop_tables.steps, "pin_s")
        assert [6_000_000, 1_000_000] == loop_tables.deliveries["arrived_ns"].to_list()


@pytest.mark.parametrize("what", list(Mark))
def test_a_torn_recording_is_read(what):
    """Marks may begin or end anywhere, as after a crash."""
    marks = Marks()
    marks(what, takes=1)
    marks.wait(0, takes=1)
    marks(what)

    assert tables(marks).steps.height <= 2
