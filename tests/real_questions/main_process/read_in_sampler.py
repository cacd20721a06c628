import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from real_questions.parts import Samples
from real_questions.question import question


class VideoDataset(Samples):
    """Videos of some resolutions, made ready; what the sampler hands over is handed on."""

    def __init__(self, resolutions=((9, 64, 96), (9, 96, 64), (5, 96, 96))):
        draw = np.random.default_rng(0)
        self.resolutions = resolutions
        self.videos = draw.integers(0, 255, (12, 9, 180, 240, 3), dtype=np.uint8)

    def _preprocess_video(self, number, frames, height, width):
        import cv2

        video = self.videos[number % len(self.videos)][:frames]
        resized = [cv2.resize(f, (width, height), interpolation=cv2.INTER_LANCZOS4) for f in video]
        tensor = torch.from_numpy(np.stack(resized)).float() / 255 * 2 - 1
        return tensor.permute(0, 3, 1, 2).contiguous()

    def __getitem__(self, index):
        if isinstance(index, list):
            return index
        frames, height, width = self.resolutions[index % len(self.resolutions)]
        video = self._preprocess_video(index, frames, height, width)
        return {"prompt": f"prompt {index}", "video": video}


class BucketSampler(Sampler):
    """Groups videos of one resolution, for which it reads each of them."""

    def __init__(self, data_source, batch_size=4):
        self.data_source, self.batch_size = data_source, batch_size
        self.buckets = {resolution: [] for resolution in data_source.resolutions}

    def __len__(self):
        return len(self.data_source) // self.batch_size

    def __iter__(self):
        for index in range(len(self.data_source)):
            data = self.data_source[index]
            frames, _, height, width = data["video"].shape
            bucket = self.buckets[frames, height, width]
            bucket.append(data)
            if len(bucket) == self.batch_size:
                random.shuffle(bucket)
                self.buckets[frames, height, width] = []
                yield bucket


def collate_videos(batch):
    return [data["prompt"] for data in batch[0]], torch.stack([data["video"] for data in batch[0]])


@question(
    source="finetrainers #206",
    report="with BucketSampler loading is extremely slow; it loads all it groups",
    step_s=0.005,
    causes=("main-process",),
    place=r"[Ss]ampler|main process",
    lever=r"\bind(ex|ices)|workers?\b|beforehand|in advance|\bonce\b|__getitem__|out of",
)
def videos_in_buckets(_folder):
    """Read videos in the sampler, which has to know how large they are."""
    dataset = VideoDataset()
    return DataLoader(
        dataset,
        batch_size=1,
        sampler=BucketSampler(dataset),
        num_workers=2,
        collate_fn=collate_videos,
    )
