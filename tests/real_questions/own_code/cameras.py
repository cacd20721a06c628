import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import ONCE, question


class SeekVideoReader:
    """Decodes single frames of a video."""

    def __init__(self, path):
        import cv2

        self.capture = cv2.VideoCapture(str(path))

    def decode_image(self, frame):
        import cv2

        self.capture.set(cv2.CAP_PROP_POS_FRAMES, frame)
        return self.capture.read()[1]


def load_camera_frame(path, frame):
    reader = SeekVideoReader(path)
    image = torch.from_numpy(reader.decode_image(frame)).permute(2, 0, 1)
    return image[None].float() / 255


class NvidiaAVDataset(Samples):
    """Moments of a drive, seen by seven cameras."""

    def __init__(self, folder):
        import cv2

        self.paths = [folder / f"camera{number}.mp4" for number in range(7)]
        frame = np.random.default_rng(0).integers(0, 255, (12, 20, 3), dtype=np.uint8)
        frame = frame.repeat(20, 0).repeat(20, 1)
        for path in self.paths:
            writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30, (400, 240))
            for number in range(120):
                writer.write(np.roll(frame, number, axis=1))
            writer.release()

    def __getitem__(self, index):
        frame = (index * 3) % 120
        return torch.cat([load_camera_frame(path, frame) for path in self.paths])


@question(
    source="auto_e2e #30",
    report="each sample opens seven videos for a frame each; frames extracted",
    step_s=0.02,
    causes=("one-transform", "decode"),
    place=r"load_camera_frame|SeekVideoReader|decode_image|[Dd]ecoding",
    lever=r"open|store|extract|" + ONCE,
)
def frames_of_cameras(folder):
    """Open seven videos for one frame of each."""
    return DataLoader(NvidiaAVDataset(folder), batch_size=2, shuffle=True, num_workers=2)
