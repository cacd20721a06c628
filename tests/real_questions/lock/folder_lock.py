import fcntl
import shutil
import time

import numpy as np
from torch.utils.data import DataLoader, Dataset

from real_questions.question import question


class _CachedFiles(Dataset):
    """Files that are copied from a server into one folder, each when it is first asked for."""

    def __init__(self, folder):
        self.server, self.cache = folder / "server", folder / "cache"
        self.server.mkdir(exist_ok=True), self.cache.mkdir(exist_ok=True)
        (self.server / "data").write_bytes(bytes(200_000))

    def __len__(self):
        return 5_000

    def __getitem__(self, index):
        return np.frombuffer(self._cached(f"{index}.bin").read_bytes(), np.uint8)[:1000].copy()

    def _cached(self, name):
        path = self.cache / name
        with (self.cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                time.sleep(0.02)  # the network
                shutil.copyfile(self.server / "data", path)
        return path


@question(
    source="returnn #1548",
    report="all wait while files are copied",
    step_s=0.05,
    causes=("lock",),
    place=r"wait for each other",
    lever=r"lock",
)
def lock_of_a_folder(folder):
    """Hold one lock for the whole folder while a file is copied."""
    return DataLoader(_CachedFiles(folder), batch_size=4, num_workers=4)
