/// Everything that a backend must pass, whatever carries its messages. A backend gets it with a World
/// (on_every_shape.h) and INSTANTIATE_TYPED_TEST_SUITE_P of AllreduceConformance, CollectivesConformance,
/// CommunicatorConformance and CourierConformance.
#pragma once
#include "tests/support/ddl/allreduce_conformance.h"
#include "tests/support/ddl/collectives_conformance.h"
#include "tests/support/ddl/communicator_conformance.h"
#include "tests/support/ddl/courier_conformance.h"
