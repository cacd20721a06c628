"""Sixteen questions that the rules were not made from, written and committed before one was asked.

What each has to be answered was written down with it. `before` is the first answer. The addresses
are those of the maintainer's answer, or of the change that helped.
"""

from __future__ import annotations

import io
import random
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchvision import transforms

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


def _blocks(*shape: int) -> np.ndarray:
    """Draw an image of large pixels, which compresses as photographs do."""
    height, width, *channels = shape
    small = np.random.default_rng(0).integers(
        0, 255, (height // 8, width // 8, *channels), dtype=np.uint8
    )
    return small.repeat(8, 0).repeat(8, 1)


class _Carvana(Dataset):
    """Images and masks that are looked for in their folders by a pattern."""

    def __init__(self, folder: Path) -> None:
        self.images_dir, self.mask_dir = folder / "imgs", folder / "masks"
        for where, name in ((self.images_dir, "{}.jpg"), (self.mask_dir, "{}_mask.png")):
            where.mkdir(exist_ok=True)
            first = where / name.format("0000")
            Image.fromarray(_blocks(256, 256)).save(first)
            for number in range(1, 5088):
                (where / name.format(f"{number:04d}")).hardlink_to(first)
        self.ids = [f"{number:04d}" for number in range(5088)]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index):
        name = self.ids[index]
        mask_file = list(self.mask_dir.glob(name + "_mask" + ".*"))
        img_file = list(self.images_dir.glob(name + ".*"))
        img = np.asarray(Image.open(img_file[0]).convert("RGB")).transpose((2, 0, 1)) / 255.0
        mask = np.asarray(Image.open(mask_file[0])) > 127
        return torch.as_tensor(img.copy()).float(), torch.as_tensor(mask.copy()).long()


def glob_of_folders(folder: Path) -> DataLoader:
    """Look all names of two folders through for each sample."""
    return DataLoader(_Carvana(folder), batch_size=4, shuffle=True, num_workers=2)


class XRayCenterCrop:
    """Cut the square in the middle out."""

    def __call__(self, img):
        """Cut."""
        _, y, x = img.shape
        size = min(y, x)
        top, left = (y - size) // 2, (x - size) // 2
        return img[:, top : top + size, left : left + size]


class XRayResizer:
    """Scale by scikit-image."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, img):
        """Scale."""
        from skimage.transform import resize

        size = (1, self.size, self.size)
        return resize(img, size, mode="constant", preserve_range=True).astype(np.float32)


class _XRays(Dataset):
    """Radiographs of a thousand pixels a side."""

    def __init__(self, folder: Path) -> None:
        import skimage.transform  # noqa: F401 - as its author does

        self.path = folder / "xray.png"
        Image.fromarray(_blocks(1024, 1024)).save(self.path)
        self.transform = transforms.Compose([XRayCenterCrop(), XRayResizer(224)])

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        img = np.asarray(Image.open(self.path))
        img = (2 * (img.astype(np.float32) / 255) - 1.0) * 1024
        return self.transform(img[None]), index % 14


def radiographs(folder: Path) -> DataLoader:
    """Resize by a library that is slow at it."""
    return DataLoader(_XRays(folder), batch_size=8, shuffle=True, num_workers=2)


class _SnapGraph:
    """A graph as tensors, with the NetworkX graph that it was made from."""

    def __init__(self, number: int) -> None:
        import networkx as nx

        self.G = nx.gnp_random_graph(19, 0.18, seed=number)
        for node in self.G.nodes:
            self.G.nodes[node]["node_feature"] = torch.ones(4)
        self.x = torch.ones(19, 4)
        edges = list(self.G.edges)
        self.edge_index = torch.tensor(edges).T if edges else torch.zeros(2, 0, dtype=torch.long)


class _SnapGraphs(Dataset):
    def __init__(self) -> None:
        self.graphs = [_SnapGraph(number) for number in range(1000)]

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index):
        return self.graphs[index % 1000]


def collate_graphs(graphs):
    """Join the graphs of a batch, and all that they have."""
    return {
        "x": torch.cat([graph.x for graph in graphs]),
        "edge_index": torch.cat([graph.edge_index for graph in graphs], dim=1),
        "G": [graph.G for graph in graphs],
    }


def graphs_of_networkx(_folder: Path) -> DataLoader:
    """Send what no step uses."""
    graphs = _SnapGraphs()
    return DataLoader(graphs, batch_size=32, shuffle=True, num_workers=2, collate_fn=collate_graphs)


class _Shuffled(IterableDataset):
    """A stream of small photographs, shuffled in a buffer that is filled before the first comes."""

    def __init__(self, size: int = 1500) -> None:
        photograph = io.BytesIO()
        Image.fromarray(_blocks(96, 96, 3)).save(photograph, "JPEG")
        self.bytes, self.size = photograph.getvalue(), size

    def __iter__(self):
        worker = get_worker_info()
        buffer: list[torch.Tensor] = []
        for _ in range(4096 // (worker.num_workers if worker else 1)):
            image = Image.open(io.BytesIO(self.bytes)).convert("RGB")
            sample = torch.from_numpy(np.array(image))
            if len(buffer) < self.size:
                buffer.append(sample)
                continue
            place = random.randrange(self.size)
            buffer[place], sample = sample, buffer[place]
            yield sample
        random.shuffle(buffer)
        yield from buffer


def shuffle_buffer(_folder: Path) -> DataLoader:
    """Fill a large buffer at each epoch's begin."""
    return DataLoader(_Shuffled(), batch_size=32, num_workers=2)


