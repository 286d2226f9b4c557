"""nnU-Net's planner for a network that needs more memory than the device has."""

from __future__ import annotations

from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner


class SpillwayPlanner(ExperimentPlanner):
    """ExperimentPlanner that plans for the memory that the user names, and not for the device's.

    nnU-Net's own rule of memory for patches and batches serves. The plans have a name of their own, so that
    nnU-Net's stay. The memory must be named (-gpu_memory_target), because there is no sensible default.
    """

    def __init__(
        self,
        dataset_name_or_id: str | int,
        gpu_memory_target_in_gb: float | None = None,
        preprocessor_name: str = "DefaultPreprocessor",
        plans_name: str = "nnUNetSpillwayPlans",
        overwrite_target_spacing: list[float] | tuple[float, ...] | None = None,
        suppress_transpose: bool = False,
    ) -> None:
        if gpu_memory_target_in_gb is None:
            raise RuntimeError("SpillwayPlanner needs the memory to plan for, in GB, such as -gpu_memory_target 40")
        super().__init__(
            dataset_name_or_id,
            gpu_memory_target_in_gb,
            preprocessor_name,
            plans_name,
            overwrite_target_spacing,
            suppress_transpose,
        )
