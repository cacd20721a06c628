import random
import re

import torch
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question


class FeatureFactory:
    """Knows groups of atoms by their definitions."""

    def __init__(self, text):
        self.families: dict[str, list[str]] = {}
        macros: dict[str, str] = {}
        for line in text.splitlines():
            kind, name, pattern = line.split()
            for macro in re.findall(r"\{(\w+)\}", pattern):
                pattern = pattern.replace("{" + macro + "}", macros[macro])
            if kind == "AtomType":
                macros[name] = pattern
            else:
                self.families[name] = re.findall(r"[A-Z][a-z]?|[a-z]|\d|[^\w\s]", pattern)

    def count(self, smiles):
        return [sum(map(smiles.count, set(atoms))) for atoms in self.families.values()][:16]


def build_feature_factory(path):
    return FeatureFactory(path.read_text())


class WeaveAtomFeaturizer:
    """Describes the atoms of a molecule."""

    def __init__(self, fdef_name):
        self.fdef_name = fdef_name

    def __call__(self, smiles):
        mol_featurizer = build_feature_factory(self.fdef_name)
        families = mol_featurizer.count(smiles)
        return torch.tensor([[ord(letter), *families] for letter in smiles], dtype=torch.float32)


class MoleculeCSVDataset(Samples):
    """Molecules, as strings."""

    def __init__(self, featurizer):
        draw = random.Random(0)
        self.smiles = ["".join(draw.choices("CCCCNOScno", k=32)) for _ in range(2000)]
        self.featurizer = featurizer

    def __getitem__(self, index):
        return self.featurizer(self.smiles[index % len(self.smiles)]), index % 2


@question(
    source="dgl-lifesci #205, #206",
    report="loading the featurizer is the bottleneck; once, in __init__",
    step_s=0.008,
    causes=("one-transform",),
    place=r"build_feature_factory|FeatureFactory|WeaveAtomFeaturizer|__call__|__getitem__",
    lever=r"\bonce\b|__init__|[Kk]eep|\bcache|beforehand|in advance",
)
def atoms_of_molecules(folder):
    """Read for each molecule what groups of atoms there are."""
    draw = random.Random(0)
    path = folder / "BaseFeatures.fdef"
    lines = [f"AtomType A{n} [{','.join(draw.choices('CNOScno', k=12))}]" for n in range(60)]
    for number in range(200):
        pattern = "".join(f"{{A{draw.randrange(60)}}}~" for _ in range(5))
        lines.append(f"DefineFeature F{number} {pattern}")
    path.write_text("\n".join(lines))
    dataset = MoleculeCSVDataset(WeaveAtomFeaturizer(path))
    return DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)
