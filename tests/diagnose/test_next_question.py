"""Choice of the next measurement: it decides between the causes that are still possible."""

from dataclasses import replace

import pytest
from support.build_facts import IDLE, WAITS_IN_FETCH, known

from stallscope.verbs.diagnose import verdict
from stallscope.verbs.diagnose.verdict import (
    BATCH,
    LADDER,
    LOOP_STACKS,
    ONE_WORKER,
    STACKS,
    WAITING_STACKS,
    judge,
)

WAITING = known(work=WAITS_IN_FETCH, use=IDLE)
DECODES = known(work={("decode", "decode"): 0.9, ("Blur", "transform"): 0.1})
SURE = replace(DECODES, megapixels=12.0)
DOUBTFUL = replace(SURE, others_share=0.8)
COLLATES = known(work={("collate", "collate"): 0.9, ("Blur", "transform"): 0.1})
CONVERTS = known(work={("ToTensor", "transform"): 0.5, ("Normalize", "transform"): 0.5})
BLURS = known(work={("Blur", "transform"): 0.5, ("Warp", "transform"): 0.5})
NEAR = known(stalled=0.12, work=WAITS_IN_FETCH, use=IDLE, load=0.6)
STEP = {"own_parts": {"step": 0.95}, "use": {"loop_cpu": 0.95}}
COMPUTES = known(stalled=0.01, load=0.4, setup={"simulated": False}, **STEP)
HERE = known(setup={"num_workers": 0})
STREAM = known(setup={"streams": True})
UNSEEN = known(work={("getitem", "getitem"): (0.9, 1.0), ("Blur", "transform"): 0.1}, use=IDLE)


def asked(facts, *before):
    """Return the phase that is asked for next."""
    question = verdict.next_question(facts, judge(facts), before)
    return question.phase if question else None


def with_setup(facts, **setup):
    return replace(facts, setup=replace(facts.setup, **setup))


@pytest.mark.parametrize(
    ("facts", "before", "phase"),
    [
        pytest.param(SURE, [], None, id="a clear cause asks for nothing"),
        pytest.param(DECODES, [], STACKS, id="no image: what helps depends on what reads it"),
        pytest.param(COLLATES, [STACKS], BATCH, id="collating: would fewer bytes do"),
        pytest.param(CONVERTS, [STACKS, ONE_WORKER], BATCH, id="converting: may the device do it"),
        pytest.param(replace(NEAR, stall_low=0.07), [], LADDER, id="it may be healthy"),
        pytest.param(COMPUTES, [], LOOP_STACKS, id="what does the training process compute"),
        pytest.param(with_setup(COMPUTES, num_workers=0), [], LOOP_STACKS, id="without workers"),
        pytest.param(
            known(work={("main process", "main"): 1.0}, load=0.4), [], LOOP_STACKS, id="a sampler"
        ),
        pytest.param(HERE, [], STACKS, id="batches made here: which line"),
        pytest.param(
            replace(HERE, own_parts={"logging": 0.9}, model_share=0.1),
            [],
            LOOP_STACKS,
            id="logging without workers",
        ),
        pytest.param(WAITING, [], ONE_WORKER, id="waiting: is it shared"),
        pytest.param(STREAM, [], STACKS, id="a stream: first its line"),
        pytest.param(STREAM, [STACKS], ONE_WORKER, id="a stream: do all the same"),
        pytest.param(
            replace(WAITING, alone_waiting_s=0.1),
            [ONE_WORKER],
            WAITING_STACKS,
            id="what is shared may be a lock",
        ),
        pytest.param(UNSEEN, [ONE_WORKER], WAITING_STACKS, id="own code that waits: for what"),
        pytest.param(
            known(stalled=0.01, use={"threads": 67.0}), [], LADDER, id="threads beside the step"
        ),
        pytest.param(known(stalled=0.01), [], None, id="a healthy loop"),
        pytest.param(DOUBTFUL, [], LADDER, id="doubt"),
        pytest.param(
            known(work={("Blur", "transform"): 0.9, ("decode", "decode"): 0.1}),
            [],
            STACKS,
            id="a transform: which line",
        ),
    ],
)
def test_asks(facts, before, phase):
    """The next phase is the first untried measurement that decides something."""
    assert phase == asked(facts, *before)


@pytest.mark.parametrize(
    ("facts", "before", "phase"),
    [
        pytest.param(SURE, [STACKS], BATCH, id="decoding does not ask what a batch holds"),
        pytest.param(BLURS, [STACKS, ONE_WORKER], BATCH, id="nor do other transforms"),
        pytest.param(replace(NEAR, stall_low=0.11), [], LADDER, id="stalls that are sure"),
        pytest.param(known(stalled=0.01, load=0.4, **STEP), [], LOOP_STACKS, id="a timer"),
        pytest.param(
            replace(COMPUTES, model_share=0.9, own_parts={"step": 0.05}),
            [],
            LOOP_STACKS,
            id="a model",
        ),
        pytest.param(with_setup(WAITING, num_workers=1), [], ONE_WORKER, id="one worker alone"),
        pytest.param(known(), [STACKS], ONE_WORKER, id="no stream"),
        pytest.param(
            replace(WAITING, alone_waiting_s=0.36),
            [ONE_WORKER],
            WAITING_STACKS,
            id="what is not shared is no lock",
        ),
        pytest.param(with_setup(DOUBTFUL, has_step=False), [], LADDER, id="a ladder has no end"),
        pytest.param(WAITING, [ONE_WORKER], ONE_WORKER, id="nothing is asked twice"),
    ],
)
def test_does_not_ask(facts, before, phase):
    """A measurement that would decide nothing is not asked for."""
    assert phase != asked(facts, *before)
