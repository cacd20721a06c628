import time
import wave

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


def open_audio(path):
    time.sleep(0.004)  # the disk, or a process that tells what is in the file
    return wave.open(str(path), "rb")


class SpectrogramDataset(Dataset):
    """Utterances of a manifest, as spectrograms."""

    def __init__(self, manifest):
        self.paths = manifest
        self.window = torch.hamming_window(320)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open_audio(self.paths[index]) as audio:
            samples = np.frombuffer(audio.readframes(audio.getnframes()), np.int16)
        sound = torch.from_numpy(samples.astype(np.float32) / 32768)
        spectrum = torch.stft(sound, 320, 160, window=self.window, return_complex=True)
        return torch.log1p(spectrum.abs())


def duration(path):
    with open_audio(path) as audio:
        return audio.getnframes() / audio.getframerate()


class BucketingSampler:
    """Makes batches of utterances of similar length."""

    def __init__(self, dataset, batch_size=10):
        self.dataset, self.batch_size = dataset, batch_size

    def __len__(self):
        return len(self.dataset) // self.batch_size

    def __iter__(self):
        lengths = [duration(path) for path in self.dataset.paths]
        order = np.argsort(lengths, kind="stable")
        for number in np.random.permutation(len(self)):
            yield order[number * self.batch_size : (number + 1) * self.batch_size].tolist()


def pad_utterances(spectra):
    longest = max(spectrum.shape[1] for spectrum in spectra)
    batch = torch.zeros(len(spectra), spectra[0].shape[0], longest)
    for place, spectrum in zip(batch, spectra, strict=True):
        place[:, : spectrum.shape[1]] = spectrum
    return batch


@question(
    source="deepspeech.pytorch #143, #163",
    report="the bucketing sampler takes 2 hours an epoch; durations calculated before: no delay",
    step_s=0.05,
    causes=("start-up", "main-process"),
    place=r"[Ss]ampler|duration|open_audio|[Ee]very epoch|[Ee]ach epoch",
    lever=r"beforehand|in advance|\bonce\b|[Pp]re-?c|manifest|[Kk]eep|\bcach|\bstored?\b|__init__",
)
def buckets_of_utterances(folder):
    """Open all files at each epoch's begin, to learn how long they are."""
    draw = np.random.default_rng(0)
    manifest = []
    for number in range(600):
        path = folder / f"{number}.wav"
        with wave.open(str(path), "wb") as audio:
            audio.setparams((1, 2, 16_000, 0, "NONE", ""))
            samples = draw.integers(-9000, 9000, draw.integers(16_000, 48_000), dtype=np.int16)
            audio.writeframes(samples.tobytes())
        manifest.append(path)
    dataset = SpectrogramDataset(manifest)
    sampler = BucketingSampler(dataset)
    return DataLoader(dataset, batch_sampler=sampler, num_workers=2, collate_fn=pad_utterances)
