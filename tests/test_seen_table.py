"""The libraries that the table of what is seen is about, as far as CI has them."""

from __future__ import annotations

import pytest
import seen_table


@pytest.mark.slow
@pytest.mark.parametrize("library", ["OpenCV", "h5py"])
def test_what_a_library_takes_is_named(library, tmp_path):
    """Batches are the plain loader's, and most of what the library takes is no `getitem`."""
    if why := seen_table.why_absent(library):
        pytest.skip(why)

    found = seen_table.seen(library, tmp_path, verdict=False)

    assert found.identical
    assert found.named > found.by_hand / 2


def test_every_row_of_the_page_is_a_reader():
    page = seen_table.PAGE.read_text(encoding="utf-8")
    rows = page.partition(seen_table.BEGIN)[2].partition(seen_table.END)[0].splitlines()[3:]

    named = [row.split("|")[1].strip() for row in rows if row]

    assert list(seen_table.READERS) == [name.partition(" ")[0] for name in named]
