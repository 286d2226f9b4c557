// Tests of ranks, levels, and the command lines made of them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/refusal.h"
#include "tools/ddlrun/launcher.h"
#include "tools/ddlrun/plan.h"
#include "tools/ddlrun/shell.h"

namespace spillway::ddlrun {
namespace {

using testing::expect_refusal;
using testing::refusal;

namespace fs = std::filesystem;

Plan plan_of(const std::string& hosts, std::optional<int64_t> ranks = {}, const std::string& levels = "") {
  return make_plan(parse_host_option(hosts), ranks, levels);
}

std::string command(const Launcher& launcher, const std::string& hosts, const LaunchOptions& options = {},
                    const std::string& batch = "") {
  return quoted(launch_command(launcher, options, plan_of(hosts), batch, {"prog", "two words"}));
}

}  // namespace

TEST(PlanTest, FillsOneHostAfterTheOther) {
  const Plan plan = plan_of("a:2,b:3,c:2", 4);
  EXPECT_EQ(plan.host_of_rank, (std::vector{0, 0, 1, 1}));
  EXPECT_EQ(plan.used, (std::vector<Host>{{"a", 2}, {"b", 2}}));
  EXPECT_EQ(plan.levels.shape(), "2x2");
  EXPECT_EQ(plan_of("a:2,b:3").ranks(), 5);
  EXPECT_EQ(plan_of("a:2,b:3").levels.shape(), "2+3");
}

TEST(PlanTest, RefusesMoreRanksThanSlots) {
  expect_refusal([] { plan_of("a:2,b:2", 5); }, {"-n is 5", "have 4 slots", "1 to 4"});
  expect_refusal([] { plan_of("a:2,b:2", 0); }, {"-n is 0"});
  expect_refusal([] { plan_of("a:2,b:2", -3); }, {"-n is -3"});
}

TEST(PlanTest, ChecksLevelsAgainstTheRanks) {
  EXPECT_EQ(plan_of("a:4,b:4", {}, "2x2x2").levels.shape(), "2x2x2");
  EXPECT_EQ(plan_of("a:4,b:2", {}, "4+2").levels.shape(), "4+2");
  expect_refusal([] { plan_of("a:3,b:3", {}, "4x2"); }, {"--levels", "8 ranks", "6 are"});
  expect_refusal([] { plan_of("a:3,b:3", {}, "4*2"); }, {"--levels", "'4*2'", "4x2"});
  for (const std::string looked_up : {"hosts", "discover", "dgx.xml"})
    expect_refusal([&] { plan_of("a:3,b:3", {}, looked_up); },
                   {str("--levels is '", looked_up, "'"), "4x2", str("--levels ", looked_up, " among the arguments")});
}

TEST(PlanTest, SaysWhenLevelsCutAcrossHosts) {
  const auto notes = plan_of("a:2,b:6", {}, "4x2").notes;
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0], "hosts get unequal numbers of ranks");
  EXPECT_EQ(notes[1],
            "--levels 4x2 cut across hosts: ranks 0-3 are together on level 1, but only 2 of the 6 ranks of b");
  EXPECT_TRUE(plan_of("a:4,b:4", {}, "2x4").notes.empty());
  EXPECT_TRUE(plan_of("a,b,c,d", {}, "2x2").notes.empty());
}

TEST(PlanTest, DrawsHostsAndRanks) {
  const Plan plan = plan_of("gpu1:2,gpu2:2,other:1", 4);
  EXPECT_EQ(host_table(plan),
            "hosts from -H\n"
            "host   slots  ranks\n"
            "gpu1       2  0-1\n"
            "gpu2       2  2-3\n"
            "other      1  -\n");
  EXPECT_EQ(rank_tree(plan),
            "levels 2x2\n"
            "ranks 0-3\n"
            "+- gpu1: ranks 0-1\n"
            "+- gpu2: ranks 2-3\n");
  EXPECT_EQ(rank_tree(plan_of("a")), "levels 1\na: rank 0\n");
  EXPECT_EQ(rank_tree(plan_of("a,b")), "levels 2\nranks 0-1\n+- a: rank 0\n+- b: rank 1\n");
  EXPECT_EQ(rank_tree(plan_of("a:2,b:2,c:4", {}, "2x2x2")),
            "levels 2x2x2\n"
            "ranks 0-7\n"
            "+- ranks 0-3\n"
            "|  +- a: ranks 0-1\n"
            "|  +- b: ranks 2-3\n"
            "+- c: ranks 4-7\n"
            "   +- c: ranks 4-5\n"
            "   +- c: ranks 6-7\n");
  EXPECT_EQ(rank_tree(plan_of("a:2,b:6", {}, "4x2")),
            "levels 4x2\n"
            "ranks 0-7\n"
            "+- ranks 0-3\n"
            "|  +- a: ranks 0-1\n"
            "|  +- b: ranks 2-3\n"
            "+- b: ranks 4-7\n");
}

