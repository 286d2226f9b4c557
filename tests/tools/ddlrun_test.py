"""ddlrun as its users meet it: what a dry run prints, what it says to wrong input, and launches on this host.

ddlrun_test.py PATH/TO/ddlrun PATH/TO/spillway [mpirun] [unittest's arguments]
"""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv.pop(1)
SPILLWAY = sys.argv.pop(1)
MPIRUN = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
BATCH = ("SLURM_", "LSB_", "PE_HOSTFILE", "PBS_", "FLUX_", "COBALT_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(BATCH)}
ROOT = ["--allow-run-as-root"] if os.geteuid() == 0 else []


def run(*args, env=None, **kwargs):
    return subprocess.run(
        [PROGRAM, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**CLEAN, **(env or {})},
        **kwargs,
        check=False,
    )


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddlrun-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def script(self, name, text):
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("#!/bin/sh\n" + text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    def refused(self, code, *parts, args, **kwargs):
        done = run(*args, **kwargs)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ddlrun: ")]
        self.assertEqual(len(lines), 1, done.stderr)
        for part in parts:
            self.assertIn(part, lines[0])
        return done


class DryRun(Case):
    """With a launcher of a known name, so that the text does not depend on what is installed."""

    def setUp(self):
        super().setUp()
        self.script("bin/orterun", f"touch {self.folder}/executed\n")
        (self.folder / "bin" / "mpirun").symlink_to("orterun")
        self.env = {"PATH": f"{self.folder}/bin:{CLEAN['PATH']}"}

    def printed(self, *args, env=None):
        done = run("--dry-run", "--allow-run-as-root", *args, env={**self.env, **(env or {})})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stderr)
        self.assertFalse((self.folder / "executed").exists(), "a dry run executed the launcher")
        return done.stdout

    def test_two_hosts(self):
        self.assertEqual(
            self.printed("-H", "gpu01:4,gpu02:4", "--levels", "4x2", "spillway", "train", "--report", "my report"),
            """\
hosts from -H
host   slots  ranks
gpu01      4  0-3
gpu02      4  4-7

levels 4x2
ranks 0-7
+- gpu01: ranks 0-3
+- gpu02: ranks 4-7

launcher: Open MPI 4's, by its file's name
mpirun --allow-run-as-root --host gpu01:4,gpu02:4 -np 8 --map-by slot --bind-to none spillway train --report 'my report' --levels 4x2
""",  # noqa: E501  as it is printed
        )

    def test_a_hostfile_with_unequal_hosts_and_fewer_ranks_than_slots(self):
        hosts = self.folder / "hosts"
        hosts.write_text("# mine\nb slots=2 max_slots=4\na:4\nc\n")
        self.assertEqual(
            self.printed(
                "--hostfile", hosts, "-n", 5, "-x", "HOME", "-x", "A=1 2", "prog", "--", "-n", "7", "--dry-run"
            ),
            f"""\
hosts from hostfile {hosts}
host  slots  ranks
b         2  0-1
a         4  2-4
c         1  -

levels 2+3
ranks 0-4
+- b: ranks 0-1
+- a: ranks 2-4

note: hosts get unequal numbers of ranks
launcher: Open MPI 4's, by its file's name
mpirun --allow-run-as-root --host b:2,a:3 -np 5 --map-by slot --bind-to none -x HOME -x 'A=1 2' prog -- -n 7 --dry-run
""",
        )

    def test_a_job_of_slurm_with_racks(self):
        env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "r[1-2]n[01-02]", "SLURM_TASKS_PER_NODE": "2(x4)"}
        self.assertEqual(
            self.printed("--levels", "2x2x2", "/opt/spillway", "bench", "allreduce", env=env),
            """\
hosts from Slurm (SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE)
host   slots  ranks
r1n01      2  0-1
r1n02      2  2-3
r2n01      2  4-5
r2n02      2  6-7

levels 2x2x2
ranks 0-7
+- ranks 0-3
|  +- r1n01: ranks 0-1
|  +- r1n02: ranks 2-3
+- ranks 4-7
   +- r2n01: ranks 4-5
   +- r2n02: ranks 6-7

launcher: Open MPI 4's, by its file's name
mpirun --allow-run-as-root --host r1n01:2,r1n02:2,r2n01:2,r2n02:2 -np 8 --map-by slot --bind-to none /opt/spillway bench allreduce --levels 2x2x2
""",  # noqa: E501  as it is printed
        )

    def test_mpich_with_an_agent(self):
        launcher = self.script("mpich/mpiexec.hydra", f"touch {self.folder}/executed\n")
        done = run("--dry-run", "--launcher", launcher, "--agent", "my-agent", "-H", "a:2,b", "prog")
        self.assertEqual(
            done.stdout.splitlines()[-2:],
            [
                "launcher: MPICH's, by its file's name",
                f"{launcher} -bootstrap ssh -bootstrap-exec my-agent -hosts a:2,b:1 -n 3 prog",
            ],
        )
        self.assertFalse((self.folder / "executed").exists())

    def test_this_host(self):
        self.assertRegex(self.printed("prog"), r"^hosts from this host.*\nhost +slots  ranks\nlocalhost +[1-9]")

    def test_the_plan_as_json(self):
        file = self.folder / "plan.json"
        self.printed("-H", "a:2,b:1", "-n", "2", "--json", file, "prog", "one", "two words")
        plan = json.loads(file.read_text())
        self.assertEqual(plan["hosts"], [{"name": "a", "slots": 2, "ranks": 2}, {"name": "b", "slots": 1, "ranks": 0}])
        self.assertEqual((plan["world_size"], plan["levels"], plan["source"], plan["preflight"]), (2, "2", "-H", None))
        self.assertEqual(
            plan["command"],
            [
                *"mpirun --allow-run-as-root --host a:2 -np 2 --map-by slot --bind-to none prog one".split(),
                "two words",
            ],
        )


