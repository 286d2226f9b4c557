/// The fuzz targets: functions that read input which strangers may have written. libFuzzer feeds each with arbitrary
/// bytes (preset `fuzz`). Every build feeds it the files of tests/fuzz/corpus. A refusal (BadRequest) is an answer. A
/// finding is any other exception, a crash, a hang, or a result that breaks a promise of the reader.
#pragma once
#include <string_view>

namespace spillway::fuzz {

void addresses(std::string_view input);        ///< texts at the rendezvous of ranks over sockets
void batch_systems(std::string_view input);    ///< ddlrun: environment variables of Slurm, LSF and Grid Engine
void connections(std::string_view input);      ///< hellos, and the headers and messages after them
void curvature_plans(std::string_view input);  ///< plans of K-FAC's curvature, in files and checkpoints
void host_lists(std::string_view input);       ///< ddlrun: hostfiles, -H, and the plan made of them
void link_costs(std::string_view input);       ///< the file that keeps measured link costs
void machine_import(std::string_view input);   ///< machines as hwloc's tools describe them, in a process that may crash
void machine_xml(std::string_view input);      ///< the check of machine files before hwloc reads them
void nifti(std::string_view input);            ///< volumes, plain and compressed
void notices(std::string_view input);          ///< notices and votes of other ranks
void page_files(std::string_view input);       ///< names in a directory of page files
void reports(std::string_view input);          ///< JSON that ranks on other hosts print
void safetensors(std::string_view input);      ///< checkpoints
void sizes(std::string_view input);            ///< sizes, shapes and levels on the command line
void words(std::string_view input);            ///< command lines, and the output of ldd and mpirun

}  // namespace spillway::fuzz
