"""Where an exception came from in a batch that was not recorded.

Recorded batches say so themselves. In the others no hook is on, but the traceback knows: the
frame of the dataset's `__getitem__` holds the index, and the innermost hooked code is the stage.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stallscope.stages import GETITEM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

    from stallscope.probe.recorder import Recorder


@contextmanager
def located(recorder: Recorder, fetcher: Any) -> Iterator[None]:
    """Write into the log which sample of an unrecorded batch failed, and in which stage."""
    try:
        yield
    except StopIteration:  # the end of an iterable dataset
        raise
    except BaseException as error:
        getitem = getattr(type(fetcher.dataset), "__getitem__", None)
        recorder.failed(*_locate(recorder, error.__traceback__, getattr(getitem, "__code__", None)))
        raise


def _locate(
    recorder: Recorder, traceback: TracebackType | None, getitem: object
) -> tuple[Any, int]:
    """The index that the dataset was asked for, and the key of the innermost stage."""
    index, key = None, recorder.key(GETITEM)
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code is getitem:
            index = _second_argument(frame)
        key = recorder.names.key_of_code.get(frame.f_code, key)
        traceback = traceback.tb_next
    return index, key


def _second_argument(frame: FrameType) -> Any:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return frame.f_locals.get(names[1]) if len(names) > 1 else None
