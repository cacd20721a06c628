import copy

import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Subjects(Samples):
    """Patches of volumes; all of the subject is copied for each patch."""

    def __init__(self):
        volume = torch.zeros(1, 96, 96, 96)
        self.subjects = [{"t1": volume + n, "label": volume.clone()} for n in range(4)]

    def __getitem__(self, index):
        return self.crop(self.subjects[index % 4], index % 64)

    @staticmethod
    def crop(subject, at):
        whole = copy.deepcopy(subject)
        return {name: one[:, at : at + 24, :24, :24].clone() for name, one in whole.items()}


@question(
    source="torchio #1305",
    report="patches are slow since they are deep copies",
    step_s=0.0015,
    causes=("one-transform",),
    place=r"crop .*copied",
    lever=r"shallow copy",
)
def deep_copies(_folder):
    """Copy what a patch is cut out of."""
    return DataLoader(_Subjects(), batch_size=8, num_workers=2)
