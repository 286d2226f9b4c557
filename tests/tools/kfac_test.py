"""Training with K-FAC."""

import json
import shutil

from cli import OTHERS, SMALL, Case, main, run


class WithKfac(Case):
    def test_kfac_under_a_budget_gives_the_same_weights(self):
        options = [*SMALL, "--kfac", "--burn-in", "3"]
        free = self.shared_result(*options)
        tight = self.result(*options, "--budget", str(free["floor_bytes"]))
        self.assertEqual(tight["weights_sha256"], free["weights_sha256"])
        self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
        self.assertEqual(tight["kfac"]["factor_updates"], 3)
        self.assertGreater(tight["kfac"]["layers"], 10)

    def test_methods_conventions_and_decays_of_kfac_change_the_result(self):
        options = [*OTHERS["mlp"], "--kfac", "--burn-in", "10", "--cases", "10", "--steps", "8"]  # two steps an epoch
        seen = {
            self.result(*options, *more)["losses"][-1]
            for more in (
                [],
                ["--kfac-method", "pi"],
                ["--kfac-method", "plain", "--damping", "0.01"],
                ["--convention", "kaisa"],
                ["--convention", "dp_kfac", "--damping", "0.01"],
                ["--damping-decay", "0.01@1"],
                ["--burn-in", "0", "--interval-decay", "3@1"],
                ["--burn-in", "0"],
                ["--factor-decay", "0.5"],
            )
        }
        self.assertEqual(len(seen), 9)
        held = self.result(*options, "--precompute-outer")
        divided = self.result(*options)
        self.assertAlmostEqual(held["losses"][-1], divided["losses"][-1], places=4)
        bytes_of_state = held["kfac"]["state_bytes"], divided["kfac"]["state_bytes"]
        self.assertNotEqual(*bytes_of_state, "reciprocals in place of eigenvalues and scales")

    def test_damping_follows_the_loss_and_goes_on_from_a_checkpoint(self):
        options = [*OTHERS["mlp"], "--kfac", "--deterministic", "--adapt-damping", "2"]
        constant = self.result(*options, "--adapt-damping", "0", "--steps", "6")
        whole = self.result(*options, "--steps", "6")
        self.assertEqual(constant["kfac"]["damping_scale"], 1)
        self.assertNotEqual(whole["kfac"]["damping_scale"], 1)
        self.assertEqual(whole["losses"][:3], constant["losses"][:3], "the first adaptation is behind the second step")
        self.assertNotEqual(whole["losses"][3:], constant["losses"][3:])
        saved = ["--checkpoint", self.folder / "saved"]
        self.result(*options, "--steps", "3", *saved)
        resumed = self.result(*options, "--steps", "6", *saved, "--resume")
        self.assertEqual(resumed["weights_sha256"], whole["weights_sha256"])
        self.assertEqual(resumed["kfac"]["damping_scale"], whole["kfac"]["damping_scale"])

    def test_forms_and_storage_of_kfac_state_change_its_bytes_and_the_result(self):
        def result(*options):
            return self.result(*SMALL, "--kfac", *options)

        usual = result("--conv-factors", "full")
        blocks = result("--conv-factors", "block", "--max-factor-dim", "60")
        self.assertGreater(blocks["kfac"]["block_layers"], 0)
        self.assertLess(blocks["kfac"]["state_bytes"], usual["kfac"]["state_bytes"])
        small = [result("--conv-factors", "full", "--kfac-storage", storage) for storage in ("bf16", "fp16")]
        for one in small:
            self.assertLess(one["kfac"]["state_bytes"], 0.55 * usual["kfac"]["state_bytes"])
        self.assertEqual(len({r["weights_sha256"] for r in (usual, blocks, *small)}), 4)
        paged = result("--conv-factors", "full", "--kfac-storage", "bf16", "--budget", "80%")
        self.assertEqual(paged["weights_sha256"], small[0]["weights_sha256"])
        mlp = [*OTHERS["mlp"], "--steps", "2", "--kfac"]
        self.assertEqual(
            self.result(*mlp, "--max-linear-dim", "32")["kfac"]["layers"], 1, "the bias' column is the 33rd"
        )
        whole = self.result(*mlp, "--max-linear-dim", "32", "--block-linear")["kfac"]
        self.assertEqual((whole["layers"], whole["block_layers"]), (2, 1))
        self.refused(2, "fp64", "fp32, bf16, fp16", args=["train", *SMALL, "--kfac", "--kfac-storage", "fp64"])
        self.refused(
            2, "warm_start", "bf16", args=["train", *SMALL, "--kfac", "--kfac-storage", "bf16", "--warm-start", "0.001"]
        )

    def test_positions_of_factors_are_sampled(self):
        def weights(*options):
            result = self.result(*SMALL, "--kfac", *options)
            self.assertEqual(result["kfac"]["factor_samples"], options[1])
            return result["weights_sha256"]

        exact, few = weights("--factor-samples", "exact"), weights("--factor-samples", "300")
        self.assertNotEqual(few, exact)
        self.assertEqual(weights("--factor-samples", "300", "--budget", "80%"), few)
        self.assertNotEqual(weights("--factor-samples", "300", "--seed", "1"), few)
        for samples, parts in (
            ("0", ("1 and more",)),
            ("some", ("'some'", "exact, auto")),
            ("1e9", ("'1e9'",)),
            ("999999999", ("999999999 is outside 1 to", "positions")),
        ):
            self.refused(2, "factor_samples", *parts, args=["train", *SMALL, "--kfac", "--factor-samples", samples])

    def test_eigenbases_are_truncated(self):
        def trained(*options):
            return self.result(*SMALL, "--kfac", "--conv-factors", "full", *options)

        full, few = trained("--kfac-rank", "full"), trained("--kfac-rank", "8")
        self.assertEqual((full["kfac"]["rank"], few["kfac"]["rank"]), ("full", "8"))
        self.assertLess(few["kfac"]["state_bytes"], full["kfac"]["state_bytes"])
        self.assertNotEqual(few["weights_sha256"], full["weights_sha256"])
        self.assertEqual(trained("--kfac-rank", "8", "--budget", "80%")["weights_sha256"], few["weights_sha256"])
        for rank, part in (("0", "1 and more"), ("most", "full, auto")):
            self.refused(2, "eigen_rank", part, args=["train", *SMALL, "--kfac", "--kfac-rank", rank])
        self.refused(
            2, "eigen_rank", "method pi", args=["train", *SMALL, "--kfac", "--kfac-rank", "8", "--kfac-method", "pi"]
        )

    def test_a_share_of_the_time_makes_a_plan_that_can_be_given_back(self):
        usual = self.shared_result(*SMALL, "--kfac")
        self.assertIsNone(usual["kfac"]["plan"])
        options = [*SMALL, "--kfac", "--steps", "5"]
        small = self.result(*options, "--kfac-time", "10%")
        plan = small["kfac"]["plan"]
        self.assertEqual(len(plan), small["kfac"]["layers"])
        self.assertEqual(set(plan[0]), {"layer", "samples", "rank", "interval", "slot"})
        self.assertGreater(max(layer["interval"] for layer in plan), 3)
        self.assertGreater(len({layer["slot"] for layer in plan}), 1)
        paged = self.result(*options, "--kfac-time", "10%", "--budget", "80%")
        self.assertEqual(paged["weights_sha256"], small["weights_sha256"])
        self.assertLessEqual(paged["peak_bytes"], paged["budget_bytes"])
        file = self.folder / "plan.json"
        file.write_text(json.dumps({"kfac": {"plan": plan}}))
        self.assertEqual(self.result(*options, "--kfac-plan", file)["weights_sha256"], small["weights_sha256"])
        saved = ["--checkpoint", self.folder / "saved"]
        self.result(*options, "--steps", "3", "--kfac-time", "10%", *saved)
        for more in ([], ["--kfac-time", "10%"]):
            shutil.rmtree(self.folder / "again", ignore_errors=True)
            shutil.copytree(self.folder / "saved", self.folder / "again")
            resumed = self.result(*options, "--checkpoint", self.folder / "again", "--resume", *more)
            self.assertEqual(resumed["weights_sha256"], small["weights_sha256"])
            self.assertEqual(resumed["kfac"]["plan"], plan)
        beside = self.result(*options, "--kfac-time", "10%", "--compare", "adam,unlimited")
        self.assertEqual(beside["weights_sha256"], small["weights_sha256"])
        self.assertEqual(beside["compared"]["unlimited"]["losses"], small["losses"], "the same plan")
        said = run("train", *SMALL, "--kfac", "--steps", "1", "--kfac-time", "1%")
        self.assertIn("no plan has 1 %, so this one has the least work", said.stdout + said.stderr)

    def test_plans_and_shares_that_make_no_sense(self):
        def refused(*options):
            return lambda *parts: self.refused(2, *parts, args=["train", *SMALL, *options])

        for share in ("0%", "101%", "-3%", "20", "nan%", "some"):
            refused("--kfac", f"--kfac-time={share}")(f"--kfac-time is '{share}'", "above 0%")
        refused("--kfac-time", "20%")("--kfac-time has no effect without --kfac")
        refused("--kfac", "--kfac-time", "20%", "--interval-decay", "2@1")("interval_decay")
        refused("--kfac", "--kfac-time", "20%", "--inverse-interval", "6")("constant and equal intervals")
        refused("--kfac", "--kfac-time", "20%", "--burn-in", "3")("burn_in")
        file = self.folder / "plan.json"
        refused("--kfac", "--kfac-plan", file)("cannot be read")
        file.write_text("[]")
        refused("--kfac", "--kfac-plan", file)("there is no plan")
        layer = {"layer": "conv", "samples": "auto", "rank": "auto", "interval": 3, "slot": 0}
        file.write_text(json.dumps([layer]))
        refused("--kfac", "--kfac-plan", file)("layer_curvature is of 1 layers")
        refused("--kfac", "--kfac-plan", file, "--kfac-rank", "8")("--kfac-rank has no effect with --kfac-plan")
        file.write_text(json.dumps([{**layer, "slot": 3}]))
        refused("--kfac", "--kfac-plan", file)("slot of layer 'conv' is 3")
        self.result(*SMALL, "--kfac", "--checkpoint", self.folder / "saved", "--steps", "1")
        refused("--kfac", "--kfac-time", "20%", "--checkpoint", self.folder / "saved", "--resume")(
            "had no plan of curvature"
        )

    def test_a_model_says_what_kfac_starts_from(self):
        first = self.shared_result(*SMALL, "--kfac")
        self.assertEqual(first["lr"], 1)
        self.assertGreaterEqual(first["kfac"]["left_alone"], 3, "the heads")
        said = run("train", *SMALL, "--kfac", "--steps", "1")
        self.assertEqual((said.stdout + said.stderr).count("3 × skipped by name (head"), 1)
        same = self.result(
            *SMALL,
            *(
                "--kfac --lr 1 --kfac-skip ^head --kl-clip 1e-5 --kl-clip-steps 10 "
                "--damping-scope layer --relative-damping 0.3"
            ).split(),
        )
        self.assertEqual(same["weights_sha256"], first["weights_sha256"])
        self.assertEqual((first["rest_optimizer"], first["rest_lr"]), ("adam", 0.05))
        same = self.result(*SMALL, "--kfac", "--rest-optimizer", "adam", "--rest-lr", "0.05", "--norm-clip", "inf")
        self.assertEqual(same["weights_sha256"], first["weights_sha256"])
        decoupled = self.result(*SMALL, "--kfac", "--rest-optimizer", "adamw")
        self.assertEqual((decoupled["rest_optimizer"], decoupled["rest_lr"]), ("adamw", 0.05))
        old = self.result(*SMALL, "--kfac", "--rest-optimizer", "sgd")
        self.assertEqual(old["rest_lr"], 1)
        self.assertNotEqual(old["weights_sha256"], first["weights_sha256"])
        every = self.result(*SMALL, "--kfac", "--kfac-skip", "none")
        self.assertEqual(every["kfac"]["layers"], first["kfac"]["layers"] + 3)
        fewer = self.result(*SMALL, "--kfac", "--kfac-skip", "^head|^down0")
        self.assertLess(fewer["kfac"]["layers"], first["kfac"]["layers"])
        self.assertEqual(self.result(*OTHERS["mlp"], "--steps", "1", "--kfac")["lr"], 0.1)
        for name in ("bp3d", "resnet50"):
            layers = [
                self.result(*OTHERS[name], "--steps", "1", "--kfac", *more)["kfac"]["layers"]
                for more in ([], ["--kfac-skip", "none"])
            ]
            self.assertEqual(layers[1] - layers[0], 1, "the output layer")
        small = [*OTHERS["mlp"], "--steps", "3", "--kfac", "--deterministic"]

        def weights(*more):
            return self.result(*small, *more)["weights_sha256"]

        self.assertEqual(
            weights("--norm-clip", "0.02", "--damping-scope", "network", "--relative-damping", "0.1"), weights()
        )
        self.assertNotEqual(weights("--norm-clip", "inf"), weights())
        self.assertNotEqual(weights("--damping-scope", "layer", "--relative-damping", "0.1"), weights())
        self.assertEqual(
            weights("--kl-clip", "1e9"), weights("--norm-clip", "inf"), "a trust region takes the norm's place"
        )
        curves = [*OTHERS["autoencoder"], "--steps", "4", "--kfac", "--deterministic"]
        said = self.result(*curves, "--kl-clip", "1e-3", "--kl-clip-steps", "inf", "--kfac-skip", "none", "--lr", "0.1")
        self.assertEqual(said["weights_sha256"], self.result(*curves)["weights_sha256"])
        self.assertNotEqual(said["weights_sha256"], self.result(*curves, "--kl-clip-steps", "2")["weights_sha256"])
        self.refused(2, "skip", "'['", args=["train", *SMALL, "--kfac", "--kfac-skip", "["])


if __name__ == "__main__":
    main()
