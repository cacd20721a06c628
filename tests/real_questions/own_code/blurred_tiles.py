import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchvision import transforms

from real_questions.question import question


class InterleaveIterator(IterableDataset):
    """Tiles of slides, out of many records in turn."""

    def __init__(self, records=8, tiles=12, tile_px=299):
        import cv2

        draw = np.random.default_rng(0)
        self.records = []
        for _ in range(records):
            images = draw.integers(0, 255, (tiles, 30, 30, 3), dtype=np.uint8)
            larger = [cv2.resize(image, (tile_px, tile_px)) for image in images]
            self.records.append([cv2.imencode(".jpg", image)[1] for image in larger])
        self.transform = transforms.Compose(
            [
                transforms.RandomHorizontalFlip(),
                transforms.RandomVerticalFlip(),
                transforms.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0)),
            ]
        )

    def parser(self, record):
        import cv2

        image = cv2.cvtColor(cv2.imdecode(record, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        image = self.transform(torch.from_numpy(image).permute(2, 0, 1))
        return image.float() / 127.5 - 1

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 400_000, info.num_workers):
            record = self.records[number % len(self.records)]
            yield self.parser(record[number // len(self.records) % len(record)]), number % 2


@question(
    source="slideflow #145",
    report="with torchvision's GaussianBlur 500 images/s, 7000 without; done faster",
    step_s=0.04,
    causes=("one-transform", "transforms"),
    place=r"GaussianBlur|gaussian_blur|[Bb]lur",
    lever=r"GPU|device|OpenCV|cv2|PIL|smaller|kernel|cheaper|beforehand|"
    r"in advance|faster (one|library|function|implementation|blur|filter)",
)
def tiles_blurred(_folder):
    """Blur each tile with a filter of torchvision, on the CPU."""
    return DataLoader(InterleaveIterator(), batch_size=32, num_workers=2)
