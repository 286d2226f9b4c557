// Tests of hosts and slots, read from user input and from batch systems.
#include "tools/ddlrun/hosts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/refusal.h"
#include "tools/ddlrun/batch_systems.h"
#include "tools/ddlrun/discover.h"

namespace spillway::ddlrun {
namespace {

using testing::expect_refusal;

using Hosts = std::vector<Host>;

Hosts hostfile(const std::string& text) {
  return parse_hostfile(text, "my.hosts").hosts;
}

/// A file that is removed with this object.
class File {
 public:
  File(const std::string& name, const std::string& text)
      : path_(std::filesystem::path(::testing::TempDir()) / (name + std::to_string(::getpid()))) {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::vector<std::string> nodes(const std::string& text) {
  return expand_nodes(text, "SLURM_JOB_NODELIST");
}

}  // namespace

TEST(HostOptionTest, IsHostsWithSlotsInOrder) {
  EXPECT_EQ(parse_host_option("gpu01:4,gpu02:4").hosts, (Hosts{{"gpu01", 4}, {"gpu02", 4}}));
  EXPECT_EQ(parse_host_option("b:1,a:2").hosts, (Hosts{{"b", 1}, {"a", 2}}));
  EXPECT_EQ(parse_host_option("10.0.0.7:2,node-1.cluster.example_x").hosts,
            (Hosts{{"10.0.0.7", 2}, {"node-1.cluster.example_x", 1}}));
  EXPECT_EQ(parse_host_option("a").slots(), 1);
}

TEST(HostOptionTest, AddsUpWhatIsRepeated) {
  EXPECT_EQ(parse_host_option("a,b,a:3").hosts, (Hosts{{"a", 4}, {"b", 1}}));
}

TEST(HostOptionTest, NamesThePartThatIsWrong) {
  for (const char* wrong :
       {"b:", "b:0", "b:-1", "b:x", "b:4x", "b:100001", "b:1:2", ":4", "", "b c", "-b", "[fe80::1]:2", "$(b)"})
    expect_refusal([&] { parse_host_option(std::string("a:1,") + wrong); },
                   {str("-H has '", wrong, "'"), "host:slots", "1 to 100000"});
}

TEST(HostfileTest, TakesOpenMpisLines) {
  EXPECT_EQ(hostfile("# the cluster\n\ngpu01 slots=4 max_slots=8\n  gpu02\tslots=2  # broken cards\r\ngpu03\n"),
            (Hosts{{"gpu01", 4}, {"gpu02", 2}, {"gpu03", 1}}));
  EXPECT_EQ(hostfile("a slots = 4 max-slots =4"), (Hosts{{"a", 4}}));
}

TEST(HostfileTest, TakesMpichsLines) {
  EXPECT_EQ(hostfile("gpu01:4\ngpu02:16 # many\n"), (Hosts{{"gpu01", 4}, {"gpu02", 16}}));
}

TEST(HostfileTest, TakesManyLinesInASweep) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += str("n", i, ":2\n");
  EXPECT_EQ(hostfile(text).size(), 100'000u);
}

TEST(HostfileTest, RefusesNamesThatNoHostHas) {
  EXPECT_EQ(hostfile(std::string(253, 'a')).size(), 1u);
  expect_refusal([] { hostfile(std::string(254, 'a')); }, {"no host's name"});
}

TEST(HostfileTest, TakesFilesThatOtherSystemsEditorsSave) {
  const std::string mark = "\xEF\xBB\xBF";
  const File hosts("hosts", mark + "gpu01 slots=4\r\ngpu02:2\r\n");
  EXPECT_EQ(find_hosts("", hosts.path(), {}).hosts, (Hosts{{"gpu01", 4}, {"gpu02", 2}}));
  const File nodes("nodes", mark + "node1\r\nnode1\r\nnode2\r\n");
  EXPECT_EQ(hosts_of_pbs({{"PBS_NODEFILE", nodes.path()}})->hosts, (Hosts{{"node1", 2}, {"node2", 1}}));
  const File queue("queue", mark + "node1 4 all.q\r\n");
  EXPECT_EQ(hosts_of_grid_engine({{"PE_HOSTFILE", queue.path()}})->hosts, (Hosts{{"node1", 4}}));
  const File wide("wide", std::string("\xFF\xFEg\0", 4));
  expect_refusal([&] { find_hosts("", wide.path(), {}); }, {wide.path(), "UTF-16"});
}

TEST(HostfileTest, RefusesAFileThatDoesNotEnd) {
  expect_refusal([] { find_hosts("", "/dev/zero", {}); }, {"/dev/zero", "larger than"});
}

TEST(HostfileTest, AddsUpWhatIsRepeated) {
  EXPECT_EQ(hostfile("a\nb:2\na\na slots=2\n"), (Hosts{{"a", 4}, {"b", 2}}));
  EXPECT_EQ(parse_hostfile("a", "x").source, "hostfile x");
}

TEST(HostfileTest, NamesFileAndLineOfWhatIsWrong) {
  const auto refused = [](const std::string& line, const std::string& part) {
    expect_refusal([&] { hostfile("good\n# more\n" + line + "\n"); }, {"my.hosts:3: ", part, "slots=N", "1 to 100000"});
  };
  refused("a slots=four", "'four' slots");
  refused("a slots=", "'' slots");
  refused("a slots", "'' slots");
  refused("a slots=0", "'0' slots");
  refused("a:", "'' slots");
  refused("a:2:3", "'2:3' slots");
  refused("a:2 slots=3", "'slots=3'");
  refused("a sockets=2", "'sockets=2'");
  refused("a 4", "'4'");
  refused("-x", "'-x' is no host's name");
  refused("a;rm slots=1", "'a;rm'");
  refused("a slots=4 max_slots=2", "a has 4 slots, and at most 2");
}

TEST(HostfileTest, KeepsToTheMostSlotsOverAllLines) {
  expect_refusal([] { hostfile("a slots=2 max_slots=3\na slots=2\n"); },
                 {"my.hosts:2", "a has 4 slots, and at most 3"});
}

TEST(HostfileTest, NamesSomeHost) {
  expect_refusal([] { hostfile("# nothing\n\n"); }, {"my.hosts names no host"});
  expect_refusal([] { find_hosts("", "/no/such/file", {}); }, {"/no/such/file", "No such file"});
  expect_refusal([] { find_hosts("", "/tmp", {}); }, {"cannot read '/tmp'"});
}

TEST(SlurmTest, NodesAreExpanded) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(nodes("gpu[01-03,7],login1"), (Names{"gpu01", "gpu02", "gpu03", "gpu7", "login1"}));
  EXPECT_EQ(nodes("a"), (Names{"a"}));
  EXPECT_EQ(nodes("a,b-2.x"), (Names{"a", "b-2.x"}));
  EXPECT_EQ(nodes("n[098-101]"), (Names{"n098", "n099", "n100", "n101"}));
  EXPECT_EQ(nodes("n[9-11]"), (Names{"n9", "n10", "n11"}));
  EXPECT_EQ(nodes("n[5]"), (Names{"n5"}));
  EXPECT_EQ(nodes("n[18446744073709551615]"), (Names{"n18446744073709551615"}));
  EXPECT_EQ(nodes("gpu[1-2]-ib"), (Names{"gpu1-ib", "gpu2-ib"}));
  EXPECT_EQ(nodes("r[1-2]n[01-02],x[3,5]"), (Names{"r1n01", "r1n02", "r2n01", "r2n02", "x3", "x5"}));
}

TEST(SlurmTest, NodesThatMakeNoSenseAreRefused) {
  for (const char* wrong : {"",
                            "gpu[",
                            "gpu]",
                            "gpu[]",
                            "gpu[1",
                            "gpu[1-]",
                            "gpu[-1]",
                            "gpu[1--2]",
                            "gpu[1-2-3]",
                            "gpu[2-1]",
                            "gpu[a]",
                            "gpu[1,]",
                            "gpu[[1-2]]",
                            "gpu[1-[2]]",
                            "gpu[1-2]]",
                            "a,,b",
                            "a,",
                            "a b",
                            "n[0-100000]",
                            "r[1-1000]n[1-1000]",
                            "n[99999999999999999999]",
                            "n[+1-2]"})
    expect_refusal([&] { nodes(wrong); }, {str("SLURM_JOB_NODELIST is '", wrong, "'"), "gpu[01-03,7],login1"});
}

TEST(SlurmTest, TheLargestNumberIsAHostLikeAnyOther) {
  EXPECT_EQ(nodes("n[18446744073709551615]"), std::vector<std::string>{"n18446744073709551615"});
  EXPECT_EQ(nodes("n[18446744073709551614-18446744073709551615]").size(), 2u);
}

TEST(SlurmTest, ManyBracketsOfManyNamesAreTakenInASweep) {
  std::string ones, digits;
  for (int i = 0; i < 150; ++i) {
    ones += "[1]";
    digits += '1';
  }
  const auto names = nodes("n[00000-99999]" + ones);
  EXPECT_EQ(names.size(), 100'000u);
  EXPECT_EQ(names.back(), "n99999" + digits);
}

TEST(SlurmTest, ManyHostsInOneListAreRefusedBeforeTheyTakeMemory) {
  std::string text = "n[0-99999";
  for (int i = 0; i < 1000; ++i) text += ",0-99999";  // 100 million hosts in 8 KB
  expect_refusal([&] { nodes(text + "]"); }, {"at most 100000 hosts"});
  const std::string padding(8000, '0');  // 100 000 names of 8 KB
  expect_refusal([&] { nodes("n[" + padding + "0-99999]"); }, {"SLURM_JOB_NODELIST"});
}

TEST(SlurmTest, AsManyHostsAsAllowedAreTakenInASweep) {
  const Environment job{{"SLURM_JOB_NODELIST", "n[0-99999]"}, {"SLURM_NTASKS_PER_NODE", "1"}};
  EXPECT_EQ(hosts_of_slurm(job)->hosts.size(), 100'000u);
}

TEST(SlurmTest, CountsAreExpanded) {
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(expand_counts("4(x2),2", "V"), (Counts{4, 4, 2}));
  EXPECT_EQ(expand_counts("8", "V"), (Counts{8}));
  EXPECT_EQ(expand_counts("1,2(x3)", "V"), (Counts{1, 2, 2, 2}));
  for (const char* wrong : {"", "x", "4(x2", "4(x)", "4(2)", "(x2)", "4(x0)", "0", "4,", "4(x2)3", "-4", "4(x100001)"})
    expect_refusal([&] { expand_counts(wrong, "V"); }, {str("V is '", wrong, "'"), "4(x2),2"});
}

TEST(SlurmTest, SlotsAreTasksThenCpus) {
  const Environment job{{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "gpu[1-3]"}};
  const auto with = [&](Environment more) {
    more.insert(job.begin(), job.end());
    return hosts_of_slurm(more).value();
  };
  EXPECT_EQ(with({{"SLURM_TASKS_PER_NODE", "4(x2),2"}, {"SLURM_JOB_CPUS_PER_NODE", "64(x3)"}}).hosts,
            (Hosts{{"gpu1", 4}, {"gpu2", 4}, {"gpu3", 2}}));
  EXPECT_EQ(with({{"SLURM_NTASKS_PER_NODE", "4"}}).hosts, (Hosts{{"gpu1", 4}, {"gpu2", 4}, {"gpu3", 4}}));
  const HostList cpus = with({{"SLURM_JOB_CPUS_PER_NODE", "64(x2),3"}, {"SLURM_CPUS_PER_TASK", "16"}});
  EXPECT_EQ(cpus.hosts, (Hosts{{"gpu1", 4}, {"gpu2", 4}, {"gpu3", 1}}));
  EXPECT_EQ(cpus.source, "Slurm (SLURM_JOB_NODELIST, SLURM_JOB_CPUS_PER_NODE)");
  EXPECT_EQ(cpus.notes.size(), 1U);
  expect_refusal([&] { with({}); }, {"SLURM_TASKS_PER_NODE", "--ntasks-per-node"});
  expect_refusal(
      [&] {
        with({{"SLURM_TASKS_PER_NODE", "4(x2)"}});
      },
      {"SLURM_TASKS_PER_NODE is '4(x2)', of 2 hosts", "'gpu[1-3]', 3 hosts"});
  expect_refusal([&] { with({{"SLURM_NTASKS_PER_NODE", "many"}}); }, {"SLURM_NTASKS_PER_NODE is 'many'"});
  expect_refusal(
      [&] {
        with({{"SLURM_JOB_CPUS_PER_NODE", "4(x3)"}, {"SLURM_CPUS_PER_TASK", "0"}});
      },
      {"SLURM_CPUS_PER_TASK is '0'"});
}

TEST(LsfTest, SlotsAreLinesOfTheHostfileThenVariables) {
  const File file("lsf", "launch\ngpu1\ngpu1\ngpu2\ngpu2\n");
  Environment job{
      {"LSB_JOBID", "7"}, {"LSB_DJOB_HOSTFILE", file.path()}, {"LSB_MCPU_HOSTS", "a 4 b 2"}, {"LSB_HOSTS", "a a b"}};
  const HostList from_file = hosts_of_lsf(job).value();
  EXPECT_EQ(from_file.hosts, (Hosts{{"launch", 1}, {"gpu1", 2}, {"gpu2", 2}}));
  ASSERT_EQ(from_file.notes.size(), 1U);
  EXPECT_NE(from_file.notes[0].find("launch is a launch node"), std::string::npos) << from_file.notes[0];
  job.erase("LSB_DJOB_HOSTFILE");
  EXPECT_EQ(hosts_of_lsf(job)->hosts, (Hosts{{"a", 4}, {"b", 2}}));
  EXPECT_TRUE(hosts_of_lsf(job)->notes.empty());
  job.erase("LSB_MCPU_HOSTS");
  EXPECT_EQ(hosts_of_lsf(job)->hosts, (Hosts{{"a", 2}, {"b", 1}}));
  EXPECT_EQ(hosts_of_lsf({}), std::nullopt);
}

TEST(LsfTest, NamesWhatIsWrong) {
  const File wrong("lsf", "gpu1\ngpu2 4\n"), empty("lsf-empty", "\n");
  expect_refusal(
      [&] {
        hosts_of_lsf({{"LSB_DJOB_HOSTFILE", wrong.path()}});
      },
      {wrong.path() + ":2", "LSB_DJOB_HOSTFILE", "'gpu2 4'"});
  expect_refusal([&] { hosts_of_lsf({{"LSB_DJOB_HOSTFILE", empty.path()}}); }, {empty.path(), "names no host"});
  expect_refusal([&] { hosts_of_lsf({{"LSB_DJOB_HOSTFILE", "/no/such"}}); }, {"/no/such", "No such file"});
  for (const char* text : {"", "a", "a 4 b", "4 a", "a b", "a 0"})
    expect_refusal(
        [&] {
          hosts_of_lsf({{"LSB_MCPU_HOSTS", text}});
        },
        {str("LSB_MCPU_HOSTS is '", text, "'"), "'a 4 b 4'"});
  for (const char* text : {"", "a;b"})
    expect_refusal([&] { hosts_of_lsf({{"LSB_HOSTS", text}}); }, {str("LSB_HOSTS is '", text, "'"), "'a a b b'"});
}

TEST(GridEngineTest, SlotsAreTheSecondColumn) {
  const File file("pe", "node1.example 4 all.q@node1.example UNDEFINED\nnode2.example 2 all.q@node2.example <NULL>\n");
  EXPECT_EQ(hosts_of_grid_engine({{"PE_HOSTFILE", file.path()}})->hosts,
            (Hosts{{"node1.example", 4}, {"node2.example", 2}}));
  EXPECT_EQ(hosts_of_grid_engine({}), std::nullopt);
  const File wrong("pe-wrong", "node1 4 all.q\nnode2 all.q 4\n"), empty("pe-empty", "");
  expect_refusal(
      [&] {
        hosts_of_grid_engine({{"PE_HOSTFILE", wrong.path()}});
      },
      {wrong.path() + ":2", "'node2 all.q 4'", "host slots"});
  expect_refusal([&] { hosts_of_grid_engine({{"PE_HOSTFILE", empty.path()}}); }, {"names no host"});
}

TEST(PbsTest, SlotsAreLinesOfTheNodefile) {
  const File file("pbs", "node1.cluster\nnode1.cluster\nnode2.cluster\nnode2.cluster\n");
  const HostList list = hosts_of_pbs({{"PBS_NODEFILE", file.path()}}).value();
  EXPECT_EQ(list.hosts, (Hosts{{"node1.cluster", 2}, {"node2.cluster", 2}}));
  EXPECT_EQ(list.source, "PBS (PBS_NODEFILE)");
  EXPECT_EQ(hosts_of_pbs({}), std::nullopt);
  EXPECT_EQ(find_hosts("", "", {{"PBS_JOBID", "7.head"}, {"PBS_NODEFILE", file.path()}}).hosts, list.hosts);
  const File wrong("pbs-wrong", "node1\nnode2 4\n"), empty("pbs-empty", "");
  expect_refusal(
      [&] {
        hosts_of_pbs({{"PBS_NODEFILE", wrong.path()}});
      },
      {wrong.path() + ":2", "PBS_NODEFILE", "'node2 4'"});
  expect_refusal([&] { hosts_of_pbs({{"PBS_NODEFILE", empty.path()}}); }, {"names no host"});
}

TEST(FindHostsTest, RefusesAJobThatDoesNotNameItsHosts) {
  for (const char* variable : {"PBS_JOBID", "FLUX_JOB_ID", "COBALT_JOBID"}) {
    const Environment job{{variable, "f7"}};
    expect_refusal([&] { find_hosts("", "", job); }, {"job f7", variable, "-H host:slots"});
    EXPECT_EQ(find_hosts("a:2", "", job).hosts, (Hosts{{"a", 2}}));
  }
}

TEST(FindHostsTest, AsksInOrder) {
  const File hosts("hostfile", "filed:3\n"), pe("pe", "grid 5 q x\n");
  const Environment grid{{"PE_HOSTFILE", pe.path()}};
  Environment lsf = grid;
  lsf.emplace("LSB_HOSTS", "lsf lsf");
  Environment all = lsf;
  all.insert({{"SLURM_JOB_NODELIST", "slurm"}, {"SLURM_TASKS_PER_NODE", "2"}});
  EXPECT_EQ(find_hosts("given:7", "", all).hosts, (Hosts{{"given", 7}}));
  EXPECT_EQ(find_hosts("", hosts.path(), all).hosts, (Hosts{{"filed", 3}}));
  EXPECT_EQ(find_hosts("", "", all).hosts, (Hosts{{"slurm", 2}}));
  EXPECT_EQ(find_hosts("", "", lsf).hosts, (Hosts{{"lsf", 2}}));
  EXPECT_EQ(find_hosts("", "", grid).hosts, (Hosts{{"grid", 5}}));
  const HostList here = find_hosts("", "", {});
  ASSERT_EQ(here.hosts.size(), 1U);
  EXPECT_EQ(here.hosts[0].name, "localhost");
  EXPECT_GE(here.hosts[0].slots, 1);
  expect_refusal([&] { find_hosts("a", hosts.path(), {}); }, {"-H and --hostfile"});
}

TEST(ThisHostTest, HasASlotForEachGpuElseForEachNumaNode) {
  const auto root = std::filesystem::path(::testing::TempDir()) / str("root", ::getpid());
  EXPECT_EQ(this_host(root, 2).hosts, (Hosts{{"localhost", 2}}));
  EXPECT_EQ(this_host(root, 0).hosts, (Hosts{{"localhost", 1}}));
  std::filesystem::create_directories(root / "dev" / "nvidia-caps");
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia", "null"})
    std::ofstream(root / "dev" / name);
  const HostList gpus = this_host(root, 2);
  EXPECT_EQ(gpus.hosts, (Hosts{{"localhost", 3}}));
  EXPECT_NE(gpus.source.find("GPU"), std::string::npos);
  std::filesystem::remove_all(root);
}

TEST(BatchSystemTest, IsToldByTheEnvironment) {
  EXPECT_EQ(batch_system({}), "");
  EXPECT_EQ(batch_system({{"SLURM_JOB_ID", "1"}}), "Slurm");
  EXPECT_EQ(batch_system({{"LSB_JOBID", "1"}}), "LSF");
  EXPECT_EQ(batch_system({{"PE_HOSTFILE", "x"}}), "Grid Engine");
  EXPECT_EQ(batch_system({{"PBS_JOBID", "1"}}), "PBS");
}

}  // namespace spillway::ddlrun
