"""Searching a faster pipeline over real loaders: what is the same, left alone, and said."""

import copy
import io
import random
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from support.loaders import Jitter, Noise, NoiseStream
from support.pipelines import (
    KNOWN,
    Contrast,
    EverySecond,
    OwnNoise,
    SlowByPixel,
    Smooth,
    Tensors,
    TwiceInPlace,
    compared,
    floats,
    halve,
    middle,
    named_noise,
    no_return,
    triple,
)
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import stallscope as ss
from stallscope.bench import samples
from stallscope.bench.comparison import FASTER
from stallscope.demo import FasterRandomMask, RandomMask, case_b_loader
from stallscope.verbs.orders import orders as verb
from stallscope.verbs.orders import proposals
from stallscope.verbs.orders.result import NoSuchOrderError

FORK = {"num_workers": 2, "multiprocessing_context": "fork"}


@pytest.fixture(autouse=True)
def a_few_pairs(monkeypatch):
    """These tests look at what is measured, and not at how well."""
    monkeypatch.setattr(samples, "_FEWEST", 4)
    monkeypatch.setattr(samples, "_FEWEST_BATCHES", 2)
    monkeypatch.setattr(proposals, "_MOST_FINALISTS", 1)
    monkeypatch.setattr(verb, "_CLEAR", 10.0)


def quick(target: Any, **named: Any) -> ss.Orders:
    """Orders within a few seconds."""
    return ss.orders(target, **{"budget_s": 6, "samples": 12, **named})


def loader_of(*ops: Any, dataset: Any = Tensors, **named: Any) -> DataLoader:
    """A loader in this process, over a dataset whose pipeline is these ops."""
    return DataLoader(dataset(v2.Compose(list(ops))), **{"batch_size": 4, **named})


def slow_then_crop(**named: Any) -> DataLoader:
    """The op that takes time comes before the one that makes it needless to have all pixels."""
    return loader_of(SlowByPixel(), middle, **named)


class Jpegs(Smooth):
    """Encoded images, as `PIL.Image.open` gives them."""

    def image(self, index: int) -> Any:
        """A lazy image of 288 by 256 pixels."""
        file = io.BytesIO()
        super().image(index).resize((288, 256)).save(file, "JPEG", quality=90)
        return Image.open(file)


class Inline(Tensors):
    """Makes its samples without any call on an image."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 8, 8) + index


class Twice(Tensors):
    """Calls its pipeline for two views of a sample."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.image(index)), self.transform(self.image(index))


def generators() -> list[Any]:
    """States of the global generators."""
    numpy_state = np.random.get_state()
    return [torch.get_rng_state().tolist(), numpy_state[1].tolist(), random.getstate()]


def batches(loader: Any, seed: int = 0) -> list[Any]:
    """An epoch on a seed."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    return list(loader)


def same(first: list[Any], second: list[Any]) -> bool:
    """True if two epochs have the same bits."""
    pairs = zip(first, second, strict=True)
    return all(all(map(torch.equal, mine, theirs)) for mine, theirs in pairs)


@pytest.mark.parametrize(
    "pipeline",
    [
        pytest.param(
            pipeline,
            id=pipeline.name,
            marks=[pytest.mark.slow] * (pipeline.name == "albumentations"),
        )
        for pipeline in KNOWN
    ],
)
def test_equivalence_is_right_where_the_truth_is_known(pipeline):
    """On pipelines that commute, that do not, that draw, convert, change in place, and fail."""
    if pipeline.name == "albumentations":
        pytest.importorskip("albumentations")
    torch_state = torch.get_rng_state()

    grade = compared(pipeline)

    torch.set_rng_state(torch_state)
    assert pipeline.truth == grade.equivalence, grade.why


@pytest.fixture(scope="module")
def loader():
    """The loader that is measured."""
    return slow_then_crop(shuffle=True, **FORK)


@pytest.fixture(scope="module")
def orders(loader):
    """Result of a short search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proposals, "_MOST_FINALISTS", 2)
        return quick(loader, budget_s=60)  # ends sooner, unless others have the cores


