"""Pipelines of streams: some samples are recorded once, and number again from memory.

A stream cannot be asked for a sample again. So it runs once in this process, while the calls of its
pipeline are watched, and a dataset with an index repeats these calls. What the stream does around
its pipeline, such as reading, is timed, and the same for all variants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch.utils.data import DataLoader, Dataset

from stallscope.hooks.find_ops import own_attributes
from stallscope.isolation import seed_everywhere
from stallscope.loops.cached_values import bytes_of
from stallscope.verbs.orders.capture import SEED, Watched, longest, path_to
from stallscope.verbs.orders.pipeline import Chained, places
from stallscope.verbs.orders.run_ops import clocked
from stallscope.verbs.orders.variant import with_column

if TYPE_CHECKING:
    from collections.abc import Callable

    from stallscope.verbs.orders.capture import CapturedSample
    from stallscope.verbs.orders.pipeline import Place

_END: Final = object()


class RecordedStream(NamedTuple):
    """Samples of a stream with an index, and their cost in the stream."""

    loader: DataLoader[Any]
    """Loader over `ReplayedSamples`, with the stream's batch size and collate function."""
    fetch_s: float
    """Mean seconds of a sample outside of its pipeline."""
    decode_s: float
    """Mean seconds for decoding an image that the pipeline got encoded."""


class ReplayedSamples(Dataset[Any]):
    """Samples that a stream's pipeline makes from recorded inputs.

    Has the attributes of the stream, so its places are those of the stream.

    Args:
        stream: the user's dataset.
        place: of the pipeline.
        samples: calls of the pipeline.
    """

    def __init__(self, stream: Any, place: Place, samples: list[CapturedSample]) -> None:
        vars(self).update(own_attributes(stream), _replayed=(place, samples))

    def __len__(self) -> int:
        return len(vars(self)["_replayed"][1])

    def __getitem__(self, number: int) -> Any:
        place, samples = vars(self)["_replayed"]
        sample, pipeline = samples[number], place.found_in(self)
        if isinstance(pipeline, (list, tuple)):
            pipeline = Chained(list(pipeline))
        arguments = sample.input.copy()
        result = pipeline(*arguments.args, **arguments.named)
        if sample.where is None:
            return result
        return with_column(sample.finished, sample.where, lambda _: result)


def replayed(
    loader: Any, samples: int, room_bytes: int, is_over: Callable[[], bool]
) -> RecordedStream:
    """Run a stream for some samples, and return them with an index.

    Args:
        loader: over the stream; its dataset is copied where it is watched.
        samples: number of samples, at most.
        room_bytes: most bytes of all samples.
        is_over: tells when to stop earlier.

    Raises:
        NoPipelineError: the stream calls no transform that it holds.
    """
    stream = loader.dataset
    watched = [Watched(place) for place in places(stream)]
    copied = stream
    for each in watched:
        copied = each.filled(copied)
    seed_everywhere(SEED)
    iterator, number, whole_s = iter(copied), 0, 0.0
    try:
        while number < samples and room_bytes > 0 and not (number and is_over()):
            item, took_s = clocked(lambda: next(iterator, _END))
            if item is _END:
                break
            whole_s += took_s
            calls = [_added(each, item) for each in watched]
            number += max([1, *map(len, calls)])
            room_bytes -= bytes_of([item, [[call.input.value for call in row] for row in calls]])
    finally:
        if callable(close := getattr(iterator, "close", None)):
            close()
    watch = longest(stream, watched)
    recorded, count = watch.samples, len(watch.samples)
    indexed = DataLoader(
        ReplayedSamples(stream, watch.place, recorded),
        loader.batch_size,
        num_workers=loader.num_workers,
        # Of a result that is not in the sample, the user's function cannot make a batch
        collate_fn=list if recorded[0].where is None and loader.batch_size else loader.collate_fn,
        drop_last=loader.batch_size is not None and count >= loader.batch_size,
    )
    inside_s = sum(call.took_s for call in recorded)
    decode_s = sum(call.decode_s for call in recorded)
    return RecordedStream(indexed, max(whole_s - inside_s, 0.0) / count, decode_s / count)


def _added(watched: Watched, item: Any) -> list[CapturedSample]:
    """Add the calls of a place since the last item, and return them."""
    calls = [*watched.calls]
    watched.calls.clear()
    for call in calls:
        call.where, call.finished = path_to(item, call.result), item
        call.first = call.result = None
        watched.is_single &= call.ops == watched.ops
    watched.samples += calls
    return calls