class _Cells(Dataset):
    """Expression of genes by cell in HDF5, of which a tenth is used."""

    def __init__(self, folder: Path) -> None:
        import h5py

        self.path, self.file = folder / "cells.h5", None
        draw = np.random.default_rng(0)
        with h5py.File(self.path, "w") as file:
            file["X"] = draw.random((400, 20_000), dtype=np.float32)
        self.genes = np.sort(draw.choice(20_000, 2000, replace=False)).tolist()

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["X"][index % 400, self.genes])


def genes_of_cells(folder: Path) -> DataLoader:
    """Let HDF5 pick two thousand places one by one."""
    return DataLoader(_Cells(folder), batch_size=32, shuffle=True, num_workers=2)


def _to_torch(items):
    """Make tensors of all columns of the rows that were asked for."""
    made = {}
    for key, values in items.items():
        if key == "image":
            made[key] = [transforms.functional.to_tensor(one) for one in values]
        else:
            made[key] = [torch.tensor(one) for one in values]
    return made


class LeRobotDataset(Dataset):
    """Frames of robots in a table, with the next sixteen actions."""

    def __init__(self) -> None:
        from datasets import Dataset as Table
        from datasets import Features, List, Value
        from datasets import Image as ImageFeature

        count = 400
        frame = Image.fromarray(_blocks(128, 128, 3))
        columns = {"image": [frame] * count, "action": np.ones((count, 7), np.float32).tolist()}
        features = Features({"image": ImageFeature(), "action": List(Value("float32"))})
        self.hf_dataset = Table.from_dict(columns, features=features)
        self.hf_dataset.set_transform(_to_torch)

    def __len__(self) -> int:
        return 380

    def _query_hf_dataset(self, indices):
        return torch.stack(self.hf_dataset[indices]["action"])

    def __getitem__(self, index):
        item = self.hf_dataset[index]
        item["action"] = self._query_hf_dataset(list(range(index, index + 16)))
        return item


def actions_of_frames(_folder: Path) -> DataLoader:
    """Decode sixteen frames for the actions beside them."""
    return DataLoader(LeRobotDataset(), batch_size=8, shuffle=True, num_workers=2)


class _Utterances(Dataset):
    """Seconds of recordings, each of which is read whole."""

    def __init__(self, folder: Path) -> None:
        from scipy.io import wavfile

        self.paths = [folder / f"{number}.wav" for number in range(8)]
        sound = np.random.default_rng(0).integers(-3000, 3000, (120 * 44_100, 2), dtype=np.int16)
        for path in self.paths:
            wavfile.write(path, 44_100, sound)

    def __len__(self) -> int:
        return 20_000

    def load_audio_with_duration(self, path, start, duration):
        """Load a recording, and take a part of it."""
        from scipy.io import wavfile

        rate, sound = wavfile.read(path)
        wave = torch.from_numpy(sound.T.astype(np.float32) / 32768)
        return wave[0, int(start * rate) : int((start + duration) * rate)]

    def __getitem__(self, index):
        return self.load_audio_with_duration(self.paths[index % 8], random.random() * 110, 2.0)