@pytest.mark.slow
class TestInWorkers:
    """One measurement of a loader with workers."""

    def test_finds_the_order_that_is_faster(self, orders):
        """The crop first: the same bits, predicted, measured, and confirmed if it is faster."""
        row = orders.table().row(by_predicate=pl.col("trial") == 1, named=True)

        assert "middle → SlowByPixel" == row["order"]
        assert ("identical", "middle before SlowByPixel") == (row["equivalence"], row["change"])
        assert row["says"] != FASTER or row["loader_gain"] is not None, orders.notes
        assert row["predicted_s"] < orders.table().row(by_predicate=pl.col("trial") == 0)[2]
        assert row["measured_s"] is not None

    def test_each_pair_is_made_by_both(self, orders):
        """Trials that were timed have enough samples, and one that is faster has blocks."""
        pairs = orders.pairs.group_by("variant").agg(pl.col("samples").sum())

        assert pairs["samples"].min() >= samples._FEWEST
        says = orders.table().filter(trial=1)["says"].item()
        assert says != FASTER or {0, 1} == set(orders.blocks["variant"])

    def test_applied_it_gives_the_same_batches(self, orders, loader):
        """Bit for bit, from a new loader; the old one is what it was."""
        before = copy.copy(vars(loader.dataset))

        applied = orders.apply(loader, 1)

        assert same(batches(loader), batches(applied))
        assert applied.dataset.transform.transforms[0] is middle
        assert before == vars(loader.dataset)

    def test_the_code_makes_the_same_pipeline(self, orders):
        loader = slow_then_crop()
        code = orders.trials["code"][1]

        exec(code, {"loader": loader})  # noqa: S102 - our own text

        assert middle is loader.dataset.transform.transforms[0]

    def test_knows_the_ops(self, orders):
        """Names, what they take and give, and where their code is."""
        first = orders.ops.row(0, named=True)

        assert ["SlowByPixel", "middle"] == orders.ops["name"].to_list()
        assert ("uint8 (3, 32, 36)", "uint8 (3, 32, 36)") == (first["takes"], first["gives"])
        assert first["file"].endswith("pipelines.py")
        assert first["cost_low_s"] <= first["cost_s"] <= first["cost_high_s"]

    def test_predicted_times_are_taken_apart(self, orders):
        """The parts of a trial, if they are known, add up to its prediction."""
        predicted = dict(orders.trials.select("trial", "predicted_s").iter_rows())
        sums = dict(orders.parts.group_by("trial").agg(pl.col("seconds").sum()).iter_rows())
        swapped = orders.parts.filter(pl.col("trial") == 1)

        own = orders.parts.filter(pl.col("trial") == 0)["name"].to_list()
        assert ["fetch", "SlowByPixel", "middle", "collate and send"] == own
        assert {0, 1} <= sums.keys()
        assert sums == pytest.approx({trial: predicted[trial] for trial in sums})
        assert ["fetch", "middle", "SlowByPixel", "collate and send"] == swapped["name"].to_list()

    def test_any_order_can_be_asked_for(self, orders):
        """A panel gets costs by op, the comparison with pictures, code and a loader."""
        prediction = orders.bench.predict((1, 0))
        comparison = orders.bench.compare(prediction)

        parts = {part.name: part.seconds for part in prediction.parts}
        assert ["fetch", "middle", "SlowByPixel", "collate and send"] == [*parts]
        assert prediction.predicted_s == pytest.approx(sum(parts.values()))
        assert "identical" == comparison.grade.equivalence
        assert (24, 24, 3) == comparison.pictures[0][1].shape

    @pytest.mark.parametrize("wrong", [(0,), (0, 0), (0, 1, 2), 99])
    def test_what_is_no_order_is_refused(self, orders, loader, wrong):
        """The error lists what there is."""
        with pytest.raises(NoSuchOrderError, match=r"0 SlowByPixel, 1 middle|trials 0 to"):
            orders.apply(loader, wrong)

    def test_another_pipeline_is_refused(self, orders):
        """A loader with other ops in the same place."""
        with pytest.raises(NoSuchOrderError, match=r"another pipeline \(halve instead of Slow"):
            orders.apply(loader_of(halve), 1)


class Attributes(Tensors):
    """Calls two ops that it holds, one after the other."""

    def __init__(self, transform: Any) -> None:
        super().__init__(transform)
        self.crop = middle

    def __getitem__(self, index: int) -> Any:
        image = self.transform(self.image(index))
        return self.crop(image), index


@pytest.mark.slow
def test_ops_in_attributes_are_exchanged():
    loader = DataLoader(Attributes(triple), batch_size=4)
    held = dict(vars(loader.dataset))

    orders = quick(loader, samples=4)
    applied = orders.apply(loader, 1)

    assert "middle → triple" == orders.trials["order"][1]
    assert "Attributes.__getitem__, 1 chain of calls" in str(orders)
    assert same(batches(loader), batches(applied))
    assert held == vars(loader.dataset)


