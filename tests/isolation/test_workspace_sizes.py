"""How large the samples' files are."""

from __future__ import annotations

from stallscope.isolation.workspace import sizes


def test_only_regular_files_have_a_size(tmp_path):
    """Folders, missing files and names that cannot be are left out."""
    (tmp_path / "a.jpg").write_bytes(b"123")

    found = sizes([str(tmp_path / "a.jpg"), str(tmp_path), str(tmp_path / "b.jpg"), "a\0b"])

    assert {str(tmp_path / "a.jpg"): 3} == found
