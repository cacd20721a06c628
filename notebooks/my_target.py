"""What all the notebooks measure. Change it here, once; then restart their kernels."""

import stallscope as ss

TARGET = "sample"
"""`"sample"`, a folder of images, tar shards, or `"package.module:factory"`."""
STEP_S = 0.05
"""A timer of so many seconds a batch stands for the GPU where there is no training step."""


def target() -> ss.Target:
    """The loader, and the step that trains with its batches."""
    # Your own instead:
    # from my_project.train import train_loader, train_step
    # return ss.target(train_loader, step=train_step, device="cuda")
    found = ss.target(TARGET)
    timer = ss.simulated_step(STEP_S, runs_behind=True)
    return found if found.step else ss.target(found, step=timer)
