"""`python -m stallscope` is `stallscope`: what it imports does not come from the current folder."""

import os
import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = os.path.dirname(sys.executable)  # noqa: PTH120 - as the command has it
    from stallscope.cli import main

    main()
