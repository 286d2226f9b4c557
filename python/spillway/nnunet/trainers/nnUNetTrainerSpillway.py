"""The module that nnU-Net finds. It is forgotten after the search, so the class is in one that stays."""

from spillway.nnunet.trainer import nnUNetTrainerSpillway

__all__ = ["nnUNetTrainerSpillway"]
