"""Trying ops: on the same draws, on copies where needed, and what is found out about them."""

import random

import numpy as np
import pytest
import torch
from support.pipelines import (
    EverySecond,
    HiddenNoise,
    Locked,
    OwnNoise,
    Tensors,
    ThroughNumpy,
    TwiceInPlace,
    floats,
    halve,
    named_noise,
)

from stallscope.isolation import as_before
from stallscope.verbs.orders.pipeline import Chain
from stallscope.verbs.orders.run_ops import OpInput, Stream, digest_of, named_by, restored


def inputs():
    """Arguments of an op for 12 samples."""
    return [OpInput((floats(Tensors(None).image(index)),), {}) for index in range(12)]


def stream_of(op):
    return Stream(Chain(op).ops[0])


def tried(op):
    """Return the outcome of an op on images."""
    return stream_of(op).measure(inputs())


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
def test_two_calls_on_one_draw_give_the_same(kind):
    """Also for an op with a generator of its own, which stays where it is."""
    op = OwnNoise(kind)
    before = str(getattr(op.generator, "bit_generator", op.generator))

    outcome = tried(op)

    assert outcome.is_random
    assert "" == outcome.unsteady
    assert before == str(getattr(op.generator, "bit_generator", op.generator))
    pairs = zip(outcome.results, inputs(), strict=True)
    added = [float((after.value - before.value).mean()) for after, before in pairs]
    assert 12 == len({round(value, 3) for value in added})


def test_an_op_that_draws_nothing_is_not_random():
    """Whatever the generators do elsewhere."""
    assert not tried(halve).is_random


@pytest.mark.parametrize("op", [TwiceInPlace(), ThroughNumpy()])
def test_an_op_that_changes_its_input_gets_copies(op):
    """A change in place is noted, and the samples stay as before, also where torch sees none."""
    samples = inputs()
    before = digest_of(samples)

    outcome = stream_of(op).measure(samples)

    assert before == digest_of(samples)
    assert torch.equal(outcome.results[0].value, 2 * samples[0].value)


def system_noise():
    """Python's `SystemRandom` has no state that could be read or set."""
    op = OwnNoise("system")
    op.generator = random.SystemRandom()
    return op


def counting():
    """A number that grows with each call may matter later."""
    op = Locked()
    op.uncopied = None  # now it can be copied
    return op


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (HiddenNoise, "keeps a state"),
        (EverySecond, "keeps a state"),
        (system_noise, "unknown generator"),
        (counting, "counts its calls"),
    ],
)
def test_an_op_that_cannot_be_repeated_is_unsteady(make, why):
    """A hidden generator, or a state between calls; the user's own object is not called."""
    op = make()

    assert why in tried(op).unsteady
    assert 0 == getattr(op, "calls", 0)


def test_a_generator_of_a_functions_module_is_found_and_put_back():
    """A generator is seeded for each draw, and has its old state afterwards."""
    (generator,) = named_by(named_noise)
    before = str(generator.bit_generator.state)
    stream = stream_of(named_noise)

    with restored(stream.restores()):
        outcome = stream.measure(inputs())

    assert "" == outcome.unsteady
    assert before == str(generator.bit_generator.state)


def test_seeding_moves_every_global_generator():
    """Each draw has its own place in all three."""
    stream, seen = stream_of(halve), []
    with as_before(None):
        for sample in range(3):
            stream.seed((sample, 0))
            seen.append((torch.rand(()).item(), np.random.rand(), random.random()))

    assert [3, 3, 3] == [len(set(draws)) for draws in zip(*seen, strict=True)]
