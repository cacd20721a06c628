"""The default picture of a run: one sample as a bar, and beneath it the spread of each stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.analyze.headline import headline, remarks
from stallscope.analyze.profile import profile
from stallscope.views.charts import sample, spread
from stallscope.views.charts.captions import nothing, population
from stallscope.views.charts.style import sheet, styled
from stallscope.views.names import shown

if TYPE_CHECKING:
    from stallscope.run import Run
    from stallscope.views.charts.style import Sheet


def figure(run: Run) -> Sheet:
    """Where a sample's time goes."""
    found = profile(run.work)
    if not found.stages:
        return sheet(headline(found, shown), nothing(run), [])[0]
    notes = (population(run, found), *remarks(found), *run.notes)
    made, (upper, lower) = sheet(
        headline(found, shown), notes, [sample.part(found), spread.part(found)]
    )
    with styled():
        sample.draw(upper, found)
        spread.draw(lower, found)
    return made
