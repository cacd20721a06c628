import numpy as np
import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Matrices(Samples):
    """Matrices of an HDF5 file, each made into a tensor as it is."""

    def __init__(self, folder):
        import h5py

        self.path, self.file = folder / "matrices.h5", None
        with h5py.File(self.path, "w") as file:
            for number in range(40):
                file[str(number)] = np.ones((500, 100), np.float32)

    def __getitem__(self, index):
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.tensor(self.file[str(index % 40)])


@question(
    source="pytorch #28761",
    report="np.array first, 421 ms to 3 ms",
    step_s=0.005,
    causes=("one-transform",),
    place=r"__getitem__",
    lever=r"np\.(array|stack)|NumPy|array first",
)
def tensors_of_hdf5(folder):
    """Let torch take a dataset of HDF5 apart, number by number."""
    return DataLoader(_Matrices(folder), batch_size=8, shuffle=True, num_workers=2)
