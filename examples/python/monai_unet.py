"""Segments grey and white matter on a real T1 volume with MONAI's DynUNet, under half of the memory that it would take.

    python examples/python/monai_unet.py [--edge 96] [--steps 20] [--budget 50%] [--report DIR]

Needs monai, nibabel and nilearn, whose package holds the ICBM 152 template: a T1 volume of 1 mm with maps of grey and
white matter (Fonov et al. 2011). MONAI's code knows nothing of Spillway.
"""

import argparse
import gzip
import importlib.util
import pathlib
import time

import monai
import nibabel
import numpy as np
import torch

import spillway

MIB = 1 << 20


def load_template():
    """Returns the T1 volume (1, D, H, W) of mean 0 and deviation 1 in the head, and labels 0, 1 grey, 2 white."""
    found = importlib.util.find_spec("nilearn")
    if found is None:
        raise SystemExit("nilearn is missing, whose package holds the volume: pip install --no-deps nilearn")
    folder = pathlib.Path(found.submodule_search_locations[0]) / "datasets/data"

    def volume(name):
        path = folder / f"mni_icbm152_{name}_tal_nlin_sym_09a_converted.nii.gz"
        image = nibabel.Nifti1Image.from_bytes(gzip.decompress(path.read_bytes()))
        return np.asarray(image.get_fdata(dtype=np.float32))

    t1, grey, white = volume("t1"), volume("gm"), volume("wm")
    head = t1 > 0
    t1 = (t1 - t1[head].mean()) / t1[head].std()
    share = 0.5 * max(grey.max(), white.max())
    labels = np.where(grey > np.maximum(white, share), 1, np.where(white > np.maximum(grey, share), 2, 0))
    return torch.from_numpy(t1)[None], torch.from_numpy(labels.astype(np.int64))[None]


def make_model(filters):
    torch.manual_seed(0)
    widths = [filters, 2 * filters, 4 * filters, 8 * filters]
    return monai.networks.nets.DynUNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=3,
        kernel_size=[3, 3, 3, 3],
        strides=[1, 2, 2, 2],
        upsample_kernel_size=[2, 2, 2],
        filters=widths,
        deep_supervision=False,
    )


class Trainer:
    """The training as one would write it without Spillway."""

    def __init__(self, volume, labels, args):
        self.model = make_model(args.filters)
        self.optimizer = spillway.optim.Adam(self.model.parameters(), 3e-3)
        self.loss = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
        crops = monai.transforms.RandCropByPosNegLabeld(
            keys=["image", "label"], label_key="label", spatial_size=[args.edge] * 3, pos=1, neg=0
        )
        crops.set_random_state(0)
        self.cases = monai.data.DataLoader(
            monai.data.Dataset([{"image": volume, "label": labels}] * args.steps, crops), batch_size=1
        )

    def step(self, case):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(case["image"]), case["label"])
        loss.backward()
        self.optimizer.step()
        return loss.item()


def segment(model, volume, edge):
    """Returns labels of a whole volume, window by window."""
    with torch.no_grad():
        return monai.inferers.sliding_window_inference(volume[None], [edge] * 3, 1, model, overlap=0.25).argmax(1)


def dice(found, labels, label):
    a, b = found == label, labels == label
    return (2 * (a & b).sum() / (a.sum() + b.sum()).clamp(min=1)).item()


def budget_of(text, peak, floor):
    """Returns bytes: a size, or a share of the peak, but no less than the floor and a twentieth."""
    if not text.endswith("%"):
        return text
    return max(int(peak * float(text[:-1]) / 100), floor + floor // 20)


def observe_step(trainer):
    """Returns what a step of this trainer takes."""
    return spillway.observe(lambda: trainer.step(next(iter(trainer.cases))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--edge", type=int, default=96, help="edge of the crops, a multiple of 8")
    parser.add_argument("--filters", type=int, default=8, help="channels of the top level")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", default="50%", help="a size such as 700MiB, or a share of the peak")
    parser.add_argument("--report", help="folder for report.html and trace.json")
    args = parser.parse_args()
    volume, labels = load_template()

    seen = observe_step(Trainer(volume, labels, args))
    print(f"a step takes {seen}", flush=True)

    trainer = Trainer(volume, labels, args)
    with spillway.Session(budget=budget_of(args.budget, seen.peak_bytes, seen.floor_bytes)) as session:
        for number, case in enumerate(trainer.cases, 1):
            began = time.monotonic()
            with session.step():
                loss = trainer.step(case)
            if number == 1:
                print(f"first loss {loss:.6f}, without a budget {seen.result:.6f}", flush=True)
            print(f"step {number:3}  loss {loss:.4f}  {time.monotonic() - began:.2f} s", flush=True)
        trainer.model.eval()
        with session.step("validate"):
            found = segment(trainer.model, volume, args.edge)
        stats = session.stats()
        print(
            f"peak {stats['peak_bytes'] / MIB:.0f} MiB of a budget of {session.budget_bytes / MIB:.0f} MiB, "
            f"{stats['peak_bytes'] / seen.peak_bytes:.0%} of the peak without one; "
            f"{stats['bytes_out'] / MIB:.0f} MiB left the device"
        )
        print(f"Dice of the whole volume: grey {dice(found, labels, 1):.3f}, white {dice(found, labels, 2):.3f}")
        if args.report:
            print(f"report: {session.report(args.report)}")


if __name__ == "__main__":
    main()
