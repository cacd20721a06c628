"""The sentence about the time of a sample."""

from support.build_run import a_run

from stallscope.run.summary import NOTHING, sentence


def sentence_of(sample, **fields):
    return sentence(a_run([sample] * 8, **fields).profile)


class TestHeadline:
    def test_names_the_longest_stage_and_reading(self):
        """The longest stage leads, and reading is always mentioned."""
        assert "decode takes 60% of a sample's time; reading takes 10%" == sentence_of(
            {"fetch": 1.0, "decode": 6.0, "Crop": 3.0}
        )

    def test_says_that_reading_waits(self):
        """Reading that leads comes with its nature, and with the stage after it."""
        assert (
            "Reading takes 80% of a sample's time, mostly waiting; decode takes 20%"
            == sentence_of({"fetch": 8.0, "decode": 2.0}, cpu_share={"fetch": 0.1})
        )

    def test_explains_a_getitem_that_waits(self):
        """Unnamed waiting is probably reading; no claim that reading takes little."""
        text = sentence_of({"fetch": 0.1, "getitem": 8.0}, cpu_share={"getitem": 0.1})

        assert text.endswith("mostly waiting: probably reading through an open file object")

    def test_explains_a_getitem_that_computes(self):
        """Unnamed computing is the dataset's own code."""
        text = sentence_of({"getitem": 8.0, "A": 1.0}, cpu_share={"getitem": 0.9})

        assert "mostly computing: the dataset's own code; ss.lines names its lines" in text

    def test_says_when_no_reading_was_seen(self):
        """A stage without times is not zero."""
        assert sentence_of({"A": 1.0}).endswith("; no reading was seen")

    def test_says_that_there_is_nothing(self):
        assert NOTHING == sentence(a_run([]).profile)
