"""nnU-Net's trainer under a byte budget."""

from __future__ import annotations

import concurrent.futures
import functools
from typing import TYPE_CHECKING

import torch
from nnunetv2.training.lr_scheduler.polylr import PolyLRScheduler
from nnunetv2.training.nnUNetTrainer import nnUNetTrainer as trainer_module
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.default_n_proc_DA import get_allowed_n_proc_DA

import spillway
from spillway import _spillway
from spillway.nnunet.predictor import SpillwayPredictor
from spillway.nnunet.settings import session_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer as _Trainer

    from spillway._spillway import SessionStats

    Batch: TypeAlias = dict[str, object]
else:
    _Trainer = object  # the trainer comes after SpillwayTraining among the bases


class SpillwayTraining(_Trainer):
    """The methods with which a trainer of nnU-Net trains under a budget. Put it before the trainer among the bases.

        class MyTrainerSpillway(SpillwayTraining, MyTrainer):
            pass

    A Session opens before the network is built. It closes after nnU-Net's final validation, or when an error ends the
    training; code that calls run_training() alone closes it by close_session(). SPILLWAY_BUDGET and the other variables
    of spillway.nnunet.settings are its options.
    """

    _reported: SessionStats  # at the last report, or as the Session was opened

    def __init__(
        self,
        plans: dict[str, object],
        configuration: str,
        fold: int,
        dataset_json: dict[str, object],
        device: torch.device = torch.device("cuda"),  # noqa: B008  as nnU-Net has it
    ) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise RuntimeError("Spillway trains nnU-Net in one process; leave -num_gpus at 1")
        self.session = session_for(torch.device("cuda", 0) if device.type == "cuda" else device)
        self._said_not_compiled = False
        super().__init__(plans, configuration, fold, dataset_json, device)

    # ---- the Session

    def open_session(self) -> None:
        """Opens the Session. Does nothing where it is open."""
        if not self.session.is_open:
            self.session.open()
            self._reported = self.session.stats()

    def close_session(self) -> None:
        """Brings every tensor back to the device and lifts the budget. Does nothing where the Session is closed."""
        self.session.close()

    def _report(self, work: str) -> None:
        """Logs what paging did since the last report."""
        now, before = self.session.stats(), self._reported
        bytes_of = _spillway.format_bytes
        budget = self.session.budget_bytes
        self.print_to_log_file(
            f"Spillway, {work}: peak {bytes_of(now['peak_bytes'])} "
            f"{'without a budget' if budget is None else f'of a budget of {bytes_of(budget)}'}, "
            f"paged out {bytes_of(now['bytes_out'] - before['bytes_out'])}, "
            f"paged in {bytes_of(now['bytes_in'] - before['bytes_in'])}, "
            f"waited for copies {now['exposed_seconds'] - before['exposed_seconds']:.2f} s"
        )
        self._reported = now
        self.session.reset_peak()

    # ---- nnU-Net's methods

    def initialize(self) -> None:
        self.open_session()
        try:
            super().initialize()
        except BaseException:
            self.close_session()
            raise

    def run_training(self) -> None:
        self.open_session()
        torch.backends.cudnn.benchmark = False  # its trials would size workspaces by the free memory
        try:
            super().run_training()
        except BaseException:
            self.close_session()
            raise

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        self.open_session()
        stock = trainer_module.nnUNetPredictor  # the name by which nnU-Net makes its predictor
        trainer_module.nnUNetPredictor = functools.partial(SpillwayPredictor, session=self.session)
        try:
            super().perform_actual_validation(save_probabilities)
            self._report("validation")
        finally:
            trainer_module.nnUNetPredictor = stock
            self.close_session()

    def train_step(self, batch: Batch) -> dict[str, object]:
        with self.session.step():
            result: dict[str, object] = super().train_step(batch)
        return result

    def validation_step(self, batch: Batch) -> dict[str, object]:
        with self.session.step("validate"):
            result: dict[str, object] = super().validation_step(batch)
        return result

    def on_epoch_end(self) -> None:
        epoch = self.current_epoch
        super().on_epoch_end()
        self._report(f"epoch {epoch}")

    def _do_i_compile(self) -> bool:
        if not self._said_not_compiled and super()._do_i_compile():
            self.print_to_log_file("torch.compile is off, because Spillway does not see its kernels")
        self._said_not_compiled = True
        return False

    def get_dataloaders(self) -> tuple[Iterator[Batch], ...]:
        if get_allowed_n_proc_DA() > 0:
            loaders: tuple[Iterator[Batch], ...] = super().get_dataloaders()
            return loaders
        thread = concurrent.futures.ThreadPoolExecutor(1, "augmentation")
        return tuple(_LoaderOnThread(thread, loader) for loader in thread.submit(super().get_dataloaders).result())


class nnUNetTrainerSpillway(SpillwayTraining, nnUNetTrainer):  # nnU-Net's trainers are named so
    """nnU-Net's default trainer under a budget. Its optimizer takes the same steps, few tensors at a time."""

    def configure_optimizers(self) -> tuple[spillway.optim.SGD, PolyLRScheduler]:
        optimizer = spillway.optim.SGD(
            self.network.parameters(), self.initial_lr, weight_decay=self.weight_decay, momentum=0.99, nesterov=True
        )
        return optimizer, PolyLRScheduler(optimizer, self.initial_lr, self.num_epochs)


class _LoaderOnThread:
    """A data loader of this process (nnUNet_n_proc_DA=0) that augments on a thread of its own.

    Augmentation mixes tensors with numpy, whose pointers a Session must not move. On another thread it does not.
    """

    def __init__(self, thread: concurrent.futures.ThreadPoolExecutor, loader: Iterator[Batch]) -> None:
        self._thread = thread
        self._loader = loader

    def __iter__(self) -> _LoaderOnThread:
        return self

    def __next__(self) -> Batch:
        return self._thread.submit(next, self._loader).result()
