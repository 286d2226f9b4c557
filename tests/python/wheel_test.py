"""Tests of what goes into a wheel: its libraries find others by their place beside it, and nowhere else."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest


def run_paths(library):
    """Returns the folders in which a library looks for others."""
    entries = subprocess.run(
        [os.environ["SPILLWAY_READELF"], "-d", library], check=True, capture_output=True, text=True
    ).stdout
    return [
        folder for paths in re.findall(r"\((?:RUNPATH|RPATH)\)[^[]*\[([^]]*)\]", entries) for folder in paths.split(":")
    ]


class WheelTest(unittest.TestCase):
    def test_libraries_look_for_others_beside_themselves_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [
                    os.environ["SPILLWAY_CMAKE"],
                    "--install",
                    os.environ["SPILLWAY_BUILD"],
                    "--component",
                    "python",
                    "--prefix",
                    folder,
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            libraries = sorted(path for path in pathlib.Path(folder, "spillway").iterdir() if ".so" in path.name)
            self.assertTrue(any(path.name.startswith("_spillway.") for path in libraries))
            for library in libraries:
                with self.subTest(library.name):
                    for path in run_paths(library):
                        self.assertRegex(path, r"^\$ORIGIN($|/)")
                    if library.name == "libspillway_cuda.so":
                        self.assertIn("$ORIGIN/../torch/lib", run_paths(library))


if __name__ == "__main__":
    unittest.main()
