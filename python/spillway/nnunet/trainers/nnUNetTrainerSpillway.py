"""The module that nnU-Net finds through nnUNet_extTrainer. nnU-Net forgets it after the search, so the class is elsewhere."""

from spillway.nnunet.trainer import nnUNetTrainerSpillway

__all__ = ["nnUNetTrainerSpillway"]
