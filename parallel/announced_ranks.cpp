#include <charconv>
#include <cstdlib>
#include <string_view>

#include "parallel/communicator.h"

namespace quire {
namespace {

/// The number that a variable begins with (`4(x2)` is Slurm's `4 on each of 2 machines`), or `otherwise`.
int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view view(text);
  int number = 0;
  return std::from_chars(view.data(), view.data() + view.size(), number).ec == std::errc() ? number : otherwise;
}

}  // namespace

AnnouncedRanks announced_ranks() {
  const auto announced = [](const char* size, const char* rank, const char* local_size, const char* local_rank, const char* starter) {
    return AnnouncedRanks{number_of(size, 0), number_of(rank, 0), number_of(local_size, 0), number_of(local_rank, 0), starter};
  };
  const bool slurm_step = std::getenv("SLURM_STEP_ID") != nullptr;
  if (number_of("OMPI_COMM_WORLD_SIZE", 0) > 0)
    return announced("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI");
  if (number_of("PMI_SIZE", 0) > 0)
    return announced("PMI_SIZE", "PMI_RANK", slurm_step ? "SLURM_TASKS_PER_NODE" : "MPI_LOCALNRANKS", slurm_step ? "SLURM_LOCALID" : "MPI_LOCALRANKID",
                     slurm_step ? "Slurm (PMI)" : "MPICH (PMI)");
  // Slurm sets its own variables in batch scripts too, where nothing was started through it: only with a process manager they count.
  if (slurm_step && number_of("SLURM_NTASKS", 0) > 0 && (std::getenv("PMIX_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr))
    return announced("SLURM_NTASKS", "SLURM_PROCID", "SLURM_TASKS_PER_NODE", "SLURM_LOCALID", "Slurm");
  if (number_of("WORLD_SIZE", 0) > 1 && std::getenv("RANK") != nullptr) return announced("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "torchrun");
  return {};
}

}  // namespace quire
