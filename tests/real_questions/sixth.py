"""Ten more questions that the rules were not made from, written before one was asked.

What each has to be answered was written down with it, by someone who had not seen how verdicts
come about. Each was put to a public project, and what was the matter was confirmed there: by a
maintainer, or by the change that made it faster. Of `skipped` it is the wait for the first batch
that was asked about. Of `one-hot` nothing is wrong with the loader, as was found out there.
"""

from __future__ import annotations

import copy
import gc
import json
import random
import re
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from real_questions import Question

if TYPE_CHECKING:
    from pathlib import Path


class Caption:
    """A text that belongs to an image, with where it is from."""

    def __init__(self, key: int) -> None:
        self.key, self.parts, self.tokens = key, [key], [key % 97, key % 89, key % 83]


def own_part(items: list) -> list:
    """Take what falls to this worker."""
    worker = get_worker_info()
    return items[worker.id :: worker.num_workers] if worker else items


class CaptionBatches(IterableDataset):
    """Batches of images with their captions, of all of which something is kept."""

    def __init__(self, count: int = 40_000) -> None:
        self.captions = [Caption(key) for key in range(count)]
        self.images = torch.randint(0, 255, (64, 3, 64, 64), dtype=torch.uint8)

    def __iter__(self):
        own_captions = own_part(self.captions)
        for _ in range(10_000):
            captions = random.sample(own_captions, 16)
            images = self.images[[caption.key % 64 for caption in captions]]
            yield images, torch.tensor([caption.tokens for caption in captions])


class GcDataset(IterableDataset):
    """Lets no garbage pile up in a worker."""

    def __init__(self, dataset: IterableDataset, every_n_iter: int = 1) -> None:
        self.dataset, self.every_n_iter = dataset, every_n_iter

    def __iter__(self):
        for number, sample in enumerate(self.dataset):
            if number % self.every_n_iter == 0:
                gc.collect()
            yield sample


def batches_with_garbage(_folder: Path) -> DataLoader:
    """Go through all objects there are, for each batch."""
    return DataLoader(GcDataset(CaptionBatches()), batch_size=None, num_workers=2)


class SemanticDataset(Dataset):
    """Streets, with a mask of which the numbers are those of the files, not those of classes."""

    def __init__(self, count: int = 12) -> None:
        draw = np.random.default_rng(0)
        self.images = draw.integers(0, 255, (count, 512, 1024, 3), dtype=np.uint8)
        coarse = draw.integers(0, 34, (count, 16, 32), dtype=np.uint8)
        self.masks = coarse.repeat(32, axis=1).repeat(32, axis=2)
        self.label_mapping = {number: number % 19 for number in range(34)} | {34: 255}

    def __len__(self) -> int:
        return 50_000

    def convert_label(self, label: np.ndarray) -> np.ndarray:
        """Make numbers of classes of the numbers of a file, one after the other."""
        temp = label.copy()
        for old, new in self.label_mapping.items():
            label[temp == old] = new
        return label

    def __getitem__(self, index):
        import cv2

        number = index % len(self.images)
        mask = self.convert_label(self.masks[number].copy())
        image = cv2.resize(self.images[number], (320, 160))
        mask = cv2.resize(mask, (320, 160), interpolation=cv2.INTER_NEAREST)
        return torch.from_numpy(image).permute(2, 0, 1), torch.from_numpy(mask)


def masks_of_labels(_folder: Path) -> DataLoader:
    """Go over the whole mask for each number it may have."""
    return DataLoader(SemanticDataset(), batch_size=8, shuffle=True, num_workers=2)


