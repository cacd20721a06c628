"""Findings: their cost and their evidence."""

from dataclasses import replace

import pytest
from support.build_facts import (
    CALM,
    CASES,
    CONVERTS,
    IDLE,
    LARGE,
    SCALED,
    SPINNING,
    TINY,
    known,
    parts_of,
)

from stallscope.loops.cached_values import BatchBytes
from stallscope.model.exposure import Exposure
from stallscope.model.loop_time import Starts
from stallscope.verbs.diagnose.facts import Gain
from stallscope.verbs.diagnose.verdict import judge, side_notes

LOCKED = replace(CASES["lock"], exposure=Exposure(parts_of({("decode", "decode"): (1, 1)})))


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        (known(**CALM, own_parts={"logging": 0.15, "garbage": 0.1, "step": 0.7}), 0.25),
        (known(**TINY), 0.2),
        (LOCKED, LOCKED.stall_share),
        (known(gain=Gain(1.2, 1.15, 1.25), **SPINNING), 1 - 1 / 1.2),
        (known(work=CONVERTS, batch=SCALED), 0.35),
    ],
    ids=["parts of the loop", "needless workers", "a lock", "threads, by the ladder", "floats"],
)
def test_a_finding_costs_what_its_remedy_takes_away(facts, severity):
    """The severity is this share of the loop's time, whatever the other findings are."""
    assert severity == pytest.approx(judge(facts)[0].severity)


@pytest.mark.parametrize(
    ("sent", "codes"), [(0.6, ["sending", "one-transform"]), (0.4, ["one-transform", "sending"])]
)
def test_receiving_and_mapping_have_their_costs(sent, codes):
    """A loop that stalls 42% for batches that cost much to map and to receive has both findings."""
    work = {("unpickle", "sending"): sent, ("Mapper", "transform"): 1 - sent}

    findings = judge(known(stalled=0.42, load=1.3, work=work))

    assert codes == [finding.code for finding in findings]
    costs = {finding.code: finding.severity for finding in findings}
    assert costs == pytest.approx({"sending": 0.42 * sent, "one-transform": 0.42 * (1 - sent)})


@pytest.mark.parametrize(
    ("code", "facts", "evidence"),
    [
        (
            "one-transform",
            known(work={("getitem", "getitem"): (0.7, 0.95), ("Blur", "transform"): 0.3}, use=IDLE),
            {"all_transforms_exposed_share": 0.3},
        ),
        ("sending", known(**LARGE, batch=SCALED._replace(release_s=0.5)), {"release_share": 0.4}),
    ],
    ids=["transforms", "memory of batches"],
)
def test_evidence_has_the_numbers_of_its_rule(code, facts, evidence):
    (finding,) = (cause for cause in judge(facts) if cause.code == code)

    assert evidence == pytest.approx({name: finding.evidence[name] for name in evidence})


def test_without_a_step_no_title_mentions_a_step():
    """Full cores are counted in cores, not relative to a step."""
    alone = replace(CASES["cpu-saturated"].setup, has_step=False)
    findings = judge(replace(CASES["cpu-saturated"], setup=alone))

    (full,) = (finding for finding in findings if finding.code == "cpu-saturated")
    assert "use 2.0 of 2 cores" in full.title
    assert "cpu_load_factor" not in full.evidence


def test_batches_that_carry_the_state_of_their_dataset_name_its_setting():
    facts = known(**TINY)
    verdict = judge(replace(facts, setup=replace(facts.setup, sends_state=True)))[0]

    assert verdict.title.endswith("each batch carries the dataset's state")
    assert verdict.next_step.startswith("snapshot_every_n_steps")


@pytest.mark.parametrize(("workers", "code"), [(2, "memory-growth"), (0, "healthy")])
def test_kept_batches_are_the_verdict_of_a_loop_that_hardly_waits(workers, code):
    """Without workers they may be those of a dataset in memory."""
    facts = known(stalled=0.02, keeps_batches=True, setup={"num_workers": workers})

    assert code == judge(facts)[0].code


def test_an_untested_rule_says_so():
    """Pinning that holds half of the loop's time is named, and that the rule is not tested."""
    assert not judge(known(stalled=0.5, work={("pin", "pin"): 1.0}))[0].tested


def test_the_memory_of_batches_is_no_work_of_the_loop():
    """The loop's own code only frees this memory and is not to blame."""
    facts = known(**LARGE, batch=BatchBytes(100_000_000, 0, 0, release_s=1.0))

    assert "main-process" not in {finding.code for finding in judge(facts)}


@pytest.mark.parametrize(("extra_s", "begins"), [(2.0, 0.2), (0.5, 0.0)])
def test_costs_are_shares_of_an_epoch_that_begins_slowly(extra_s, begins):
    """Costs are shares of an epoch if its begin is a finding, else of the steady state."""
    facts = known(stalled=0.5, starts=Starts(extra_s, epoch_s=8.0, epochs=3, again=True))
    alone = replace(facts, starts=Starts())

    costs = {
        finding.code: finding.severity for finding in judge(facts) if finding.code != "start-up"
    }
    assert costs == pytest.approx(
        {finding.code: finding.severity * (1 - begins) for finding in judge(alone)}
    )


def test_a_validation_is_noted_beside_the_verdict():
    """A validation is another loop, which may wait as well."""
    assert "validation" in side_notes(known(validation_share=0.3), ())[0]
    assert not side_notes(known(validation_share=0.05), ())
