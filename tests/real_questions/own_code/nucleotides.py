import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question

LETTERS = {"A": 0, "C": 1, "G": 2, "T": 3}


def one_hot_encode_sequence(sequence):
    encoded = np.zeros((len(sequence), 4), dtype=np.float32)
    for place, letter in enumerate(sequence.upper()):
        column = LETTERS.get(letter)
        if column is None:
            encoded[place, :] = 0.25
        else:
            encoded[place, column] = 1
    return encoded


class FastaExtractor:
    """The chromosomes of a genome as strings."""

    def __init__(self, path):
        self.chromosomes = {}
        for entry in path.read_text().split(">")[1:]:
            name, _, lines = entry.partition("\n")
            self.chromosomes[name] = lines.replace("\n", "")

    def __call__(self, name, start, stop):
        return one_hot_encode_sequence(self.chromosomes[name][start:stop])


class SeqDataset(Dataset):
    """Intervals of a genome, and whether a protein binds there."""

    def __init__(self, fasta, width=2000, intervals=80_000):
        self.extractor, self.width = FastaExtractor(fasta), width
        draw = np.random.default_rng(1)
        self.names = [list(self.extractor.chromosomes)[n] for n in draw.integers(0, 4, intervals)]
        self.starts = draw.integers(0, 400_000, intervals)
        self.labels = draw.integers(0, 2, intervals)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        start = int(self.starts[index])
        sequence = self.extractor(self.names[index], start, start + self.width)
        return torch.from_numpy(sequence), self.labels[index]


@question(
    source="genomelake #18",
    report="'the main overhead is to iterate through the python string and populate the array'; "
    "compiled code does it",
    step_s=0.004,
    causes=("one-transform",),
    place=r"one_hot|[Ee]ncod|FastaExtractor|__getitem__|SeqDataset",
    lever=r"[Ll]ook.?up|\btable|vector|NumPy|np\.|\barrays?\b|frombuffer|[Cc]ompiled|[Cc]ython|"
    r"[Nn]umba|without .*loop|beforehand|in advance|\bonce\b|[Kk]eep|\bcach|on the (device|GPU)",
)
def intervals_of_genome(folder):
    """Encode sequences letter by letter."""
    draw = np.random.default_rng(0)
    fasta = folder / "genome.fa"
    with fasta.open("w") as file:
        for name in ("chr1", "chr2", "chr3", "chr4"):
            letters = np.frombuffer(b"ACGTN", dtype="S1")
            chromosome = draw.choice(letters, 410_000, p=(0.29, 0.2, 0.2, 0.3, 0.01))
            lines = chromosome.reshape(-1, 50).view("S50").astype(str).ravel()
            file.write(f">{name}\n" + "\n".join(lines) + "\n")
    return DataLoader(SeqDataset(fasta), batch_size=64, shuffle=True, num_workers=2)
