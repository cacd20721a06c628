"""A run as a table, in a terminal and in a notebook."""

import subprocess
import sys

from support.build_run import a_run
from support.virtual_loop import a_loop

ATTACK = "<img src=x onerror=alert(1)>"


class TestText:
    def test_prints_no_control_characters_of_a_name(self):
        """A stage's name cannot move the cursor or colour the terminal."""
        assert "\x1b" not in str(a_run([{"evil\x1b[2J\n": 1.0}] * 4))

    def test_says_what_is_not_shown(self):
        """With thirty stages, the last ten are only counted."""
        text = str(a_run([{f"Op{i}": 1.0 for i in range(30)}] * 4))

        assert "not shown: 10 more stages, together 33%" in text

    def test_sums_a_sample_up_by_kind(self):
        """One sentence compares fetch, decode, transforms and collate."""
        run = a_run([{"fetch": 1.0, "decode": 2.0, "Crop": 1.0}] * 24, workers=2, collate_ms=4.0)

        assert "A sample takes 5.0 ms: " in str(run)
        assert "fetch 1.0 ms, decode 2.0 ms, transforms 1.0 ms, collate 1.0 ms" in str(run)

    def test_an_empty_run_says_so_once(self):
        text = str(a_run([], notes=("no batch was recorded completely: there is nothing to show",)))

        assert 1 == text.lower().count("nothing to show")

    def test_costs_no_matplotlib(self):
        """Printing a run in a script imports no drawing library."""
        code = (
            "import sys; sys.path[:0] = ['tests', 'src']; from support.build_run import a_run; "
            "str(a_run([{'A': 1.0}])); print('matplotlib' in sys.modules)"
        )

        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

        assert b"False" == printed.stdout.strip()


LOOP = {"fetch": 5.0, "decode": 40.0, "Mask": 70.0, "collate": 5.0}


class TestLoopText:
    def test_a_loop_that_hardly_waits_has_one_sentence(self):
        text = str(a_loop(LOOP, using={"forward": 90.0}, unpickle=0.1))

        assert "The training loop never stalls: the longest of 44 waits takes 100 µs" in text
        assert "stalled by" not in text

    def test_says_nothing_of_a_loop_that_was_not_recorded(self):
        """A missing time is not zero."""
        assert "loop" not in str(a_run([{"A": 1.0}] * 8))

    def test_puts_the_small_parts_together(self):
        """After five parts, one line sums up the rest."""
        run = a_loop({f"Op{i}": 20.0 - i for i in range(12)}, using={"forward": 1.0})

        assert "more  " in str(run)


class TestHtml:
    def test_escapes_names(self):
        run = a_run([{ATTACK: 1.0}] * 4, notes=(ATTACK,))
        loop = a_loop({"fetch": 10.0, ATTACK: 60.0}, using={ATTACK: 9.0})

        pages = [result._repr_mimebundle_()["text/html"] for result in (run, loop)]

        assert not any("<img" in page for page in pages)
        assert 3 == pages[0].count("&lt;img src=x onerror=alert(1)&gt;")

    def test_has_a_bar_for_each_share(self):
        html = a_run([{"A": 2.0, "fetch": 1.0}] * 4)._repr_mimebundle_()["text/html"]

        assert html.index("width:100px") < html.index("width:50px")
