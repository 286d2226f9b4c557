"""nnU-Net's predictor under a byte budget."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from nnunetv2.inference.sliding_window_prediction import compute_gaussian
from torch._dynamo import OptimizedModule
from tqdm import tqdm

from spillway.nnunet.settings import session_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    import spillway

P = ParamSpec("P")
R = TypeVar("R")


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy in memory of numpy, which no Session pages, so that other threads and processes may read it."""
    memory = torch.from_numpy(np.empty(tensor.numel() * tensor.element_size(), np.uint8))
    return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())


def _within_session(
    method: Callable[Concatenate[SpillwayPredictor, P], R],
) -> Callable[Concatenate[SpillwayPredictor, P], R]:
    """Makes a method of nnUNetPredictor run while the Session is open. Keeps its signature, which nnU-Net reads."""

    @functools.wraps(method)
    def run(predictor: SpillwayPredictor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with contextlib.nullcontext() if predictor.session.is_open else predictor.session:
            return method(predictor, *args, **kwargs)

    return run


class SpillwayPredictor(nnUNetPredictor):
    """nnUNetPredictor whose tensors stay within a budget. Predictions are the same, bit for bit.

    Each window of the sliding window is a step of the Session, mirrored copies included. nnU-Net cuts windows out on a
    thread of its own, where no Session pages; here the thread of the Session does it.

    Args:
        session: A Session, which a method that predicts opens and closes where it is not open. None: one by the
            variables of spillway.nnunet.settings.

    Other arguments are nnUNetPredictor's.
    """

    network: nn.Module

    def __init__(self, *args: object, session: spillway.Session | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.session = session if session is not None else session_for(self.device)
        torch.backends.cudnn.benchmark = False  # its trials would size workspaces by the free memory

    def initialize_from_trained_model_folder(self, *args: object, **kwargs: object) -> None:
        super().initialize_from_trained_model_folder(*args, **kwargs)
        self._leave_compiled()

    def manual_initialization(self, *args: object, **kwargs: object) -> None:
        super().manual_initialization(*args, **kwargs)
        self._leave_compiled()

    def _leave_compiled(self) -> None:
        """Takes the network out of torch.compile, whose kernels the Session does not see."""
        if isinstance(self.network, OptimizedModule):
            print("torch.compile is off, because Spillway does not see its kernels")
            self.network = self.network._orig_mod

    predict_from_data_iterator = _within_session(nnUNetPredictor.predict_from_data_iterator)
    predict_from_files_sequential = _within_session(nnUNetPredictor.predict_from_files_sequential)
    predict_single_npy_array = _within_session(nnUNetPredictor.predict_single_npy_array)
    predict_logits_from_preprocessed_data = _within_session(nnUNetPredictor.predict_logits_from_preprocessed_data)

    @_within_session
    def predict_sliding_window_return_logits(self, input_image: torch.Tensor) -> torch.Tensor:
        """Returns the logits in host memory, because nnU-Net's threads and processes export them."""
        return host_copy(super().predict_sliding_window_return_logits(input_image))

    @torch.inference_mode()
    def _internal_predict_sliding_window_return_logits(
        self, data: torch.Tensor, slicers: Sequence[tuple[slice, ...]], do_on_device: bool = True
    ) -> torch.Tensor:
        """Adds the windows' predictions up in the order and in the type that nnU-Net does.

        Raises OutOfBudget, a RuntimeError, where the sums do not fit. nnU-Net then calls again with `do_on_device` off.
        """
        place = self.device if do_on_device else torch.device("cpu")
        data = data.to(place)
        sums = torch.zeros((self.label_manager.num_segmentation_heads, *data.shape[1:]), dtype=torch.half, device=place)
        weights = torch.zeros(data.shape[1:], dtype=torch.half, device=place)
        importance = 1
        if self.use_gaussian:
            importance = compute_gaussian(
                tuple(self.configuration_manager.patch_size), sigma_scale=1.0 / 8, value_scaling_factor=10, device=place
            )
        for window in tqdm(slicers, disable=not self.allow_tqdm):
            with self.session.step("predict"):
                patch = torch.clone(data[window][None], memory_format=torch.contiguous_format).to(self.device)
                prediction = self._internal_maybe_mirror_and_predict(patch)[0].to(place)
                if self.use_gaussian:
                    prediction *= importance
                sums[window] += prediction
                weights[window[1:]] += importance
        torch.div(sums, weights, out=sums)
        if torch.any(torch.isinf(sums)):
            raise RuntimeError("the sum of the windows' logits is infinite, because it is kept in float16")
        return sums
