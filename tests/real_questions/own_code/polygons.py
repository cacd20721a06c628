import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import ONCE, question


class PolygonToInstanceMask:
    """Makes a mask of each polygon of an image."""

    def convert(self, sample):
        height, width = sample["image"].shape[:2]
        masks = self.polygons_to_instance_masks(sample["polygons"], height, width)
        return {"image": sample["image"], "masks": masks, "labels": sample["labels"]}

    def polygons_to_instance_masks(self, polygons, height, width):
        from skimage.draw import polygon2mask

        masks = []
        for polygon in polygons:
            points = [(point[1] * height, point[0] * width) for point in polygon]
            masks.append(polygon2mask((height, width), points).astype(np.uint8))
        return np.stack(masks)


class _CocoInstances(Samples):
    """Images with six outlines each."""

    def __init__(self):
        import skimage.draw  # noqa: F401 - as its author does

        draw = np.random.default_rng(0)
        self.image = draw.integers(0, 255, (240, 320, 3), dtype=np.uint8)
        self.outlines = [self._outlines(draw) for _ in range(50)]
        self.converter = PolygonToInstanceMask()

    @staticmethod
    def _outlines(draw):
        angles = np.linspace(0, 2 * np.pi, 40)
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return [(draw.uniform(0.3, 0.7, 2) + 0.2 * circle).tolist() for _ in range(6)]

    def __getitem__(self, index):
        outlines = self.outlines[index % 50]
        labels = np.zeros(len(outlines), np.int64)
        return self.converter.convert({"image": self.image, "polygons": outlines, "labels": labels})


def as_list(samples):
    return samples


@question(
    source="datumaro #2140",
    report="polygons to masks one by one, 7.7 times as slow as cv2.fillPoly",
    step_s=0.02,
    causes=("one-transform", "transforms"),
    place=r"polygons_to_instance_masks|polygon2mask",
    lever=r"cv2|OpenCV|" + ONCE,
)
def masks_of_polygons(_folder):
    """Draw the masks of all instances by a slow function."""
    return DataLoader(
        _CocoInstances(), batch_size=4, shuffle=True, num_workers=2, collate_fn=as_list
    )
