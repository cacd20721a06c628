import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples, noise
from real_questions.question import question


class _Trajectories(Samples):
    """Frames of robots, stored and compressed by trajectory, read frame by frame."""

    def __init__(self, folder):
        import h5py

        self.path, self.file = folder / "trajectories.h5", None
        with h5py.File(self.path, "w") as file:
            chunks = (24, 3, 128, 128)
            frames = noise(240, 3, 128, 128)
            file.create_dataset("rgb", data=frames, chunks=chunks, compression="gzip")

    def __getitem__(self, index):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["rgb"][index % 240])


@question(
    source="ManiSkill #1040",
    report="chunks of a trajectory, single frames are read",
    step_s=0.005,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"(chunks|pieces) of one sample",
)
def frames_of_trajectories(folder):
    """Unpack the frames of a whole trajectory for each one."""
    return DataLoader(_Trajectories(folder), batch_size=16, shuffle=True, num_workers=2)
