import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


def load_wav(path, sample_rate):
    from scipy.io import wavfile
    from scipy.signal import resample_poly

    rate, samples = wavfile.read(path)
    common = np.gcd(rate, sample_rate)
    return resample_poly(samples / 32768, sample_rate // common, rate // common)


def triangles(bands=80, size=800, sample_rate=16_000):
    """Return the weights of mel bands."""
    highest = 2595 * np.log10(1 + sample_rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, bands + 2) / 2595) - 1)
    hertz = np.linspace(0, sample_rate / 2, size // 2 + 1)
    rise = (hertz - edges[:-2, None]) / np.diff(edges)[:-1, None]
    fall = (edges[2:, None] - hertz) / np.diff(edges)[1:, None]
    return torch.from_numpy(np.maximum(0, np.minimum(rise, fall))).float()


def melspectrogram(wav, weights):
    sound = torch.from_numpy(wav).float()
    window = torch.hann_window(800)
    spectrum = torch.stft(sound, 800, 200, window=window, return_complex=True).abs()
    return 20 * torch.log10((weights @ spectrum).clamp(min=1e-5))


class LipSyncDataset(Dataset):
    """Five frames of a face, and the part of its sound that belongs to them."""

    def __init__(self, sounds):
        self.sounds, self.weights = sounds, triangles()
        self.faces = torch.randint(0, 255, (len(sounds), 240, 3, 48, 96), dtype=torch.uint8)

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        video = index % len(self.sounds)
        first = int(torch.randint(0, 200, ()))
        mel = melspectrogram(load_wav(self.sounds[video], 16_000), self.weights)
        start = int(80 * first / 25)
        return self.faces[video, first : first + 5], mel[:, start : start + 16]


@question(
    source="Wav2Lip #447, #263, #31",
    report="each sample loads, resamples and transforms all of its sound; mels saved as .npy: "
    "10 iterations/s, not 0.3",
    step_s=0.02,
    causes=("one-transform", "transforms", "decode"),
    place=r"load_wav|resample|melspectrogram|\bmel|stft|__getitem__|LipSyncDataset",
    lever=r"beforehand|in advance|\bonce\b|[Pp]recomput|[Pp]reprocess|\.npy|np\.(save|load)|"
    r"[Kk]eep|\bcach|memory|offline|[Ss]tore|only the part|crop",
)
def faces_and_sounds(folder):
    """Transform ten seconds of sound for a fifth of one."""
    from scipy.io import wavfile

    draw = np.random.default_rng(0)
    sounds = []
    for number in range(16):
        sounds.append(folder / f"{number}.wav")
        wavfile.write(sounds[-1], 44_100, draw.integers(-9000, 9000, 441_000, dtype=np.int16))
    return DataLoader(LipSyncDataset(sounds), batch_size=8, shuffle=True, num_workers=2)
