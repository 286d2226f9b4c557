"""Tests of nnU-Net under a budget, whose results are those of stock nnU-Net, bit for bit.

The data are crops of Debian's package mricron-data (a head's T1 image, and regions of the brain drawn into it), and
numpy's where that is not installed.
"""

import contextlib
import ctypes
import gzip
import importlib.util
import io
import json
import multiprocessing
import multiprocessing.pool
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

# Before torch, because threads that spin slow each other down on busy cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

import spillway
import spillway.nnunet
from spillway.nnunet import settings

os.environ["nnUNet_def_n_proc"] = "1"  # which nnU-Net reads when it is imported
MISSING = None if importlib.util.find_spec("nnunetv2") else "nnU-Net is not installed (pip install nnunetv2)"

TEMPLATES = pathlib.Path("/usr/share/mricron/templates")
DATASET = "Dataset001_Heads"
PLANS = "nnUNetSpillwayPlans"
CASES = 5
BINARIES = pathlib.Path(sys.executable).parent

# Trainers that stop after few steps, with the same random numbers in each run.
TRAINERS = """
import os
import numpy as np, torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from spillway.nnunet.trainer import SpillwayTraining, nnUNetTrainerSpillway

class Short:
    def __init__(self, plans, configuration, fold, dataset_json, device=torch.device("cuda")):
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = int(os.environ.get("EPOCHS", 2))
        self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 2, 1

    def initialize(self):
        torch.manual_seed(1)
        super().initialize()

    def on_train_start(self):
        np.random.seed(2)
        torch.manual_seed(2)
        super().on_train_start()

    def train_step(self, batch):
        if os.environ.get("FAIL"):
            raise ValueError("a step that fails")
        return super().train_step(batch)

class StockTrainer(Short, nnUNetTrainer):
    pass

class MixedTrainer(Short, SpillwayTraining, nnUNetTrainer):
    pass

class PagedTrainer(Short, nnUNetTrainerSpillway):
    pass
"""


def head_and_regions():
    """Returns the volume of a head and three regions in it: the brain's halves, and the cerebellum."""
    import nibabel

    files = TEMPLATES / "ch2.nii.gz", TEMPLATES / "aal.nii.gz"
    if all(file.exists() for file in files):
        head, regions = (np.asarray(nibabel.load(file).dataobj) for file in files)
        merged = np.where(regions > 90, 3, 2 - regions % 2)  # the atlas numbers regions of the left half oddly
        return head.astype(np.float32), np.where(regions == 0, 0, merged).astype(np.uint8)
    place = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in (181, 217, 181)), indexing="ij"))
    inside = (place**2).sum(0) < 0.7
    regions = np.where(place[2] < -0.4, 3, 1 + (place[0] > 0)) * inside
    noise = np.random.default_rng(1).normal(0, 5, inside.shape)
    return (40 * inside + 20 * regions + noise).astype(np.float32), regions.astype(np.uint8)


def write_data_set(folder, shape):
    """Writes a data set in nnU-Net's raw layout: crops of a shape about the middle of the head."""
    import nibabel

    head, regions = head_and_regions()
    for kind in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / kind).mkdir(parents=True)
    for case in range(CASES):
        start = np.array([50, 30 + 12 * case, 20 + 6 * case])
        crop = tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))
        image, label = (nibabel.Nifti1Image(np.ascontiguousarray(x[crop]), np.eye(4)) for x in (head, regions))
        nibabel.save(image, folder / "imagesTr" / f"head_{case}_0000.nii.gz")
        nibabel.save(label, folder / "labelsTr" / f"head_{case}.nii.gz")
        if case == 0:
            nibabel.save(image, folder / "imagesTs" / "new_0_0000.nii.gz")
    description = {
        "channel_names": {"0": "MRI"},
        "numTraining": CASES,
        "file_ending": ".nii.gz",
        "labels": {"background": 0, "left": 1, "right": 2, "cerebellum": 3},
    }
    (folder / "dataset.json").write_text(json.dumps(description))


