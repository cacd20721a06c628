"""Trying ops: on the same draws, on copies where needed, and what is found out about them."""

from __future__ import annotations

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

from stallscope.verbs.orders import run_ops
from stallscope.verbs.orders.pipeline import Chain
from stallscope.verbs.orders.run_ops import OpInput, Stream, named_by, restored


def givens(samples=12):
    """What an op is called with."""
    data = Tensors(None)
    return [OpInput((floats(data.image(index)),), {}) for index in range(samples)]


def tried(op, samples=12):
    """An op tried on images."""
    (one,) = Chain(op).ops
    return Stream(one).measure(givens(samples))


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
def test_two_calls_on_one_draw_give_the_same(kind):
    """Also for an op with a generator of its own, which stays where it is."""
    op = OwnNoise(kind)
    before = str(getattr(op.generator, "bit_generator", op.generator))

    outcome = tried(op)

    assert outcome.is_random
    assert "" == outcome.unsteady
    assert before == str(getattr(op.generator, "bit_generator", op.generator))
    pairs = zip(outcome.results, givens(), strict=True)
    added = [float((made.args[0] - given.args[0]).mean()) for made, given in pairs]
    assert 12 == len({round(value, 3) for value in added})


def test_a_generator_without_a_seed_makes_an_op_unsteady():
    """Python's `SystemRandom` has no state that could be read or set."""
    op = OwnNoise("system")
    op.generator = random.SystemRandom()

    assert "unknown generator" in tried(op).unsteady


def test_an_op_that_draws_nothing_is_not_random():
    """Whatever the generators do elsewhere."""
    assert not tried(halve).is_random


@pytest.mark.parametrize("op", [TwiceInPlace(), ThroughNumpy()])
def test_an_op_that_changes_its_input_gets_copies(op):
    """It is said, and the samples are as before; also where torch cannot know."""
    given = givens()
    before = run_ops.digest_of(given)

    outcome = Stream(Chain(op).ops[0]).measure(given)

    assert before == run_ops.digest_of(given)
    assert torch.equal(outcome.results[0].args[0], 2 * given[0].args[0])


@pytest.mark.parametrize(
    ("op", "why"), [(HiddenNoise(), "keeps a state"), (EverySecond(), "keeps a state")]
)
def test_an_op_that_cannot_be_repeated_is_told(op, why):
    """A hidden generator, or a state between calls."""
    assert why in tried(op).unsteady


def test_an_op_that_counts_is_told():
    """A number that grows with each call may matter later; the user's own object has not moved."""
    op = Locked()
    op.uncopied = None  # now it can be copied

    assert "counts its calls" in tried(op).unsteady
    assert 0 == op.calls


def test_a_generator_of_a_functions_module_is_found_and_put_back():
    """It is seeded for each draw, and stands afterwards where it stood."""
    (generator,) = named_by(named_noise)
    before = str(generator.bit_generator.state)
    stream = Stream(Chain(named_noise).ops[0])

    with restored(stream.restores()):
        outcome = stream.measure(givens())

    assert "" == outcome.unsteady
    assert before == str(generator.bit_generator.state)


def test_seeding_moves_every_global_generator():
    """Each draw has its own place in all three."""
    stream, seen = Stream(Chain(halve).ops[0]), set()
    with pytest.MonkeyPatch.context():
        before = torch.get_rng_state(), np.random.get_state(), random.getstate()
        for sample in range(3):
            stream.seed((sample, 0))
            seen.add((torch.rand(()).item(), np.random.rand(), random.random()))
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])

    assert 3 == len({one for one, _, _ in seen}) == len({two for _, two, _ in seen})