def parts_of_recordings(folder: Path) -> DataLoader:
    """Read two minutes for two seconds."""
    return DataLoader(_Utterances(folder), batch_size=8, shuffle=True, num_workers=2)


class _Vectors(Dataset):
    """Samples that are dictionaries of ten vectors."""

    def __init__(self) -> None:
        self.values = {f"feature{number}": torch.randn(4000, 16) for number in range(10)}

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index):
        return {name: values[index % 4000] for name, values in self.values.items()}


class Uncollated:
    """A loader whose batches are taken apart again, as they were collated."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            yield self.uncollate(batch)

    @staticmethod
    def uncollate(batch):
        """Make a list of samples of a batch."""
        count = len(next(iter(batch.values())))
        return [{name: values[n] for name, values in batch.items()} for n in range(count)]


def uncollated(_folder: Path) -> Uncollated:
    """Take each batch apart in the main process."""
    return Uncollated(DataLoader(_Vectors(), batch_size=256, shuffle=True, num_workers=2))


class _Expert(Dataset):
    """Batches of a million steps of an expert, drawn without repetition."""

    def __init__(self) -> None:
        self.observations = np.zeros((1_000_000, 17), np.float32)
        self._random_range = np.arange(1_000_000)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, _index):
        indices = np.random.choice(self._random_range, 100, replace=False)
        return torch.from_numpy(self.observations[indices])


def drawn_without_repetition(_folder: Path) -> DataLoader:
    """Put a million numbers in a random order to use a hundred."""
    return DataLoader(_Expert(), batch_size=None, num_workers=2)


class _Signs(Dataset):
    """Photographs of text as floats, changed by albumentations."""

    def __init__(self) -> None:
        import albumentations

        self.images = np.random.default_rng(0).random((8, 512, 512, 3), dtype=np.float32)
        self.augment = albumentations.Compose(
            [
                albumentations.Affine(rotate=(-5, 5), p=1.0),
                albumentations.RGBShift(p=1.0),
                albumentations.CLAHE(p=0.5),
                albumentations.HueSaturationValue(p=1.0),
                albumentations.MedianBlur(blur_limit=5, p=0.5),
                albumentations.RandomBrightnessContrast(p=1.0),
            ]
        )

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        image = self.augment(image=self.images[index % 8])["image"]
        return torch.from_numpy(image.transpose(2, 0, 1).copy())


def floats_of_albumentations(_folder: Path) -> DataLoader:
    """Change images of float32 where uint8 takes a quarter."""
    return DataLoader(_Signs(), batch_size=8, shuffle=True, num_workers=2)


class _Droid(Dataset):
    """Clips of robots, whose colours change at random."""

    def __init__(self) -> None:
        from torchvision.transforms import v2

        self.clips = torch.randint(0, 256, (4, 17, 3, 180, 320), dtype=torch.uint8)
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop((180, 320), scale=(0.9, 1.0), antialias=True),
                v2.ColorJitter(brightness=0.3, contrast=0.4, saturation=0.5, hue=0.08),
            ]
        )

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return self.transform(self.clips[index % 4])


def colours_of_clips(_folder: Path) -> DataLoader:
    """Change colours on the workers' cores."""
    return DataLoader(_Droid(), batch_size=2, shuffle=True, num_workers=2)


class NodeCollator:
    """Makes a batch of nodes and their neighbours."""

    def __init__(self, nodes: int) -> None:
        draw = np.random.default_rng(0)
        self.neighbours = torch.from_numpy(draw.integers(0, nodes, (nodes, 10)))

    def __call__(self, items):
        """Collate."""
        seeds = torch.tensor(items)
        around = self.neighbours[seeds]
        return seeds, around, torch.unique(around)


def scalars_of_nodes(_folder: Path) -> DataLoader:
    """Collate a thousand tensors of one number."""
    nodes = torch.arange(200_000)
    collator = NodeCollator(len(nodes))
    return DataLoader(nodes, batch_size=1024, shuffle=True, num_workers=2, collate_fn=collator)


