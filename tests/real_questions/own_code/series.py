import random
from itertools import cycle, islice

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from real_questions.question import ONCE, question


class AddTimeFeatures:
    """Puts the calendar beside each value of a series."""

    def __call__(self, data):
        import pandas as pd

        for entry in data:
            index = pd.date_range(entry["start"], periods=len(entry["target"]), freq="h")
            features = [index.hour / 23 - 0.5, index.dayofweek / 6 - 0.5, index.dayofyear / 365]
            yield entry | {"time_feat": np.vstack(features).astype(np.float32)}


class AddObservedValues:
    """Says which values are known."""

    def __call__(self, data):
        for entry in data:
            observed = ~np.isnan(entry["target"])
            yield entry | {"observed": observed.astype(np.float32)}


class InstanceSplitter:
    """Cuts a window out of each series."""

    def __call__(self, data):
        for entry in data:
            start = random.randrange(len(entry["target"]) - 256)
            window = slice(start, start + 256)
            yield {
                "past_target": entry["target"][window],
                "past_observed": entry["observed"][window],
                "past_time_feat": entry["time_feat"][:, window],
            }


class TransformedDataset(IterableDataset):
    """A stream of windows, for which the series are transformed as they come."""

    def __init__(self):
        draw = np.random.default_rng(0)
        self.series = [
            {"start": "2016-01-01", "target": draw.normal(size=26_000).astype(np.float32)}
            for _ in range(100)
        ]
        self.transformation = [AddTimeFeatures(), AddObservedValues()]

    def __iter__(self):
        data = islice(cycle(self.series), 20_000)
        for transform in self.transformation:
            data = transform(data)
        return InstanceSplitter()(data)


@question(
    source="lag-llama #51",
    report="series are transformed for each window; `list(data)` before",
    step_s=0.01,
    causes=("one-transform",),
    place=r"AddTimeFeatures|__call__|date_range|TransformedDataset",
    lever=ONCE,
)
def windows_of_series(_folder):
    """Transform three years of hours for a window of 256 of them."""
    return DataLoader(TransformedDataset(), batch_size=32, num_workers=2)
