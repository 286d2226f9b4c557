#include "tools/ddlrun/batch_systems.h"

#include <algorithm>

#include "core/error.h"
#include "core/parse_number.h"

namespace spillway::ddlrun {
namespace {

constexpr size_t kMaxHosts = 100'000;

const std::string* find(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

[[noreturn]] void refuse(const std::string& what, std::string_view value, const std::string& allowed) {
  throw BadRequest(str("[hosts] ", what, " is '", value, "'; allowed: ", allowed));
}

[[noreturn]] void refuse_nodes(const std::string& what, std::string_view text) {
  refuse(what, text, str("names with ranges, as in gpu[01-03,7],login1, of at most ", kMaxHosts, " hosts"));
}

/// Expands `01-03,7` to 01, 02, 03, 7.
std::vector<std::string> expand_ranges(std::string_view text, std::string_view all, const std::string& what) {
  std::vector<std::string> numbers;
  for (const std::string& range : split(text, ',')) {
    const auto bounds = split(range, '-');
    const auto number = [&](const std::string& digits) {
      const auto value = parse_number<uint64_t>(digits);
      if (!value) refuse_nodes(what, all);
      return *value;
    };
    const uint64_t first = number(bounds.front()), last = number(bounds.back());
    const size_t width = bounds.front().size();
    if (bounds.size() > 2 || width > kMaxHostName || last < first || last - first >= kMaxHosts - numbers.size())
      refuse_nodes(what, all);
    // Counts hosts, because the number behind the last one may not be representable.
    for (uint64_t i = 0; i <= last - first; ++i) {
      std::string digits = std::to_string(first + i);
      if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
      numbers.push_back(std::move(digits));
    }
  }
  return numbers;
}

/// Splits a name into fixed texts and brackets. Returns for each of them, in order, the texts that may stand there.
std::vector<std::vector<std::string>> places_of(std::string_view name, std::string_view all, const std::string& what) {
  std::vector<std::vector<std::string>> places;
  while (!name.empty()) {
    const size_t open = std::min(name.find('['), name.size());
    if (open > 0) places.push_back({std::string(name.substr(0, open))});
    name.remove_prefix(open);
    if (name.empty()) break;
    const size_t close = name.find(']');
    if (close == std::string_view::npos) refuse_nodes(what, all);
    places.push_back(expand_ranges(name.substr(1, close - 1), all, what));
    name.remove_prefix(close + 1);
  }
  return places;
}

/// Expands one name with any number of brackets; the last bracket runs fastest. Cost: names times places, both bounded.
std::vector<std::string> expand_name(std::string_view name, std::string_view all, const std::string& what) {
  const auto places = places_of(name, all, what);
  size_t count = 1, length = 0;
  for (const auto& choices : places) {
    count *= choices.size();
    length += choices.front().size();
    if (count > kMaxHosts || length > kMaxHostName) refuse_nodes(what, all);
  }
  std::vector<std::string> names(count);
  size_t period = count;
  for (const auto& choices : places) {
    period /= choices.size();
    for (size_t i = 0; i < count; ++i) names[i] += choices[i / period % choices.size()];
  }
  for (const std::string& one : names)
    if (!is_host_name(one)) refuse_nodes(what, all);
  return names;
}

/// Returns the number of slots that Slurm gives each node. Sets `variable` to the name of the variable that it used.
std::vector<int64_t> slots_of_slurm(const Environment& environment, size_t nodes, std::string& variable) {
  if (const auto* tasks = find(environment, variable = "SLURM_TASKS_PER_NODE")) return expand_counts(*tasks, variable);
  if (const auto* tasks = find(environment, variable = "SLURM_NTASKS_PER_NODE")) {
    const auto count = parse_count(*tasks);
    if (!count) refuse(variable, *tasks, str("a number from 1 to ", kMaxSlots));
    return std::vector<int64_t>(nodes, *count);
  }
  const auto* cpus = find(environment, variable = "SLURM_JOB_CPUS_PER_NODE");
  if (!cpus)
    throw BadRequest(
        "[hosts] SLURM_JOB_NODELIST is set, but none of SLURM_TASKS_PER_NODE, SLURM_NTASKS_PER_NODE and "
        "SLURM_JOB_CPUS_PER_NODE; say -H host:slots,…, or ask Slurm for --ntasks-per-node");
  auto slots = expand_counts(*cpus, variable);
  int64_t cpus_per_task = 1;
  if (const auto* each = find(environment, "SLURM_CPUS_PER_TASK")) {
    const auto count = parse_count(*each);
    if (!count) refuse("SLURM_CPUS_PER_TASK", *each, str("a number from 1 to ", kMaxSlots));
    cpus_per_task = *count;
  }
  for (int64_t& count : slots) count = std::max<int64_t>(1, count / cpus_per_task);
  return slots;
}

/// Reads a file with a host's name on each line, once per slot. `variable` is the environment variable that named the
/// file.
HostList parse_lines(const std::string& system, const std::string& variable, const std::string& file) {
  HostList list{.source = str(system, " (", variable, ")")};
  int64_t number = 0;
  for (const std::string& line : split(read_file(file), '\n')) {
    const auto words = words_of(line);
    ++number;
    if (words.empty()) continue;
    if (words.size() > 1 || !is_host_name(words.front()))
      throw BadRequest(str("[hosts] ", file, ":", number, " (", variable, "): '", line,
                           "'; allowed: a host's name, on a line per slot"));
    list.add(words.front(), 1);
  }
  if (list.hosts.empty()) throw BadRequest(str("[hosts] ", file, " (", variable, ") names no host"));
  return list;
}

HostList parse_lsb_mcpu_hosts(const std::string& text) {
  HostList list{.source = "LSF (LSB_MCPU_HOSTS)"};
  const auto words = words_of(text);
  bool right = !words.empty() && words.size() % 2 == 0;
  for (size_t i = 0; right && i < words.size(); i += 2) {
    const auto slots = parse_count(words[i + 1]);
    right = slots && is_host_name(words[i]);
    if (right) list.add(words[i], *slots);
  }
  if (!right) refuse("LSB_MCPU_HOSTS", text, "hosts and slots in turn, as in 'a 4 b 4'");
  return list;
}

HostList parse_lsb_hosts(const std::string& text) {
  HostList list{.source = "LSF (LSB_HOSTS)"};
  const auto words = words_of(text);
  if (words.empty() || !std::all_of(words.begin(), words.end(), is_host_name))
    refuse("LSB_HOSTS", text, "a host's name per slot, as in 'a a b b'");
  for (const std::string& word : words) list.add(word, 1);
  return list;
}

}  // namespace

std::string batch_system(const Environment& environment) {
  if (find(environment, "SLURM_JOB_ID") || find(environment, "SLURM_JOB_NODELIST")) return "Slurm";
  if (find(environment, "LSB_JOBID")) return "LSF";
  if (find(environment, "PE_HOSTFILE")) return "Grid Engine";
  return find(environment, "PBS_JOBID") || find(environment, "PBS_NODEFILE") ? "PBS" : "";
}

std::vector<std::string> expand_nodes(std::string_view text, const std::string& what) {
  std::vector<std::string> nodes;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if ((c == '[' && inside) || (c == ']' && !inside) || (i == text.size() && inside)) refuse_nodes(what, text);
    if (c == '[' || c == ']') inside = c == '[';
    if (c != ',' || inside) continue;
    const auto names = expand_name(text.substr(begin, i - begin), text, what);
    nodes.insert(nodes.end(), names.begin(), names.end());
    if (nodes.size() > kMaxHosts) refuse_nodes(what, text);
    begin = i + 1;
  }
  return nodes;
}

std::vector<int64_t> expand_counts(std::string_view text, const std::string& what) {
  std::vector<int64_t> counts;
  for (const std::string& part : split(text, ',')) {
    const size_t open = part.find("(x");
    const auto count = parse_count(std::string_view(part).substr(0, open));
    std::optional<int64_t> times = 1;
    if (open != std::string::npos)
      times = part.back() == ')' ? parse_count(std::string_view(part).substr(open + 2, part.size() - open - 3))
                                 : std::nullopt;
    if (!count || !times || counts.size() + *times > kMaxHosts)
      refuse(what, text, str("numbers from 1 to ", kMaxSlots, ", as in 4(x2),2"));
    counts.insert(counts.end(), *times, *count);
  }
  return counts;
}

std::optional<HostList> hosts_of_slurm(const Environment& environment) {
  const auto* text = find(environment, "SLURM_JOB_NODELIST");
  if (!text) return {};
  const auto nodes = expand_nodes(*text, "SLURM_JOB_NODELIST");
  std::string variable;
  const auto slots = slots_of_slurm(environment, nodes.size(), variable);
  if (slots.size() != nodes.size())
    throw BadRequest(str("[hosts] ", variable, " is '", environment.at(variable), "', of ", slots.size(),
                         " hosts, but SLURM_JOB_NODELIST is '", *text, "', ", nodes.size(),
                         " hosts; allowed: as many"));
  HostList list{.source = str("Slurm (SLURM_JOB_NODELIST, ", variable, ")")};
  for (size_t i = 0; i < nodes.size(); ++i) list.add(nodes[i], slots[i]);
  if (variable == "SLURM_JOB_CPUS_PER_NODE")
    list.notes.push_back("slots are CPUs: ask Slurm for --ntasks-per-node, one task a GPU or a NUMA node");
  return list;
}

std::optional<HostList> hosts_of_lsf(const Environment& environment) {
  std::optional<HostList> list;
  if (const auto* file = find(environment, "LSB_DJOB_HOSTFILE")) {
    list = parse_lines("LSF", "LSB_DJOB_HOSTFILE", *file);
  } else if (const auto* hosts = find(environment, "LSB_MCPU_HOSTS")) {
    list = parse_lsb_mcpu_hosts(*hosts);
  } else if (const auto* names = find(environment, "LSB_HOSTS")) {
    list = parse_lsb_hosts(*names);
  }
  if (list && list->hosts.size() > 1 && list->hosts[0].slots == 1 && list->hosts[1].slots > 1)
    list->notes.push_back(str("if ", list->hosts[0].name, " is a launch node, leave it out: -H host:slots,…"));
  return list;
}

std::optional<HostList> hosts_of_grid_engine(const Environment& environment) {
  const auto* file = find(environment, "PE_HOSTFILE");
  if (!file) return {};
  HostList list{.source = "Grid Engine (PE_HOSTFILE)"};
  int64_t number = 0;
  for (const std::string& line : split(read_file(*file), '\n')) {
    const auto words = words_of(line);
    ++number;
    if (words.empty()) continue;
    const auto slots = words.size() > 1 ? parse_count(words[1]) : std::nullopt;
    if (!slots || !is_host_name(words[0]))
      throw BadRequest(str("[hosts] ", *file, ":", number, " (PE_HOSTFILE): '", line,
                           "'; allowed: host slots queue …, slots from 1 to ", kMaxSlots));
    list.add(words[0], *slots);
  }
  if (list.hosts.empty()) throw BadRequest(str("[hosts] ", *file, " (PE_HOSTFILE) names no host"));
  return list;
}

std::optional<HostList> hosts_of_pbs(const Environment& environment) {
  const auto* file = find(environment, "PBS_NODEFILE");
  return file ? std::optional(parse_lines("PBS", "PBS_NODEFILE", *file)) : std::nullopt;
}

void refuse_job_without_hosts(const Environment& environment) {
  for (const char* variable : {"PBS_JOBID", "FLUX_JOB_ID", "COBALT_JOBID"})
    if (const auto* job = find(environment, variable))
      throw BadRequest(str("[hosts] this is job ", *job, " (", variable,
                           ") of a batch system that does not tell ddlrun its hosts; name them: -H host:slots,…"));
}

}  // namespace spillway::ddlrun
