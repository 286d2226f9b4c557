"""Training on several ranks under mpirun: one result, however the work is distributed."""

import json
import os
import re
import unittest

from cli import MPIRUN, OTHERS, SMALL, Case, main, run


@unittest.skipIf(MPIRUN is None, "built without MPI")
class Ranks(Case):
    def test_two_ranks_agree_and_grad_worker_frac_changes_no_bit(self):
        options = [*SMALL, "--kfac"]
        whole = self.result(*options, "--grad-worker-frac", "1", ranks=2)
        half = self.result(*options, "--grad-worker-frac", "0.5", ranks=2)
        tight = self.result(*options, "--budget", "90%", ranks=2)
        for other in (half, tight):
            self.assertEqual(other["losses"], whole["losses"])
            self.assertEqual(other["weights_sha256"], whole["weights_sha256"])
        self.assertEqual(whole["world_size"], 2)
        self.assertLess(half["kfac"]["state_bytes"], whole["kfac"]["state_bytes"])
        self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
        self.assertIn("f=", tight["kfac"]["reason"])
        self.assertGreater(whole["allreduce"]["bytes_per_step"], 0)

    def test_optimizers_of_matrices_give_the_same_weights_under_a_budget(self):
        for optimizer in ("muon", "soap"):
            options = [*OTHERS["resnet50"], "--batch", "2", "--deterministic", "--steps", "3", "--optimizer", optimizer]
            free = self.result(*options, ranks=2)
            tight = self.result(*options, "--budget", str(free["floor_bytes"]), ranks=2)
            self.assertEqual((free["rest_optimizer"], free["rest_lr"]), ("adamw", free["lr"]))
            self.assertEqual(free["replicas"]["equal"], True)
            self.assertEqual(tight["weights_sha256"], free["weights_sha256"])
            self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])

    def test_auto_chooses_no_strategy_that_the_budget_cannot_run(self):
        options = [
            *OTHERS["resnet50"],
            *"--batch 2 --deterministic --kfac --kfac-rank full --no-overlap-gradients --steps 2".split(),
            *"--factor-interval 3 --inverse-interval 3".split(),
        ]

        def trained(strategy, budget):
            return self.result(*options, "--kfac-strategy", strategy, "--budget", budget, ranks=2)

        hybrid, owner_reduce = trained("hybrid", "100%"), trained("owner_reduce", "100%")
        self.assertLess(hybrid["floor_bytes"], owner_reduce["floor_bytes"])
        between = (hybrid["floor_bytes"] + owner_reduce["floor_bytes"]) // 2
        for plan, reason in (("auto", "ms a step"), ("formula", "owner_reduce f=0.5 would need")):
            options += ["--plan", plan]
            chosen = trained("auto", str(between))
            self.assertEqual(chosen["kfac"]["strategy"], "hybrid")
            self.assertIn(reason, chosen["kfac"]["reason"])
            self.assertLessEqual(chosen["peak_bytes"], between)
            self.assertEqual(chosen["weights_sha256"], hybrid["weights_sha256"])

    def test_allowed_changes_are_those_of_their_flags(self):
        model = ["--model", "unet3d", "--edge", "32", "--filters", "4", "--cases", "8", "--steps", "2"]
        floor = self.result(*model, "--budget", "90%", ranks=2)["floor_bytes"]
        budget = ["--budget", str(floor - 1)]
        taken = self.result(*model, *budget, "--allow", "amp,batch", ranks=2)
        given = self.result(*model, *budget, "--amp", "bf16", ranks=2)
        self.assertEqual(taken["weights_sha256"], given["weights_sha256"])
        self.refused(
            2,
            "--resume",
            args=["train", *model, *budget, "--allow", "amp", "--resume", "--checkpoint", self.folder / "checkpoints"],
        )

    def test_steps_that_cannot_be_simulated_are_distributed_by_the_formula(self):
        options = [*OTHERS["mlp"], "--kfac", "--kfac-time", "20%", "--steps", "2", "--budget", "100%"]
        chosen = self.result(*options, ranks=2)
        self.assertIn("of K-FAC state", chosen["kfac"]["reason"])

    def test_the_floor_of_two_ranks_with_kfac_is_exact(self):
        mlp = ["--model", "mlp", "--data", "synthetic:64", "--hidden", "300", "--steps", "3", "--batch", "1", "--kfac"]
        for more in (
            [],
            ["--overlap-factors"],
            ["--overlap-factors", "--factor-dtype", "fp16"],
            ["--grad-worker-frac", "1"],
            ["--kfac-strategy", "auto"],
        ):
            refused = run("train", *mlp, *more, "--budget", "1KiB", ranks=2)
            floor = int(re.search(r"smallest feasible budget is (\d+) bytes", refused.stderr).group(1))
            self.assertEqual(self.result(*mlp, *more, "--budget", str(floor), ranks=2)["budget_bytes"], floor)
            refused = run("train", *mlp, *more, "--budget", str(floor - 4096), ranks=2)
            self.assertIn(f"smallest feasible budget is {floor} bytes", refused.stderr)

    def test_a_floor_depends_on_no_rate_of_the_links(self):
        mlp = ["--model", "mlp", "--data", "synthetic:64", "--steps", "1", "--batch", "1"]
        cache = self.folder / "cache"
        environment = {**os.environ, "SPILLWAY_CACHE": str(cache)}
        for more in (["--hidden", "700"], ["--hidden", "300", "--kfac", "--overlap-factors"]):
            floors = set()
            for latency in (0, 1e-6, 1e-2):
                for file in (cache / "links").glob("*.json"):
                    remembered = json.loads(file.read_text())
                    for link in remembered["costs"]["levels"]:
                        link.update(latency_seconds=latency, message_seconds=latency)
                    file.write_text(json.dumps(remembered))
                done = run("train", *mlp, *more, "--budget", "1KiB", ranks=2, env=environment)
                floors.add(re.search(r"smallest feasible budget is (\d+) bytes", done.stderr).group(1))
            self.assertEqual(len(list((cache / "links").iterdir())), 1)
            self.assertEqual(len(floors), 1, floors)

    def test_two_ranks_agree_under_every_exact_strategy_and_not_with_dp(self):
        def result(*options):
            return self.result(*SMALL, "--kfac", *options, ranks=2)

        whole = result("--kfac-strategy", "comm_opt")
        owner = result("--kfac-strategy", "owner_reduce", "--grad-worker-frac", "0.5", "--placement", "round-robin")
        chosen = result("--kfac-strategy", "auto", "--placement", "measured")
        for other in (owner, chosen):
            self.assertEqual(other["weights_sha256"], whole["weights_sha256"])
        seconds = owner["kfac"]["seconds_by_rank"]
        self.assertEqual(len(seconds), 2)
        self.assertEqual(seconds[0], owner["kfac"]["seconds"])
        self.assertGreater(min(rank["precondition"] for rank in seconds), 0)
        early = result("--kfac-strategy", "comm_opt", "--overlap-factors", "--budget", "90%")
        self.assertEqual(early["weights_sha256"], whole["weights_sha256"])
        self.assertLessEqual(early["peak_bytes"], early["budget_bytes"])
        self.assertGreater(early["unconstrained_peak_bytes"], whole["peak_bytes"], "messages are counted")
        self.assertLess(owner["kfac"]["state_bytes"], whole["kfac"]["state_bytes"])
        self.assertIn(chosen["kfac"]["strategy"], ("comm_opt", "hybrid", "owner_reduce"))
        self.assertIn("f=", chosen["kfac"]["reason"])
        self.assertNotEqual(result("--kfac-strategy", "dp")["weights_sha256"], whole["weights_sha256"])
        rounded = result("--factor-dtype", "bf16")
        self.assertNotEqual(rounded["weights_sha256"], whole["weights_sha256"])
        early = result("--factor-dtype", "bf16", "--overlap-factors", "--budget", "90%")
        self.assertEqual(early["weights_sha256"], rounded["weights_sha256"])

    def test_gradients_are_sent_beside_backward_and_no_bit_depends_on_how(self):
        options = [*SMALL, "--accumulate", "2"]
        late = self.result(*options, "--no-overlap-gradients", ranks=2)
        self.assertEqual((late["allreduce"]["buckets"], late["allreduce"]["hidden_percent"]), (0, 0))
        for more in (
            [],
            ["--gradient-bucket", "16KiB"],
            ["--gradient-bucket", "16KiB", "--gradient-buffer", "32KiB"],
            ["--budget", "90%"],
        ):
            early = self.result(*options, *more, ranks=2)
            self.assertEqual(early["weights_sha256"], late["weights_sha256"], more)
            allreduce = early["allreduce"]
            self.assertEqual(allreduce["bytes_per_step"], late["allreduce"]["bytes_per_step"])
            self.assertGreater(allreduce["buckets"], 0)
            self.assertGreater(allreduce["percent_of_bound"], 0)
            # Who waits may be woken late, so it may have waited for longer than the allreduce took.
            share = allreduce["exposed_seconds_per_step"] / allreduce["seconds_per_step"]
            self.assertGreaterEqual(share, 0)
            self.assertAlmostEqual(allreduce["hidden_percent"], max(0, 100 * (1 - share)), places=3)
            if "16KiB" in more:
                self.assertEqual(allreduce["bucket_bytes"], 16384)
                self.assertGreater(allreduce["buckets"], allreduce["bytes_per_step"] // 16384 - 1)
        self.refused(2, "gradient_bucket_bytes is 10", args=["train", *options, "--gradient-bucket", "10"])
        self.refused(2, "'much'", args=["train", *options, "--gradient-buffer", "much"])


if __name__ == "__main__":
    main()
