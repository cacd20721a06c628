import random

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Utterances(Samples):
    """Seconds of recordings, each of which is read whole."""

    def __init__(self, folder):
        from scipy.io import wavfile

        self.paths = [folder / f"{number}.wav" for number in range(8)]
        sound = np.random.default_rng(0).integers(-3000, 3000, (120 * 44_100, 2), dtype=np.int16)
        for path in self.paths:
            wavfile.write(path, 44_100, sound)

    def load_audio_with_duration(self, path, start, duration):
        from scipy.io import wavfile

        rate, sound = wavfile.read(path)
        wave = torch.from_numpy(sound.T.astype(np.float32) / 32768)
        return wave[0, int(start * rate) : int((start + duration) * rate)]

    def __getitem__(self, index):
        return self.load_audio_with_duration(self.paths[index % 8], random.random() * 110, 2.0)


@question(
    source="audio #1607",
    report="whole recordings are loaded, then sliced; read the frames asked for",
    step_s=0.01,
    causes=("one-transform", "storage-bandwidth"),
    place=r"load_audio_with_duration|read",
    lever=r"only|part|mmap",
)
def parts_of_recordings(folder):
    """Read two minutes for two seconds."""
    return DataLoader(_Utterances(folder), batch_size=8, shuffle=True, num_workers=2)