class _Humans(Dataset):
    """Points around a mesh, drawn anew for each sample, with which of them are inside."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        normals = draw.normal(size=(10_000, 3))
        self.normals = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        self.vertices = self.normals * (1 + 0.1 * np.sin(5 * self.normals[:, :1]))
        self.image = torch.zeros(3, 256, 256)

    def __len__(self) -> int:
        return 20_000

    def select_sampling_method(self):
        """Draw points near the surface and in the room, and look which are inside."""
        from scipy.spatial import cKDTree

        chosen = np.random.randint(0, len(self.vertices), 16_000)
        near = self.vertices[chosen] + np.random.normal(scale=0.05, size=(16_000, 3))
        points = np.concatenate([near, np.random.uniform(-1.3, 1.3, (1000, 3))])
        _, nearest = cKDTree(self.vertices).query(points)
        offset = points - self.vertices[nearest]
        inside = (offset * self.normals[nearest]).sum(axis=1) < 0
        keep = np.concatenate([np.nonzero(inside)[0][:2500], np.nonzero(~inside)[0][:2500]])
        return points[keep].astype(np.float32), inside[keep].astype(np.float32)

    def __getitem__(self, _index):
        points, labels = self.select_sampling_method()
        return self.image, torch.from_numpy(points), torch.from_numpy(labels)


def points_of_meshes(_folder: Path) -> DataLoader:
    """Draw points while loading."""
    return DataLoader(_Humans(), batch_size=4, shuffle=True, num_workers=2)


class _Dialogues(Dataset):
    """Half a million dialogues as Python objects."""

    def __init__(self, count: int = 500_000) -> None:
        self.rows = [{"speaker": n % 7, "text": f"utterance {n}"} for n in range(count)]
        self.features = torch.zeros(64, 3, 32, 32)

    def __len__(self) -> int:
        return 640

    def __getitem__(self, index):
        return self.features[index % 64], self.rows[index]["speaker"]


def pickled_to_workers(_folder: Path) -> DataLoader:
    """Send the dataset to new workers at each epoch."""
    return DataLoader(
        _Dialogues(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context="spawn"
    )


class _Driving(Dataset):
    """Samples in a dozen files each, on a drive that others use, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in range(12):
            np.save(folder / f"{name}.npy", np.ones((64, 64), np.float32))

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, _index):
        return [self.load(self.folder / f"{name}.npy") for name in range(12)]

    @staticmethod
    def load(path):
        """Load one of the files."""
        time.sleep(0.003)  # the drive
        return torch.from_numpy(np.load(path))


def dozen_files(folder: Path) -> DataLoader:
    """Open many input and label files for each sample."""
    return DataLoader(_Driving(folder), batch_size=8, shuffle=True, num_workers=2)


class Gpt2Tokenizer:
    """Joins the pieces of words into one list."""

    def __init__(self) -> None:
        self.cache: dict[str, list[int]] = {}

    def _tokenize(self, word: str) -> list[int]:
        if word not in self.cache:
            self.cache[word] = [hash(word[n : n + 3]) % 50_000 for n in range(0, len(word), 3)]
        return self.cache[word]

    def tokenize(self, text: str) -> list[int]:
        """Number the pieces of a text."""
        return sum((self._tokenize(word) for word in text.split()), [])  # noqa: RUF017 - as asked


