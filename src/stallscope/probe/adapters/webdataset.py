"""webdataset: a pipeline of generators, each of them a stage.

`DataPipeline.invoke` makes the iterator of one stage out of that of the stage before it.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from stallscope.probe import pipeline
from stallscope.probe.adapters.nested import StageIterator
from stallscope.stages import COLLATE, Stage

if TYPE_CHECKING:
    from stallscope.probe.patches import Patches
    from stallscope.probe.recorder import Recorder

_KINDS: Final = {
    **dict.fromkeys(("tar_file_expander", "tarfile_samples", "tarfile_to_samples"), "fetch"),
    **dict.fromkeys(("StreamingOpen", "FileCache", "cached_tarfile_samples"), "fetch"),
    **dict.fromkeys(("decode", "xdecode"), "decode"),
    **dict.fromkeys(("map", "map_dict", "map_tuple"), "transform"),
}
"""Kind of a stage by the name of its function or class; the others only pass samples on."""


def hook(recorder: Recorder, patches: Patches) -> None:
    """Make every stage of every pipeline a stage of the recording."""
    cls = sys.modules["webdataset.pipeline"].DataPipeline
    original = cls.invoke

    @functools.wraps(original)
    def invoke(self: Any, step: Any, *args: Any, **named: Any) -> Any:
        made = original(self, step, *args, **named)
        # A loader's iterator is hooked where the loop waits for it.
        if isinstance(step, DataLoader) or not hasattr(made, "__next__"):
            return made
        return StageIterator(recorder, recorder.key(_stage_in(self.pipeline, step)), made)

    patches.put(cls, "invoke", invoke)


def _stage_in(steps: list[Any], step: Any) -> Stage:
    """The stage of a step, numbered where a pipeline has two of one name."""
    stage, place = _stage_of(step), 1
    for earlier in steps:
        if earlier is step:
            break
        place += _stage_of(earlier) == stage
    if place == 1 or stage.kind in ("fetch", "decode", "collate"):
        return stage
    return stage._replace(name=f"{stage.name} #{place}")


def _stage_of(step: Any) -> Stage:
    """Name and kind of one step: a curried function, a function, or an object of a class."""
    function = getattr(step, "f", step)
    name = pipeline.name_of(function).strip("_")
    if name == "batched":
        return COLLATE
    mapped = _mapped(name, step)
    if type(mapped).__name__ == "Decoder":  # what `WebDataset.decode` maps
        return Stage("decode", "decode")
    if pipeline.is_function(mapped):  # an op is a stage of its own
        called = pipeline.name_of(mapped)
        return pipeline.stage_of(pipeline.Slot(step, name, mapped, called))
    return Stage(name, _KINDS.get(name, "other"))


def _mapped(name: str, step: Any) -> Any:
    """What a step maps, where that is one function or object."""
    if _KINDS.get(name) != "transform":
        return None
    args, named = getattr(step, "args", ()), getattr(step, "kw", {})
    given = [
        *(args[:1] if name == "map" else args),
        *(value for key, value in named.items() if key != "handler"),
    ]
    return given[0] if len(given) == 1 else None
