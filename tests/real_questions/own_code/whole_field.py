import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class NWPDataInMem:
    """A weather forecast, hour by hour, for the whole of the country."""

    def __init__(self, hours=6, height=350, width=270):
        draw = np.random.default_rng(0)
        self.minutes = np.arange(hours) * 60
        self.nwp_in_mem = draw.random((hours, 2, height, width), dtype=np.float32)

    def get_sample(self, t0, x, y, square=16):
        from scipy.interpolate import interp1d

        wanted = np.arange(t0, t0 + 120, 5)
        resampled = interp1d(self.minutes, self.nwp_in_mem, axis=0)(wanted)
        return resampled[:, :, y : y + square, x : x + square].astype(np.float32)


class PVDataset(Samples):
    """What solar panels yield, with satellite images and the weather's forecast."""

    def __init__(self, systems=500):
        draw = np.random.default_rng(0)
        self.nwp = NWPDataInMem()
        self.sat = draw.random((48, 300, 250), dtype=np.float32)
        self.pv_yield = draw.random((systems, 300), dtype=np.float32)
        self.places = draw.integers(0, 210, (systems, 2))

    def __getitem__(self, index):
        system, t0 = index % len(self.places), index % 36
        x, y = self.places[system]
        return {
            "sat": self.sat[t0 // 5 : t0 // 5 + 24, y : y + 32, x : x + 32],
            "nwp": self.nwp.get_sample(t0 * 5, x, y),
            "pv_yield": self.pv_yield[system, t0 : t0 + 24],
        }


@question(
    source="predict_pv_yield #24",
    report="the entire NWP field is resampled each time; once: 5 to 25 it/s",
    step_s=0.05,
    causes=("one-transform",),
    place=r"get_sample|NWPDataInMem|PVDataset|interp1d|__getitem__",
    lever=r"\bonce\b|crop|smaller|only (what|the part)|beforehand|in advance|precomput|"
    r"[Kk]eep|\bcache|__init__|cheaper|nearest",
)
def yields_of_panels(_folder):
    """Interpolate the forecast for all of the country, to take a small square of it."""
    return DataLoader(PVDataset(), batch_size=8, shuffle=True, num_workers=2)