class LuxonisLoader(Dataset):
    """Images, of which four are put together as a mosaic."""

    def __init__(self, count: int = 150_000, batched: int = 4) -> None:
        self.count, self.batched = count, batched
        self.images = np.random.default_rng(0).integers(0, 255, (200, 64, 64, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return self.count

    def _load(self, index: int) -> np.ndarray:
        return self.images[index % len(self.images)]

    def _pick_indices(self, index: int) -> list[int]:
        possible = list(range(len(self)))
        possible.remove(index)
        return [index, *random.sample(possible, self.batched - 1)]

    def __getitem__(self, index):
        images = [self._load(number) for number in self._pick_indices(index)]
        mosaic = np.vstack((np.hstack(images[:2]), np.hstack(images[2:])))
        return torch.from_numpy(mosaic).permute(2, 0, 1)


def mosaics_of_images(_folder: Path) -> DataLoader:
    """List all images there are, to draw three."""
    return DataLoader(LuxonisLoader(), batch_size=16, shuffle=True, num_workers=2)


class JTADataset(Dataset):
    """Poses of people in sequences of frames: a file of JSON for each sequence."""

    def __init__(self, folder: Path, sequences: int = 8, frames: int = 60, people: int = 4) -> None:
        self.frames = frames
        self.paths = [folder / f"seq_{number}.json" for number in range(sequences)]
        draw = np.random.default_rng(0)
        for path in self.paths:
            who = [(f, p, j) for f in range(frames) for p in range(people) for j in range(22)]
            where = draw.uniform(0, 1000, (len(who), 7)).round(4).tolist()
            rows = [[*key, *place] for key, place in zip(who, where, strict=True)]
            path.write_text(json.dumps(rows))

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index):
        with self.paths[index % len(self.paths)].open() as json_file:
            matrix = json.load(json_file)
        matrix = np.array(matrix)
        frame = matrix[matrix[:, 0] == index % self.frames]
        return torch.from_numpy(frame[:, 3:].astype(np.float32))


def poses_of_frames(folder: Path) -> DataLoader:
    """Read all of a sequence as JSON, for one of its frames."""
    return DataLoader(JTADataset(folder), batch_size=8, shuffle=True, num_workers=2)


class VisionDataset(Dataset):
    """Images that a model of images and language is asked about."""

    def __init__(self, count: int = 16) -> None:
        draw = np.random.default_rng(0)
        self.images = draw.integers(0, 255, (count, 360, 480, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 40_000

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

    def __init__(self, loader: DataLoader, train_step: int) -> None:
        self.loader, self.train_step = loader, train_step

    def __len__(self) -> int:
        return len(self.loader) - self.train_step

    def __iter__(self):
        iterator = iter(self.loader)
        for _ in range(self.train_step):
            next(iterator)
        yield from iterator


def batches_after_resuming(_folder: Path) -> ResumedBatches:
    """Load all that has been trained with already, to leave it out."""
    loader = DataLoader(VisionDataset(), batch_size=4, num_workers=2)
    return ResumedBatches(loader, train_step=700)


class TextLibraryDataset(Dataset):
    """Parts of poems, letter by letter."""

    def __init__(self, length: int = 64, letters: int = 96) -> None:
        self.length, self.letters = length, letters
        self.encoded = torch.randint(0, letters, (300_000,))

    def __len__(self) -> int:
        return len(self.encoded) - self.length - 1

    def __getitem__(self, index):
        part = self.encoded[index : index + self.length + 1]
        one_hot = torch.nn.functional.one_hot(part[:-1], self.letters).float()
        return one_hot, part[1:]


def letters_of_poems(_folder: Path) -> DataLoader:
    """Make vectors of letters on the host, which is quick enough."""
    return DataLoader(TextLibraryDataset(), batch_size=64, shuffle=True, num_workers=2)


class ArrowExamples:
    """The rows of one file, with how far one is in it."""

    def __init__(self, shard: int) -> None:
        self.table = np.random.default_rng(shard).normal(size=(200, 64)).astype(np.float32)
        self.state = {"shard_idx": shard, "shard_example_idx": 0, "type": "ArrowExamples"}

    def state_dict(self) -> dict:
        """Say how far one is."""
        return copy.deepcopy(self.state)

    def __iter__(self):
        for row in cycle(self.table):
            self.state["shard_example_idx"] += 1
            yield row


class CyclingExamples:
    """A row of each file in turn."""

    def __init__(self, sources: list[ArrowExamples]) -> None:
        self.sources = sources
        self.state = {
            "ex_iterable_idx": 0,
            "ex_iterables": [source.state for source in sources],
            "type": "CyclingExamples",
        }

    def state_dict(self) -> dict:
        """Say how far one is in each of them."""
        return copy.deepcopy(self.state)

    def __iter__(self):
        for number, iterator in cycle(enumerate([iter(source) for source in self.sources])):
            self.state["ex_iterable_idx"] = number
            yield next(iterator)


class BufferShuffledExamples(IterableDataset):
    """Rows in some other order, which can go on from where they were broken off."""

    def __init__(self, shards: int = 128, buffer_size: int = 100) -> None:
        self.sources = [ArrowExamples(shard) for shard in range(shards)]
        self.buffer_size = buffer_size
        self.state = {"ex_iterable": None, "num_examples_since_previous_state": 0}

    def __iter__(self):
        buffer = []
        ex_iterable = CyclingExamples(own_part(self.sources))
        for row in islice(ex_iterable, 1_000_000):
            self.state["ex_iterable"] = ex_iterable.state_dict()
            if len(buffer) < self.buffer_size:
                buffer.append(row)
                continue
            number = random.randrange(self.buffer_size)
            yield buffer[number]
            buffer[number] = row


def rows_with_state(_folder: Path) -> DataLoader:
    """Copy for each row how far one is in all files."""
    return DataLoader(BufferShuffledExamples(), batch_size=32, num_workers=2)


class SubjectsDataset(Dataset):
    """Volumes, with how likely a patch is to be taken at each of their places."""

    def __init__(self, count: int = 12, size: int = 44) -> None:
        self.volumes = torch.rand(count, size, size, size)
        self.sampling = torch.rand(count, size, size, size) ** 4

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index):
        number = index % len(self.volumes)
        return {"image": self.volumes[number], "sampling_map": self.sampling[number]}


class WeightedSampler:
    """Takes patches of volumes where they are likely."""

    def __init__(self, patch_size: int = 12) -> None:
        self.patch_size = patch_size

    def get_random_index(self, probability_map: np.ndarray) -> tuple[int, ...]:
        """Draw a place."""
        flat_map = probability_map.ravel()
        flat_map = flat_map / flat_map.sum()
        sorted_indices = np.argsort(flat_map)
        cdf = np.cumsum(flat_map[sorted_indices])
        place = sorted_indices[np.argmax(cdf > random.random() * cdf[-1])]
        return np.unravel_index(place, probability_map.shape)

    def __call__(self, subject: dict):
        """Take patches without end."""
        image, sampling_map = subject["image"], subject["sampling_map"].numpy()
        last = image.shape[0] - self.patch_size
        while True:
            starts = self.get_random_index(sampling_map)
            where = [slice(min(int(s), last), min(int(s), last) + self.patch_size) for s in starts]
            yield image[tuple(where)].clone()


class Queue(Dataset):
    """Patches of some volumes, which workers of its own read."""

    def __init__(self, subjects: SubjectsDataset, samples_per_volume: int = 8) -> None:
        self.subjects, self.samples_per_volume = subjects, samples_per_volume
        self.sampler = WeightedSampler()
        self.patches: list[torch.Tensor] = []
        self.subjects_iterable = None

    def __len__(self) -> int:
        return len(self.subjects) * self.samples_per_volume

    def __getitem__(self, _index):
        if not self.patches:
            self._fill()
        return self.patches.pop()

    def _fill(self) -> None:
        if self.subjects_iterable is None:
            self.subjects_iterable = iter(
                DataLoader(self.subjects, batch_size=None, shuffle=True, num_workers=1)
            )
        for subject in islice(self.subjects_iterable, 4):
            self.patches.extend(islice(self.sampler(subject), self.samples_per_volume))
        random.shuffle(self.patches)


def patches_of_queue(_folder: Path) -> DataLoader:
    """Sort all places of a volume for each patch of it, in the main process."""
    return DataLoader(Queue(SubjectsDataset()), batch_size=4)


class RareEvents(Dataset):
    """Very many events, of which few are of interest."""

    def __init__(self, count: int = 6_000_000) -> None:
        self.count = count
        self.signal = torch.randn(10_000, 32)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return self.signal[index % len(self.signal)], index % 2


def events_without_replacement(_folder: Path) -> DataLoader:
    """Draw a few hundred of millions for each epoch, none of them twice."""
    dataset = RareEvents()
    weights = torch.tensor([0.1, 0.9, 0.4, 0.7, 3.0, 0.6]).repeat(len(dataset) // 6)
    sampler = WeightedRandomSampler(weights, 512, replacement=False)
    return DataLoader(
        dataset, batch_size=32, sampler=sampler, num_workers=2, persistent_workers=True
    )


class FeatureFactory:
    """Knows groups of atoms by their definitions."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, list[str]] = {}
        macros: dict[str, str] = {}
        for line in text.splitlines():
            kind, name, pattern = line.split()
            for macro in re.findall(r"\{(\w+)\}", pattern):
                pattern = pattern.replace("{" + macro + "}", macros[macro])
            if kind == "AtomType":
                macros[name] = pattern
            else:
                self.families[name] = re.findall(r"[A-Z][a-z]?|[a-z]|\d|[^\w\s]", pattern)

    def count(self, smiles: str) -> list[int]:
        """Say how many atoms of a molecule are in each family."""
        return [sum(map(smiles.count, set(atoms))) for atoms in self.families.values()][:16]


def build_feature_factory(path: Path) -> FeatureFactory:
    """Read definitions."""
    return FeatureFactory(path.read_text())


class WeaveAtomFeaturizer:
    """Describes the atoms of a molecule."""

    def __init__(self, fdef_name: Path) -> None:
        self.fdef_name = fdef_name

    def __call__(self, smiles: str) -> torch.Tensor:
        """Describe them, by all that is defined."""
        mol_featurizer = build_feature_factory(self.fdef_name)
        families = mol_featurizer.count(smiles)
        return torch.tensor([[ord(letter), *families] for letter in smiles], dtype=torch.float32)


class MoleculeCSVDataset(Dataset):
    """Molecules, as strings."""

    def __init__(self, featurizer: WeaveAtomFeaturizer) -> None:
        draw = random.Random(0)
        self.smiles = ["".join(draw.choices("CCCCNOScno", k=32)) for _ in range(2000)]
        self.featurizer = featurizer

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index):
        return self.featurizer(self.smiles[index % len(self.smiles)]), index % 2


def atoms_of_molecules(folder: Path) -> DataLoader:
    """Read for each molecule what groups of atoms there are."""
    draw = random.Random(0)
    path = folder / "BaseFeatures.fdef"
    lines = [f"AtomType A{n} [{','.join(draw.choices('CNOScno', k=12))}]" for n in range(60)]
    for number in range(200):
        pattern = "".join(f"{{A{draw.randrange(60)}}}~" for _ in range(5))
        lines.append(f"DefineFeature F{number} {pattern}")
    path.write_text("\n".join(lines))
    dataset = MoleculeCSVDataset(WeaveAtomFeaturizer(path))
    return DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)


_OWN = ("one-transform",)
SIXTH = (
    Question(
        "collected",
        "Megatron-Energon #66, #40: 'GC collect is slowing down the iteration'; every 10, frozen",
        batches_with_garbage,
        0.01,
        _OWN,
        r"GcDataset|gc\.collect|[Gg]arbage",
        r"less often|seldom|rarely|freeze|disable|garbage|gc\.|every (n|few|so|ten|\d+)|out of",
        "main-process: wrong",
    ),
    Question(
        "label-map",
        "ultralytics #25813: a pass over the mask for each label; with a lookup table 17 times",
        masks_of_labels,
        0.006,
        (*_OWN, "transforms"),
        r"convert_label|SemanticDataset|__getitem__",
        r"look-?up|table|LUT|at once|vector|one pass|\bonce\b|beforehand|in advance|smaller first",
        "right",
    ),
    Question(
        "all-indices",
        "luxonis-ml #183: a list of all possible indices on every getitem; random values instead",
        mosaics_of_images,
        0.008,
        _OWN,
        r"_pick_indices|LuxonisLoader|__getitem__",
        r"rand(range|int|om)|draw|\bonce\b|__init__|[Kk]eep|\bcache|beforehand|in advance|NumPy",
        "right",
    ),
    Question(
        "json-poses",
        "JTA-Dataset #1: JSON is very slow, 7 s a matrix; np.load takes 0.3 s: 'the best solution'",
        poses_of_frames,
        0.01,
        (*_OWN, "decode"),
        r"JTADataset|__getitem__|[Jj][Ss][Oo][Nn]",
        r"\.npy|np\.save|np\.load|NumPy|binary|\bonce\b|memory|\bcache|[Kk]eep|beforehand|mmap",
        "right",
    ),
    Question(
        "skipped",
        "cosmos-rl #233, #234: as if hung after resuming; the sampler is advanced, not the loader",
        batches_after_resuming,
        0.04,
        ("start-up", "main-process"),
        r"first batch|[Ss]tart|begin|[Ss]kip|ResumedBatches|resum",
        r"[Ss]kip|[Ss]ampler|\bind(ex|ices)\b|resum|advanc|without loading|leave .* out",
        "healthy: wrong",
    ),
    Question(
        "one-hot",
        "torch-poet #1: one-hot on the GPU lessens loading, yet 'resulting performance seems same'",
        letters_of_poems,
        0.06,
        ("healthy",),
        r"[Hh]ealthy|keep|in time|fast enough|wait|hardly",
        r"model|step|device|GPU|train|nothing|compute",
        "right",
    ),
    Question(
        "row-state",
        "datasets #8387: the state is deep-copied on every row and 'blocks the CPU'; a fast copy",
        rows_with_state,
        0.003,
        _OWN,
        r"state_dict|deepcopy|CyclingExamples|BufferShuffledExamples",
        r"shallow|deep|less often|seldom|\bcop(y|ies|ied|ying)\b|\bonce\b|out of",
        "right",
    ),
    Question(
        "patch-map",
        "torchio #308, #312: all weights are sorted for each patch; cumsum and searchsorted",
        patches_of_queue,
        0.005,
        ("main-process", "one-transform"),
        r"WeightedSampler|get_random_index|Queue|argsort",
        r"searchsorted|\bsort|\bonce\b|beforehand|in advance|[Kk]eep|\bcache|smaller|fewer|less",
        "right",
    ),
    Question(
        "unreplaced",
        "pytorch #32221: WeightedRandomSampler without replacement takes very long; with it not",
        events_without_replacement,
        0.01,
        ("start-up", "main-process"),
        r"[Ss]ampler|multinomial|epoch",
        r"replacement|[Ss]ampler|num_samples|longer epoch|fewer epoch|draw|beforehand|in advance",
        "inconclusive: wrong",
    ),
    Question(
        "factory",
        "dgl-lifesci #205, #206: loading the featurizer is the bottleneck; once, in __init__",
        atoms_of_molecules,
        0.008,
        _OWN,
        r"build_feature_factory|FeatureFactory|WeaveAtomFeaturizer|__call__|__getitem__",
        r"\bonce\b|__init__|[Kk]eep|\bcache|beforehand|in advance",
        "right",
    ),
)
"""Of all kinds, in no order."""