class Workshop:
    """A data set of nnU-Net in a folder of its own, and commands of nnU-Net in this process and in others."""

    def __init__(self, folder):
        self.folder = folder
        trainers = folder / "trainers"
        trainers.mkdir()
        (trainers / "short_trainers.py").write_text(TRAINERS)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPILLWAY_", "nnUNet_"))},
            "nnUNet_raw": str(folder / "raw"),
            "nnUNet_preprocessed": str(folder / "preprocessed"),
            "nnUNet_results": str(folder / "results"),
            "nnUNet_def_n_proc": "1",
            "nnUNet_n_proc_DA": "0",
            "nnUNet_extTrainer": os.pathsep.join([spillway.nnunet.trainer_folder(), str(trainers)]),
        }

    def run(self, *command, check=True, **environment):
        """Runs a command in a process of its own; returns its end, with its output in one text."""
        done = subprocess.run(
            [str(word) for word in command],
            env={**self.environment, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=240,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return done

    def call(self, function, *args, words=None, **environment):
        """Calls a function of nnU-Net as `words` on its command line; returns its output.

        The pools of processes that nnU-Net spawns are threads here, because each process imports for ten seconds.
        """
        get_context = multiprocessing.get_context
        threads = types.SimpleNamespace(Pool=multiprocessing.pool.ThreadPool)
        output = io.StringIO()
        with (
            mock.patch.dict(os.environ, {**self.environment, **environment}, clear=True),
            mock.patch.object(sys, "argv", ["test", *map(str, words or [])]),
            mock.patch.object(
                multiprocessing,
                "get_context",
                lambda method=None: threads if method == "spawn" else get_context(method),
            ),
            contextlib.redirect_stdout(output),
        ):
            function(*args)
        return output.getvalue()

    def train(self, trainer, *options, **environment):
        from nnunetv2.run.run_training import run_training_entry

        return self.call(run_training_entry, words=[*self.train_words(trainer), *options], **environment)

    def train_words(self, trainer):
        return [DATASET, "3d_fullres", "0", "-tr", trainer, "-p", PLANS, "-device", "cpu"]

    def model(self, trainer):
        return self.folder / "results" / DATASET / f"{trainer}__{PLANS}__3d_fullres"

    def checkpoint(self, trainer, name="checkpoint_final.pth"):
        return torch.load(self.model(trainer) / "fold_0" / name, weights_only=False)

    def make(self, patch=(40, 40, 32), shape=(48, 40, 32)):
        """Writes, plans and preprocesses the data set: cases of one shape, and a network of half nnU-Net's features."""
        from nnunetv2.experiment_planning import plan_and_preprocess_entrypoints as planning

        from spillway.nnunet.__main__ import main

        write_data_set(self.folder / "raw" / DATASET, shape)
        self.call(planning.extract_fingerprint_entry, words=["-d", "1", "-np", "1", "--no_pbar"])
        self.call(main, words=["plan", "-d", "1", "-gpu_memory_target", "1"], nnUNet_n_proc_DA="1")
        path = self.folder / "preprocessed" / DATASET / f"{PLANS}.json"
        plans = json.loads(path.read_text())
        plans["configurations"]["3d_fullres"]["patch_size"] = patch
        network = plans["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]
        network["features_per_stage"] = [min(16 * 2**stage, 160) for stage in range(network["n_stages"])]
        path.write_text(json.dumps(plans))
        self.call(
            planning.preprocess_entry,
            words=["-d", "1", "-plans_name", PLANS, "-c", "3d_fullres", "-np", "1", "--no_pbar"],
        )


def seconds_of_epochs(text):
    return sum(float(found) for found in re.findall(r"Epoch time: (?:np.float64\()?([\d.]+)", text))


def peaks(text):
    """Returns the peaks that the trainer reported, in bytes."""
    return [
        int(float(number) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit])
        for number, unit in re.findall(r"Spillway, [\w ]+: peak ([\d.]+) (\w+)", text)
    ]


@unittest.skipIf(MISSING, MISSING)
class TrainingTest(unittest.TestCase):
    """One fold, trained by stock nnU-Net and under half of its peak."""

    @classmethod
    def setUpClass(cls):
        libc = ctypes.CDLL(None)  # keeps freed memory, because stock torch would mostly wait for fresh pages
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
        cls.place = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.work = Workshop(pathlib.Path(cls.place))
        cls.work.make()
        cls.unlimited = cls.work.train("PagedTrainer", SPILLWAY_BUDGET="none")
        cls.stock = cls.work.train("StockTrainer")
        cls.peak = max(peaks(cls.unlimited))
        cls.budget = cls.peak // 2
        cls.tight = cls.work.run(
            BINARIES / "nnUNetv2_train", *cls.work.train_words("PagedTrainer"), SPILLWAY_BUDGET=str(cls.budget)
        ).stdout  # the command as users give it

    def expect_equal(self, one, other):
        """Compares two trees of tensors, arrays and numbers, bit for bit."""
        self.assertIs(type(one), type(other))
        if isinstance(one, dict):
            self.assertEqual(one.keys(), other.keys())
            for key in one:
                self.expect_equal(one[key], other[key])
        elif isinstance(one, (list, tuple)):
            self.assertEqual(len(one), len(other))
            for a, b in zip(one, other, strict=True):
                self.expect_equal(a, b)
        elif isinstance(one, torch.Tensor):
            self.assertTrue(torch.equal(one, other))
        else:
            np.testing.assert_equal(one, other)

    def expect_same_training(self, one, other):
        for part in ("network_weights", "optimizer_state", "_best_ema", "current_epoch"):
            self.expect_equal(one[part], other[part])
        for figure in ("train_losses", "val_losses", "dice_per_class_or_region"):
            self.expect_equal(one["logging"][figure], other["logging"][figure])

    def expect_same_files(self, one, other):
        """Compares the label maps in two folders."""
        files = sorted(path.name for path in one.glob("*.nii.gz"))
        self.assertTrue(files)
        self.assertEqual(files, sorted(path.name for path in other.glob("*.nii.gz")))
        for name in files:
            self.assertEqual(gzip.decompress((one / name).read_bytes()), gzip.decompress((other / name).read_bytes()))

    def test_half_of_the_peak_changes_no_bit(self):
        stock, tight = self.work.checkpoint("StockTrainer"), self.work.checkpoint("PagedTrainer")
        self.expect_same_training(stock, tight)
        self.assertEqual(tight["trainer_name"], "PagedTrainer")
        self.assertEqual(stock["optimizer_state"]["param_groups"], tight["optimizer_state"]["param_groups"])
        folders = [self.work.model(name) / "fold_0" for name in ("StockTrainer", "PagedTrainer")]
        sizes = [(folder / "checkpoint_final.pth").stat().st_size for folder in folders]
        self.assertLess(abs(sizes[0] - sizes[1]), 65536)  # weights that share memory are in the file once
        self.expect_same_files(*(folder / "validation" for folder in folders))
        self.assertLessEqual(max(peaks(self.tight)), self.budget)
        self.assertRegex(self.tight, r"Spillway, epoch 1: peak .* of a budget of .*, paged out \d.* MiB, paged in \d")
        print(
            f"nnU-Net: peak {self.peak / 2**20:.0f} MiB, budget {self.budget / 2**20:.0f} MiB, seconds of the epochs "
            f"{seconds_of_epochs(self.tight):.1f}, / no budget "
            f"{seconds_of_epochs(self.tight) / seconds_of_epochs(self.unlimited):.2f}, / stock "
            f"{seconds_of_epochs(self.tight) / seconds_of_epochs(self.stock):.2f}"
        )

    def test_training_goes_on_from_a_checkpoint_of_the_other_trainer(self):
        checkpoints = [
            self.work.model(name) / "fold_0" / "checkpoint_final.pth" for name in ("StockTrainer", "PagedTrainer")
        ]
        one, other = (path.read_bytes() for path in checkpoints)
        checkpoints[0].write_bytes(other)
        checkpoints[1].write_bytes(one)
        self.work.train("StockTrainer", "--c", EPOCHS="3")
        output = self.work.train("PagedTrainer", "--c", EPOCHS="3", SPILLWAY_BUDGET=str(self.budget))
        self.assertIn("Spillway, epoch 2", output)
        self.assertNotIn("Spillway, epoch 1", output)
        self.expect_same_training(self.work.checkpoint("StockTrainer"), self.work.checkpoint("PagedTrainer"))

    def test_prediction_has_the_same_bits_with_and_without_a_budget(self):
        from nnunetv2.inference import predict_from_raw_data
        from nnunetv2.inference.predict_from_raw_data import predict_entry_point

        from spillway.nnunet.__main__ import main

        images = self.work.folder / "raw" / DATASET / "imagesTs"
        words = [
            "-i",
            images,
            "-d",
            "1",
            "-p",
            PLANS,
            "-c",
            "3d_fullres",
            "-f",
            "0",
            "-tr",
            "PagedTrainer",
            "-device",
            "cpu",
            "-npp",
            "0",
            "-nps",
            "0",
            "--disable_progress_bar",
        ]
        stock, paged = self.work.folder / "stock", self.work.folder / "paged"
        self.work.call(predict_entry_point, words=[*words, "-o", stock])
        with mock.patch.object(predict_from_raw_data, "nnUNetPredictor", predict_from_raw_data.nnUNetPredictor):
            self.work.call(main, words=["predict", *words, "-o", paged], SPILLWAY_BUDGET="40MiB")
        self.expect_same_files(stock, paged)
        with self.assertRaisesRegex(RuntimeError, "nnUNet_extTrainer"):
            self.work.call(predict_entry_point, words=[*words, "-o", stock], nnUNet_extTrainer="")

    def test_workers_augment_beside_a_session(self):
        output = self.work.train("MixedTrainer", EPOCHS="1", nnUNet_n_proc_DA="2", SPILLWAY_BUDGET=str(self.budget))
        self.assertIn("Spillway, validation", output)

    def test_an_error_in_a_step_closes_the_session(self):
        with self.assertRaisesRegex(ValueError, "a step that fails"):
            self.work.train("MixedTrainer", FAIL="1", SPILLWAY_BUDGET="1GiB")
        with spillway.Session(budget="2GiB"):  # another is open no more
            pass
        with self.assertRaisesRegex(spillway.OutOfBudget, "convolution"):
            self.work.train("MixedTrainer", SPILLWAY_BUDGET="20MiB")

    def test_a_trainer_refuses_what_cannot_work(self):
        with self.assertRaisesRegex(RuntimeError, "export SPILLWAY_BUDGET=8GiB"):
            self.work.train("PagedTrainer")
        with (
            mock.patch("torch.distributed.is_initialized", return_value=True),
            self.assertRaisesRegex(RuntimeError, "in one process"),
        ):
            self.work.train("PagedTrainer", SPILLWAY_BUDGET="1GiB")

    def test_compiling_is_off_and_said_once(self):
        from spillway.nnunet.trainer import nnUNetTrainerSpillway

        trainer = nnUNetTrainerSpillway.__new__(nnUNetTrainerSpillway)
        trainer.device, trainer._said_not_compiled, lines = torch.device("cuda", 0), False, []
        trainer.print_to_log_file = lines.append
        self.assertFalse(trainer._do_i_compile() or trainer._do_i_compile())
        self.assertEqual(len(lines), 1)
        self.assertIn("torch.compile is off", lines[0])

    def test_the_planner_plans_as_nnunet_does_for_that_memory(self):
        from nnunetv2.experiment_planning.plan_and_preprocess_entrypoints import plan_experiment_entry

        from spillway.nnunet.__main__ import main

        words = ["-d", "1", "-gpu_memory_target", "0.5"]
        self.work.call(main, words=["plan", *words, "-overwrite_plans_name", "ours"], nnUNet_n_proc_DA="1")
        self.work.call(plan_experiment_entry, words=[*words, "-overwrite_plans_name", "theirs"], nnUNet_n_proc_DA="1")
        folder = self.work.folder / "preprocessed" / DATASET
        ours, theirs = ((folder / f"{name}.json").read_text() for name in ("ours", "theirs"))
        self.assertEqual(ours.replace("ours", "theirs").replace("SpillwayPlanner", "ExperimentPlanner"), theirs)
        with self.assertRaisesRegex(RuntimeError, "-gpu_memory_target 40"):
            self.work.call(main, words=["plan", "-d", "1"], nnUNet_n_proc_DA="1")


class SettingsTest(unittest.TestCase):
    """The parts that need no nnU-Net."""

    def test_the_environment_names_the_session(self):
        with self.assertRaisesRegex(RuntimeError, "export SPILLWAY_BUDGET=8GiB"):
            settings.session_options({})
        self.assertEqual(settings.session_options({"SPILLWAY_BUDGET": "None"}), {"budget": None})
        environment = {
            "SPILLWAY_BUDGET": "8GiB",
            "SPILLWAY_HOST_BUDGET": "16GiB",
            "SPILLWAY_DISK": "/tmp",
            "SPILLWAY_SPLIT": "none",
        }
        self.assertEqual(
            settings.session_options(environment),
            {"budget": "8GiB", "host_budget": "16GiB", "disk": "/tmp", "split": None},
        )
        apples = mock.patch.dict(os.environ, {"SPILLWAY_BUDGET": "12 apples"})
        with apples, self.assertRaisesRegex(ValueError, "12 apples.*SPILLWAY_BUDGET"):
            settings.session_for(torch.device("cpu"))
        with mock.patch.dict(os.environ, environment):
            self.assertIn("8.00 GiB", repr(settings.session_for(torch.device("cpu"))))
            with self.assertRaisesRegex(RuntimeError, "'mps'"):
                settings.session_for(torch.device("mps"))

    def test_the_folder_holds_the_trainer_alone(self):
        code = "import sys, spillway.nnunet.__main__ as m; sys.argv = ['']; m.main(); print('nnunetv2' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        folder, imported = done.stdout.split()
        self.assertEqual(folder, spillway.nnunet.trainer_folder())
        self.assertEqual(imported, "False")
        self.assertEqual(
            [path.name for path in pathlib.Path(folder).iterdir() if path.name != "__pycache__"],
            ["nnUNetTrainerSpillway.py"],
        )


if __name__ == "__main__":
    unittest.main()
