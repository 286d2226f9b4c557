// Tests of the properties that hosts report, and of the messages about their differences.
#include "tools/ddlrun/preflight.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/host/processor.h"
#include "tools/ddlrun/compare.h"
#include "tools/ddlrun/inspect.h"
#include "tools/ddlrun/look.h"
#include "tools/ddlrun/process.h"
#include "tools/ddlrun/this_host.h"

namespace spillway::ddlrun {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

HostRecord good(const std::string& hostname = "a") {
  return {.hostname = hostname,
          .kernel = "6.1.0",
          .mpi = "Open MPI v4.1.4, package: x",
          .processor = "EPYC 7763",
          .cores = 64,
          .memory_bytes = int64_t{512} << 30,
          .gpus = {"NVIDIA A100", "NVIDIA A100"},
          .networks = {{"eth0", false, 25000}, {"mlx5_0", true, 200000}},
          .program = "/bin/prog",
          .files = {{"prog", "/bin/prog", "11"},
                    {"libtorch.so", "/opt/libtorch.so", "22"},
                    {"libc10.so", "/opt/libc10.so", "33"}}};
}

std::vector<Inspected> three() {
  return {{"a", 2, good("a")}, {"b", 2, good("b")}, {"c", 2, good("c")}};
}

using Messages = std::vector<std::string>;

/// A folder that is removed with this object.
class Folder {
 public:
  Folder() : path_(fs::path(::testing::TempDir()) / str("ddlrun", ::getpid(), "-", ++count_)) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }

 private:
  fs::path path_;
  static inline int count_ = 0;
};

std::string report(const Plan& plan, const json& changes = json::object()) {
  json records = json::array();
  int rank = 0;
  for (const Host& host : plan.used) {
    records.push_back({{"rank", rank}, {"record", to_json(good(host.name + "-inside"))}});
    rank += static_cast<int>(host.slots);
  }
  json value{{"world_size", plan.ranks()},
             {"hosts", plan.host_of_rank},
             {"records", records},
             {"levels", plan.levels.shape()},
             {"costs", {{{"latency_seconds", 1e-6}, {"bytes_per_second", 5e9}}}}};
  value.update(changes);
  return kReport + value.dump() + "\n";
}

}  // namespace

TEST(CompareTest, EqualHostsAreFit) {
  const Verdict verdict = compare(three(), "prog");
  EXPECT_EQ(verdict.errors, Messages());
  EXPECT_EQ(verdict.warnings, Messages());
}

TEST(CompareTest, AProgramThatDiffersIsAnErrorNamingHostsAndFile) {
  auto hosts = three();
  hosts[1].record.files[0].hash = "99";
  EXPECT_EQ(compare(hosts, "prog").errors, Messages{"prog is not the same everywhere: 11 (a, c), 99 (b)"});
}

TEST(CompareTest, LibrariesThatDifferAlikeAreToldTogether) {
  auto hosts = three();
  hosts[2].record.files[1].hash = "98";
  hosts[2].record.files[2].hash = "99";
  EXPECT_EQ(compare(hosts, "prog").errors,
            Messages{"libtorch.so, libc10.so are not the same everywhere: libtorch.so is 22 (a, b), 98 (c)"});
  hosts[1].record.files[2].hash = "97";
  EXPECT_EQ(compare(hosts, "prog").errors.size(), 2U);
}

TEST(CompareTest, ALibraryThatOnlySomeLoadIsAnError) {
  auto hosts = three();
  hosts[0].record.files.pop_back();
  EXPECT_EQ(compare(hosts, "prog").errors, Messages{"libc10.so is not the same everywhere: none (a), 33 (b, c)"});
}

TEST(CompareTest, PathsMayDiffer) {
  auto hosts = three();
  hosts[0].record.files[1].path = "/elsewhere/libtorch.so";
  EXPECT_EQ(compare(hosts, "prog").errors, Messages());
}

TEST(CompareTest, AMissingProgramOrLibraryIsAnError) {
  auto hosts = three();
  hosts[1].record.program.clear();
  hosts[1].record.files.clear();
  hosts[2].record.missing = {"libfoo.so"};
  const auto errors = compare(hosts, "prog").errors;
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0], "prog does not find libfoo.so on c");
  EXPECT_NE(errors[1].find("no program 'prog' on b"), std::string::npos) << errors[1];
}

TEST(CompareTest, UnequalMpiIsAnError) {
  auto hosts = three();
  hosts[2].record.mpi = "Open MPI v4.1.5";
  EXPECT_EQ(compare(hosts, "prog").errors,
            Messages{"unequal MPI libraries: Open MPI v4.1.4, package: x (a, b), Open MPI v4.1.5 (c)"});
}

