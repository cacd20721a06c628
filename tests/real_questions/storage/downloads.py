import http.client

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchvision import transforms

from real_questions.parts import store
from real_questions.question import question


class File:
    """A file of a bucket."""

    def __init__(self, port, name):
        self.port, self.name = port, name

    def read(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"/{self.name}")
        contents = connection.getresponse().read()
        connection.close()
        return contents


class PytorchDataset(IterableDataset):
    """The rows of a chain, whose files are read as they come."""

    def __init__(self, port, names):
        self.port, self.names = port, names
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Resize((64, 64))])

    def _rows_iter(self, total_rank, total_workers):
        for number in range(total_rank, 20_000, total_workers):
            name = self.names[number % len(self.names)]
            yield File(self.port, name), number % 2

    def __iter__(self):
        import cv2

        info = get_worker_info()
        for file, label in self._rows_iter(info.id, info.num_workers):
            encoded = np.frombuffer(file.read(), np.uint8)
            yield self.transform(cv2.imdecode(encoded, cv2.IMREAD_COLOR)), label


@question(
    source="datachain #631, #664",
    report="files are downloaded in sequence; prefetched: 300 s to 35 s",
    step_s=0.02,
    causes=("storage-latency", "too-few-workers"),
    place=r"\bread|[Dd]ownload|getresponse|PytorchDataset|storage|[Nn]etwork|[Ss]ocket|workers?\b",
    lever=r"prefetch|thread|async|concurrent|more workers|num_workers|\bcache|local",
)
def files_of_bucket(folder):
    """Download a file when its turn has come."""
    import cv2

    draw = np.random.default_rng(0)
    names = [f"cat.{number}.jpg" for number in range(100)]
    for name in names:
        image = draw.integers(0, 255, (10, 10, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / name), cv2.resize(image, (100, 100)))
    dataset = PytorchDataset(store(folder, 0.02), names)
    return DataLoader(dataset, batch_size=8, num_workers=2)
