"""The sentence on top says what was measured, and no more."""

from __future__ import annotations

from support.build_run import a_run

from stallscope.run.summary import NOTHING, headline, profile, remarks


def said(sample, **made):
    return headline(profile(a_run([sample] * 8, **made).work))


class TestHeadline:
    def test_names_the_longest_stage_and_reading(self):
        """The longest stage leads; reading is always told."""
        assert "decode takes 60% of a sample's time; reading takes 10%" == said(
            {"fetch": 1.0, "decode": 6.0, "Crop": 3.0}
        )

    def test_names_two_that_are_alike(self):
        """A second stage that takes nearly as much is named, too."""
        assert "decode and Mask take 45% and 40% of a sample's time; reading takes 15%" == said(
            {"fetch": 1.5, "decode": 4.5, "Mask": 4.0}
        )

    def test_says_each_where_two_are_equal(self):
        """The same number is not said twice."""
        assert said({"fetch": 1.0, "A": 4.0, "B": 4.0}).startswith("A and B each take 44% of")

    def test_says_that_nothing_stands_out(self):
        """Thirty equal stages have no culprit."""
        assert said({f"Op{i}": 1.0 for i in range(30)}).startswith("No stage stands out: ")

    def test_says_that_reading_waits(self):
        """Reading that leads is told with its nature, and what comes after it."""
        assert "Reading takes 80% of a sample's time, mostly waiting; decode takes 20%" == said(
            {"fetch": 8.0, "decode": 2.0}, cpu_share={"fetch": 0.1}
        )

    def test_explains_a_getitem_that_waits(self):
        """Unnamed waiting is probably reading; that reading takes little is then not claimed."""
        sentence = said({"fetch": 0.1, "getitem": 8.0}, cpu_share={"getitem": 0.1})

        assert sentence.endswith("mostly waiting: probably reading through an open file object")

    def test_explains_a_getitem_that_computes(self):
        """Unnamed computing is the dataset's own code."""
        sentence = said({"getitem": 8.0, "A": 1.0}, cpu_share={"getitem": 0.9})

        assert "mostly computing: code of the dataset's own that no hook can name" in sentence

    def test_says_when_no_reading_was_seen(self):
        """Missing is not zero."""
        assert said({"A": 1.0}).endswith("; no reading was seen")

    def test_says_that_there_is_nothing(self):
        """An empty run has a sentence, too."""
        assert NOTHING == headline(profile(a_run([]).work))

    def test_shows_names_as_the_caller_wants(self):
        """The names go through the caller's function, the words do not."""
        found = profile(a_run([{"A": 1.0, "fetch": 0.5}] * 4).work)

        assert headline(found, lambda name: f"<{name}>").startswith("<A> takes 67%")


class TestRemarks:
    def test_explain_a_large_getitem_that_does_not_lead(self):
        """The reader learns what the grey part is."""
        found = profile(a_run([{"A": 6.0, "getitem": 3.0}] * 4, cpu_share={"getitem": 0.1}).work)

        assert (
            "getitem takes 33%, mostly waiting: probably reading through an open file object",
        ) == remarks(found)

    def test_tell_of_a_busy_machine(self):
        """Computing stages that all wait say something about the machine."""
        crowd = dict.fromkeys(("decode", "A", "B"), 0.4)
        found = profile(a_run([{"decode": 3.0, "A": 2.0, "B": 2.0}] * 4, cpu_share=crowd).work)

        (remark,) = remarks(found)
        assert "off the CPU for 60%" in remark

    def test_keep_quiet_when_one_stage_waits(self):
        """A single transform that waits may wait for the network."""
        cpu = {"decode": 0.99, "A": 0.1, "B": 0.98}
        found = profile(a_run([{"decode": 3.0, "A": 2.0, "B": 2.0}] * 4, cpu_share=cpu).work)

        assert () == remarks(found)