TEST(CompareTest, UnequalHardwareIsAWarning) {
  auto hosts = three();
  hosts[0].record.cores = 32;
  hosts[0].record.processor = "Xeon 6148";
  hosts[1].record.gpus.pop_back();
  hosts[1].record.memory_bytes /= 2;
  hosts[2].record.networks[0].megabits = 1000;
  hosts[2].record.kernel = "5.15";
  const Verdict verdict = compare(hosts, "prog");
  EXPECT_EQ(verdict.errors, Messages());
  EXPECT_EQ(verdict.warnings,
            (Messages{"b has 1 GPUs for 2 ranks",
                      "unequal processors, which may round otherwise: Xeon 6148 (a), EPYC 7763 (b, c)",
                      "unequal cores: 32 (a), 64 (b, c)", "unequal memory: 512 GiB (a, c), 256 GiB (b)",
                      "unequal GPUs: 2 x NVIDIA A100 (a, c), NVIDIA A100 (b)",
                      "unequal networks: 25 Gbit/s, InfiniBand 200 Gbit/s (a, b), 1 Gbit/s, InfiniBand 200 Gbit/s (c)",
                      "unequal kernels: 6.1.0 (a, b), 5.15 (c)"}));
}

TEST(CompareTest, NamesOfLinksAndAFewMegabytesDoNotMatter) {
  auto hosts = three();
  hosts[0].record.networks = {{"ib7", true, 200000}, {"ens3", false, 25000}};
  hosts[1].record.memory_bytes -= int64_t{1} << 30;
  EXPECT_EQ(compare(hosts, "prog").warnings, Messages());
}

TEST(CompareTest, ManyHostsAreCounted) {
  std::vector<Inspected> hosts;
  for (int i = 0; i < 20; ++i) hosts.push_back({str("n", i), 1, good()});
  hosts[19].record.cores = 8;
  EXPECT_EQ(compare(hosts, "prog").warnings, Messages{"unequal cores: 64 (n0, n1, n2, n3 and 15 more), 8 (n19)"});
}

TEST(InspectionTableTest, HasARowPerHost) {
  auto hosts = three();
  hosts.resize(2);
  hosts[1].record.gpus.clear();
  hosts[1].record.networks = {{"eth0", false, 100}, {"eth1", false, 0}, {"eth2", false, 100}};
  EXPECT_EQ(inspection_table(hosts),
            "host  cores   memory  GPUs             network\n"
            "a        64  512 GiB  2 x NVIDIA A100  25 Gbit/s, InfiniBand 200 Gbit/s\n"
            "b        64  512 GiB  -                Ethernet of unknown speed, 2 x 100 Mbit/s\n");
}

TEST(RecordTest, SurvivesTheJourneyAsJson) {
  HostRecord record = good();
  record.missing = {"libx.so"};
  EXPECT_EQ(record_of(json::parse(to_json(record).dump())), record);
}

TEST(RecordTest, ValuesThatNoHostHasAreRefused) {
  const json whole = to_json(good());
  const auto refused = [&](const char* key, const json& value) {
    json record = whole;
    record[key] = value;
    EXPECT_THROW(record_of(record), BadRequest) << key << " " << value;
  };
  refused("cores", 1e300);
  refused("cores", 1.5);
  refused("memory_bytes", -1);
  refused("memory_bytes", 18446744073709551615U);
  refused("files", {{{"name", "prog"}, {"path", "/"}, {"hash", "0123456789a\u00e9"}}});
}

TEST(LookTest, ReadsWhatLddPrints) {
  EXPECT_EQ(
      parse_ldd(
          "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibmpi.so.40 => /lib/libmpi.so.40 (0x00007f)\n\tlibfoo.so => not found\n"
          "\t/opt/x/liby.so (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n"),
      (Libraries{.found = {{"libmpi.so.40", "/lib/libmpi.so.40"},
                           {"liby.so", "/opt/x/liby.so"},
                           {"ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"}},
                 .missing = {"libfoo.so"}}));
  EXPECT_EQ(parse_ldd("\tstatically linked\n"), Libraries());
  EXPECT_EQ(parse_ldd(""), Libraries());
}

TEST(LookTest, NamesTheProcessorAsTheKernelDoes) {
  const Folder root;
  EXPECT_EQ(processor_model(root.path()), "");
  root.write("proc/cpuinfo",
             "processor\t: 0\nmodel name\t: AMD EPYC 7763  64-Core Processor\n\nprocessor\t: 1\nmodel name\t: x\n");
  EXPECT_EQ(processor_model(root.path()), "AMD EPYC 7763 64-Core Processor");
  root.write("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\nprocessor\t: 1\n");
  EXPECT_EQ(processor_model(root.path()), "implementer 0x41, part 0xd40");
}

