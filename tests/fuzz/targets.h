/// Functions that read what strangers may have written, each fed with any bytes at all: by libFuzzer (preset `fuzz`),
/// and in every build with what lies in tests/fuzz/corpus. A refusal (BadRequest) is an answer; any other exception, a
/// crash, a hang, or a result that breaks what the reader promises is a finding.
#pragma once
#include <string_view>

namespace spillway::fuzz {

void batch_systems(std::string_view input);   ///< ddlrun: what Slurm, LSF and Grid Engine leave in the environment
void host_lists(std::string_view input);      ///< ddlrun: hostfiles, -H, and the plan made of them
void link_costs(std::string_view input);      ///< the file in which link costs are remembered
void machine_import(std::string_view input);  ///< machines as hwloc's tools describe them, in a process that may crash
void machine_xml(std::string_view input);     ///< the check of them before hwloc sees them
void nifti(std::string_view input);           ///< volumes, plain and compressed
void page_files(std::string_view input);      ///< names in a directory of page files
void reports(std::string_view input);         ///< JSON that ranks on other hosts print
void safetensors(std::string_view input);     ///< checkpoints
void sizes(std::string_view input);           ///< sizes, shapes and levels on the command line
void words(std::string_view input);           ///< command lines, and what ldd and mpirun print

}  // namespace spillway::fuzz
