"""nnU-Net under a byte budget: a trainer, a predictor and a planner for nnunetv2.

    export nnUNet_extTrainer=$(python -m spillway.nnunet)   # where nnU-Net looks for trainers of others
    export SPILLWAY_BUDGET=8GiB
    nnUNetv2_train DATASET 3d_fullres 0 -tr nnUNetTrainerSpillway

This module imports nothing of nnU-Net. Its classes are in spillway.nnunet.trainer, .predictor and .planner.
"""

import pathlib

__all__ = ["trainer_folder"]


def trainer_folder() -> str:
    """Returns the folder for nnU-Net's variable nnUNet_extTrainer. It holds the trainer and nothing else."""
    return str(pathlib.Path(__file__).resolve().parent / "trainers")
