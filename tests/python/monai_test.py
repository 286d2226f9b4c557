"""Tests of MONAI's networks, losses, loaders and inference as they are, under a budget."""

import contextlib
import importlib.util
import unittest
import warnings

import torch

import spillway

MISSING = [name for name in ("monai", "einops") if importlib.util.find_spec(name) is None]
if not MISSING:
    warnings.simplefilter("ignore")
    import monai
    from monai.networks import nets


def networks():
    """Returns makers of small networks, the edges of their volumes, and how many steps to take."""
    widths = [8, 16, 32]
    return {
        "UNet": (lambda: nets.UNet(3, 1, 2, widths, [2, 2], num_res_units=2), 32, 2),
        "DynUNet": (
            lambda: nets.DynUNet(3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=widths, deep_supervision=False),
            32,
            2,
        ),
        "SegResNet": (lambda: nets.SegResNet(3, 8, 1, 2, blocks_down=(1, 1, 1), blocks_up=(1, 1)), 32, 2),
        "AttentionUnet": (lambda: nets.AttentionUnet(3, 1, 2, widths, [2, 2]), 32, 2),
        "VNet": (lambda: nets.VNet(3, 1, 2), 32, 2),
        "SwinUNETR": (
            lambda: nets.SwinUNETR(1, 2, feature_size=12, spatial_dims=3, use_checkpoint=True, depths=(1, 1, 1, 1)),
            64,
            1,
        ),
    }


def train(make, edge, steps, session=None):
    torch.manual_seed(0)
    model = make()
    optimizer = spillway.optim.AdamW(model.parameters(), 1e-3, group_bytes=1 << 20)
    loss_of = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
    image, label = torch.randn(1, 1, edge, edge, edge), torch.randint(0, 2, (1, 1, edge, edge, edge))
    losses = []
    for _ in range(steps):
        with session.step() if session else contextlib.nullcontext():
            optimizer.zero_grad()
            loss = loss_of(model(image), label)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [tensor.clone() for tensor in model.state_dict().values()]


@unittest.skipIf(MISSING, f"{' and '.join(MISSING)} are not installed: pip install monai einops")
class MonaiTest(unittest.TestCase):
    def setUp(self):
        # PyTorch's own gradient of indexing adds in the order of its threads; SwinUNETR has one.
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.addCleanup(torch.use_deterministic_algorithms, False)

    def test_networks_train_to_the_same_bits_under_half_of_their_peak(self):
        for name, arguments in networks().items():
            with self.subTest(name):
                plain = train(*arguments)
                seen = spillway.observe(lambda arguments=arguments: train(*arguments))
                budget = max(seen.peak_bytes // 2, seen.floor_bytes + seen.floor_bytes // 20)
                with spillway.Session(budget=budget) as session:
                    tight = train(*arguments, session)
                    stats = session.stats()
                self.assertEqual(plain[0], tight[0])
                for one, another in zip(plain[1], tight[1], strict=True):
                    self.assertTrue(torch.equal(one, another))
                self.assertLessEqual(stats["peak_bytes"], budget)
                self.assertGreater(stats["bytes_in"], 0)

    def test_loaders_with_workers_and_transforms_feed_a_session(self):
        torch.manual_seed(1)
        case = {"image": torch.randn(1, 40, 40, 40), "label": torch.randint(0, 2, (1, 40, 40, 40))}
        transforms = monai.transforms.Compose(
            [
                monai.transforms.NormalizeIntensityd("image"),
                monai.transforms.RandCropByPosNegLabeld(
                    ["image", "label"], label_key="label", spatial_size=(32, 32, 32)
                ),
                monai.transforms.RandFlipd(["image", "label"], prob=0.5, spatial_axis=0),
                monai.transforms.RandGaussianNoised("image", prob=1),
            ]
        )

        def work(workers):
            monai.utils.set_determinism(5)
            loader = monai.data.DataLoader(
                monai.data.Dataset([case] * 4, transforms), batch_size=2, num_workers=workers
            )
            make, *_ = networks()["UNet"]
            torch.manual_seed(0)
            model = make()
            return [model(batch["image"].as_tensor()).sum().item() for batch in loader]

        plain = work(2)
        floor = spillway.observe(lambda: work(2)).floor_bytes
        with spillway.Session(budget=floor + floor // 10):
            self.assertEqual(work(2), plain)

    def test_sliding_windows_over_a_whole_volume(self):
        make, *_ = networks()["UNet"]
        torch.manual_seed(0)
        model = make().eval()
        volume = torch.randn(1, 1, 56, 48, 60)

        def segment():
            with torch.no_grad():
                return monai.inferers.sliding_window_inference(
                    volume, (32, 32, 32), 2, model, overlap=0.5, mode="gaussian"
                )

        plain = segment()
        floor = spillway.observe(segment).floor_bytes
        with spillway.Session(budget=floor + floor // 20) as session:
            for _ in range(2):
                with session.step("validate"):
                    found = segment()
            self.assertTrue(torch.equal(found, plain))
            self.assertGreater(session.stats()["page_outs"], 0)


if __name__ == "__main__":
    unittest.main()
