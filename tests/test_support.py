"""The README's support table is what trying gives."""

from __future__ import annotations

import pytest
import support


@pytest.mark.slow
@pytest.mark.thorough
def test_the_support_table_is_true():
    """Every row of the table is what a recording finds now (`python tests/support.py --write`)."""
    assert support.table() == support.in_readme()