TEST(RangesTest, PutRunsTogether) {
  EXPECT_EQ(ranges({0, 1, 2, 5, 7, 8}), "0-2 5 7-8");
  EXPECT_EQ(ranges({}), "");
}

TEST(LaunchCommandTest, OfOpenMpi) {
  EXPECT_EQ(command({}, "a:4,b:4"), "mpirun --host a:4,b:4 -np 8 --map-by slot --bind-to none prog 'two words'");
  EXPECT_EQ(command({.command = "/opt/mpi/bin/mpirun"}, "a:4,b:2",
                    {.agent = {"ssh", "-p", "2222"},
                     .mpi_args = {"--mca", "btl", "self,tcp"},
                     .exports = {"HOME", "A=b c"},
                     .allow_run_as_root = true}),
            "/opt/mpi/bin/mpirun --allow-run-as-root --host a:4,b:2 -np 6 --map-by slot --bind-to none -x HOME -x 'A=b "
            "c' --mca plm_rsh_agent "
            "'ssh -p 2222' --mca btl self,tcp prog 'two words'");
}

TEST(LaunchCommandTest, LeavesPlacementToThoseWhoSayIt) {
  EXPECT_EQ(command({}, "a:2", {.mpi_args = {"--map-by", "node", "--bind-to", "core"}}),
            "mpirun --host a:2 -np 2 --map-by node --bind-to core prog 'two words'");
}

TEST(LaunchCommandTest, OfOpenMpi5AndOfAnAgentWithinABatchSystem) {
  EXPECT_EQ(command({.major = 5}, "a:2", {.agent = {"agent"}}),
            "mpirun --host a:2 -np 2 --map-by slot --bind-to none --prtemca plm_ssh_agent agent prog 'two words'");
  EXPECT_EQ(
      command({}, "a:2", {.agent = {"agent"}}, "Slurm"),
      "mpirun --host a:2 -np 2 --map-by slot --bind-to none --mca plm rsh --mca plm_rsh_agent agent prog 'two words'");
  EXPECT_EQ(command({}, "a:2", {}, "Slurm"), command({}, "a:2"));
}

TEST(LaunchCommandTest, LeavesPlacingToTheArgumentsThatPlace) {
  for (const char* flag :
       {"--map-by", "-rankfile", "--rankfile", "-rf", "--bynode", "--ppr", "--cpu-set", "--cpu-list"})
    EXPECT_EQ(command({}, "a:2", {.mpi_args = {flag, "x"}}),
              str("mpirun --host a:2 -np 2 --bind-to none ", flag, " x prog 'two words'"));
  for (const char* flag : {"-bind-to", "--bind-to-core", "-bind-to-socket"})
    EXPECT_EQ(command({}, "a:2", {.mpi_args = {flag}}),
              str("mpirun --host a:2 -np 2 --map-by slot ", flag, " prog 'two words'"));
  EXPECT_EQ(command({}, "a:2", {.mpi_args = {"-N", "2"}}),
            "mpirun --host a:2 -np 2 --map-by slot --bind-to none -N 2 prog 'two words'");
}

TEST(LaunchCommandTest, IsShownWithoutSecrets) {
  const LaunchOptions options{.exports = {"HF_TOKEN=abc", "my_password=x=y", "A=1", "API_KEY", "KEYS="}};
  EXPECT_EQ(command({}, "a:2", without_secrets(options)),
            "mpirun --host a:2 -np 2 --map-by slot --bind-to none -x 'HF_TOKEN=***' -x 'my_password=***' -x A=1 "
            "-x API_KEY -x 'KEYS=***' prog 'two words'");
}

