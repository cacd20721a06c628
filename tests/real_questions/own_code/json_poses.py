import json

import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class JTADataset(Samples):
    """Poses of people in sequences of frames: a file of JSON for each sequence."""

    def __init__(self, folder, sequences=8, frames=60, people=4):
        self.frames = frames
        self.paths = [folder / f"seq_{number}.json" for number in range(sequences)]
        draw = np.random.default_rng(0)
        for path in self.paths:
            who = [(f, p, j) for f in range(frames) for p in range(people) for j in range(22)]
            where = draw.uniform(0, 1000, (len(who), 7)).round(4).tolist()
            rows = [[*key, *place] for key, place in zip(who, where, strict=True)]
            path.write_text(json.dumps(rows))

    def __getitem__(self, index):
        with self.paths[index % len(self.paths)].open() as json_file:
            matrix = json.load(json_file)
        matrix = np.array(matrix)
        frame = matrix[matrix[:, 0] == index % self.frames]
        return torch.from_numpy(frame[:, 3:].astype(np.float32))


@question(
    source="JTA-Dataset #1",
    report="JSON is very slow, 7 s a matrix; np.load takes 0.3 s: 'the best solution'",
    step_s=0.01,
    causes=("one-transform", "decode"),
    place=r"JTADataset|__getitem__|[Jj][Ss][Oo][Nn]",
    lever=r"\.npy|np\.save|np\.load|NumPy|binary|\bonce\b|memory|\bcache|[Kk]eep|beforehand|mmap",
)
def poses_of_frames(folder):
    """Read all of a sequence as JSON, for one of its frames."""
    return DataLoader(JTADataset(folder), batch_size=8, shuffle=True, num_workers=2)
