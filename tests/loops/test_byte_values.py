"""Which floats of a batch uint8 would hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stallscope.loops.cached_values import batch_bytes

IMAGES = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
SCALED = IMAGES / 255
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
NORMALISED = (SCALED - MEAN[:, None, None]) / STD[:, None, None]


class TestFits:
    @pytest.mark.parametrize(
        "floats",
        [
            pytest.param(IMAGES.float(), id="cast"),
            pytest.param(SCALED, id="scaled"),
            pytest.param(NORMALISED, id="each channel normalised"),
            pytest.param(NORMALISED.permute(0, 2, 3, 1), id="channels last"),
            pytest.param(NORMALISED.double(), id="float64"),
            pytest.param(NORMALISED.numpy(), id="numpy"),
            pytest.param((IMAGES > 99).float(), id="a mask"),
        ],
    )
    def test_scaled_bytes_do(self, floats):
        """All of it, as a quarter of the bytes or an eighth."""
        found = batch_bytes({"x": floats, "y": torch.arange(8)})

        assert floats.nbytes == found.floats
        assert IMAGES.nbytes == found.as_uint8
        assert floats.nbytes + 64 == found.all

    @pytest.mark.parametrize(
        "floats",
        [
            pytest.param(torch.randn(8, 3, 32, 32), id="noise"),
            pytest.param(SCALED * torch.rand(8, 1, 1, 1), id="each sample its own brightness"),
            pytest.param(torch.randint(0, 4096, (8, 4096)) / 4096, id="twelve bits"),
            pytest.param(SCALED.pow(2.2), id="another curve"),
            pytest.param(torch.zeros(8, 3, 32, 32), id="constant"),
            pytest.param(torch.full((8, 3, 32, 32), torch.nan), id="no numbers"),
            pytest.param(SCALED[:, :, :4, :4], id="too few to tell"),
            pytest.param(SCALED.half(), id="two bytes"),
            pytest.param(IMAGES, id="uint8"),
            pytest.param(np.array(["a", "b"]), id="no numbers at all"),
        ],
    )
    def test_others_do_not(self, floats):
        """Nothing would be the same as uint8, or is known to be, or would be smaller."""
        assert 0 == batch_bytes([floats]).floats