@pytest.mark.slow
def test_leaves_everything_as_it_was():
    """Generators, also the ops' own and their module's, samplers, attributes and living workers."""
    own, second = OwnNoise("torch"), EverySecond()
    ops = (floats, own, second, TwiceInPlace(), named_noise)
    drawn = torch.Generator()
    loader = loader_of(*ops, shuffle=True, generator=drawn, persistent_workers=True, **FORK)
    living = iter(loader)
    batch = next(living)

    def states() -> list[Any]:
        return [*generators(), own.generator.get_state().tolist(), drawn.get_state().tolist()]

    before, attributes = states(), dict(vars(loader.dataset))

    quick(loader, budget_s=4)

    assert before == states()
    assert (0, attributes) == (second.calls, vars(loader.dataset))
    assert list(ops) == loader.dataset.transform.transforms
    assert len(batch) == len(next(living))
    living._shutdown_workers()


@pytest.mark.slow
def test_a_rewrite_is_compared_and_timed():
    """The same draws, the same bits; and its own name in the order."""
    loader = case_b_loader(num_workers=0, batch_size=2, entries=8)

    orders = quick(loader, alternatives={"RandomMask": FasterRandomMask()}, samples=4)

    row = orders.trials.row(by_predicate=pl.col("kind") == "alternative", named=True)
    assert "FasterRandomMask instead of RandomMask" == row["change"]
    assert "identical" == row["equivalence"]
    assert "→ FasterRandomMask →" in row["order"]
    applied = orders.apply(loader, row["trial"])
    assert type(applied.dataset.transform.transforms[2]) is FasterRandomMask
    assert type(loader.dataset.transform.transforms[2]) is RandomMask
    parts = orders.parts.filter(pl.col("trial") == row["trial"])
    assert "FasterRandomMask" in parts["name"]
    assert parts["seconds"].sum() == pytest.approx(row["predicted_s"])


@pytest.mark.slow
def test_a_rewrite_that_does_something_else_is_not_recommended():
    """However fast it is."""
    orders = quick(loader_of(triple, middle), alternatives={"triple": halve}, budget_s=3)

    row = orders.trials.row(by_predicate=pl.col("kind") == "alternative", named=True)
    assert ("different", False) == (row["equivalence"], row["gains"])


@pytest.mark.slow
def test_decoding_is_nobodys_but_its_own():
    """A lazy image is decoded by the first op; its time stands apart, and other ways are tried."""
    loader = loader_of(v2.Resize(32), v2.PILToTensor(), dataset=Jpegs)

    orders = quick(loader)

    decode = orders.ops.row(0, named=True)
    changes = orders.trials.filter(pl.col("kind") == "decode")["change"].to_list()
    assert ("decode", "JPEG 288×256") == (decode["name"], decode["takes"])
    assert orders.rest.decode_s == decode["cost_s"] > 0
    assert any("Image.draft" in change for change in changes)


@pytest.mark.slow
def test_ops_on_the_batch_give_the_same_batch():
    """The last op works once for a batch, in the collate function."""
    loader = loader_of(middle, halve)
    orders = quick(loader)
    trial = orders.trials.filter(pl.col("kind") == "batch").row(0, named=True)

    applied = orders.apply(loader, trial["trial"])

    assert "identical" == trial["equivalence"]
    assert same(batches(loader), batches(applied))
    assert [middle] == applied.dataset.transform.transforms
    parts = orders.parts.filter(pl.col("trial") == trial["trial"])["name"].to_list()
    assert ["fetch", "middle", "halve on the batch", "collate and send"] == parts


@pytest.mark.slow
def test_the_part_that_is_always_the_same_can_be_kept():
    """Up to the first op that draws; the samples are the same, the second time from memory."""
    loader = loader_of(halve, middle, v2.RandomHorizontalFlip())
    orders = quick(loader)
    trial = orders.trials.filter(pl.col("kind") == "cache").row(0, named=True)

    applied = orders.apply(loader, trial["trial"])

    assert "everything up to middle kept in memory" == trial["change"]
    assert not trial["gains"]
    for _ in range(2):
        assert same(batches(loader), batches(applied))


def test_a_cache_larger_than_the_free_memory_is_not_timed(monkeypatch):
    monkeypatch.setattr(proposals, "memory_limit", lambda *_: 1_000)

    orders = quick(loader_of(halve, middle), budget_s=3)

    cache = orders.trials.filter(pl.col("kind") == "cache").row(0, named=True)
    assert (
        "for 24 samples in one process; too much for the 1.0 kB that are free" in cache["changes"]
    )
    assert cache["predicted_s"] is None
    assert cache["trial"] not in orders.pairs["variant"]


