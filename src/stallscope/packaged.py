"""The package itself: its version, and where its files lie that are no modules."""

from __future__ import annotations

from pathlib import Path

from stallscope.errors import StallscopeError

__version__ = "0.1.0.dev0"


def packaged(name: str) -> Path:
    """A folder that comes with stallscope: in the installed package, or in a source checkout.

    Args:
        name: "notebooks" or "sample_data".

    Raises:
        StallscopeError: it is in neither, or empty in both.
    """
    here = Path(__file__).resolve().parent
    places = (here / "_share" / name, here.parents[1] / name)
    for place in places:
        if place.is_dir() and any(place.iterdir()):
            return place
    raise StallscopeError(
        f"the {name} of stallscope are missing (looked in {places[0]} and {places[1]}): "
        "install stallscope again"
    )
