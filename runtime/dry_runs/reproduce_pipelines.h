/// Published figures of pipelines, beside those of their replay.
#pragma once
#include "runtime/dry_runs/reproduce.h"

namespace spillway::runtime {

/// Osawa, Li, Hoefler, PipeFisher, MLSys 2023. Blocks take the seconds that its authors measured on one P100.
Reproduction pipefisher_paths();
Reproduction pipefisher_fig3();
Reproduction pipefisher_fig4();
Reproduction pipefisher_fig7();
Reproduction pipefisher_table2();

}  // namespace spillway::runtime