class BadInput(Case):
    def test_one_line_that_names_what_is_wrong(self):
        hosts = self.folder / "hosts"
        hosts.write_text("a slots=2\nb slots=two\n")
        job = {"SLURM_JOB_NODELIST": "a[1-", "SLURM_TASKS_PER_NODE": "2"}
        for args, parts in (
            ([], ("no PROGRAM", "--help")),
            (["--foo", "prog"], ("unknown option: --foo",)),
            (["-H", "a:x", "prog"], ("-H has 'a:x'", "host:slots")),
            (["--hostfile", hosts, "prog"], (f"{hosts}:2", "'two' slots")),
            (["--hostfile", self.folder / "none", "prog"], ("none", "No such file")),
            (["-H", "a", "--hostfile", hosts, "prog"], ("-H and --hostfile",)),
            (["-H", "a:2", "-n", "3", "prog"], ("-n is 3", "2 slots")),
            (["-H", "a:2", "-n", "0", "prog"], ("-n is 0", "1 to 2")),
            (["-H", "a:2", "-n", "two", "prog"], ("--ranks", "two")),
            (["-H", "a:3,b:3", "--levels", "4x2", "spillway", "train"], ("8 ranks", "6 are")),
            (
                ["-H", "a:4,b:4", "--levels", "4x2", "python3", "train.py"],
                ("--levels is for spillway train", "python3"),
            ),
            (["-H", "a:4,b:4", "--levels", "4x2", "spillway", "train", "--levels", "2x4"], ("twice",)),
            (["-H", "a", "-x", "NO_SUCH_VARIABLE", "prog"], ("-x NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE=VALUE")),
            (["-H", "a", "--mpi-args", "--mca 'x", "prog"], ("--mpi-args", "no end")),
            (["-H", "a", "--timeout", "0", "prog"], ("--timeout",)),
            (["-H", "a", "--preflight-only", "prog"], ("--preflight-only", "--dry-run")),
        ):
            with self.subTest(args=args):
                self.refused(2, *parts, args=["--dry-run", *args])
        self.refused(2, "SLURM_JOB_NODELIST is 'a[1-'", args=["--dry-run", "prog"], env=job)
        self.refused(
            2, "--preflight-only", "--no-preflight", args=["-H", "a", "--preflight-only", "--no-preflight", "prog"]
        )

    def test_launchers_and_agents_that_will_not_do(self):
        self.refused(2, "'no-such-mpirun'", args=["--launcher", "no-such-mpirun", "--no-preflight", "-H", "a", "prog"])
        other = self.script("srun", "echo slurm 22.05.8\n")
        self.refused(
            2,
            f"--launcher {other} says it is 'slurm 22.05.8'",
            "Open MPI 4 or newer",
            args=["--launcher", other, "--no-preflight", "-H", "a", "prog"],
        )
        self.refused(
            2, "--agent", "'no-such-agent'", args=["--agent", "no-such-agent", "--no-preflight", "-H", "a", "prog"]
        )

    def test_a_stdout_that_is_full(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
            )
        self.assertEqual(
            (done.returncode, done.stderr), (1, "ddlrun: cannot write all of stdout: No space left on device\n")
        )

    def test_results_that_cannot_be_written(self):
        self.refused(
            1, "no/such/folder", args=["--dry-run", "--json", self.folder / "no/such/folder/x.json", "-H", "a", "prog"]
        )

    @unittest.skipUnless(os.geteuid() == 0, "not root")
    def test_root_is_told_what_to_do(self):
        launcher = self.script("mpirun", "echo 'mpirun (Open MPI) 4.1.4'\n")
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        without = {name: value for name, value in CLEAN.items() if name not in env}
        done = subprocess.run(
            [PROGRAM, "--launcher", launcher, "--no-preflight", "-H", "a", "prog"],
            capture_output=True,
            text=True,
            timeout=60,
            env=without,
            check=False,
        )
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "^ddlrun: .*--allow-run-as-root.*\n$")
        self.assertEqual(run("--launcher", launcher, "--no-preflight", "-H", "a", "prog", env=env).returncode, 0)


