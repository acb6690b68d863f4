#include "run/mpirun.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "parallel/communicator.h"
#include "runtime/error.h"

namespace quire {
namespace {

std::vector<std::string> folders_of_path() {
  const char* const path = std::getenv("PATH");
  std::vector<std::string> folders;
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const size_t end = rest.find(':');
    if (end != 0) folders.emplace_back(rest.substr(0, end));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return folders;
}

/// What `program --version` prints; "" where it can not be run.
std::string version_text(const std::string& program) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDIN_FILENO);
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
    ::execl(program.c_str(), program.c_str(), "--version", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(pipe[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count; child > 0 && ((count = ::read(pipe[0], buffer, sizeof buffer)) > 0 || (count < 0 && errno == EINTR));)
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
  ::close(pipe[0]);
  while (child > 0 && ::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) (out += out.empty() ? "" : ", ") += text;
  return out;
}

}  // namespace

std::string mpi_family(std::string_view text) {
  const auto holds = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  if (holds("Open MPI") || holds("OpenRTE") || holds("PRRTE") || holds("open-mpi")) return "Open MPI";
  if (holds("MPICH") || holds("HYDRA") || holds("Hydra") || holds("Intel(R) MPI")) return "MPICH";
  return {};
}

std::string find_mpirun() {
  if (!mpi_is_built()) join_mpi({});  // says how to get it
  const std::string family = mpi_family(mpi_version());
  std::vector<std::string> others, names = {"mpirun"};
  if (family == "Open MPI") names.push_back("mpirun.openmpi");  // how Debian tells two installed ones apart
  if (family == "MPICH") names.push_back("mpirun.mpich");
  for (const std::string& name : names)
    for (const std::string& folder : folders_of_path()) {
      const std::string path = folder + "/" + name;
      if (::access(path.c_str(), X_OK) != 0) continue;
      const std::string found = mpi_family(version_text(path));
      if (found == family || found.empty() || family.empty()) return path;
      others.push_back(path + " of " + found);
    }
  if (others.empty())
    fail<UnsupportedError>("launch", "no mpirun in PATH, which starts the ranks; install the one of {} (Debian: {}), or add its folder to PATH", mpi_version(),
                           family == "MPICH" ? "mpich" : "openmpi-bin");
  fail<UnsupportedError>("launch", "PATH has {}, but this Quire was built for {}: put that one's mpirun into PATH, or build Quire again with the other MPI",
                         joined(others), mpi_version());
}

std::vector<std::string> mpirun_environment(const std::vector<std::string>& environment, const std::string& folder) {
  std::vector<std::string> result;
  for (const std::string& entry : environment) {
    // A batch system's allocation would decide on machines and slots; these ranks belong here.
    const bool of_batch_system = entry.starts_with("SLURM_") || entry.starts_with("PBS_") || entry.starts_with("LSB_");
    if (!of_batch_system) result.push_back(entry);
  }
  const auto add = [&](const std::string& name, const std::string& value) {
    const bool given = std::any_of(result.begin(), result.end(), [&](const std::string& entry) { return entry.starts_with(name + "="); });
    if (!given) result.push_back(name + "=" + value);
  };
  for (const std::string prefix : {"OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"}) {
    add(prefix, "1");
    add(prefix + "_CONFIRM", "1");
  }
  add("OMPI_MCA_pml", "ob1");
  add("OMPI_MCA_btl", "self,vader");
  add("OMPI_MCA_btl_vader_backing_directory", folder);
  add("OMPI_MCA_rmaps_base_oversubscribe", "1");
  add("OMPI_MCA_hwloc_base_binding_policy", "none");
  add("OMPI_MCA_orte_tmpdir_base", folder);
  add("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");  // Open MPI 5
  add("PRTE_MCA_hwloc_default_binding_policy", "none");
  add("PRTE_MCA_prte_tmpdir_base", folder);
  return result;
}

}  // namespace quire
