"""Prints the folder for nnUNet_extTrainer, or runs a command of nnU-Net with Spillway's classes.

python -m spillway.nnunet                                      the folder
python -m spillway.nnunet plan -d 1 -gpu_memory_target 40      nnUNetv2_plan_experiment with SpillwayPlanner
python -m spillway.nnunet plan_and_preprocess …                nnUNetv2_plan_and_preprocess with SpillwayPlanner
python -m spillway.nnunet train 1 3d_fullres 0                 nnUNetv2_train with nnUNetTrainerSpillway
python -m spillway.nnunet predict …                            nnUNetv2_predict within SPILLWAY_BUDGET
python -m spillway.nnunet predict_from_modelfolder …           the same, of a folder's model
"""

import importlib
import os
import sys

from spillway.nnunet import trainer_folder

_PLANNING = "nnunetv2.experiment_planning.plan_and_preprocess_entrypoints"
_PREDICTION = "nnunetv2.inference.predict_from_raw_data"
_COMMANDS = {
    "plan": (_PLANNING, "plan_experiment_entry"),
    "plan_and_preprocess": (_PLANNING, "plan_and_preprocess_entry"),
    "train": ("nnunetv2.run.run_training", "run_training_entry"),
    "predict": (_PREDICTION, "predict_entry_point"),
    "predict_from_modelfolder": (_PREDICTION, "predict_entry_point_modelfolder"),
}


def _use_default(option: str, value: str) -> None:
    if option not in sys.argv:
        sys.argv += [option, value]


def _offer_planner() -> None:
    """Puts SpillwayPlanner where nnU-Net looks for planners, because it looks into modules of its own alone."""
    from nnunetv2.experiment_planning.experiment_planners import default_experiment_planner

    from spillway.nnunet.planner import SpillwayPlanner

    default_experiment_planner.SpillwayPlanner = SpillwayPlanner
    _use_default("-pl", SpillwayPlanner.__name__)


def _offer_predictor() -> None:
    """Makes nnU-Net's commands predict by SpillwayPredictor."""
    from nnunetv2.inference import predict_from_raw_data

    from spillway.nnunet.predictor import SpillwayPredictor
    from spillway.nnunet.settings import session_options

    session_options()  # says at once that the budget is missing
    predict_from_raw_data.nnUNetPredictor = SpillwayPredictor


def _offer_trainer() -> None:
    """Adds Spillway's trainer to the folders where nnU-Net looks for trainers."""
    folders = [folder for folder in os.environ.get("nnUNet_extTrainer", "").split(os.pathsep) if folder]
    if trainer_folder() not in folders:
        os.environ["nnUNet_extTrainer"] = os.pathsep.join([*folders, trainer_folder()])


def main() -> int:
    """Runs the command that the arguments name. Returns the exit status."""
    if len(sys.argv) == 1:
        print(trainer_folder())
        return 0
    command = sys.argv.pop(1)
    if command not in _COMMANDS:
        print((__doc__ or "").strip(), file=sys.stdout if command in ("-h", "--help") else sys.stderr)
        return 0 if command in ("-h", "--help") else 2
    module, function = _COMMANDS[command]
    try:
        entry = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name != "nnunetv2":
            raise
        print("nnU-Net is not installed: pip install nnunetv2 'torch==2.11.*'", file=sys.stderr)
        return 1
    _offer_trainer()
    if command.startswith("plan"):
        _offer_planner()
    elif command.startswith("predict"):
        _offer_predictor()
    else:
        _use_default("-tr", "nnUNetTrainerSpillway")
    entry()
    return 0


if __name__ == "__main__":
    sys.exit(main())
