"""The order of the rules: each cause in numbers that are only its own, and what is named first."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import ClassVar

import pytest
from support.build_facts import CASES, IDLE, SENDS, SPIKES, WAITS_IN_FETCH, known, parts_of

from stallscope.diagnose.causes import CAUSES, KNOWN, handbook
from stallscope.diagnose.facts import Gain, Spikes
from stallscope.diagnose.text import numbers_of
from stallscope.diagnose.verdict import judge
from stallscope.model.batch_times import HandoverTimes
from stallscope.model.exposure import Exposure, StagePart, longest_first
from stallscope.model.starts import Starts


class TestVerdict:
    @pytest.mark.parametrize("code", CASES)
    def test_each_cause_is_named_from_its_own_numbers(self, code):
        """Numbers in which one thing is wrong give that verdict."""
        assert code == judge(CASES[code])[0].code

    def test_every_cause_has_its_numbers_here(self):
        """No cause can be named that is not tried in this file."""
        assert set(CAUSES) == set(CASES)

    @pytest.mark.parametrize("code", CASES)
    def test_a_finding_is_whole(self, code):
        """A finding has a title without open places, numbers, a next step, and shares up to 1."""
        for found in judge(CASES[code]):
            assert "{" not in found.title + found.next_step
            assert found.evidence
            assert found.next_step
            assert 0 <= found.severity <= 1
            assert 0 <= found.confidence <= 1

    @pytest.mark.parametrize("code", CASES)
    def test_no_cause_is_named_twice(self, code):
        """Each code occurs once."""
        codes = [found.code for found in judge(CASES[code])]

        assert len(codes) == len(set(codes))


class TestHandbook:
    def test_every_cause_has_a_row(self):
        """What shows it and what helped stand there for each code, in a table of four columns."""
        head, rule, *rows = handbook().splitlines()

        assert list(KNOWN) == [row.split("`")[1] for row in rows]
        assert set(KNOWN) == set(CAUSES)
        assert {5} == {line.count("|") for line in (head, rule, *rows)}


EQUAL = [("fetch", "fetch"), ("decode", "decode"), ("Blur", "transform"), ("collate", "collate")]


class TestTies:
    @pytest.mark.parametrize("order", [*permutations(range(4))], ids=str)
    def test_equal_findings_stand_in_the_way_of_a_sample(self, order):
        """Stages that take the same time, to the last digit of a sum, have one order."""
        parts = [
            StagePart(*EQUAL[place], 0.25 + number * 1e-16, 0.0)
            for number, place in enumerate(order)
        ]
        found = judge(known(exposure=Exposure(longest_first(parts)), waiting_s=0.0))

        assert ["cpu-saturated", "decode", "one-transform", "collate"] == [
            one.code for one in found
        ]

    @pytest.mark.parametrize("order", [*permutations(range(4))], ids=str)
    def test_equal_parts_have_one_order(self, order):
        """Whichever was found first, the parts of an exposure stand as a sample passes them."""
        parts = longest_first(StagePart(*EQUAL[place], 0.25, 0.0) for place in order)

        assert EQUAL == [(part.stage, part.group) for part in parts]


class TestOrder:
    def test_a_stage_that_dominates_comes_before_used_up_cores(self):
        """Decoding that fills the cores is decode, and full cores are no second cost of it."""
        codes = [found.code for found in judge(CASES["decode"])]

        assert "decode" == codes[0]
        assert "cpu-saturated" not in codes

    def test_nearly_half_of_the_work_leads_an_even_mix_does_not(self):
        """Transforms of 48% are what to change; of four equal sorts none is."""
        half = {("A", "transform"): 0.24, ("B", "transform"): 0.24, ("decode", "decode"): 0.32}

        assert "transforms" == judge(known(work=half | {("collate", "collate"): 0.2}))[0].code
        assert "cpu-saturated" == judge(CASES["cpu-saturated"])[0].code

    def test_the_lesser_of_two_stages_comes_second(self):
        """Collate that holds 60% and waiting for storage that holds 35%: both, in this order."""
        both = known(
            work={("collate", "collate"): 0.6, ("fetch", "fetch"): (0.4, 0.9)}, alone_waiting_s=0.14
        )

        assert ["collate", "storage-latency"] == [found.code for found in judge(both)][:2]

    def test_a_stage_is_no_cause_where_more_workers_are_enough(self):
        """One worker on eight cores that decodes is too few workers, not decode."""
        alone = known(
            work={("decode", "decode"): 0.9, ("A", "transform"): 0.1},
            setup={"num_workers": 1, "cores": 8.0},
            enough_workers=3,
        )

        assert "too-few-workers" == judge(alone)[0].code

    def test_more_workers_are_no_answer_where_cores_would_not_do(self):
        """Work that no number of cores at hand can do in a step is named itself."""
        heavy = known(
            load=9.0, stalled=0.9, setup={"num_workers": 1}, work={("decode", "decode"): 1.0}
        )

        assert "decode" == judge(heavy)[0].code

    def test_one_worker_that_only_waits_waits_for_storage(self):
        """Where next to all is waiting for storage, that is what to fix first."""
        waits = known(
            work=WAITS_IN_FETCH,
            use=IDLE,
            setup={"num_workers": 1, "cores": 8.0},
            enough_workers=3,
        )

        assert "storage-latency" == judge(waits)[0].code

    def test_reading_is_no_cause_where_workers_keep_up(self):
        """Workers that keep up on average and wait for storage make too little ahead."""
        late = known(work=WAITS_IN_FETCH, use=IDLE, load=0.6)

        assert "too-little-prefetch" == judge(late)[0].code

    def test_an_epoch_that_is_asked_for_at_once_lacks_no_prefetch(self):
        """Two workers and two batches ahead of each: an epoch of four is under way at once."""
        codes = [
            [one.code for one in judge(known(load=0.6, use=IDLE, setup={"epoch_batches": many}))]
            for many in (4, 5)
        ]

        assert "too-little-prefetch" not in codes[0]
        assert "too-little-prefetch" == codes[1][0]

    def test_slow_samples_are_no_cause_where_the_others_are_too_slow(self):
        """Without the slow samples the workers would still not keep up, so they are not it."""
        slow = known(load=4.0, patterns={"slow_samples": 0.9}, spikes=SPIKES)

        assert "slow-samples" != judge(slow)[0].code

    def test_a_slow_start_is_worth_less_than_many_stalls(self):
        """Starting that takes a tenth of an epoch comes after stalls of half the time."""
        both = known(starts=Starts(1.0, 8.0, 3, again=True))
        codes = [found.code for found in judge(both)]

        assert "start-up" in codes[1:]

    def test_waiting_in_a_transform_is_a_lock_only_if_one_worker_does_not_wait(self):
        """As long with one worker as with two: nothing is shared."""
        sleeps = replace(CASES["lock"], alone_waiting_s=0.18, lock_frames=None)

        assert "one-transform" == judge(sleeps)[0].code

    @pytest.mark.parametrize("stalled", [0.05, 0.15])
    def test_a_loop_that_loads_little_itself_may_do_much_else(self, stalled):
        """Without workers the loop's own work is named where it costs more than all loading."""
        logs = known(
            stalled=stalled,
            setup={"num_workers": 0},
            own_parts={"logging": 0.6, "step": 0.3},
            model_share=0.05,
        )

        found = judge(logs)

        assert "main-process" == found[0].code
        assert "logging" in found[0].title

    def test_a_lock_in_the_decoder_costs_what_decoding_takes(self):
        """Its bar is as long as the stalls that it holds."""
        locked = replace(CASES["lock"], exposure=Exposure(parts_of({("decode", "decode"): (1, 1)})))

        found = judge(locked)[0]

        assert "lock" == found.code
        assert locked.stall_share == pytest.approx(found.severity)

    def test_named_parts_of_the_loop_come_before_fewer_stalls(self):
        """Logging that takes more than all stalls is the main process's own."""
        logs = known(stalled=0.1, load=0.5, own_parts={"logging": 0.4, "step": 0.5})

        found = judge(logs)[0]

        assert "main-process" == found.code
        assert "logging" in found.title


