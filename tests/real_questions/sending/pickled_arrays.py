import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class FramesDataset(Samples):
    """Frames and their actions, which are NumPy arrays until the model gets them."""

    def __init__(self, frames=64):
        draw = np.random.default_rng(0)
        self.frames = draw.random((frames, 3, 224, 224), np.float32)
        self.actions = draw.random((frames, 7), np.float32)

    def __getitem__(self, index):
        number = index % len(self.frames)
        return {"frame": self.frames[number], "action": self.actions[number]}


def numpy_collate(batch):
    return {name: np.stack([sample[name] for sample in batch]) for name in batch[0]}


@question(
    source="pytorch #3830, detectron2 #4874",
    report="'returning numpy arrays is horribly inefficient', they go through the pickler; tensors "
    "go through shared memory without a copy",
    step_s=0.015,
    causes=("sending",),
    place=r"numpy_collate|[Nn]um[Pp]y|ndarray|\b[Ss]en[dt]|[Pp]ickl|[Tt]ransfer|[Qq]ueue|[Pp]ipe"
    r"|[Rr]eceiv",
    lever=r"[Tt]ensor|from_numpy|shared memory|default_collate|uint8|float16|smaller",
)
def arrays_through_a_pipe(_folder):
    """Send batches that are no tensors."""
    return DataLoader(
        FramesDataset(), batch_size=32, shuffle=True, num_workers=2, collate_fn=numpy_collate
    )
