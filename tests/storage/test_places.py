"""The files of the data."""

import io
import itertools
import tarfile

from stallscope.verbs.storage import places


def test_a_sample_of_tar_shards_is_all_members_of_one_name(tmp_path):
    """Names that differ behind the first dot are one sample; other files tell nothing."""
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        for number, suffix in itertools.product(range(3), ("jpg", "seg.png")):
            member = tarfile.TarInfo(f"train.v1/{number:03}.{suffix}")
            member.size = 1000
            archive.addfile(member, io.BytesIO(bytes(1000)))
    (tmp_path / "torn.tar").write_bytes(bytes(700))
    (tmp_path / "rows.bin").write_bytes(bytes(700))
    torn, rows, shard = (
        places.DataFile(str(tmp_path / name), 1) for name in ("torn.tar", "rows.bin", "shard.tar")
    )

    # Six headers and contents of whole blocks of 512 bytes, the last without its padding
    assert (6 * (512 + 1024) - 24) / 3 == places.tar_sample_bytes([torn, rows, shard])
    assert places.tar_sample_bytes([torn, rows]) is None
