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
    def test_a_former_file_stays_until_the_new_one_is_whole(self):
        file = self.folder / "machine.json"
        file.write_text("former")

        def full_disk():
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

        self.refused(1, "machine.json", "File too large", args=["topo", "--json", file], preexec_fn=full_disk)
        self.assertEqual(file.read_text(), "former")
        self.assertEqual(list(self.folder.iterdir()), [file])

    def test_every_command_says_that_a_file_may_not_grow(self):
        def full_disk():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

        args = ["phantom", "--out", self.folder / "data", "--cases", "1", "--edge", "32"]
        self.refused(1, "phantom_0001", "File too large", args=args, preexec_fn=full_disk)

    def test_a_refused_training_leaves_what_was_in_the_place_of_its_results(self):
        link = self.folder / "link"
        link.symlink_to(self.folder / "nothing")
        for file in (link, self.folder / "result.json"):
            self.refused(1, "report", args=["train", *MLP, "--json", file, "--report", "/proc/report"])
        self.assertEqual(list(self.folder.iterdir()), [link])

    def test_pipes_get_the_results_once(self):
        pipe, received = self.folder / "pipe", []
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
        reader.start()
        done = subprocess.run([PROGRAM, "train", *MLP, "--json", pipe], capture_output=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        reader.join()
        self.assertEqual(len(json.loads(received[0])["losses"]), 2)

    def test_stdout_gets_the_results_behind_the_text(self):
        file = self.folder / "out"
        drawing = run("topo").stdout
        # A minimal container has no /dev/stdout.
        for name in filter(os.path.exists, ("/proc/self/fd/1", "/dev/stdout")):
            with file.open("w") as out:
                subprocess.run([PROGRAM, "topo", "--json", name], stdout=out, timeout=60, check=True)
            self.assertTrue(file.read_text().startswith(drawing), name)
            self.assertIn("hosts", json.loads(file.read_text()[len(drawing) :]))
            self.assertTrue(pathlib.Path(name).is_symlink())

    def test_a_stdout_that_is_full(self):
        for args in (["--help"], ["topo"], ["reproduce", "--list"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run(
                    [PROGRAM, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
                )
            self.assertEqual(done.returncode, 1, args)
            self.assertEqual(done.stderr, "spillway: cannot write all of stdout: No space left on device\n")

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
