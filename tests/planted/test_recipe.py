"""How long a loop takes is worked out as a loader would behave."""

import pytest

from planted.recipe import Op, Recipe, amount, slowdown


def a_loop(**numbers) -> Recipe:
    """A loop whose step takes a second, and whose batch has one sample."""
    return Recipe(**{"step_s": 1.0, "batch": 1, "workers": 2, **numbers})


class TestSlowdown:
    def test_workers_that_are_fast_enough_cost_nothing(self):
        """Two workers that take 1.9 s a batch keep up with a step of a second."""
        assert slowdown(a_loop(read_s=1.9), cores=2) == pytest.approx(1.0)

    def test_slow_workers_decide(self):
        """Two workers that take 6 s a batch give one every 3 s."""
        assert slowdown(a_loop(read_s=6.0), cores=2) == pytest.approx(3.0, rel=0.02)

    def test_without_workers_the_loop_does_all_itself(self):
        """With no worker, a batch and its step follow each other."""
        assert slowdown(a_loop(workers=0, read_s=0.5), cores=2) == pytest.approx(1.5)

    def test_cores_limit_what_computes(self):
        """Four workers that compute on two cores are as two; four that wait are four."""
        computing = a_loop(workers=4, ops=(Op("Blur", 6.0),))

        assert slowdown(computing, cores=2) == pytest.approx(3.0, rel=0.02)
        assert slowdown(a_loop(workers=4, read_s=6.0), cores=2) == pytest.approx(1.5, rel=0.02)

    def test_a_lock_is_held_by_one(self):
        """However many workers there are, a lock of 2 s a sample gives a batch every 2 s."""
        locked = a_loop(workers=8, lock_s=2.0, lock_computes=False)

        assert slowdown(locked, cores=8) == pytest.approx(2.0)

    def test_all_wait_for_a_slow_worker(self):
        """Batches come in turn: one slow worker of three decides for all."""
        slow = a_loop(workers=3, read_s=0.1, slow_worker_s=5.9)

        assert slowdown(slow, cores=3) == pytest.approx(2.0, rel=0.02)

    def test_the_start_of_an_epoch_counts(self):
        """Ten steps and a start of 10 s take 20 s; workers that live on do not start again."""
        short = a_loop(epoch=10, init_s=10.0)

        assert slowdown(short, cores=2) == pytest.approx(2.0, rel=0.05)
        assert slowdown(a_loop(epoch=10, init_s=10.0, persistent=True), 2) == pytest.approx(1.0)

    def test_making_ahead_hides_what_varies(self):
        """What batches take differs: with much made ahead the mean counts, else the long ones."""
        varied = {"read_s": 1.2, "spread": 1.0}
        little, much = a_loop(prefetch=1, **varied), a_loop(prefetch=16, **varied)

        assert slowdown(little, 2) > 1.3
        assert slowdown(much, 2) < 1.05


class TestAmount:
    def test_finds_how_much_it_takes(self):
        """A loop that is to take twice as long needs 4 s a batch of its two workers."""
        found = amount(lambda read_s: a_loop(read_s=read_s), 2.0, cores=2, most=100.0)

        assert found == pytest.approx(4.0, rel=0.02)

    def test_ends_at_the_most(self):
        """Where no amount is enough, it is the most that is allowed."""
        assert amount(lambda _: a_loop(), 2.0, cores=2, most=7.0) == pytest.approx(7.0)
