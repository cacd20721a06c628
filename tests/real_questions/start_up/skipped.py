import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class VisionDataset(Samples):
    """Images that a model of images and language is asked about."""

    def __init__(self, count=16):
        draw = np.random.default_rng(0)
        self.images = draw.integers(0, 255, (count, 360, 480, 3), dtype=np.uint8)

    def __getitem__(self, index):
        import cv2

        image = cv2.resize(
            self.images[index % len(self.images)], (448, 448), interpolation=cv2.INTER_CUBIC
        )
        patches = image.reshape(32, 14, 32, 14, 3).transpose(0, 2, 4, 1, 3)
        pixel_values = patches.reshape(1024, -1).astype(np.float32) / 255
        return pixel_values.reshape(256, 4, -1).mean(axis=1), index % 10


class ResumedBatches:
    """The batches of a training that goes on where it was broken off."""

    def __init__(self, loader, train_step):
        self.loader, self.train_step = loader, train_step

    def __len__(self):
        return len(self.loader) - self.train_step

    def __iter__(self):
        iterator = iter(self.loader)
        for _ in range(self.train_step):
            next(iterator)
        yield from iterator


@question(
    source="cosmos-rl #233, #234",
    report="as if hung after resuming; the sampler is advanced, not the loader",
    step_s=0.04,
    causes=("start-up", "main-process"),
    place=r"first batch|[Ss]tart|begin|[Ss]kip|ResumedBatches|resum",
    lever=r"[Ss]kip|[Ss]ampler|\bind(ex|ices)\b|resum|advanc|without loading|leave .* out",
)
def batches_after_resuming(_folder):
    """Load all that has been trained with already, to leave it out."""
    loader = DataLoader(VisionDataset(), batch_size=4, num_workers=2)
    return ResumedBatches(loader, train_step=700)
