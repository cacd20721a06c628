import wave

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class AudioProcessor:
    """Makes spectrograms of recordings."""

    def __init__(self, num_freq=1025, num_mels=80):
        self.n_fft = (num_freq - 1) * 2
        self.window = torch.hann_window(1100)
        self.mel_basis = torch.rand(num_mels, num_freq)

    def _stft(self, wav):
        padded = torch.from_numpy(wav)
        return torch.stft(padded, self.n_fft, 275, 1100, self.window, return_complex=True).abs()

    def spectrogram(self, wav):
        return 20 * torch.log10(self._stft(wav).clamp(min=1e-5))

    def melspectrogram(self, wav):
        return 20 * torch.log10((self.mel_basis @ self._stft(wav)).clamp(min=1e-5))


class TTSDataset(Samples):
    """Recordings of sentences, from files."""

    def __init__(self, folder, ap):
        self.ap = ap
        draw = np.random.default_rng(0)
        self.items = [folder / f"LJ001-{number:04d}.wav" for number in range(60)]
        for path in self.items:
            with wave.open(str(path), "wb") as recording:
                recording.setparams((1, 2, 22_050, 0, "NONE", ""))
                values = draw.normal(0, 3000, draw.integers(30_000, 50_000)).astype(np.int16)
                recording.writeframes(values.tobytes())

    def load_wav(self, path):
        with wave.open(str(path), "rb") as recording:
            values = np.frombuffer(recording.readframes(recording.getnframes()), np.int16)
        return values.astype(np.float32) / 32_768

    def __getitem__(self, index):
        text = torch.randint(0, 60, (80,))
        return {"text": text, "wav": self.load_wav(self.items[index % len(self.items)])}

    def collate_fn(self, batch):
        mel = [self.ap.melspectrogram(item["wav"]).T for item in batch]
        linear = [self.ap.spectrogram(item["wav"]).T for item in batch]
        text = torch.stack([item["text"] for item in batch])
        pad = torch.nn.utils.rnn.pad_sequence
        return text, pad(linear, batch_first=True), pad(mel, batch_first=True)


@question(
    source="mozilla/TTS #214",
    report="spectrograms are made while training; they are not the bottleneck",
    step_s=0.1,
    causes=("healthy",),
    place=r"[Hh]ealthy|keep|in time|fast enough|wait",
    lever=r"model|step|device|GPU|train|nothing|compute",
)
def spectrograms_of_speech(folder):
    """Make spectrograms while training, which is quick enough."""
    dataset = TTSDataset(folder, AudioProcessor())
    return DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=2, collate_fn=dataset.collate_fn
    )
