import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from real_questions.parts import blocks
from real_questions.question import question


def _to_torch(items):
    made = {}
    for key, values in items.items():
        if key == "image":
            made[key] = [transforms.functional.to_tensor(one) for one in values]
        else:
            made[key] = [torch.tensor(one) for one in values]
    return made


class LeRobotDataset(Dataset):
    """Frames of robots in a table, with the next sixteen actions."""

    def __init__(self):
        from datasets import Dataset as Table
        from datasets import Features, List, Value
        from datasets import Image as ImageFeature

        count = 400
        frame = Image.fromarray(blocks(128, 128, 3))
        columns = {"image": [frame] * count, "action": np.ones((count, 7), np.float32).tolist()}
        features = Features({"image": ImageFeature(), "action": List(Value("float32"))})
        self.hf_dataset = Table.from_dict(columns, features=features)
        self.hf_dataset.set_transform(_to_torch)

    def __len__(self):
        return 380

    def _query_hf_dataset(self, indices):
        return torch.stack(self.hf_dataset[indices]["action"])

    def __getitem__(self, index):
        item = self.hf_dataset[index]
        item["action"] = self._query_hf_dataset(list(range(index, index + 16)))
        return item


@question(
    source="lerobot #4314",
    report="whole rows are decoded for one column; views of single columns",
    step_s=0.01,
    causes=("one-transform", "decode"),
    place=r"_query_hf_dataset|__getitem__|_to_torch",
    lever=r"column",
)
def actions_of_frames(_folder):
    """Decode sixteen frames for the actions beside them."""
    return DataLoader(LeRobotDataset(), batch_size=8, shuffle=True, num_workers=2)
