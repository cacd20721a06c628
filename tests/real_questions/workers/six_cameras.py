import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from real_questions.parts import Samples
from real_questions.question import question


class NuscData(Samples):
    """What the six cameras of a car see at a time."""

    cams = (
        "CAM_FRONT_LEFT",
        "CAM_FRONT",
        "CAM_FRONT_RIGHT",
        "CAM_BACK_LEFT",
        "CAM_BACK",
        "CAM_BACK_RIGHT",
    )

    def __init__(self, folder, times=8):
        from PIL import Image

        draw = np.random.default_rng(0)
        self.ixes = []
        for number in range(times):
            rec = {cam: folder / f"{number}_{cam}.jpg" for cam in self.cams}
            for path in rec.values():
                small = draw.integers(0, 255, (18, 32, 3), dtype=np.uint8)
                Image.fromarray(small).resize((1600, 900)).save(path)
            self.ixes.append(rec)

    def get_image_data(self, rec):
        from PIL import Image

        imgs = []
        for cam in self.cams:
            img = Image.open(rec[cam]).resize((800, 448)).crop((0, 0, 800, 448))
            imgs.append(transforms.functional.to_tensor(img))
        return torch.stack(imgs), torch.eye(3).repeat(6, 1, 1), torch.zeros(6, 3)

    def __getitem__(self, index):
        imgs, rots, trans = self.get_image_data(self.ixes[index % len(self.ixes)])
        return imgs, rots, trans, torch.zeros(1, 200, 200)


@question(
    source="simple_bev #4",
    report="the read time is inconsistent, it has 'to catch up'; more nworkers",
    step_s=0.1,
    causes=("too-few-workers", "decode", "one-transform"),
    place=r"worker|[Dd]ecod|JPEG|get_image_data|NuscData|PIL",
    lever=r"num_workers|more workers|smaller|draft|another decoder|faster decoder|beforehand",
)
def cameras_of_cars(folder):
    """Let one worker read the images of all six cameras, with a second core idle."""
    return DataLoader(NuscData(folder), batch_size=1, shuffle=True, num_workers=1)
