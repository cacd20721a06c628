"""Shared parts of the benchmarks; each file beside this folder is a command.

Importing it puts `tests/` on the path of this process and of those that it starts: loaders with
known causes and pipelines with known truths stand there.
"""

import os
import sys
from pathlib import Path

TESTS = str(Path(__file__).parents[2])
sys.path.insert(1, TESTS)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
