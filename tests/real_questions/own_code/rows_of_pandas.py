from datetime import date

import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class WorldCerealDataset(Samples):
    """What satellites saw of fields, month by month, a row for each field."""

    NUM_TIMESTEPS = 12
    NODATAVALUE = 65_535
    BANDS = (
        *(f"OPTICAL-B{band}-ts{{}}-10m" for band in ("02", "03", "04", "08", "11", "12")),
        *(f"SAR-{band}-ts{{}}-20m" for band in ("VH", "VV")),
        *(f"METEO-{what}-ts{{}}-100m" for what in ("precipitation_flux", "temperature_mean")),
    )

    def __init__(self, count=5000):
        import pandas as pd

        draw = np.random.default_rng(0)
        months = range(self.NUM_TIMESTEPS)
        columns = [band.format(month) for band in self.BANDS for month in months]
        values = draw.integers(1, 10_000, (count, len(columns)))
        self.df = pd.DataFrame(values, columns=columns).assign(
            start_date="2020-09-01",
            lat=draw.normal(size=count),
            lon=draw.normal(size=count),
            LANDCOVER_LABEL=draw.integers(10, 13, count),
        )

    def row_to_arrays(self, row):
        month = date.fromisoformat(row["start_date"]).month - 1
        eo_data = np.zeros((self.NUM_TIMESTEPS, len(self.BANDS)), np.float32)
        mask = np.zeros((self.NUM_TIMESTEPS, len(self.BANDS)), bool)
        for number, band in enumerate(self.BANDS):
            values = np.array([float(row[band.format(t)]) for t in range(self.NUM_TIMESTEPS)])
            valid = values != self.NODATAVALUE
            if band.startswith("SAR"):
                values[valid] = 20 * np.log10(values[valid]) - 83
            eo_data[:, number] = values
            mask[:, number] = ~valid
        latlon = np.array([row["lat"], row["lon"]], np.float32)
        return eo_data, mask, latlon, month, row["LANDCOVER_LABEL"] == 11

    def __getitem__(self, index):
        row = self.df.iloc[index % len(self.df), :]
        eo_data, mask, latlon, month, target = self.row_to_arrays(row)
        return eo_data / 10_000, mask, latlon, month, int(target)


@question(
    source="presto-worldcereal #2, #9",
    report="values are looked up in a row of pandas; 70 times with more",
    step_s=0.01,
    causes=("one-transform",),
    place=r"row_to_arrays|__getitem__|\bpandas|Series|iloc",
    lever=r"NumPy|\bdict|to_dict|arrays?\b|\bonce\b|beforehand|__init__|whole",
)
def rows_of_fields(_folder):
    """Look each value up in a row of pandas."""
    return DataLoader(WorldCerealDataset(), batch_size=64, shuffle=True, num_workers=2)
