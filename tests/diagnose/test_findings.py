"""What a finding costs and what its numbers are; and the loop's time in its parts beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from support.build_facts import CASES, IDLE, WAITS_IN_FETCH, known, parts_of
from support.build_storage import a_storage

from stallscope.diagnose.accounting import accounting
from stallscope.diagnose.facts import Gain, ThreadTimes
from stallscope.diagnose.text import numbers_of
from stallscope.diagnose.verdict import judge, side_notes
from stallscope.loops.cached_values import BatchBytes
from stallscope.model.batch_times import HandoverTimes, Quartiles
from stallscope.model.exposure import Exposure
from stallscope.model.starts import Starts

CALM: Any = {"stalled": 0.01, "load": 0.4}
TINY: Any = {"stalled": 0.05, "load": 0.05, "making": {"handover": HandoverTimes(0.01, 0.03, 0.1)}}
LARGE: Any = {"stalled": 0.1, "load": 0.5, "own_parts": {"step": 0.5, "other": 0.4}}
LOCKED = replace(CASES["lock"], exposure=Exposure(parts_of({("decode", "decode"): (1, 1)})))
SPINNING: Any = {"stalled": 0.03, "load": 0.4, "use": {"threads": 67.0}, "extra_threads_share": 0.8}
CONVERTS = {
    ("ToTensor", "transform"): 0.35,
    ("Normalize", "transform"): 0.35,
    ("Flip", "transform"): 0.1,
    ("decode", "decode"): 0.2,
}
SCALED = BatchBytes(100_000_000, 96_000_000, 24_000_000)


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
    """Its share of the loop's time, whatever else there is."""
    assert severity == pytest.approx(judge(facts)[0].severity)


@pytest.mark.parametrize(
    ("code", "facts", "evidence"),
    [
        (
            "main-process",
            known(setup={"num_workers": 0}, own_threads=ThreadTimes(8, 1.5, 0.087)),
            {"batch_own_threads_s": 1.5, "batch_one_thread_s": 0.087, "num_workers_count": 0},
        ),
        (
            "storage-latency",
            known(
                work=WAITS_IN_FETCH,
                use=IDLE,
                setup={"storage": a_storage({1: 0.002, 8: 0.0025})},
            ),
            {"storage_cold_readers": 8},
        ),
        (
            "one-transform",
            known(work={("getitem", "getitem"): (0.7, 0.95), ("Blur", "transform"): 0.3}, use=IDLE),
            {"all_transforms_exposed_share": 0.3},
        ),
        ("sending", known(**LARGE, batch=SCALED._replace(release_s=0.5)), {"release_share": 0.4}),
    ],
    ids=["threads", "storage", "transforms", "memory of batches"],
)
def test_evidence_has_the_numbers_of_its_rule(code, facts, evidence):
    """Each under its own name."""
    (found,) = (one for one in judge(facts) if one.code == code)

    assert evidence == pytest.approx({name: found.evidence[name] for name in evidence})


@pytest.mark.parametrize(
    ("work", "batch"),
    [
        ({("collate", "collate"): 0.7, ("Flip", "transform"): 0.3}, BatchBytes(100, 40, 10)),
        ({("send", "sending"): 0.9, ("Flip", "transform"): 0.1}, BatchBytes(100, 40, 10)),
        ({("Blur", "transform"): 0.5, ("ToTensor", "transform"): 0.3}, SCALED),
    ],
    ids=["mostly something else", "sent", "no conversion"],
)
def test_what_uint8_would_not_hold_changes_nothing(work, batch):
    """Of a batch that is mostly something else, or of a blur, uint8 is no remedy."""
    assert judge(known(work=work)) == judge(known(work=work, batch=batch))


def test_without_a_step_nothing_is_said_of_one():
    """Full cores are then cores, not so many times what a step leaves."""
    alone = replace(CASES["cpu-saturated"].setup, has_step=False)
    found = judge(replace(CASES["cpu-saturated"], setup=alone))

    (full,) = (one for one in found if one.code == "cpu-saturated")
    assert "use 2.0 of 2 cores" in full.title
    assert "cpu_load_factor" not in full.evidence


def test_a_rule_that_nobody_tried_says_so():
    """Pinning that holds half of the loop's time is named, and that the rule is not tested."""
    assert not judge(known(stalled=0.5, work={("pin", "pin"): 1.0}))[0].tested


@pytest.mark.parametrize(
    ("low", "text"), [(0.2, "no significant difference"), (1.1, "27\N{MULTIPLICATION SIGN} (1.1")]
)
def test_a_factor_that_may_be_a_loss_has_no_digits(low, text):
    """They would look like a gain."""
    evidence = {"headroom_factor": 27.0, "headroom_factor_low": low, "headroom_factor_high": 252.0}

    (number,) = numbers_of(evidence)

    assert number.value.startswith(text)


