import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples, noise
from real_questions.question import question


class _Frames(Samples):
    """Single frames of a long video, at random."""

    def __init__(self, folder):
        import cv2

        self.path = str(folder / "long.mp4")
        video = cv2.VideoWriter(self.path, cv2.VideoWriter.fourcc(*"mp4v"), 30, (320, 240))
        for frame in noise(200, 3, 240, 320):
            video.write(np.ascontiguousarray(frame.transpose(1, 2, 0)))
        video.release()

    def __getitem__(self, index):
        import cv2

        video = cv2.VideoCapture(self.path)
        video.set(cv2.CAP_PROP_POS_FRAMES, index % 200)
        _, frame = video.read()
        video.release()
        return torch.from_numpy(frame)


@question(
    source="lerobot #92",
    report="a key frame every two frames is the best for training",
    step_s=0.005,
    causes=("one-transform", "decode"),
    place=r"__getitem__|[Dd]ecod",
    lever=r"key frame",
)
def frames_of_videos(folder):
    """Decode from the last key frame on for each frame."""
    return DataLoader(_Frames(folder), batch_size=8, shuffle=True, num_workers=2)
