// The mpirun of this machine: which one fits, and how to start ranks here with it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// The library that a text speaks of (`mpirun --version`, or `mpi_version()`): `Open MPI`, `MPICH`, or "" for neither.
std::string mpi_family(std::string_view text);

/// Path of the mpirun in PATH that belongs to the MPI Quire was built for. Throws UnsupportedError where MPI is not built in, where there is no mpirun, or
/// only another MPI's.
std::string find_mpirun();

/// The environment of an mpirun that starts all ranks on this machine, derived from `environment` (`NAME=value`): messages through shared memory,
/// more ranks than processors and the user root allowed, threads bound to nothing, no batch system asked for machines, and files of its own
/// only below `folder`. What the environment says about MPI stays. All by variables: an mpirun passes over those of another.
std::vector<std::string> mpirun_environment(const std::vector<std::string>& environment, const std::string& folder);

}  // namespace quire
