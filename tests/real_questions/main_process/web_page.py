import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from real_questions.parts import blocks
from real_questions.question import question

LABELS = ("real_A", "fake_B", "rec_A", "real_B", "fake_A", "rec_B")


class UnalignedDataset(Dataset):
    """Horses and zebras."""

    def __init__(self, folder, images=20):
        self.paths = [folder / f"{number}.jpg" for number in range(images)]
        for number, path in enumerate(self.paths):
            Image.fromarray(np.roll(blocks(256, 256, 3), number, 0)).save(path)

    def __len__(self):
        return 80

    def load(self, index):
        image = np.array(Image.open(self.paths[index % len(self.paths)]))
        return torch.from_numpy(image).permute(2, 0, 1).float() / 127.5 - 1

    def __getitem__(self, index):
        return {"A": self.load(index), "B": self.load(np.random.randint(len(self.paths)))}


class HTML:
    """Page with a table of images for each epoch."""

    def __init__(self, web_dir):
        self.path = web_dir / "index.html"
        self.page = ET.Element("html")

    def add_images(self, epoch):
        header = ET.SubElement(self.page, "h3")
        header.text = f"epoch [{epoch}]"
        row = ET.SubElement(ET.SubElement(self.page, "table"), "tr")
        for label in LABELS:
            link = f"images/epoch{epoch:04}_{label}.png"
            cell = ET.SubElement(row, "td", style="word-wrap: break-word", halign="center")
            image = ET.SubElement(ET.SubElement(cell, "a", href=link), "img")
            image.set("src", link)
            ET.SubElement(cell, "p").text = label

    def save(self):
        self.path.write_bytes(ET.tostring(self.page))


class Visualizer:
    """Shows how training goes, on a page that holds all that was shown before."""

    def __init__(self, epoch):
        self.epoch = epoch
        self.web_dir = Path(tempfile.mkdtemp())
        (self.web_dir / "images").mkdir()

    def display_current_results(self, visuals):
        for label, image in visuals.items():
            pixels = ((image.permute(1, 2, 0).numpy() + 1) * 127.5).astype(np.uint8)
            Image.fromarray(pixels).save(
                self.web_dir / "images" / f"epoch{self.epoch:04}_{label}.png"
            )
        page = HTML(self.web_dir)
        for epoch in range(self.epoch, 0, -1):
            page.add_images(epoch)
        page.save()
        self.epoch += 1


class Training:
    """Trains, and shows results."""

    def __init__(self):
        self.visualizer = Visualizer(epoch=1500)

    def __call__(self, batch):
        time.sleep(0.03)  # the generators and discriminators, on a device
        images = [batch["A"][0]] * 3 + [batch["B"][0]] * 3
        self.visualizer.display_current_results(dict(zip(LABELS, images, strict=True)))


@question(
    source="pytorch-CycleGAN-and-pix2pix #168, #587",
    report="pauses: display_visuals makes the whole page anew, ever longer; turned off, or rarer",
    step_s=0.03,
    causes=("main-process",),
    place=r"display_current_results|[Vv]isuali[sz]er|HTML|add_images|index\.html|[Ww]eb page",
    lever=r"less often|rarer|seldom|fewer|freq|every (few|n|N|\d+)|once (a|an|per|each)|disabl"
    r"|[Tt]urn.* off|leave .* out|only (the|what is) new|append|background"
    r"|another (thread|process)",
    step=Training,
)
def horses_and_zebras(folder):
    """Load pairs of small images, which takes next to no time."""
    return DataLoader(UnalignedDataset(folder), batch_size=1, shuffle=True, num_workers=2)
