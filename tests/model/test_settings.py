"""Settings as values: the same batches by another loader, and the line to write."""

import pytest
import torch
from torch.utils.data import DataLoader

from stallscope.errors import ArgumentError
from stallscope.model.settings import (
    HAS_IN_ORDER,
    Setting,
    code_of,
    given_settings,
    grid,
    setting_of,
    with_setting,
)


def seeded(**settings) -> DataLoader:
    """Return a loader of forty numbers, shuffled by its own generator."""
    generator = torch.Generator().manual_seed(3)
    return DataLoader(range(40), 4, shuffle=True, generator=generator, **settings)


def noted(worker: int) -> None:
    """A user's own `worker_init_fn`."""
    torch.set_default_dtype(torch.float64)


class Worker(torch.utils.data.Dataset):
    """Samples that hold the settings of their process."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(torch.get_num_threads()), torch.zeros(1).element_size()])


class TestTheSameBatches:
    @pytest.mark.parametrize(
        "setting",
        [
            Setting(0),
            Setting(1, 1),
            Setting(3, 4, persistent_workers=True),
            pytest.param(Setting(2, 2, multiprocessing_context="spawn"), marks=pytest.mark.slow),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("now", [{}, {"num_workers": 2, "timeout": 30}])
    def test_come_in_the_same_order(self, now, setting):
        old = seeded(**now)
        before = setting_of(old)

        new = with_setting(seeded(**now), setting)
        actual, wanted = (torch.cat(list(each)).tolist() for each in (new, old))

        assert wanted == actual
        assert setting.normal() == setting_of(new)
        assert before == setting_of(old)

    def test_nothing_else_is_changed(self):
        """Dataset, samplers, generator, collate and worker_init_fn are the user's own objects."""
        old = seeded(num_workers=1, worker_init_fn=noted)

        new = with_setting(old, Setting(2, 3))

        names = ("dataset", "sampler", "batch_sampler", "generator", "collate_fn", "worker_init_fn")
        assert all(getattr(old, name) is getattr(new, name) for name in names)

    def test_threads_are_limited_beside_the_users_init_fn(self):
        """Each worker has this many threads and still runs the user's `worker_init_fn`."""
        old = DataLoader(Worker(), 4, num_workers=1, worker_init_fn=noted)

        (actual,) = with_setting(old, Setting(1, 2, threads=2))

        assert [2.0, 8.0] == actual[0].tolist()
        assert noted is old.worker_init_fn


class TestWords:
    @pytest.mark.parametrize("now", [Setting(0), Setting(2, 2), Setting(8, 4, True)])
    @pytest.mark.parametrize(
        "new", [Setting(0), Setting(3, 2), Setting(2, 8, True, in_order=False)]
    )
    def test_the_code_makes_the_loader(self, now, new):
        """The code, appended to the old arguments, makes a loader with the setting."""
        old = with_setting(seeded(), now)
        mine = {"num_workers": now.num_workers, "prefetch_factor": now.prefetch_factor}
        mine |= {"persistent_workers": now.persistent_workers}

        line = code_of(now.normal(), new.normal()) or "DataLoader(...)"
        code = line.replace("...", "range(40), **mine | dict(", 1)
        new_loader = eval(code.replace("dict(, ", "dict(") + ")")  # noqa: S307 - ours

        assert setting_of(new_loader).num_workers == new.num_workers
        assert setting_of(new_loader) == setting_of(with_setting(old, new))


class TestGrid:
    def test_goes_up_and_down(self):
        actual = grid(Setting(5, 2), 4.0, pins=False, is_stream=False)

        assert Setting(5, 2) == actual[0]
        assert {0, 1, 2, 3, 4, 5, 6, 8, 16} <= {each.num_workers for each in actual}
        assert len(set(actual)) == len(actual)
        assert any(each.persistent_workers for each in actual)
        assert HAS_IN_ORDER == any(not each.in_order for each in actual)
        assert not any(each.pin_memory for each in actual)

    def test_a_stream_without_workers_gets_none(self):
        """Each worker would yield the whole stream."""
        actual = grid(Setting(0), 4.0, pins=False, is_stream=True)

        assert {0} == {each.num_workers for each in actual}

    def test_the_users_settings_replace_it(self):
        """Parameters that the user's settings omit stay unchanged."""
        now = Setting(2, 4, True)

        actual = given_settings(now, [{"num_workers": 3}, {"num_workers": 0}], [])

        assert [now, Setting(3, 4, True), Setting(0)] == actual

    @pytest.mark.parametrize(
        "invalid",
        [
            [{"batch_size": 3}],
            [{"num_workers": -1}],
            [{"num_workers": None}],
            [{"num_workers": True}],
            [{"num_workers": 2.0}],
            [{"prefetch_factor": 0}],
            [{"multiprocessing_context": "thread"}],
            [{"in_order": "no"}],
            [4],
            "num_workers",
        ],
        ids=str,
    )
    def test_invalid_settings_are_refused(self, invalid):
        with pytest.raises(ArgumentError, match="settings"):
            given_settings(Setting(2, 2), invalid, [])
