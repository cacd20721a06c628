import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from real_questions.parts import Samples
from real_questions.question import question


class ToTensorVideo:
    """Makes a video of values between zero and one."""

    def __call__(self, clip):
        return clip.float().permute(3, 0, 1, 2) / 255


class ResizePreprocess:
    """Resizes the frames of a video."""

    def __init__(self, size):
        self.size = size

    def __call__(self, video):
        return torch.nn.functional.interpolate(video, size=self.size, mode="bilinear")


class VideoDataset(Samples):
    """Short pieces of videos, with what is said of them."""

    def __init__(self, folder, num_frames=9):
        import cv2

        self.num_frames = num_frames
        self.video_paths = [folder / f"video{number}.mp4" for number in range(4)]
        frame = np.random.default_rng(0).integers(0, 255, (12, 20, 3), dtype=np.uint8)
        frame = frame.repeat(20, 0).repeat(20, 1)
        for path in self.video_paths:
            writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30, (400, 240))
            for number in range(60):
                writer.write(np.roll(frame, number, axis=1))
            writer.release()
        self.t5_embeddings = torch.randn(4, 64, 256)
        self.preprocess = transforms.Compose([ToTensorVideo(), ResizePreprocess((176, 320))])

    def _load_video(self, path, start):
        import cv2

        capture = cv2.VideoCapture(str(path))
        capture.set(cv2.CAP_PROP_POS_FRAMES, start)
        frames = [capture.read()[1] for _ in range(self.num_frames)]
        return torch.from_numpy(np.stack(frames))

    def __getitem__(self, index):
        number = index % len(self.video_paths)
        frames = self._load_video(self.video_paths[number], index % 12 * 4)
        return {
            "video": (self.preprocess(frames) * 255).to(torch.uint8),
            "t5_text_embeddings": self.t5_embeddings[number],
            "fps": 30,
        }


@question(
    source="cosmos-predict1 #31",
    report="3.2 s between iterations to get data; 50 ms with num_workers=8",
    step_s=0.02,
    causes=("too-few-workers", "main-process"),
    place=r"worker|main process|the loop itself",
    lever=r"num_workers",
)
def videos_without_workers(folder):
    """Leave `num_workers` as it is by default."""
    return DataLoader(VideoDataset(folder), batch_size=1, shuffle=True)