def sent_for(received_s: float, made_s: float = 0.01) -> dict[str, HandoverTimes]:
    """Times of a batch in steps of 100 ms; fields of `BatchTimes`."""
    return {"handover": HandoverTimes(made_s, received_s, 0.1)}


class TestNeedlessWorkers:
    TINY: ClassVar = {"stalled": 0.05, "load": 0.05, "making": sent_for(0.03)}
    """Batches of 10 ms, which take 30 ms to be sent and received, in steps of 100 ms."""

    def test_batches_that_are_made_in_less_than_they_are_sent_need_no_workers(self):
        """Though each wait is too short for a stall: num_workers=0."""
        found = judge(known(**self.TINY))[0]

        assert "sending" == found.code
        assert "num_workers=0" in found.next_step
        assert 0.2 == pytest.approx(found.severity)

    def test_many_objects_are_sent_for_longer_than_they_are_made(self):
        """Where the loop stalls for them, the remedy is both: no workers, or fewer objects."""
        found = judge(known(work=SENDS, load=0.1, making=sent_for(0.1)))[0]

        assert "sending" == found.code
        assert all(word in found.next_step for word in ("num_workers=0", "objects"))

    def test_workers_that_make_a_batch_for_as_long_as_it_is_sent_are_kept(self):
        """A batch of 30 ms that takes 30 ms to be received would take the loop no less."""
        assert "healthy" == judge(known(**self.TINY | {"load": 0.15}))[0].code

    def test_what_is_gained_has_to_matter(self):
        """Of a step of 100 ms, 5 ms less are nothing to speak of."""
        assert "healthy" == judge(known(**self.TINY | {"making": sent_for(0.015)}))[0].code

    def test_a_few_batches_that_take_long_need_workers(self):
        """A quarter of the batches takes no time, and all together as long as is waited for."""
        uneven = known(**self.TINY | {"load": 0.15, "making": sent_for(0.03, made_s=0.001)})

        assert "healthy" == judge(uneven)[0].code

    def test_a_ladder_that_finds_nothing_to_be_gained_decides(self):
        """Batches in memory make the loop no faster: neither would fewer workers."""
        assert "healthy" == judge(known(**self.TINY, gain=Gain(1.0, 0.98, 1.02)))[0].code

    def test_a_ladder_on_a_busy_machine_only_casts_doubt(self):
        """Half as fast again in the middle, but maybe no faster: less sure, and still said."""
        unsure = judge(known(**self.TINY, gain=Gain(1.5, 0.9, 2.4)))[0]

        assert "num_workers=0" in unsure.next_step
        assert unsure.confidence < judge(known(**self.TINY))[0].confidence

    def test_without_workers_none_are_started(self):
        """Starting is mended with it, unless that is most of an epoch; logging is not."""
        starts = Starts(1.0, 2.0, 3, again=True)

        assert "sending" == judge(known(**self.TINY, starts=starts))[0].code
        longer = replace(starts, extra_s=9.0)
        assert "start-up" == judge(known(**self.TINY, starts=longer))[0].code
        assert "main-process" == judge(known(**self.TINY, own_parts={"logging": 0.5}))[0].code

    def test_samples_that_are_one_look_into_an_array_are_taken_together(self):
        """Without workers, a call for each sample is what is left."""
        small = known(**self.TINY, spikes=Spikes(usual_s=1e-5))

        assert "one index" in judge(small)[0].next_step
        assert "one index" not in judge(known(**self.TINY))[0].next_step


@pytest.mark.parametrize(
    ("low", "told"), [(0.2, "not distinguishable"), (1.1, "27\N{MULTIPLICATION SIGN} (1.1")]
)
def test_a_factor_that_may_be_a_loss_has_no_digits(low, told):
    """They would look like a gain."""
    evidence = {"headroom_factor": 27.0, "headroom_factor_low": low, "headroom_factor_high": 252.0}

    (number,) = numbers_of(evidence)

    assert number.value.startswith(told)
