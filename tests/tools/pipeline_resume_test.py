"""Models that are cut over ranks go on from checkpoints."""

import json
import re
import shutil
import unittest

from cli import MPIRUN, main, run
from pipelines import BERT, RESNET, PipelineCase


def tensors_of(file):
    """The bytes of the tensors in a file of the safetensors format, by name."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    return {
        name: content[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]
        for name, entry in header.items()
        if name != "__metadata__"
    }


@unittest.skipIf(MPIRUN is None, "built without MPI")
class PipelineResume(PipelineCase):
    def test_an_interval_that_was_chosen_is_one_that_may_be_given(self):
        # The staleness is less than the first interval, and shortened for others.
        options = [*RESNET, "--kfac", "--pipeline", "2", "--staleness", "4"]
        kept = ["--checkpoint", self.folder / "checkpoint"]
        said = run(
            "train",
            *options,
            *kept,
            "--inverse-interval",
            "auto",
            "--steps",
            "20",
            "--json",
            self.folder / "chosen.json",
            ranks=2,
        )
        self.assertEqual(said.returncode, 0, said.stderr)
        flags = re.search(r"layers are renewed every (\d+) steps \((--factor-interval[^)]*)\): ", said.stdout)
        self.assertTrue(flags, said.stdout)
        self.assertTrue(2 <= int(flags[1]) <= 16)
        chosen = json.loads((self.folder / "chosen.json").read_text())
        self.assertEqual(chosen["pipeline"]["cycle_steps"] or int(flags[1]), int(flags[1]))
        given = self.result(*options, *flags[2].split(), "--steps", "23", ranks=2)
        self.assertEqual(given["losses"][:20], chosen["losses"])
        # It tries nothing.
        resumed = self.result(*options, *kept, "--inverse-interval", "auto", "--steps", "23", "--resume", ranks=2)
        self.assertEqual(resumed["losses"], given["losses"][20:])
        self.assertEqual(resumed["weights_sha256"], given["weights_sha256"])

    def test_another_cut_goes_on_from_a_checkpoint(self):
        options = [*RESNET, "--kfac", "--pipeline", "2"]
        whole = self.result(*options, "--steps", "8", ranks=2)
        folder = self.folder / "checkpoint"
        self.result(*options, "--steps", "5", "--checkpoint", folder, ranks=2)
        other = self.folder / "other"
        shutil.copytree(folder, other)
        self.assert_weights(self.result(*options, "--steps", "8", "--checkpoint", folder, "--resume", ranks=2), whole)
        self.assert_weights(
            self.result(
                *options,
                *"--steps 8 --cut 5,13 --kfac-work after --checkpoint".split(),
                other,
                "--resume",
                ranks=2,
            ),
            whole,
        )

    def test_sampled_factors_depend_on_no_cut_and_no_checkpoint(self):
        options = [
            *BERT,
            *"--kfac --factor-samples 8 --factor-interval 6 --inverse-interval 6 --pipeline 2".split(),
        ]
        whole = self.result(*options, "--cut", "2,3", "--steps", "14", ranks=2)
        other = self.result(*options, "--cut", "4,1", "--steps", "14", ranks=2)
        self.assert_same(other, whole)
        folder = self.folder / "checkpoint"
        self.result(*options, "--cut", "4,1", "--steps", "9", "--checkpoint", folder, ranks=2)  # in mid-cycle
        resumed = self.result(*options, "--cut", "2,3", "--steps", "14", "--checkpoint", folder, "--resume", ranks=2)
        self.assert_weights(resumed, whole, step=9)
        for key in ("factor_updates", "decompositions", "dropped_factors", "failed_decompositions"):
            self.assertEqual(other["kfac"][key], whole["kfac"][key])
            self.assertEqual(resumed["kfac"][key], whole["kfac"][key])

    def test_kfac_goes_on_with_other_refreshes_than_the_checkpoint(self):
        mlp = ("--model mlp --layers 6 --hidden 32 --cases 64 --batch 4 --accumulate 4 --deterministic --kfac").split()
        cut, whole = ["--pipeline", "2"], []
        late = "what was renewed for later steps is used at once"
        for saved, other, said in (
            (whole, cut, late),
            (cut, whole, late),
            ([*cut, "--refresh", "at-once"], cut, late),
            (cut, [*cut, "--refresh", "at-once"], late),
            (cut, [*cut, "--refresh", "together"], late),
            (cut, [*cut, "--inverse-interval", "6"], late),
            (cut, [*cut, "--staleness", "1"], late),
            ([*cut, "--staleness", "1"], cut, late),
            (whole, [*cut, "--refresh", "at-once"], None),
            (cut, [*cut, "--kfac-work", "after"], None),
        ):
            ranks = lambda flags: 2 if flags else 0  # noqa: E731
            folder = self.folder / f"checkpoint{len(list(self.folder.iterdir()))}"
            first = self.result(*mlp, *saved, "--steps", "7", "--checkpoint", folder, ranks=ranks(saved))
            file = self.folder / "resumed.json"
            done = run(
                "train",
                *mlp,
                *other,
                "--steps",
                "13",
                "--checkpoint",
                folder,
                "--resume",
                "--json",
                file,
                ranks=ranks(other),
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(said is not None, late in done.stdout, done.stdout)
            resumed = json.loads(file.read_text())
            self.assertEqual((resumed["resumed_from_step"], len(resumed["losses"])), (7, 6))
            self.assertLess(resumed["losses"][-1], first["losses"][0])

    def test_inverses_for_later_steps_are_not_lost(self):
        mlp = ("--model mlp --layers 6 --hidden 32 --cases 64 --batch 4 --accumulate 4 --deterministic --kfac").split()
        folder = self.folder / "checkpoint"
        self.result(*mlp, "--pipeline", "2", "--steps", "7", "--checkpoint", folder, ranks=2)
        saved = tensors_of(folder / "checkpoint.safetensors")
        renewed = {name.replace("next_", "") for name in saved if "/next_" in name}
        self.assertTrue(renewed)
        seldom = ["--factor-interval", "100", "--inverse-interval", "100"]  # renews nothing in the one step to go
        self.result(*mlp, *seldom, "--steps", "8", "--checkpoint", folder, "--resume")
        later = tensors_of(folder / "checkpoint.safetensors")
        inverses = [name for name in later if "/vectors" in name or "/values" in name]
        for name in inverses:
            self.assertEqual(later[name], saved[name.replace("/v", "/next_v") if name in renewed else name], name)

    def test_a_plan_of_a_user_goes_on_as_it_is(self):
        mlp = "--model mlp --layers 6 --hidden 32 --cases 64 --batch 4 --accumulate 4 --kfac".split()
        folder = self.folder / "checkpoint"
        planned = self.result(*mlp, "--kfac-time", "20%", "--steps", "3", "--checkpoint", folder)
        self.refused(
            2,
            "had a plan of curvature (--kfac-time or --kfac-plan); allowed in a pipeline with refresh at-once",
            args=["train", *mlp, "--pipeline", "2", "--steps", "5", "--checkpoint", folder, "--resume"],
            ranks=2,
        )
        resumed = self.result(*mlp, "--steps", "5", "--checkpoint", folder, "--resume")
        self.assertEqual(resumed["kfac"]["plan"], planned["kfac"]["plan"])


if __name__ == "__main__":
    main()
