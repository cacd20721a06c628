"""A run as a table, in a terminal and in a notebook."""

from __future__ import annotations

import subprocess
import sys

from support.build_run import a_run
from support.virtual_loop import a_loop

KEY = (
    "share and mean: per sample, over all samples, including collate · p50 and p95: "
    "where the stage occurred · waiting: not on a CPU"
)
ATTACK = "<img src=x onerror=alert(1)>"


class TestText:
    def test_is_a_table_under_the_answer(self):
        """The sentence, the stages with their numbers aligned, the notes beneath."""
        run = a_run(
            [{"fetch": 1.0, "decode": 9.0}] * 8,
            cpu_share={"fetch": 0.25},
            warmup=1,
            notes=("stallscope's default pipeline, not yours",),
        )

        assert str(run).splitlines() == [
            "decode takes 90% of a sample's time; reading takes 10%",
            "",
            "stage   share    mean     p50     p95  waiting",
            "decode    90%  9.0 ms  9.0 ms  9.0 ms        —",
            "fetch     10%  1.0 ms  1.0 ms  1.0 ms      75%",
            "",
            "4 samples · 1 worker · left out: 1 batch (start-up, warm-up, incomplete end)",
            KEY,
            "stallscope's default pipeline, not yours",
        ]

    def test_prints_no_control_characters_of_a_name(self):
        """A stage's name cannot move the cursor or colour the terminal."""
        assert "\x1b" not in str(a_run([{"evil\x1b[2J\n": 1.0}] * 4))

    def test_says_what_is_not_shown(self):
        """Of thirty stages, the last ten are only counted."""
        text = str(a_run([{f"Op{i}": 1.0 for i in range(30)}] * 4))

        assert "not shown: 10 more stages, together 33%" in text

    def test_an_empty_run_says_so_once(self):
        """Nothing recorded: one sentence."""
        text = str(
            a_run(
                [], notes=("no batch was recorded from beginning to end: there is nothing to show",)
            )
        )

        assert 1 == text.lower().count("nothing to show")

    def test_costs_no_matplotlib(self):
        """Printing a run in a script imports nothing that draws."""
        code = (
            "import sys; sys.path[:0] = ['tests', 'src']; from support.build_run import a_run; "
            "str(a_run([{'A': 1.0}])); print('matplotlib' in sys.modules)"
        )

        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

        assert b"False" == printed.stdout.strip()


LOOP = {"fetch": 5.0, "decode": 40.0, "Mask": 70.0, "collate": 5.0}


class TestLoopText:
    def test_tells_what_the_loop_stood_still_for(self):
        """Under the stages: the sentence, a step's parts, the stalls' parts, the patterns."""
        run = a_loop(LOOP, using={"forward": 11.0, "logging": 1.0}, h2d=1.0, batches=200)

        lines = str(run).splitlines()

        begin = lines.index(
            "The training loop stalls 55% of the time; 58% of that is Mask, in the workers"
        )
        assert lines[begin + 1 : begin + 8] == [
            "30 ms per step: stall 55% · short waits 1% · copies 3% · forward 37% · logging 3%",
            "",
            "stalled by  share  per step  busy",
            "Mask          58%    9.7 ms   58%",
            "decode        33%    5.5 ms   33%",
            "fetch          4%    693 µs    4%",
            "collate        4%    693 µs    4%",
        ]
        assert lines[begin + 10].startswith("- Every 4th step waits 66 ms")
        assert lines[begin + 10].endswith(" · p-value below 0.001")

    def test_says_only_so_where_the_loop_hardly_waits(self):
        """No table of what does not matter."""
        text = str(a_loop(LOOP, using={"forward": 90.0}, unpickle=0.1))

        assert "The training loop never stalls: the longest of 44 waits takes 100 µs" in text
        assert "stalled by" not in text

    def test_says_nothing_of_a_loop_that_was_not_recorded(self):
        """Null is not zero."""
        assert "loop" not in str(a_run([{"A": 1.0}] * 8))

    def test_puts_the_small_parts_together(self):
        """After five parts comes what is left."""
        run = a_loop({f"Op{i}": 20.0 - i for i in range(12)}, using={"forward": 1.0})

        assert "more  " in str(run)


class TestHtml:
    def test_escapes_names(self):
        """A stage, a note and a headline cannot bring HTML of their own."""
        run = a_run([{ATTACK: 1.0}] * 4, notes=(ATTACK,))

        html = run._repr_mimebundle_()["text/html"]

        assert "<img" not in html
        assert 3 == html.count("&lt;img src=x onerror=alert(1)&gt;")

    def test_tells_what_the_loop_stood_still_for(self):
        """The same numbers as in a terminal, names escaped."""
        run = a_loop({"fetch": 10.0, ATTACK: 60.0}, using={ATTACK: 9.0})

        html = run._repr_mimebundle_()["text/html"]

        assert "stalled by" in html
        assert "<img" not in html

    def test_has_a_bar_for_each_share(self):
        """The longest stage's bar is the longest."""
        html = a_run([{"A": 2.0, "fetch": 1.0}] * 4)._repr_mimebundle_()["text/html"]

        assert html.index("width:100px") < html.index("width:50px")