def test_of_orders_that_cost_the_same_the_simplest_comes_first():
    """Up to a share of the sample's time; a cheaper order may move more ops."""
    timed = [
        (0.5003, (0, 2, 1, 3)),
        (0.5, (3, 2, 1, 0)),
        (0.5001, (2, 0, 3, 1)),
        (0.7, (0, 1, 2, 3)),
    ]

    orders = proposals._simplest_first(timed, whole_s=1.0)

    assert [(0, 2, 1, 3), (2, 0, 3, 1), (3, 2, 1, 0), (0, 1, 2, 3)] == orders


@pytest.mark.parametrize(
    ("dataset", "error", "what"),
    [
        (Inline(None), "NoPipelineError", "no transform of its own, and no chain of functions"),
        (Twice(v2.Compose([halve])), "NoPipelineError", "several times per sample"),
        (NoiseStream(), "NoPipelineError", "a stream that calls no transform of its own"),
        (Tensors(v2.Compose([halve, no_return])), "OpResultError", "no_return returns None"),
    ],
)
def test_what_has_no_order_is_said(dataset, error, what):
    """One sentence with what was found and what to do."""
    with pytest.raises(ss.StallscopeError, match=what) as raised:
        quick(DataLoader(dataset, batch_size=2))

    assert error == type(raised.value).__name__


@pytest.mark.parametrize(
    ("named", "what"),
    [
        ({"samples": 0}, "samples=0"),
        ({"budget_s": -1}, "budget_s=-1"),
        ({"alternatives": {"Blur": halve}}, r"no op 'Blur'.*'halve', 'middle'"),
        ({"alternatives": {"halve": 3}}, "give an op that can be called"),
        ({"alternatives": {"halve": OwnNoise}}, "an object and not its class"),
        ({"alternatives": [halve]}, "give a dictionary"),
    ],
)
def test_what_cannot_be_used_is_said(named, what):
    """Numbers out of range, and rewrites of ops that are not there."""
    with pytest.raises(ss.StallscopeError, match=what):
        quick(loader_of(halve, middle), **named)


def test_a_pipeline_of_one_op_has_no_other_order():
    """A note names it; the rest is still compared."""
    orders = quick(DataLoader(Noise(transform=Jitter()), batch_size=4), budget_s=2)

    assert ["Jitter"] == orders.ops["name"].to_list()
    assert any("is the only op" in note for note in orders.notes)
    assert 0 == orders.trials["trial"][0]


@pytest.mark.slow
def test_an_order_that_raises_is_kept_with_its_reason():
    """An op of PIL's alone cannot come after the conversion."""
    orders = quick(loader_of(Contrast(), v2.PILToTensor(), dataset=Smooth), budget_s=3)

    row = orders.trials.row(by_predicate=pl.col("equivalence") == "fails", named=True)
    assert "Contrast raises" in row["why"]
    assert row["predicted_s"] is None
    assert "PILToTensor → Contrast" == row["order"]


def test_an_exception_of_the_datasets_passes_unchanged():
    """In type and text; nothing of the search replaces it."""

    class Broken(Tensors):
        def image(self, index):
            raise KeyError("no such image")

    with pytest.raises(KeyError, match="no such image"):
        quick(DataLoader(Broken(halve), batch_size=2))


def test_a_budget_that_is_over_at_once_still_gives_an_answer():
    """Only the pipeline as it is, not measured; and what was left out is said."""
    orders = quick(loader_of(middle, halve, triple), budget_s=0.001)

    assert 0 == orders.trials["trial"][0]
    assert orders.pairs.is_empty()
    assert orders.counts.unexplored > 0
    assert any("were too short for all orders" in note for note in orders.notes)
    assert orders.best() is None


@pytest.mark.slow
def test_a_dataset_that_reads_its_files_can_decode_otherwise(tmp_path):
    """Torchvision's folder holds the function that makes an image of a path: another is tried."""
    for index in range(12):
        folder = tmp_path / "abc"[index % 3]
        folder.mkdir(exist_ok=True)
        Smooth(None).image(index).resize((288, 256)).save(folder / f"{index}.jpg", quality=90)
    folder = ImageFolder(str(tmp_path), v2.Compose([v2.Resize(32), v2.PILToTensor()]))
    loader = DataLoader(folder, batch_size=4)

    orders = quick(loader)

    decode = orders.trials.filter(pl.col("kind") == "decode")
    draft = decode.filter(pl.col("change").str.contains("Image.draft")).row(0, named=True)
    (images, labels), (new, same_labels) = (
        next(iter(each)) for each in (loader, orders.apply(loader, draft["trial"]))
    )
    assert 1 == decode.height
    assert draft["equivalence"] in ("8-bit rounding", "different")
    assert torch.equal(labels, same_labels)
    assert 0 < (images.float() - new.float()).abs().mean() < 10
    assert "default_loader" == folder.loader.__name__