class TestAccounts:
    def test_have_the_memory_of_batches_as_sending(self):
        """It is given back in the loop's own code, which is not to blame."""
        facts = known(**LARGE, batch=BatchBytes(100_000_000, 0, 0, release_s=1.0))
        half_s = facts.time.step_s / 2
        time = replace(facts.time, step_s=half_s, other_s=half_s)
        accounts = accounting(replace(facts, time=time))

        released = accounts.filter(pl.col("part") == "memory of batches, given back")
        assert ["send"] == released["kind"].to_list()
        assert 0.4 == pytest.approx(released["loop_share"].item())
        assert 1.0 == pytest.approx(accounts["loop_share"].sum(), abs=1e-6)
        assert "main-process" not in {one.code for one in judge(facts)}

    @pytest.mark.parametrize(
        ("backward", "steps"),
        [
            (0.6, {"forward (until backward)": 0.2, "backward": 0.6, "rest of the step": 0.2}),
            (0.9, {"step": 1.0}),  # longer than the step itself: nothing would add up
        ],
    )
    @pytest.mark.parametrize("slowed", [False, True])
    def test_have_the_step_in_its_parts(self, backward, steps, slowed):
        """By the names that the run has; in a step that workers slow down each part is slower."""
        facts = known(stalled=0.1, gain=Gain(1.25, 1.2, 1.3) if slowed else None)
        parts = {"forward (until backward)": 0.2, "backward": backward}
        times = [(name, "step", part * facts.time.step_s) for name, part in parts.items()]
        accounts = accounting(replace(facts, time=replace(facts.time, parts=tuple(times))))

        own = dict(accounts.filter(~pl.col("stalled")).select("part", "loop_share").iter_rows())
        whole = 0.9
        if slowed:
            assert 0.1 == pytest.approx(own.pop("step, slower beside the workers"))
            whole = 0.8
        assert own == pytest.approx({name: whole * part for name, part in steps.items()})
        assert 1.0 == pytest.approx(accounts["loop_share"].sum(), abs=1e-6)

    @pytest.mark.parametrize(("extra_s", "begins"), [(2.0, [0.2]), (0.5, [])])
    def test_have_the_begin_of_epochs(self, extra_s, begins):
        """Where it is a finding; all is a share of an epoch then, and adds up as before."""
        facts = known(stalled=0.5, starts=Starts(extra_s, epoch_s=8.0, epochs=3, again=True))
        alone = replace(facts, starts=Starts())
        accounts, steady = accounting(facts), accounting(alone)

        is_begin = pl.col("part") == "begin of the epochs"
        assert begins == pytest.approx(accounts.filter(is_begin)["loop_share"].to_list())
        assert 1.0 == pytest.approx(accounts["loop_share"].sum(), abs=1e-6)
        left = 1 - sum(begins)
        costs = {one.code: one.severity for one in judge(facts) if one.code != "start-up"}
        assert costs == pytest.approx({one.code: one.severity * left for one in judge(alone)})
        assert (steady["loop_share"] * left).to_list() == pytest.approx(
            accounts.filter(~is_begin)["loop_share"].to_list()
        )

    def test_count_begins_within_the_steady_state_once(self):
        """Workers that live on begin the later epochs there; what is left is of an epoch, too."""
        works = {("decode", "decode"): 0.2, ("Blur", "transform"): 0.2}
        starts = Starts(2.0, epoch_s=8.0, epochs=3, again=True)
        facts = known(stalled=0.5, work={("start workers", "start"): 0.6, **works}, starts=starts)

        parts = dict(accounting(facts).select("part", "loop_share").iter_rows())
        costs = {one.code: one.severity for one in judge(facts)}

        assert "start-up" in costs
        # Of what was seen 30% are begins, 10% each stage and 50% the step: 80% of it is steady
        steady = {"step": 50, "decode": 10, "Blur": 10}
        whole = {name: 0.8 * part / 70 for name, part in steady.items()}
        assert parts == pytest.approx(whole | {"begin of the epochs": 0.2})
        assert whole["decode"] == pytest.approx(costs["decode"])


def test_a_finding_about_all_stalls_costs_no_more_than_those_that_are_no_begins():
    """One worker that all stalls wait for: the begins among them are a finding of their own."""
    works = {("start workers", "start"): 0.4, ("decode", "decode"): 0.6}
    starts = Starts(2.0, epoch_s=18.0, epochs=3, again=True)
    slow = {"making": {"by_worker": {0: Quartiles(0.3, 0.3, 0.3), 1: Quartiles(0.1, 0.1, 0.1)}}}
    facts = known(stalled=0.9, work=works, starts=starts, stalled_by_worker={0: 1.0}, **slow)

    costs = {one.code: one.severity for one in judge(facts)}

    assert 0.9 * 0.54 / 0.64 == pytest.approx(costs["slow-worker"])


class TestSideNotes:
    LATE = Starts(before=700, before_s=9.5, epoch_s=300.0, extra_s=9.4, again=True)

    def test_a_late_begin_is_the_verdict_where_nothing_else_can_be_told(self):
        """Where one step was seen, it is said why there are not more."""
        facts = known(starts=self.LATE)
        short = replace(facts, time=replace(facts.time, steps=1))

        (found,) = judge(short)

        assert "start-up" == found.code
        assert "it takes 700 batches from the loader before its first step, in 9.5 s" in found.title
        assert "sampler" in found.next_step
        assert not side_notes(short, (found,))

    def test_it_is_a_note_beside_any_other(self):
        """It happens once."""
        facts = known(starts=self.LATE)
        found = judge(facts)

        assert "start-up" not in {one.code for one in found}
        assert "700 batches" in side_notes(facts, found)[0]
        assert not side_notes(known(starts=replace(self.LATE, before=3)), found)

    def test_a_validation_is_told_beside_the_verdict(self):
        """It is another loop, which may wait as well."""
        assert "validation" in side_notes(known(validation_share=0.3), ())[0]
        assert not side_notes(known(validation_share=0.05), ())


def test_cores_that_cannot_keep_up_are_behind():
    """Also where each worker would be quick enough with a core for itself."""
    assert known(load=0.5).pace.is_behind
    assert not known(load=0.5, use={"worker_cpu": 0.1}).pace.is_behind
    assert known(load=2.0, use={"worker_cpu": 0.1}).pace.is_behind
