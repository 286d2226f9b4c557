/// The agreement of a Kfac's ranks.
#pragma once
#include <functional>

#include "kfac/model_stages.h"
#include "kfac/refresh/setup.h"

namespace spillway::kfac {

/// Returns the layers of the model for these options, which are valid.
using LayerFinder = std::function<FoundLayers(const KfacOptions& options)>;

/// Checks the options and layers on every rank, and places the layers' work. Collective. Throws as Kfac's constructor.
Setup make_setup(const LayerFinder& find, KfacOptions options, ddl::Comm comm, const ModelStages& stages);

}  // namespace spillway::kfac
