#include "tools/ddlrun/launcher.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "core/error.h"
#include "tools/ddlrun/shell.h"

namespace spillway::ddlrun {
namespace {

using Words = std::vector<std::string>;

/// Parts of the names of variables whose values must not be read over a shoulder or in a log.
constexpr const char* kSecrets[] = {"TOKEN", "SECRET", "PASSW", "KEY", "CREDENTIAL"};

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Returns the number before the first dot after `after`; 0 when there is none.
int major_version(const std::string& text, const std::string& after) {
  const size_t at = text.find(after);
  if (at == std::string::npos) return 0;
  size_t digits = at + after.size();
  while (digits < text.size() && (text[digits] == ' ' || text[digits] == 'v')) ++digits;
  int number = 0;
  std::from_chars(text.data() + digits, text.data() + text.size(), number);
  return number;
}

bool says(const Words& words, std::initializer_list<const char*> names) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return word == name; });
  });
}

/// True when one of these flags is among the words, with one dash or two.
bool has_flag(const Words& words, std::initializer_list<const char*> names) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::any_of(names.begin(), names.end(),
                       [&](const char* name) { return word == str("-", name) || word == str("--", name); });
  });
}

/// True when the words map ranks: Open MPI ends with an error where one of these flags meets `--map-by slot`. -N,
/// --npernode and similar flags go along with it.
bool maps(const Words& words) {
  return has_flag(words, {"map-by", "rankfile", "rf", "bynode", "bycore", "ppr", "cpu-set", "cpu-list"});
}

/// True when the words bind ranks, so that `--bind-to none` would contradict them.
bool binds(const Words& words) {
  return has_flag(words, {"bind-to", "bind-to-core", "bind-to-socket"});
}

/// True when the program is `spillway`, and its arguments begin so.
bool is_spillway(const Words& program, std::initializer_list<const char*> arguments) {
  return program.size() > arguments.size() && std::filesystem::path(program[0]).filename() == "spillway" &&
         std::equal(arguments.begin(), arguments.end(), program.begin() + 1,
                    [](const char* word, const std::string& given) { return given == word; });
}

void append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

Words open_mpi_command(const Launcher& launcher, const LaunchOptions& options, const Plan& plan,
                       const std::string& batch_system) {
  Words words{launcher.command};
  if (options.allow_run_as_root) words.push_back("--allow-run-as-root");
  Words hosts;
  for (const Host& host : plan.used) hosts.push_back(str(host.name, ":", host.slots));
  append(words, {"--host", join(hosts, ","), "-np", std::to_string(plan.ranks())});
  if (!maps(options.mpi_args)) append(words, {"--map-by", "slot"});
  if (!binds(options.mpi_args)) append(words, {"--bind-to", "none"});
  for (const std::string& one : options.exports) append(words, {"-x", one});
  if (!options.agent.empty()) {
    const bool renamed = launcher.major >= 5;  // ORTE's rsh became PRRTE's ssh
    const std::string parameter = renamed ? "--prtemca" : "--mca", component = renamed ? "ssh" : "rsh";
    if (!batch_system.empty()) append(words, {parameter, "plm", component});
    append(words, {parameter, "plm_" + component + "_agent", join(options.agent, " ")});
  }
  return words;
}

/// Makes the command line for the process manager of MPICH and Intel MPI.
Words hydra_command(const Launcher& launcher, const LaunchOptions& options, const Plan& plan, const Words& program) {
  if (options.allow_run_as_root)
    throw BadRequest(str("--allow-run-as-root is Open MPI's; ", launcher.version, " runs as root without"));
  if (options.agent.size() > 1)
    throw BadRequest(str("--agent is '", join(options.agent, " "), "'; allowed with ", launcher.version,
                         ": one word, a program without arguments"));
  Words words{launcher.command};
  if (!options.agent.empty()) append(words, {"-bootstrap", "ssh", "-bootstrap-exec", options.agent.front()});
  for (const std::string& one : options.exports)  // a variable without a value here goes to all ranks anyway
    if (const size_t equals = one.find('='); equals != std::string::npos)
      append(words, {"-genv", one.substr(0, equals), one.substr(equals + 1)});
  if (launcher.mpi == Mpi::intel && !says(options.mpi_args, {"I_MPI_PIN"}))
    append(words, {"-genv", "I_MPI_PIN", "off"});
  append(words, options.mpi_args);
  const bool mpich = launcher.mpi == Mpi::mpich;
  const bool equal = std::all_of(plan.used.begin(), plan.used.end(),
                                 [&](const Host& host) { return host.slots == plan.used.front().slots; });
  if (mpich || equal) {
    Words hosts;
    for (const Host& host : plan.used) hosts.push_back(mpich ? str(host.name, ":", host.slots) : host.name);
    append(words, {"-hosts", join(hosts, ",")});
    if (!mpich) append(words, {"-ppn", str(plan.used.front().slots)});
    append(words, {"-n", str(plan.ranks())});
    append(words, program);
    return words;
  }
  // Intel's list of hosts has no numbers, so each host is a part of the command.
  if (says(program, {":"}))
    throw BadRequest("PROGRAM has the argument ':', which Intel MPI takes for its own where hosts are unequal");
  for (const Host& host : plan.used) {
    if (&host != &plan.used.front()) words.push_back(":");
    append(words, {"-host", host.name, "-n", str(host.slots)});
    append(words, program);
  }
  return words;
}

}  // namespace

