"""Diagnoses of these tests measure no proposed change, except where a test asks for one."""

from math import inf

import pytest

from stallscope.verbs.diagnose import diagnose


@pytest.fixture(autouse=True, scope="package")
def no_proof():
    """Measure no change: each would take the rest of its budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnose, "_PROOF_LEAST_S", inf)
        yield