TEST(LookTest, NamesGpusByTheDriversWord) {
  const Folder root;
  EXPECT_EQ(gpus_of(root.path()), Messages());
  root.write("dev/nvidia0", "");
  root.write("dev/nvidiactl", "");
  EXPECT_EQ(gpus_of(root.path()), Messages{"NVIDIA"});
  root.write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 42\n");
  root.write("proc/driver/nvidia/gpus/0000:af:00.0/information", "Model: \t\t Tesla T4\n");
  EXPECT_EQ(gpus_of(root.path()), (Messages{"NVIDIA A100-SXM4-40GB", "Tesla T4"}));
}

TEST(LookTest, SeesLinksThatAreUp) {
  const Folder root;
  root.write("sys/class/net/lo/operstate", "up\n");
  root.write("sys/class/net/docker0/operstate", "up\n");
  root.write("sys/class/net/docker0/speed", "-1\n");
  EXPECT_EQ(networks_of(root.path()), (std::vector<Network>{{"docker0", false, 0}}));
  for (const char* name : {"eth0", "eth1"}) {
    root.write(str("sys/class/net/", name, "/operstate"), name == std::string("eth0") ? "up\n" : "down\n");
    root.write(str("sys/class/net/", name, "/speed"), "25000\n");
    root.write(str("sys/class/net/", name, "/device/vendor"), "0x15b3\n");
  }
  root.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  root.write("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
  root.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  EXPECT_EQ(networks_of(root.path()), (std::vector<Network>{{"eth0", false, 25000}, {"mlx5_0", true, 200000}}));
}

TEST(LookTest, HashesTheProgramAndItsLibraries) {
  const HostRecord record = look_at_this_host("sh", "/no/such/folder:/bin:/usr/bin");
  EXPECT_EQ(record.program, "/bin/sh");
  EXPECT_GE(record.cores, 1);
  EXPECT_GT(record.memory_bytes, 0);
  ASSERT_GE(record.files.size(), 2U);
  EXPECT_EQ(record.files[0].name, "sh");
  bool libc = false;
  for (const FileRecord& file : record.files) {
    EXPECT_EQ(file.hash, hash_of_file(file.path));
    EXPECT_EQ(file.hash.size(), 32U);
    libc = libc || file.name.starts_with("libc.so");
  }
  EXPECT_TRUE(libc);
  EXPECT_EQ(look_at_this_host("no-such-program", "/bin").program, "");
}

TEST(LookTest, AScriptIsItsFileAlone) {
  const Folder folder;
  folder.write("script", "#!/bin/sh\n");
  fs::permissions(folder.path() / "script", fs::perms::owner_all);
  const HostRecord one = look_at_this_host((folder.path() / "script").string(), "");
  ASSERT_EQ(one.files.size(), 1U);
  folder.write("script", "#!/bin/sh\n#");
  EXPECT_NE(look_at_this_host((folder.path() / "script").string(), "").files[0].hash, one.files[0].hash);
}

TEST(FindingsTest, CallHostsByThePlansNames) {
  const Plan plan = make_plan(parse_host_option("a:2,b:2"), {}, "");
  const Findings findings =
      findings_of(plan, "noise\n[1,0]<stdout>: " + report(plan) + "more noise\n", "prog", "Open MPI 4.1.4");
  ASSERT_EQ(findings.hosts.size(), 2U);
  EXPECT_EQ(findings.hosts[1].name, "b");
  EXPECT_EQ(findings.hosts[1].ranks, 2);
  EXPECT_EQ(findings.hosts[1].record.hostname, "b-inside");
  EXPECT_EQ(findings.verdict.errors, Messages());
  ASSERT_EQ(findings.links.size(), 1U);
  const std::string text = describe(findings);
  EXPECT_NE(text.find("level 1: latency 1.0 us, 5.000 GB/s a link, each way\n"), std::string::npos) << text;
  EXPECT_NE(text.find("the same on all hosts: /bin/prog, 2 libraries, Open MPI v4.1.4\n"), std::string::npos) << text;
}

TEST(FindingsTest, WarnOfRanksThatAreNotPlacedAsDrawn) {
  const Plan plan = make_plan(parse_host_option("a:2,b:2"), {}, "");
  const Findings findings = findings_of(plan, report(plan, {{"hosts", {0, 1, 0, 1}}}), "prog", "Open MPI 4.1.4");
  EXPECT_EQ(findings.verdict.warnings, Messages{"ranks are not placed as drawn, but: a-inside 2, b-inside 2"});
}

TEST(FindingsTest, RefuseALauncherOfAnotherMpi) {
  const Plan plan = make_plan(parse_host_option("a:2"), {}, "");
  const std::string alone = str(kReport, R"({"world_size": 1, "mpi": "Open MPI v4.1.4"})", "\n");
  for (const std::string& printed : {alone + alone, alone}) try {
      findings_of(plan, printed, "prog", "MPICH 4.0.2");
      ADD_FAILURE() << "accepted";
    } catch (const std::runtime_error& error) {
      for (const char* part : {"of 2 ranks one sees 1", "MPICH 4.0.2", "Open MPI v4.1.4"})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  EXPECT_THROW(findings_of(plan, "no report\n", "prog", "x"), std::runtime_error);
}

TEST(ReachTest, KnowsThisHostByItsNamesAndAddresses) {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  for (const std::string& one : {std::string("localhost"), std::string("127.0.0.1"), std::string(name)})
    EXPECT_TRUE(is_this_host(one)) << one;
  ifaddrs* interfaces = nullptr;
  ASSERT_EQ(::getifaddrs(&interfaces), 0);
  for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    char address[INET_ADDRSTRLEN] = {};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, address, sizeof address);
    EXPECT_TRUE(is_this_host(address)) << address;
  }
  ::freeifaddrs(interfaces);
  for (const char* other : {"192.0.2.7", "another-host", ""}) EXPECT_FALSE(is_this_host(other)) << other;
  EXPECT_FALSE(is_this_host(str(name, ".no-such-domain.invalid")));
}

