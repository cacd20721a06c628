import random
from itertools import chain

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from real_questions.question import question


class StreamingLeRobotDataset(IterableDataset):
    """Frames of a robot's episodes out of many files, some of which are read by turns."""

    def __init__(self, folder, files=8):
        import cv2
        import pyarrow as pa
        import pyarrow.parquet as pq

        draw = np.random.default_rng(0)
        image = cv2.resize(draw.integers(0, 255, (15, 20, 3), dtype=np.uint8), (640, 480))
        pictures = [cv2.imencode(".jpg", np.roll(image, n, 1))[1].tobytes() for n in range(150)]
        states = draw.normal(size=(150, 7)).astype(np.float32).tolist()
        table = pa.table({"observation.image": pictures, "observation.state": states})
        self.files = [folder / f"file-{number:03d}.parquet" for number in range(files)]
        for path in self.files:
            pq.write_table(table, path)
        self.num_shards = files

    def _iter_shard(self, files):
        import pyarrow.parquet as pq

        info = get_worker_info()
        mine = files if info is None else files[info.id :: info.num_workers]
        for path in mine:
            table = pq.read_table(path)
            yield from chain.from_iterable(table.to_pylist() for _ in range(20))

    def make_frame(self, row):
        import cv2

        encoded = np.frombuffer(row["observation.image"], np.uint8)
        image = cv2.resize(cv2.imdecode(encoded, cv2.IMREAD_COLOR), (224, 224))
        return {
            "observation.image": torch.from_numpy(image).permute(2, 0, 1),
            "observation.state": torch.tensor(row["observation.state"]),
        }

    def __iter__(self):
        shards = [self.files[number :: self.num_shards] for number in range(self.num_shards)]
        streams = [self._iter_shard(shard) for shard in shards]
        while streams:
            stream = random.choice(streams)
            row = next(stream, None)
            if row is None:
                streams.remove(stream)
            else:
                yield self.make_frame(row)


@question(
    source="lerobot #3781",
    report="worker 0 reads all, the others are idle; divide the files among them",
    step_s=0.014,
    causes=("idle-workers",),
    place=r"worker",
    lever=r"shard|split|divid|among|\bfiles?\b|get_worker_info",
)
def frames_of_streams(folder):
    """Divide each stream of one file among two workers."""
    return DataLoader(StreamingLeRobotDataset(folder), batch_size=16, num_workers=2)
