/// Ranks as processes that talk over sockets. Needs no launcher but a place where they tell each other their addresses.
#pragma once
#include <memory>

#include "ddl/comm/transport.h"
#include "ddl/sockets/rendezvous.h"

namespace spillway::ddl {

/// Makes the wire between `size` ranks. Ranks of one host talk through Unix-domain sockets, which only processes of
/// their user may use; others by TCP. A connection serves one direction of one wire, and is made by the first message;
/// besides, every two ranks of the world hold one, whose end tells that a rank has ended. Collective, through
/// `rendezvous`, whose keys begin with "spillway/". Groups may be made on one rendezvous one after another, also where
/// ranks of former ones have ended without a word. Throws CommError when a rank ends meanwhile or does not come
/// within the deadline, naming it. Throws std::runtime_error when the system has no sockets left.
std::unique_ptr<Transport> socket_transport(int rank, int size, Rendezvous& rendezvous,
                                            const SocketOptions& options = {});

}  // namespace spillway::ddl