TEST(ReachTest, NamesTheHostsThatDoNotAnswerAndWhy) {
  const Folder folder;
  folder.write("agent",
               "#!/bin/sh\ncase $1 in good) exec sh -c \"$2\";; silent) exec sleep 60;; dumb) exit 3;; *) echo; echo "
               "\"no route to $1\" >&2; exit 255;; esac\n");
  const std::string agent = (folder.path() / "agent").string();
  fs::permissions(agent, fs::perms::owner_all);
  const Plan plan = make_plan(parse_host_option("localhost,good,lost,silent,dumb"), {}, "");
  EXPECT_EQ(unreachable_hosts(plan, {agent}, std::chrono::seconds(2)),
            (Messages{"lost (no route to lost)", "silent (no answer in 2 s)", str("dumb (", agent, " ended with 3)")}));
}

TEST(RunTest, CollectsWhatIsSaidAndTheExitCode) {
  const Outcome outcome = run({"sh", "-c", "echo out; echo err >&2; cat; exit 7"}, std::chrono::seconds(60));
  EXPECT_EQ(outcome.out, "out\n");
  EXPECT_EQ(outcome.err, "err\n");
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_EQ(run({"sh", "-c", "kill -9 $$"}, std::chrono::seconds(60)).exit_code, 128 + SIGKILL);
  const std::string much = run({"sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"}, std::chrono::seconds(60)).out;
  EXPECT_EQ(much, std::string(3'000'000, 'x'));
}

TEST(RunTest, EndsWhatDoesNotEnd) {
  EXPECT_TRUE(run({"sleep", "600"}, std::chrono::milliseconds(50)).timed_out);
  EXPECT_TRUE(run({"sh", "-c", "trap '' TERM; while :; do sleep 1; done"}, std::chrono::milliseconds(50)).timed_out);
}

TEST(RunTest, DoesNotWaitForThoseThatInheritThePipes) {
  const Outcome outcome = run({"sh", "-c", "sleep 600 & echo $!"}, std::chrono::seconds(60));
  EXPECT_FALSE(outcome.timed_out);
  ::kill(std::stoi(outcome.out), SIGKILL);
}

TEST(RunTest, NamesAProgramThatIsNotThere) {
  try {
    run({"no-such-program"}, std::chrono::seconds(1));
    ADD_FAILURE() << "ran";
  } catch (const BadRequest& error) {
    EXPECT_NE(std::string(error.what()).find("'no-such-program'"), std::string::npos);
  }
}

TEST(RunTest, ManyRunAndAnswerInOrder) {
  std::vector<std::vector<std::string>> commands;
  for (int i = 0; i < 150; ++i) commands.push_back({"sh", "-c", str("echo ", i)});
  const auto outcomes = run_all(commands, std::chrono::seconds(60));
  for (int i = 0; i < 150; ++i) EXPECT_EQ(outcomes[static_cast<size_t>(i)].out, str(i, "\n"));
}

TEST(RunTest, ManyShareOneDeadline) {
  const Folder folder;
  std::vector<std::vector<std::string>> commands;
  for (int i = 0; i < 200; ++i)
    commands.push_back({"sh", "-c", str("touch ", (folder.path() / str(i)).string(), "; exec sleep 600")});
  for (const Outcome& outcome : run_all(commands, std::chrono::seconds(3))) EXPECT_TRUE(outcome.timed_out);
  const auto files = std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
  EXPECT_LT(files, 150) << "more than those that were first at it had a turn";
}

TEST(LastLineTest, IsTheLastThatSaysSomething) {
  EXPECT_EQ(last_line("one\n  two \r\n\n"), "two");
  EXPECT_EQ(last_line(" \n"), "");
  EXPECT_EQ(last_line("one"), "one");
}

}  // namespace spillway::ddlrun