TEST(LaunchCommandTest, OfMpich) {
  const Launcher mpich{.mpi = Mpi::mpich, .version = "MPICH 4.0.2"};
  EXPECT_EQ(command(mpich, "a:4,b:2", {.agent = {"agent"}, .mpi_args = {"-verbose"}, .exports = {"HOME", "A=b"}}),
            "mpirun -bootstrap ssh -bootstrap-exec agent -genv A b -verbose -hosts a:4,b:2 -n 6 prog 'two words'");
  expect_refusal(
      [&] {
        command(mpich, "a", {.agent = {"ssh", "-p", "1"}});
      },
      {"'ssh -p 1'", "MPICH 4.0.2", "one word"});
  expect_refusal([&] { command(mpich, "a", {.allow_run_as_root = true}); }, {"--allow-run-as-root is Open MPI's"});
}

TEST(LaunchCommandTest, OfIntelMpi) {
  const Launcher intel{.mpi = Mpi::intel, .version = "Intel(R) MPI"};
  EXPECT_EQ(command(intel, "a:4,b:4"), "mpirun -genv I_MPI_PIN off -hosts a,b -ppn 4 -n 8 prog 'two words'");
  EXPECT_EQ(command(intel, "a:4,b:2"),
            "mpirun -genv I_MPI_PIN off -host a -n 4 prog 'two words' : -host b -n 2 prog 'two words'");
  EXPECT_EQ(command(intel, "a:4", {.mpi_args = {"-genv", "I_MPI_PIN", "on"}}),
            "mpirun -genv I_MPI_PIN on -hosts a -ppn 4 -n 4 prog 'two words'");
  expect_refusal([&] { launch_command(intel, {}, plan_of("a:2,b"), "", {"prog", ":"}); }, {"':'"});
}

TEST(LauncherTest, IsKnownByWhatItSays) {
  const Launcher four =
      parse_version("mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n");
  EXPECT_EQ(four.mpi, Mpi::open_mpi);
  EXPECT_EQ(four.major, 4);
  EXPECT_EQ(four.version, "Open MPI 4.1.4");
  EXPECT_EQ(
      parse_version("mpirun", "mpirun (Open MPI) 5.0.7\n\nReport bugs to https://www.open-mpi.org/community/help/\n")
          .major,
      5);
  const Launcher mpich = parse_version(
      "mpiexec", "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: x\n");
  EXPECT_EQ(mpich.mpi, Mpi::mpich);
  EXPECT_EQ(mpich.version, "MPICH 4.0.2");
  const Launcher intel = parse_version("mpirun",
                                       "Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121 (id: "
                                       "e7829d6)\nCopyright 2003-2024, Intel Corporation.\n");
  EXPECT_EQ(intel.mpi, Mpi::intel);
  EXPECT_EQ(intel.version, "Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121 (id: e7829d6)");
}

TEST(LauncherTest, OfAnotherKindIsRefused) {
  for (const char* text : {"slurm 22.05.8\n", "", "mpirun (Open MPI) 3.1.6\n", "Version: mvapich2-2.3.7\n"})
    expect_refusal([&] { parse_version("srun", text); }, {"--launcher srun", "Open MPI 4 or newer", "MPICH", "Intel"});
}

TEST(LauncherTest, IsGuessedByItsFileAndWhatLiesBeside) {
  const fs::path root = fs::path(::testing::TempDir()) / str("launchers", ::getpid());
  const auto make = [&](const std::string& file) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << "#!/bin/false\n";
    fs::permissions(root / file, fs::perms::owner_all);
  };
  for (const char* file : {"four/orterun", "five/mpirun", "five/prterun", "mpich/mpiexec.hydra", "intel/mpirun",
                           "intel/impi_info", "other/mpirun"})
    make(file);
  fs::create_symlink("orterun", root / "four/mpirun");
  fs::create_symlink("mpiexec.hydra", root / "mpich/mpirun");
  const auto guess = [&](const std::string& folder) { return guess_launcher("mpirun", (root / folder).string()); };
  EXPECT_EQ(guess("four").major, 4);
  EXPECT_EQ(guess("four").version, "Open MPI 4's, by its file's name");
  EXPECT_EQ(guess("five").major, 5);
  EXPECT_EQ(guess("mpich").mpi, Mpi::mpich);
  EXPECT_EQ(guess("intel").mpi, Mpi::intel);
  EXPECT_EQ(guess("other").mpi, Mpi::open_mpi);
  EXPECT_NE(guess("other").version.find("taken for"), std::string::npos);
  EXPECT_NE(guess("empty").version.find("there is no mpirun here"), std::string::npos);
  EXPECT_EQ(guess_launcher((root / "mpich/mpirun").string(), "").mpi, Mpi::mpich);
  fs::remove_all(root);
}

