from typing import TYPE_CHECKING

import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question

if TYPE_CHECKING:
    from pathlib import Path


class DL1DataReader(Samples):
    """Events that several telescopes saw, in a file of HDF5."""

    def __init__(self, path, events=5000, telescopes=4):
        import h5py

        self.path, self.telescopes = path, telescopes
        self.files: dict[Path, object] = {}
        draw = np.random.default_rng(0)
        kinds = [("LSTCam", 1855), ("FlashCam", 1764), ("NectarCam", 1855), ("CHEC", 2048)]
        table = np.array(kinds, [("camera", "S16"), ("num_pixels", "i4")])
        with h5py.File(path, "w") as file:
            file["Telescope_Type_Information"] = table
            file["Events/event_id"] = np.arange(1, events + 1)
            charge = draw.poisson(3, (500, 1764)).astype(np.float32)
            for telescope in range(telescopes):
                file[f"Images/T{telescope}"] = charge
        self.events = events

    def _open(self):
        import h5py

        if self.path not in self.files:
            self.files[self.path] = h5py.File(self.path, "r")
        return self.files[self.path]

    def _get_num_pixels(self, camera):
        table = self._open()["Telescope_Type_Information"]
        for row in table:
            if row["camera"].decode() == camera:
                return int(row["num_pixels"])
        raise KeyError(camera)

    def _get_image(self, event_id, telescope):
        file = self._open()
        num_pixels = self._get_num_pixels("FlashCam")
        row = int(np.flatnonzero(file["Events/event_id"][:] == event_id)[0])
        image = np.zeros(num_pixels, np.float32)
        image[:] = file[f"Images/T{telescope}"][row % 500]
        return image

    def __getitem__(self, index):
        event_id = index % self.events + 1
        images = [self._get_image(event_id, telescope) for telescope in range(self.telescopes)]
        return np.stack(images), event_id % 2


@question(
    source="dl1-data-handler #88",
    report="a table is read for each image, half of the time; a dict is kept",
    step_s=0.005,
    causes=("one-transform",),
    place=r"DL1DataReader|_get_image|_get_num_pixels|__getitem__",
    lever=r"\bonce\b|memory|[Kk]eep|\bcache|beforehand|in advance|__init__|dict",
)
def images_of_telescopes(folder):
    """Look up for each image how many pixels its camera has."""
    reader = DL1DataReader(folder / "events.h5")
    return DataLoader(reader, batch_size=16, shuffle=True, num_workers=2)
