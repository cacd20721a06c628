import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class _Volumes(Samples):
    """Patches around the foreground of volumes, whose voxels are looked at for each."""

    def __init__(self):
        from monai.transforms import Compose, RandCropByPosNegLabeld, RandFlipd

        image = torch.randn(1, 112, 112, 112)
        self.subject = {"image": image, "label": (image > 2).float()}
        crop = RandCropByPosNegLabeld(
            ["image", "label"], label_key="label", spatial_size=(32, 32, 32), num_samples=1
        )
        self.transform = Compose([crop, RandFlipd(["image", "label"], prob=0.5)])

    def __getitem__(self, _index):
        patch = self.transform(dict(self.subject))[0]
        return patch["image"].as_tensor(), patch["label"].as_tensor()


@question(
    source="MONAI #892, #6284",
    report="the foreground's voxels need not be looked for each time",
    step_s=0.005,
    causes=("one-transform", "transforms"),
    place=r"RandCropByPosNegLabel",
    lever=r"once|beforehand",
)
def crops_of_foreground(_folder):
    """Look for the foreground of a volume for each crop."""
    return DataLoader(_Volumes(), batch_size=2, num_workers=2)
