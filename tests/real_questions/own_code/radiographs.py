import numpy as np
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

from real_questions.parts import Samples, blocks
from real_questions.question import question


class XRayCenterCrop:
    """Cut the square in the middle out."""

    def __call__(self, img):
        _, y, x = img.shape
        size = min(y, x)
        top, left = (y - size) // 2, (x - size) // 2
        return img[:, top : top + size, left : left + size]


class XRayResizer:
    """Scale by scikit-image."""

    def __init__(self, size):
        self.size = size

    def __call__(self, img):
        from skimage.transform import resize

        size = (1, self.size, self.size)
        return resize(img, size, mode="constant", preserve_range=True).astype(np.float32)


class _XRays(Samples):
    """Radiographs of a thousand pixels a side."""

    def __init__(self, folder):
        import skimage.transform  # noqa: F401 - as its author does

        self.path = folder / "xray.png"
        Image.fromarray(blocks(1024, 1024)).save(self.path)
        self.transform = transforms.Compose([XRayCenterCrop(), XRayResizer(224)])

    def __getitem__(self, index):
        img = np.asarray(Image.open(self.path))
        img = (2 * (img.astype(np.float32) / 255) - 1.0) * 1024
        return self.transform(img[None]), index % 14


@question(
    source="torchxrayvision #11",
    report="skimage's resize is orders of magnitude slower than OpenCV's",
    step_s=0.03,
    causes=("one-transform", "transforms"),
    place=r"XRayResizer|resize",
    lever=r"OpenCV|cv2|Pillow|beforehand|once|store",
)
def radiographs(folder):
    """Resize by a library that is slow at it."""
    return DataLoader(_XRays(folder), batch_size=8, shuffle=True, num_workers=2)
