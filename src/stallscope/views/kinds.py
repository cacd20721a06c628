"""Pictures and panels are asked for by name; a wrong name is answered with those that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallscope.errors import StallscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping


class NoSuchPictureError(StallscopeError, ValueError):
    """There is no picture of that name; the text lists the ones that there are."""


class NoSuchPanelError(StallscopeError, ValueError):
    """There is no panel of that name; the text lists the ones that there are."""


def picture(kind: str | None, kinds: Mapping[str, str], whose: str) -> str:
    """The name of the picture that is asked for.

    Args:
        kind: a name; None: the first one.
        kinds: what each picture shows, by name.
        whose: what the pictures are of, in words.

    Raises:
        NoSuchPictureError: there is none of that name.
    """
    if kind is not None and kind not in kinds:
        raise NoSuchPictureError(_unknown("picture", kind, kinds, whose))
    return kind or next(iter(kinds))


def panel(kind: str | None, kinds: Mapping[str, str], whose: str) -> str:
    """The name of the panel that is asked for; the arguments are those of `picture`.

    Raises:
        NoSuchPanelError: there is none of that name.
    """
    if kind is not None and kind not in kinds:
        raise NoSuchPanelError(_unknown("panel", kind, kinds, whose))
    return kind or next(iter(kinds))


def _unknown(what: str, kind: str, kinds: Mapping[str, str], whose: str) -> str:
    known = "; ".join(f"{key!r}: {told}" for key, told in kinds.items())
    return f"there is no {what} {kind!r} of {whose}. There {_are(kinds)} {known}"


def _are(kinds: Mapping[str, str]) -> str:
    return "is" if len(kinds) == 1 else "are"
