"""Models that are cut over ranks, for tests."""

import os

from cli import Case

os.environ["OMP_NUM_THREADS"] = "1"  # a sum's last bits depend on the number of threads
RESNET = (
    "--model resnet50 --edge 40 --filters 4 --classes 5 --batch 2 --cases 40 --accumulate 4 --optimizer sgd --lr 0.05"
).split()
SMALL_BERT = ["--model", "bert-base", "--data", "synthetic:24", "--layers", "3", "--hidden", "64"]
BERT = [*SMALL_BERT, "--batch", "2", "--cases", "32", "--accumulate", "4"]


class PipelineCase(Case):
    def assert_same(self, one, other):
        self.assertEqual(one["losses"], other["losses"])
        self.assertEqual(one["weights_sha256"], other["weights_sha256"])

    def assert_weights(self, resumed, whole, step=5):
        self.assertEqual(resumed["resumed_from_step"], step)
        self.assertEqual(resumed["losses"], whole["losses"][step:])
        self.assertEqual(resumed["weights_sha256"], whole["weights_sha256"])
