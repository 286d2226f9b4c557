"""Models that are cut over ranks, under mpirun: no cut changes a bit."""

import re
import unittest

from cli import MPIRUN, main, run
from pipelines import BERT, RESNET, SMALL_BERT, PipelineCase


@unittest.skipIf(MPIRUN is None, "built without MPI")
class Pipeline(PipelineCase):
    def test_a_cut_model_has_the_bits_of_one_rank(self):
        options = [*RESNET, "--kfac", "--refresh", "at-once", "--steps", "4"]
        whole = self.result(*options)
        for flags in (
            ["--pipeline", "2"],
            ["--pipeline", "2", "--schedule", "gpipe", "--cut", "3,15"],
            ["--pipeline", "2", "--schedule", "zb-h1"],
            ["--pipeline", "2", "--schedule", "auto"],
            ["--pipeline", "2", "--schedule", "gpipe", "--recompute"],
            ["--pipeline", "2", "--schedule", "interleaved"],
        ):
            cut = self.result(*options, *flags, ranks=2)
            self.assert_same(cut, whole)
            self.assertEqual(cut["parameters"], whole["parameters"])
            self.assertEqual(cut["metrics"], whole["metrics"])
        self.assertEqual(cut["pipeline"]["stages"], 4)
        self.assertEqual(sum(cut["pipeline"]["cut"]), len(cut["pipeline"]["parts"]))
        self.assertTrue(0 < cut["pipeline"]["utilization"] <= 1)
        self.assertIsNone(whole["pipeline"])

    def test_no_cut_changes_a_bit(self):
        tokens = (
            "--model bert-base --data synthetic:16 --layers 2 --hidden 64 --batch 2 --cases 32 "
            "--accumulate 2 --steps 3 --pipeline 2"
        ).split()
        mlp = (
            "--model mlp --data synthetic:16 --layers 6 --hidden 32 --cases 64 --batch 2 "
            "--accumulate 4 --kfac --kfac-strategy dp --steps 14 --pipeline 2"
        ).split()
        # A stage of the embedding alone has no matrix for muon.
        muon = [*tokens, "--optimizer", "muon", "--lr", "0.02", "--rest-lr", "0.0001"]
        # A stage of the head alone has fewer positions than another one.
        sampled = [*tokens, "--kfac", "--refresh", "at-once", "--factor-samples", "20"]
        for options, cuts, ranks in ((muon, ("2,2", "1,3"), 2), (sampled, ("2,2", "3,1"), 2), (mlp, ("3,4", "4,3"), 4)):
            one, other = (self.result(*options, "--cut", cut, ranks=ranks) for cut in cuts)
            self.assert_same(one, other)

    def test_a_budget_chooses_the_schedule(self):
        options = [*BERT, "--steps", "3", "--pipeline", "2"]
        chosen = self.result(*options, "--schedule", "auto", "--budget", "40MiB", ranks=2)
        self.assertLessEqual(chosen["peak_bytes"], 40 << 20)
        cut = ",".join(map(str, chosen["pipeline"]["cut"]))
        free = self.result(*options, "--schedule", chosen["pipeline"]["schedule"], "--cut", cut, ranks=2)
        self.assertEqual(free["losses"], chosen["losses"])

    def test_stages_that_run_forward_again_keep_less(self):
        options = [
            *SMALL_BERT,
            *"--batch 8 --cases 64 --accumulate 8 --pipeline 2 --schedule gpipe --steps 2".split(),
        ]
        kept = self.result(*options, ranks=2)
        again = self.result(*options, "--recompute", ranks=2)
        self.assert_same(again, kept)
        self.assertLess(again["peak_bytes"], 0.8 * kept["peak_bytes"])

    def test_chimera_sums_in_another_order(self):
        options = [*BERT, "--kfac", "--inverse-interval", "3", "--steps", "16", "--pipeline", "2"]
        one = self.result(*options, ranks=2)
        two = self.result(*options, "--schedule", "chimera", ranks=2)
        self.assertTrue(two["step_kinds"][-1].startswith("filled"))
        self.assertNotEqual(two["weights_sha256"], one["weights_sha256"])
        for loss, other in zip(one["losses"], two["losses"], strict=True):
            self.assertAlmostEqual(loss, other, delta=1e-5 * loss)
        self.assert_same(self.result(*options, "--schedule", "chimera", "--kfac-work", "after", ranks=2), two)
        self.assertEqual(two["parameters"], one["parameters"])
        self.assertEqual([rank["stages"] for rank in two["pipeline"]["by_rank"]], [[0, 1], [0, 1]])

    def test_dropout_depends_on_no_cut(self):
        two = self.result(*BERT, "--steps", "3", "--pipeline", "2", ranks=2)
        other = self.result(*BERT, "--steps", "3", "--pipeline", "2", "--cut", "1,4", "--schedule", "gpipe", ranks=2)
        self.assert_same(other, two)

    def test_gradients_are_clipped_by_the_norm_of_the_whole_model(self):
        options = [*RESNET, "--clip-norm", "0.5", "--steps", "3"]
        whole = self.result(*options)
        self.assertNotEqual(whole["losses"], self.result(*RESNET, "--steps", "3")["losses"])
        self.assert_same(self.result(*options, "--pipeline", "2", ranks=2), whole)
        tied = [*BERT, "--optimizer", "lamb", "--lr", "0.01", "--clip-norm", "0.5", "--steps", "3", "--pipeline", "2"]
        self.assert_same(
            self.result(*tied, "--schedule", "zb-h1", "--cut", "1,4", ranks=2), self.result(*tied, ranks=2)
        )

    def test_copies_beside_are_data_parallel(self):
        options = [*RESNET, "--kfac", "--refresh", "at-once", "--steps", "3"]
        self.assert_same(self.result(*options, "--pipeline", "2", ranks=4), self.result(*options, ranks=2))

    def test_no_bit_depends_on_when_kfac_works(self):
        options = [*RESNET, "--kfac", "--steps", "13", "--pipeline", "2"]
        for refresh in ("rolling", "together"):
            after = self.result(*options, "--refresh", refresh, "--kfac-work", "after", ranks=2)
            self.assertIsNone(after["pipeline"]["filled"])
            for flags in (
                [],
                ["--schedule", "interleaved"],
                ["--schedule", "zb-h1"],
                ["--schedule", "gpipe", "--cut", "9,9"],
            ):
                bubbles = self.result(*options, "--refresh", refresh, *flags, ranks=2)
                self.assert_same(bubbles, after)
                self.assertEqual(bubbles["step_kinds"][-1], "filled 0")
                self.assertGreater(bubbles["pipeline"]["filled"]["pieces"], 0)
                self.assertTrue(all(rank["kfac_seconds"] > 0 for rank in bubbles["pipeline"]["by_rank"]))

    def test_a_budget_holds_and_changes_no_bit(self):
        for method in ("eigen", "pi"):  # the largest factors are of side 288, and renewed in pieces
            options = [*RESNET, "--kfac", "--kfac-method", method, "--steps", "12", "--pipeline", "2"]
            free = self.result(*options, ranks=2)
            tight = self.result(*options, "--budget", "60%", ranks=2)
            self.assert_same(tight, free)
            self.assertLessEqual(tight["peak_bytes"], tight["budget_bytes"])
            self.assertLess(tight["peak_bytes"], free["peak_bytes"])
            self.assert_same(self.result(*options, "--kfac-work", "after", ranks=2), free)

    def test_the_smallest_feasible_budget_holds_for_late_refreshes(self):
        for small, work in (
            (["--hidden", "48", "--edge", "12", "--cases", "128", "--batch", "8"], "bubbles"),
            (["--hidden", "400", "--edge", "28", "--cases", "512", "--batch", "16"], "bubbles"),
            (["--hidden", "400", "--edge", "28", "--cases", "512", "--batch", "16"], "after"),
        ):
            options = [
                "--model",
                "autoencoder",
                *small,
                *"--layers 5 --accumulate 4 --deterministic --kfac --kfac-work".split(),
                work,
                *"--pipeline 2 --cut 6,6 --steps 14".split(),
            ]
            refused = run("train", *options, "--budget", "1KiB", ranks=2)
            floor = int(re.search(r"smallest feasible budget is (\d+) bytes", refused.stderr)[1])
            tight = self.result(*options, "--budget", str(floor), ranks=2)
            self.assertLessEqual(tight["peak_bytes"], floor)
            self.assert_same(tight, self.result(*options, ranks=2))

    def test_wrong_input_is_refused_by_name(self):
        def refused(*parts, args, ranks=2):
            self.refused(2, *parts, args=["train", *args], ranks=ranks)

        mlp = ["--model", "mlp", "--data", "synthetic:16", "--hidden", "32", "--layers", "2", "--batch", "4"]
        refused("cut over 3 ranks, and there are 2", args=[*mlp, "--pipeline", "3"])
        refused("cut over 2 ranks, and there is 1", args=[*mlp, "--pipeline", "2"], ranks=0)
        refused(
            "--schedule is 'zb'; allowed is gpipe, 1f1b, interleaved, zb-h1, chimera or auto",
            args=[*mlp, "--pipeline", "2", "--schedule", "zb"],
        )
        refused(
            "--refresh is 'never'; allowed is rolling, together or at-once",
            args=[*mlp, "--pipeline", "2", "--refresh", "never"],
        )
        refused(
            "--kfac-work is 'now'; allowed is bubbles or after", args=[*mlp, "--pipeline", "2", "--kfac-work", "now"]
        )
        refused(
            "the cut is 1,1; allowed: 2 numbers of 1 and more, of 3 parts together",
            args=[*mlp, "--pipeline", "2", "--cut", "1,1"],
        )
        refused(
            "the cut is 4294967297,2; allowed: 2 numbers of 1 and more, of 3 parts together",
            args=[*mlp, "--pipeline", "2", "--cut", "4294967297,2"],
        )
        refused(
            "inverse_interval is auto; allowed is a number, but with K-FAC in the waits of a pipeline",
            args=[*mlp, "--kfac", "--inverse-interval", "auto"],
        )
        refused(
            "--inverse-interval is 'often'; allowed is a number of steps, or auto",
            args=[*mlp, "--kfac", "--inverse-interval", "often"],
        )
        refused(
            "chimera takes micro-batches in units of its ranks; 2 do not divide 1",
            args=[*mlp, "--pipeline", "2", "--schedule", "chimera"],
        )
        refused("recompute is on; allowed is off without a pipeline", args=[*mlp, "--recompute"])
        refused(
            "schedule is chimera; allowed is one of the others without a pipeline", args=[*mlp, "--schedule", "chimera"]
        )
        refused("amp is fp16", args=[*mlp, "--pipeline", "2", "--amp", "fp16"])
        refused("pipeline is 0; allowed is 1 to 1024", args=[*mlp, "--pipeline", "0"])
        refused(
            "burn_in is 3; allowed is 0 with refresh rolling",
            args=[*mlp, "--pipeline", "2", "--kfac", "--burn-in", "3"],
        )
        refused(
            "--factor-interval is 2; allowed with --refresh rolling is the --inverse-interval, 4",
            args=[*mlp, "--pipeline", "2", "--kfac", "--factor-interval", "2", "--inverse-interval", "4"],
        )
        refused(
            "staleness is 3; allowed with refresh rolling is less than the inverse_interval, 3",
            args=[*mlp, "--pipeline", "2", "--kfac", "--staleness", "3"],
        )
        refused(
            "rank 0 has no layer that K-FAC preconditions", args=[*BERT, "--pipeline", "2", "--cut", "1,4", "--kfac"]
        )


if __name__ == "__main__":
    main()
