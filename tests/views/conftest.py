"""Pictures of few pixels: the tests compare only their contents."""

import pytest

from stallscope.charts import sheet


@pytest.fixture(autouse=True, scope="module")
def coarse():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sheet, "SHARP", 0.25)
        yield