Launcher parse_version(const std::string& command, const std::string& text) {
  Launcher launcher{.command = command};
  if (text.find("(Open MPI)") != std::string::npos || text.find("OpenRTE") != std::string::npos) {
    launcher.major = std::max(major_version(text, "(Open MPI)"), major_version(text, "(OpenRTE)"));
    launcher.version = "Open MPI" + text.substr(text.find(')') + 1, text.find('\n') - text.find(')') - 1);
    if (launcher.major >= 4) return launcher;
  } else if (text.find("Intel(R) MPI") != std::string::npos) {
    launcher.mpi = Mpi::intel;
    launcher.version = first_line(text.substr(text.find("Intel(R) MPI")));
    return launcher;
  } else if (text.find("HYDRA") != std::string::npos) {
    launcher.mpi = Mpi::mpich;
    const size_t at = text.find("Version:");
    const auto version = at == std::string::npos ? Words{} : words_of(first_line(text.substr(at + 8)));
    launcher.version = version.empty() ? "MPICH" : "MPICH " + version.front();
    return launcher;
  }
  throw BadRequest(str("--launcher ", command, " says it is '", first_line(text),
                       "'; allowed: mpirun of Open MPI 4 or newer, of MPICH (Hydra) or of Intel MPI"));
}

Launcher guess_launcher(const std::string& command, const std::string& path) {
  Launcher launcher{.command = command};
  const std::string found = find_program(command, path);
  std::error_code none;
  const auto file = std::filesystem::canonical(found, none);
  const auto beside = [&](const char* name) { return std::filesystem::exists(file.parent_path() / name, none); };
  const std::string name = file.filename().string();
  if (found.empty()) {
    launcher.version = str("taken for Open MPI 4's: there is no ", command, " here");
  } else if (name == "orterun") {
    launcher.version = "Open MPI 4's, by its file's name";
  } else if (name.starts_with("prterun") || (name.starts_with("mpirun") && beside("prterun"))) {
    launcher.major = 5;
    launcher.version = "Open MPI 5's, by its file's name";
  } else if (beside("impi_info")) {
    launcher.mpi = Mpi::intel;
    launcher.version = "Intel MPI's, by the files beside it";
  } else if (name.find("hydra") != std::string::npos || name.find("mpich") != std::string::npos) {
    launcher.mpi = Mpi::mpich;
    launcher.version = "MPICH's, by its file's name";
  } else {
    launcher.version = "taken for Open MPI 4's, unasked";
  }
  return launcher;
}

std::vector<std::string> launch_command(const Launcher& launcher, const LaunchOptions& options, const Plan& plan,
                                        const std::string& batch_system, const std::vector<std::string>& program) {
  if (launcher.mpi != Mpi::open_mpi) return hydra_command(launcher, options, plan, program);
  Words words = open_mpi_command(launcher, options, plan, batch_system);
  append(words, options.mpi_args);
  append(words, program);
  return words;
}

LaunchOptions without_secrets(LaunchOptions options) {
  for (std::string& one : options.exports) {
    const size_t equals = one.find('=');
    std::string name = one.substr(0, equals);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    const bool secret = std::any_of(std::begin(kSecrets), std::end(kSecrets),
                                    [&](const char* part) { return name.find(part) != std::string::npos; });
    if (secret && equals != std::string::npos) one.replace(equals + 1, std::string::npos, "***");
  }
  return options;
}

std::vector<std::string> with_levels(std::vector<std::string> program, const std::string& levels) {
  if (levels.empty()) return program;
  if (!is_spillway(program, {"train"}) && !is_spillway(program, {"bench", "allreduce"}))
    throw BadRequest(str("--levels is for spillway train and spillway bench allreduce, which read it; the program is '",
                         quoted(program), "'"));
  for (const std::string& argument : program)
    if (argument == "--levels" || argument.starts_with("--levels="))
      throw BadRequest("--levels is given twice, before PROGRAM and among its arguments; allowed: once");
  append(program, {"--levels", levels});
  return program;
}

bool ends_on_request(const Launcher& launcher, const std::vector<std::string>& program) {
  return launcher.mpi == Mpi::open_mpi && is_spillway(program, {"train"});
}

void check_export(const std::string& text, const Environment& environment) {
  const std::string name = text.substr(0, text.find('='));
  const bool named = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return c < 128 && (std::isalnum(c) || c == '_');
  });
  if (!named) throw BadRequest(str("-x is '", text, "'; allowed: NAME of a variable, or NAME=VALUE"));
  if (name == text && !environment.contains(name))
    throw BadRequest(
        str("-x ", name, ": there is no such variable here; allowed: one that is set, or ", name, "=VALUE"));
}

}  // namespace spillway::ddlrun