@unittest.skipIf(MPIRUN is None, "built without MPI")
class Launches(Case):
    """On this host, with slots of its own saying."""

    def test_preflight_and_two_ranks_of_any_program(self):
        file = self.folder / "found.json"
        done = run(*ROOT, "-H", "localhost:2", "-x", "GREETING=good day", "--json", file, "sh", "-c", "echo $GREETING")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "good day\n" * 2)  # what ddlrun says is not mixed with it
        self.assertRegex(done.stderr, r"the same on all hosts: \S*/sh, [1-9]\d* libraries, ")
        self.assertRegex(done.stderr, r"level 1: latency [\d.]+ us, [\d.]+ GB/s a link")
        found = json.loads(file.read_text())["preflight"]
        self.assertEqual((found["errors"], found["levels"], len(found["links"])), ([], "2", 1))
        self.assertGreater(found["links"][0]["bytes_per_second"], 0)
        host = found["hosts"][0]
        self.assertEqual((host["name"], host["ranks"]), ("localhost", 2))
        self.assertGreater(host["cores"], 0)
        self.assertEqual({"name", "path", "hash"}, set(host["files"][0]))

    def test_levels_reach_spillway(self):
        file = self.folder / "result.json"
        done = run(
            *ROOT,
            "-H",
            "localhost:4",
            "--levels",
            "2x2",
            "--mpi-args=--mca mpi_yield_when_idle 1",
            SPILLWAY,
            *"bench allreduce --sizes 4KiB --repeats 1 --json".split(),
            file,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("level 2: latency", done.stderr)
        self.assertEqual(json.loads(file.read_text())["levels"], "2x2")

    def test_the_exit_code_is_the_programs(self):
        self.assertEqual(run(*ROOT, "-H", "localhost", "--no-preflight", "sh", "-c", "exit 7").returncode, 7)

    def test_a_program_that_is_not_there_is_not_launched(self):
        done = self.refused(
            4, "no program 'no-such-program' on localhost", args=[*ROOT, "-H", "localhost:2", "no-such-program"]
        )
        self.assertNotIn("mpirun was unable", done.stderr)

    def test_preflight_alone_prints_on_stdout_and_launches_nothing(self):
        done = run(*ROOT, "-H", "localhost:2", "--preflight-only", "sh", "-c", f"touch {self.folder}/launched")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("the same on all hosts", done.stdout)
        self.assertFalse((self.folder / "launched").exists())

    def test_hosts_that_do_not_answer_are_named(self):
        agent = self.script("agent", "case $1 in lost) echo no route >&2; exit 255;; esac\n")
        file = self.folder / "found.json"
        self.refused(
            4,
            "unreachable: lost (no route)",
            args=[*ROOT, "-H", "localhost,fine,lost:2", "--agent", agent, "--json", file, "true"],
        )
        self.assertEqual(json.loads(file.read_text())["preflight"]["errors"], ["unreachable: lost (no route)"])

    def test_within_a_batch_system_its_own_launch_reaches_the_hosts(self):
        launcher = self.script(
            "mpirun", "case $1 in --version) echo 'mpirun (Open MPI) 4.1.4';; *) echo broken >&2; exit 9;; esac\n"
        )
        env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "no-such-host", "SLURM_TASKS_PER_NODE": "2"}
        done = self.refused(4, "ended with 9", args=[*ROOT, "--launcher", launcher, "true"], env=env)
        self.assertIn("broken", done.stderr)
        self.assertNotIn("unreachable", done.stderr)

    def test_a_launch_of_another_mpi_is_noticed(self):
        launcher = self.script(
            "mpirun",
            "case $1 in --version) echo 'HYDRA build details:'; echo ' Version: 4.0.2';; "
            f'*) while [ $1 != {PROGRAM} ]; do shift; done; "$@" & "$@"; wait;; esac\n',
        )
        self.refused(
            4, "of 2 ranks one sees 1", "MPICH 4.0.2", args=["--launcher", launcher, "-H", "localhost:2", "true"]
        )

    def started(self, *program, **kwargs):
        """Starts ddlrun with two ranks of a program, in a session of its own that ends with the test."""
        process = subprocess.Popen(
            [PROGRAM, *ROOT, "-H", "localhost:2", "--no-preflight", *map(str, program)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**CLEAN, "SPILLWAY_CACHE": str(self.folder)},
            **kwargs,
        )

        def end():
            if process.poll() is None:
                process.kill()  # mpirun is asked to end when ddlrun dies
                process.wait()
            process.stdout.close()

        self.addCleanup(end)
        return process

    def test_ctrl_c_ends_our_training_in_the_midst_of_a_step_with_all_written(self):
        checkpoint, result = self.folder / "checkpoints", self.folder / "result.json"
        train = [
            SPILLWAY,
            *(
                "train --model bert-base --data synthetic:24 --layers 1 --hidden 64 --batch 2 "
                "--cases 8 --deterministic --accumulate 100 --kfac --validate-every 9 --json"
            ).split(),
            result,
        ]

        def losses(*arguments):
            done = run(
                *ROOT,
                "-H",
                "localhost:2",
                "--no-preflight",
                *train,
                *arguments,
                env={"SPILLWAY_CACHE": str(self.folder)},
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(result.read_text())["losses"], json.loads(result.read_text())["weights_sha256"]

        for number in (signal.SIGINT, signal.SIGTERM):
            report = self.folder / f"report{number}"
            process = self.started(*train, "--steps", "1000", "--checkpoint", checkpoint, "--report", report)
            while "step 1/" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            process.send_signal(number)
            output = process.stdout.read()
            self.assertEqual(process.wait(timeout=60), 130)
            self.assertIn("step 2 is left in its midst", output)
            first = json.loads(result.read_text())
            self.assertTrue(first["interrupted"])
            self.assertEqual(len(first["losses"]), 1)
            self.assertTrue((report / "report.html").exists())
        second, weights = losses("--steps", "2", "--checkpoint", checkpoint, "--resume")
        self.assertEqual((first["losses"] + second, weights), losses("--steps", "2"))

    def trapping(self, reaction):
        """A program that we take for our own, which waits and reacts to SIGUSR2."""
        (self.folder / "bin").mkdir(exist_ok=True)
        return self.script("bin/spillway", f"{reaction}\necho up\nwhile :; do sleep 0.1; done\n")

    def test_a_second_ctrl_c_ends_ranks_that_go_on(self):
        process = self.started(self.trapping("trap 'echo asked' USR2"), "train", stderr=subprocess.DEVNULL)
        self.assertEqual([process.stdout.readline() for _ in range(2)], ["up\n"] * 2)
        process.send_signal(signal.SIGINT)
        self.assertEqual([process.stdout.readline() for _ in range(2)], ["asked\n"] * 2)
        time.sleep(3)
        self.assertIsNone(process.poll(), "a rank may take its time")
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(process.wait(timeout=20), 0)

    def test_a_request_to_end_is_repeated_until_the_launcher_has_ranks(self):
        launcher = self.script(
            "mpirun",
            "[ $1 = --version ] && echo 'mpirun (Open MPI) 4.1.4' && exit\n"
            "trap 'n=$((n + 1)); [ $n = 3 ] && exit 130' USR2\necho up\nwhile :; do sleep 0.1; done\n",
        )
        process = self.started("--launcher", launcher, "spillway", "train", stderr=subprocess.DEVNULL)
        self.assertEqual(process.stdout.readline(), "up\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=20), 130)

    def test_ctrl_c_before_training_ends_ranks_with_130(self):
        process = self.started(self.trapping(":"), "train", stderr=subprocess.DEVNULL)
        self.assertEqual([process.stdout.readline() for _ in range(2)], ["up\n"] * 2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=20), 130)

    def test_ctrl_c_reaches_the_ranks(self):
        process = subprocess.Popen(
            [PROGRAM, *ROOT, "-H", "localhost:2", "--no-preflight", "sh", "-c", "echo up; exec sleep 600"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=CLEAN,
            start_new_session=True,
        )
        try:
            self.assertEqual([process.stdout.readline() for _ in range(2)], ["up\n"] * 2)
            process.send_signal(signal.SIGINT)
            self.assertNotEqual(process.wait(timeout=60), 0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
