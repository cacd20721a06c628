from dataclasses import dataclass

import numpy as np
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


@dataclass
class Interval:
    """A place on a chromosome."""

    chrom: str
    start: int
    stop: int
    label: int


class BedTool:
    """Intervals in a file, a line each."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with self.path.open() as lines:
            yield from lines

    def __len__(self):
        return sum(1 for _ in self)

    def __getitem__(self, index):
        for number, line in enumerate(self):
            if number == index:
                chrom, start, stop, label = line.split("\t")
                return Interval(chrom, int(start), int(stop), int(label))
        raise IndexError(index)


class FastaExtractor:
    """Pieces of the genome, a column for each base."""

    def __init__(self, genome):
        self.genome = genome

    def __call__(self, interval):
        return np.eye(4, dtype=np.float32)[self.genome[interval.start : interval.stop]]


class SeqDataset(Dataset):
    """Pieces of the genome around some places."""

    def __init__(self, intervals_file, genome):
        self.bt = BedTool(intervals_file)
        self.fasta_extractor = FastaExtractor(genome)
        self.length = len(self.bt)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        interval = self.bt[index]
        return {"inputs": self.fasta_extractor(interval), "targets": interval.label}


@question(
    source="kipoi #220, kipoi/models #67",
    report="a file is scanned for each row; linecache",
    step_s=0.02,
    causes=("one-transform",),
    place=r"BedTool|__getitem__|__iter__",
    lever=r"linecache|\bonce\b|memory|__init__|[Kk]eep|\bcache|index|beforehand",
)
def intervals_of_genome(folder):
    """Go through the file of intervals for each of them."""
    draw = np.random.default_rng(0)
    path = folder / "intervals.bed"
    with path.open("w") as lines:
        for start in draw.integers(0, 900_000, 40_000):
            lines.write(f"chr1\t{start}\t{start + 1000}\t{start % 2}\n")
    dataset = SeqDataset(path, draw.integers(0, 4, 1_000_000, dtype=np.uint8))
    return DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2)