class _TextDataset(Dataset):
    """Long documents, tokenised when they are asked for."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        words = ["".join(draw.choice(list("abcdefghij"), 6)) for _ in range(2000)]
        self.documents = [" ".join(draw.choice(words, 4000)) for _ in range(100)]
        self.tokenizer = Gpt2Tokenizer()

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index):
        return torch.tensor(self.tokenizer.tokenize(self.documents[index % 100])[:1024])


def sum_of_lists(_folder: Path) -> DataLoader:
    """Copy the list anew for each word."""
    return DataLoader(_TextDataset(), batch_size=4, shuffle=True, num_workers=2)


_OWN = ("one-transform",)
LATER = (
    Question(
        "glob",
        "Pytorch-UNet #317: infer the names, do not glob; 'its training fast now'",
        glob_of_folders,
        0.02,
        _OWN,
        r"__getitem__|glob",
        r"once|beforehand",
        "right",
    ),
    Question(
        "radiographs",
        "torchxrayvision #11: skimage's resize is orders of magnitude slower than OpenCV's",
        radiographs,
        0.03,
        (*_OWN, "transforms"),
        r"XRayResizer|resize",
        r"OpenCV|cv2|Pillow|beforehand|once|store",
        "right",
    ),
    Question(
        "networkx",
        "deepsnap #51: NetworkX graphs are collated with the rest; removed, it is fast",
        graphs_of_networkx,
        0.004,
        ("sending",),
        r"[Ss]ending",
        r"objects|leave out|only what",
        "right",
    ),
    Question(
        "shuffle-buffer",
        "deeplake #1760: 90 s before each epoch, none without the shuffle's buffer",
        shuffle_buffer,
        0.02,
        ("start-up",),
        r"every epoch",
        r"buffer",
        "healthy: wrong",
    ),
    Question(
        "genes",
        "h5py #368, #413, pyscm #15: a list of indices, 15.5 s to 0.02 s by a slice",
        genes_of_cells,
        0.01,
        _OWN,
        r"__getitem__",
        r"slice|then select|in NumPy|contiguous",
        "one-transform: wrong lever",
    ),
    Question(
        "actions",
        "lerobot #4314: whole rows are decoded for one column; views of single columns",
        actions_of_frames,
        0.01,
        (*_OWN, "decode"),
        r"_query_hf_dataset|__getitem__|_to_torch",
        r"column",
        "one-transform: wrong lever",
    ),
    Question(
        "recordings",
        "audio #1607: whole recordings are loaded, then sliced; read the frames asked for",
        parts_of_recordings,
        0.01,
        (*_OWN, "storage-bandwidth"),
        r"load_audio_with_duration|read",
        r"only|part|mmap",
        "one-transform: wrong lever",
    ),
    Question(
        "uncollate",
        "fuse-med-ml #267: each batch is taken apart in a loop, in the main process",
        uncollated,
        0.004,
        ("main-process",),
        r"[Uu]ncollate",
        r"collate_fn|worker|vector|whole batch|once",
        "cpu-saturated: wrong",
    ),
    Question(
        "without-repetition",
        "tf2rl #126: np.random.choice without replacement; 1000 times as fast with",
        drawn_without_repetition,
        0.005,
        _OWN,
        r"__getitem__",
        r"replace|Generator|integers|permut",
        "one-transform: wrong lever",
    ),
    Question(
        "albumentations",
        "albumentations #717: up to four times as fast on uint8; Normalize last",
        floats_of_albumentations,
        0.01,
        (*_OWN, "transforms"),
        r"",
        r"uint8",
        "transforms: wrong lever",
    ),
    Question(
        "colour-jitter",
        "cosmos-framework #174: ColorJitter in workers is the bottleneck; on the device",
        colours_of_clips,
        0.03,
        (*_OWN, "transforms"),
        r"ColorJitter",
        r"device|GPU",
        "one-transform: wrong lever",
    ),
    Question(
        "scalars",
        "dgl #2716: a list of 1024 tensors for the collator; three times as fast with one",
        scalars_of_nodes,
        0.004,
        ("collate", *_OWN),
        r"NodeCollator|__call__|collat|TensorDataset|__getitem__|[Tt]ensor",
        r"stack|one tensor|whole batch|__getitems__|batch_size=None",
        "sending: wrong",
    ),
    Question(
        "meshes",
        "Open-PIFuhd #19: points are drawn while loading; offline it is much faster",
        points_of_meshes,
        0.01,
        _OWN,
        r"select_sampling_method|__getitem__|query",
        r"beforehand",
        "one-transform, by to_numpy: wrong lever",
    ),
    Question(
        "spawned",
        "pytorch forum 104098: the dataset is pickled for new workers at each iterator",
        pickled_to_workers,
        0.005,
        ("start-up",),
        r"every epoch",
        r"persistent_workers|fewer workers",
        "inconclusive: wrong",
    ),
    Question(
        "dozen-files",
        "transfuser #154: many input and label files for each sample, on slow storage",
        dozen_files,
        0.03,
        ("storage-latency", *_OWN),
        r"wait|load|__getitem__",
        r"shard|one file|more workers|at once",
        "storage-latency, as it sleeps: wrong lever",
    ),
    Question(
        "sum-of-lists",
        "transformers #1830: slow because of sum() over lists of tokens",
        sum_of_lists,
        0.01,
        _OWN,
        r"tokenize",
        r"once|beforehand|extend|chain",
        "right",
    ),
)
"""In the order in which they were found."""
