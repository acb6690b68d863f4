// Stands in for mpi_communicator.cpp where MPI was not found or not wanted when Quire was built.
#include "parallel/communicator.h"
#include "runtime/error.h"

namespace quire {

bool mpi_is_built() { return false; }
std::string mpi_version() { return ""; }

std::unique_ptr<Communicator> join_mpi(const CommunicatorOptions&) {
  fail<UnsupportedError>("mpi", "this Quire was built without MPI, which several processes need: install libopenmpi-dev and openmpi-bin, then "
                                "`meson setup --reconfigure BUILD -Dmpi=enabled` and build again");
}

}  // namespace quire
