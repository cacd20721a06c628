"""The support table is what trying gives."""

from __future__ import annotations

import pytest
import support_table


@pytest.mark.slow
@pytest.mark.thorough
def test_the_support_table_is_true():
    """Every row is what a recording finds now (`python tests/support_table.py --write`)."""
    assert support_table.table() == support_table.on_page()
