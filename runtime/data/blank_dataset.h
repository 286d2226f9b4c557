/// Data for dry runs, whose kernels read no values.
#pragma once
#include <memory>
#include <string_view>

#include "runtime/data/open_dataset.h"

namespace spillway::runtime {

/// Opens data as open_dataset() does, but every case is the first one. Synthetic volumes are blank: they have addresses
/// and no memory as long as nobody touches them. So a dry run can take volumes that fit nowhere. Throws as
/// open_dataset() does.
std::unique_ptr<Dataset> open_blank_dataset(std::string_view model, std::string_view source,
                                            const DatasetOptions& options = {});

}  // namespace spillway::runtime