TEST(LevelsArgumentTest, GoesToSpillwaysCommandsThatReadIt) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(with_levels({"build/bin/spillway", "train", "--kfac"}, "4x2"),
            (Words{"build/bin/spillway", "train", "--kfac", "--levels", "4x2"}));
  EXPECT_EQ(with_levels({"spillway", "bench", "allreduce"}, "4x2"),
            (Words{"spillway", "bench", "allreduce", "--levels", "4x2"}));
  EXPECT_EQ(with_levels({"anything"}, ""), (Words{"anything"}));
  const Words own{"spillway", "topo", "--levels", "discover"};
  EXPECT_EQ(with_levels(own, ""), own);
  for (const Words& other : {Words{"python3", "train"},
                             {"spillway"},
                             {"spillway", "phantom"},
                             {"spillway", "bench", "kfac"},
                             {"myspillway", "train"}})
    expect_refusal([&] { with_levels(other, "4x2"); }, {"--levels is for spillway train", quoted(other)});
  expect_refusal([] { with_levels({"spillway", "train", "--levels=2x4"}, "4x2"); }, {"twice"});
  expect_refusal([] { with_levels({"spillway", "train", "--levels", "2x4"}, "4x2"); }, {"twice"});
}

TEST(EndOnRequestTest, IsOfOurTrainingUnderOpenMpiAlone) {
  const Launcher open_mpi, mpich{.mpi = Mpi::mpich};
  EXPECT_TRUE(ends_on_request(open_mpi, {"build/bin/spillway", "train", "--kfac"}));
  EXPECT_FALSE(ends_on_request(open_mpi, {"spillway", "bench", "allreduce"}));
  EXPECT_FALSE(ends_on_request(open_mpi, {"sh", "-c", "spillway train"}));
  EXPECT_FALSE(ends_on_request(mpich, {"spillway", "train"}));
}

TEST(ExportTest, IsAVariableThatIsSetOrHasAValue) {
  const Environment environment{{"HOME", "/root"}};
  EXPECT_EQ(refusal([&] { check_export("HOME", environment); }), "");
  EXPECT_EQ(refusal([&] { check_export("OTHER=1", environment); }), "");
  EXPECT_EQ(refusal([&] { check_export("EMPTY=", environment); }), "");
  expect_refusal([&] { check_export("OTHER", environment); }, {"-x OTHER", "OTHER=VALUE"});
  for (const char* wrong : {"", "=1", "A B", "A;B=1"})
    expect_refusal([&] { check_export(wrong, environment); }, {str("-x is '", wrong, "'")});
}

TEST(ShellTest, QuotesWhatAShellWouldTakeApart) {
  EXPECT_EQ(quoted({"plain", "/a-b_c.d:1,2=3@%+"}), "plain /a-b_c.d:1,2=3@%+");
  EXPECT_EQ(quoted({"", "two words", "it's", "$HOME", "*"}), "'' 'two words' 'it'\\''s' '$HOME' '*'");
}

TEST(ShellTest, UnquotesWhatItQuoted) {
  const std::vector<std::string> words{"", "two words", "it's", "a\"b", "back\\slash", "tab\t", "--mca", "x"};
  EXPECT_EQ(unquoted(quoted(words), "x"), words);
  EXPECT_EQ(unquoted("  --a 'b c'\"d e\" f\\ g\n", "x"), (std::vector<std::string>{"--a", "b cd e", "f g"}));
  EXPECT_EQ(unquoted("", "x"), std::vector<std::string>());
  expect_refusal([] { unquoted("a 'b", "--mpi-args"); }, {"--mpi-args is a 'b", "no end"});
}

}  // namespace spillway::ddlrun
