"""What becomes of results where files, pipes and names are unusual."""

import json
import os
import pathlib
import resource
import subprocess
import threading

from cli import PROGRAM, Case, main, run

MLP = ["--model", "mlp", "--cases", "8", "--deterministic", "--steps", "2", "--quiet"]


class Outputs(Case):
    def test_every_command_says_that_a_file_may_not_grow(self):
        def full_disk():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

        args = ["phantom", "--out", self.folder / "data", "--cases", "1", "--edge", "32"]
        self.refused(1, "phantom_0001", "File too large", args=args, preexec_fn=full_disk)

    def test_a_folder_whose_name_is_no_utf8(self):
        data = os.fsdecode(os.fsencode(self.phantoms()) + b"\xff")
        os.rename(self.folder / "data", data)
        options = ["--model", "unet3d", "--filters", "2", "--data", data, "--checkpoint", self.folder / "checkpoint"]
        self.result(*options, "--steps", "1")
        checkpoint = (self.folder / "checkpoint" / "checkpoint.safetensors").read_bytes()
        header = json.loads(checkpoint[8 : 8 + int.from_bytes(checkpoint[:8], "little")])
        self.assertTrue(header["__metadata__"]["run.data"].endswith("data\ufffd"))
        self.assertEqual(len(self.result(*options, "--steps", "2", "--resume")["losses"]), 1)


if __name__ == "__main__":
    main()
