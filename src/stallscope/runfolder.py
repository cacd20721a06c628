"""Which folder the run of `stallscope run` goes into: one a launch, in it one a rank.

The ranks of one launch must name their folder alike without a word between them, before they have
met. On one machine they have a launcher in common, so its birth is in the name. It is the nearest
ancestor that is no rank itself (it was started without `RANK`): each rank may have a shell or
another wrapper of its own in between.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from stallscope.errors import ArgumentError, RunFormatError

RUNS: Final = Path("stallscope-runs")
"""Where runs go that were given no folder."""


def out_folder(script: str, out: Path | None) -> Path:
    """The folder of this process's run; absolute, since a script may change the current one.

    One process alone: `out`, or else a new `stallscope-runs/<script>-<time>`, made at once, so that
    two that start in the same second have two. One of several ranks (`RANK` and `WORLD_SIZE` are
    set, as by torchrun): `rank<r>` inside of that folder; the time is that of the launch. When
    torchrun starts the ranks again, `-restart<n>` follows.

    Args:
        script: path or module name of the script.
        out: the folder that the user asked for.

    Raises:
        ArgumentError: the ranks have nothing in common to name the folder by.
        RunFormatError: the folder cannot be made.
    """
    name = Path(os.path.abspath(script)).name.removesuffix(".py")  # noqa: PTH100 - ends ".."
    if _number("WORLD_SIZE") < 2:  # noqa: PLR2004
        return Path.cwd() / (out or _new(RUNS / f"{name}-{_stamp(time.time())}"))
    folder = Path.cwd() / (out or RUNS / f"{name}-{_launch()}")
    if again := _number("TORCHELASTIC_RESTART_COUNT"):
        folder = folder.with_name(f"{folder.name}-restart{again}")
    return folder / f"rank{_number('RANK')}"


def _new(folder: Path, number: int = 1) -> Path:
    """Make a folder of that name, or where it is taken of `-2`, `-3` and so on."""
    name = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
    try:
        name.mkdir(parents=True)
    except FileExistsError:
        return _new(folder, number + 1)
    except OSError as error:
        raise RunFormatError(
            f"no folder for the run can be made in {Path.cwd() / RUNS} ({error.strerror}): give "
            "one with --out"
        ) from error
    return name


def _launch() -> str:
    """What all ranks of this launch know, and those of other launches do not."""
    if _number("LOCAL_WORLD_SIZE") in (0, _number("WORLD_SIZE")):  # all on this machine
        born_s = _launcher_born_s(os.getppid())
        if born_s is not None:
            return _stamp(born_s)
    elif (job := os.environ.get("TORCHELASTIC_RUN_ID", "none")) != "none":
        return job.replace(os.sep, "-")
    raise ArgumentError(
        f"these {_number('WORLD_SIZE')} ranks cannot tell by themselves that they belong together: "
        "give them a new folder in common with --out, or torchrun an --rdzv-id"
    )


def _launcher_born_s(pid: int) -> float | None:
    """When the nearest ancestor that is no rank was started, in s since 1970; None if unknown.

    See proc(5): `btime` in /proc/stat, `ppid` (4) and `starttime` (22) in /proc/<pid>/stat.
    """
    try:
        while pid and _is_rank(pid):
            pid = int(_stat(pid)[1])
        boot_s = Path("/proc/stat").read_text().partition("\nbtime ")[2].split()[0]
        return int(boot_s) + int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK") if pid else None
    except (OSError, ValueError, IndexError):  # no /proc, or not Linux's
        return None


def _is_rank(pid: int) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:  # another user's
        return False
    return any(entry.startswith(b"RANK=") for entry in environ.split(b"\0"))


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third on; the second, a name, may hold blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _stamp(seconds: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))


def _number(name: str) -> int:
    """An environment variable that a launcher sets; 0 where it is not set, or no number."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0
