import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Augmented(Samples):
    """Photographs in memory, resized and blurred by OpenCV."""

    def __init__(self):
        shape = (8, 800, 1000, 3)
        self.images = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)

    def __getitem__(self, index):
        import cv2

        image = cv2.resize(self.images[index % 8], (1333, 800))
        image = cv2.cvtColor(cv2.GaussianBlur(image, (5, 5), 0), cv2.COLOR_BGR2RGB)
        return cv2.resize(image.astype(np.float32) / 255, (256, 256))


def many_threads(_worker):
    import cv2

    cv2.setNumThreads(64)


@question(
    source="mmdetection #6867",
    report="half of the CPU in the kernel",
    step_s=0.05,
    causes=("oversubscription",),
    place=r"thread",
    lever=r"setNumThreads",
)
def threads_of_opencv(_folder):
    """Start 64 threads in each worker."""
    return DataLoader(_Augmented(), batch_size=8, num_workers=2, worker_init_fn=many_threads)
