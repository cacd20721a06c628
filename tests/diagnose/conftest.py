"""A diagnosis of these tests measures no change, but where that is what is tested."""

from math import inf

import pytest

from stallscope.verbs.diagnose import diagnose


@pytest.fixture(autouse=True, scope="package")
def no_proof():
    """Each would take what is left of its budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnose, "_PROOF_LEAST_S", inf)
        yield
