// MPI: the checks of mpi_ranks.cpp under mpirun, for one to four processes. Passed over, with a message, where MPI is not built in or
// mpirun is missing.
#include <algorithm>
#include <set>

#include "programs/ranks.h"

namespace quire::test {
namespace {

ProgramResult start(const std::string& name, int ranks, const std::vector<std::string>& variables = {}) {
  std::vector<std::string> args = {"/usr/bin/env", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader"};
  args.insert(args.end(), variables.begin(), variables.end());
  for (const std::string arg : {"mpirun", "--quiet", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np"}) args.push_back(arg);
  args.push_back(std::to_string(ranks));
  args.push_back(std::string(QUIRE_BUILD_ROOT) + "/tests/parallel/mpi_ranks");
  args.push_back(name);
  return run_program(args, {.patience_seconds = 120});
}

void check_well(const std::string& name, int ranks) {
  const ProgramResult result = start(name, ranks);
  BOOST_TEST(result.status == 0, name << " on " << ranks << " ranks: " << result.err);
  BOOST_TEST(result.out == "well\n");
  BOOST_TEST(result.err == "");
}

BOOST_AUTO_TEST_CASE(collectives_over_mpi_give_the_bits_of_adding_in_the_order_of_ranks, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int ranks : {1, 2, 4}) check_well("collectives", ranks);
}

BOOST_AUTO_TEST_CASE(long_messages_over_mpi_go_in_pieces, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int ranks : {2, 3}) check_well("pieces", ranks);
}

BOOST_AUTO_TEST_CASE(attention_over_context_ranks_over_mpi_equals_one_process, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int ranks : {2, 4}) check_well("context", ranks);
}

BOOST_AUTO_TEST_CASE(a_text_is_said_first_by_one_process_of_the_machine, *boost::unit_test::precondition(can_start_ranks)) {
  check_well("said", 4);
}

BOOST_AUTO_TEST_CASE(mpi_ends_once_after_what_is_under_way, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int ranks : {1, 3}) check_well("ending", ranks);
}

BOOST_AUTO_TEST_CASE(another_size_over_mpi_fails_on_the_receiving_rank, *boost::unit_test::precondition(can_start_ranks)) {
  for (const std::string name : {"shorter", "longer", "fewer_pieces", "more_pieces", "longer_last_piece"}) {
    const ProgramResult result = start(name, 2);
    BOOST_TEST(result.status == 1);
    BOOST_TEST(result.err.find("[communicator] rank 1 expects") == 0u, name << ": " << result.err);
    BOOST_TEST(result.err.find("activations for stage 1, microbatch 2, step 5 from rank 0") != std::string::npos, name << ": " << result.err);
  }
}

BOOST_AUTO_TEST_CASE(a_process_that_fails_ends_the_others, *boost::unit_test::precondition(can_start_ranks)) {
  const ProgramResult result = start("failing", 3);
  BOOST_TEST(result.status == 1);
  BOOST_TEST(result.err == "[test] rank 1 fails\n");
}

BOOST_AUTO_TEST_CASE(a_stopped_process_is_told_by_every_waiting_one_and_the_job_ends, *boost::unit_test::precondition(can_start_ranks)) {
  const ProgramResult result = start("stuck", 4);
  BOOST_TEST(result.status == 1);
  std::set<std::string> sentences;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) sentences.insert(line.substr(0, line.find(" since")));
  const std::set<std::string> expected = {
      "[communicator] rank 1 waited for activations for stage 1, microbatch 3, step 17 from rank 0 longer than the watchdog's 1 s: that rank is "
      "stuck, stopped, dead or needs more time",
      "rank 1 waits for activations for stage 1, microbatch 3, step 17 from rank 0", "rank 2 waits to send gradients for step 17 to rank 3",
      "rank 3 waits for control messages (barrier) from rank 1"};
  BOOST_TEST((sentences == expected), result.err);
}

BOOST_AUTO_TEST_CASE(a_process_that_another_mpi_started_is_refused, *boost::unit_test::precondition(can_start_ranks)) {
  if (mpi_version().find("Open MPI") == std::string::npos) return;
  const std::string program = std::string(QUIRE_BUILD_ROOT) + "/tests/parallel/mpi_ranks";
  const ProgramResult result = run_program({"/usr/bin/env", "PMI_SIZE=4", "PMI_RANK=2", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader", program, "said"});
  BOOST_TEST(result.status == 1);
  BOOST_TEST(result.err.find("MPICH (PMI) announces 4 ranks, but Open MPI ") != std::string::npos, result.err);
  BOOST_TEST(result.err.find("started by another MPI than built for") != std::string::npos, result.err);
}

BOOST_AUTO_TEST_CASE(without_mpi_the_way_out_is_said) {
  if (mpi_is_built()) {
    BOOST_TEST(mpi_version() != "");
    return;
  }
  BOOST_TEST(mpi_version() == "");
  check_error<UnsupportedError>([] { join_mpi({}); }, {"built without MPI", "libopenmpi-dev", "-Dmpi=enabled"});
}

/// Environment variables for the time of a test, in place of all that starters set.
class Announcement {
 public:
  explicit Announcement(const std::vector<std::pair<std::string, std::string>>& variables) {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "PMIX_RANK",
                             "SLURM_NTASKS", "SLURM_PROCID", "SLURM_TASKS_PER_NODE", "SLURM_STEP_ID"}) {
      if (const char* value = ::getenv(name)) before_.emplace_back(name, value);
      ::unsetenv(name);
    }
    for (const auto& [name, value] : variables) {
      ::setenv(name.c_str(), value.c_str(), 1);
      set_.push_back(name);
    }
  }
  ~Announcement() {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> before_;
  std::vector<std::string> set_;
};

BOOST_AUTO_TEST_CASE(starters_are_recognised_by_what_they_announce) {
  const auto announced = [](const std::vector<std::pair<std::string, std::string>>& variables) {
    const Announcement announcement(variables);
    const AnnouncedRanks ranks = announced_ranks();
    return fmt::format("{} of {}, {} of {} here: {}", ranks.rank, ranks.size, ranks.local_rank, ranks.local_size, ranks.starter);
  };
  BOOST_TEST(announced({}) == "0 of 0, 0 of 0 here: ");
  BOOST_TEST(announced({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}) ==
             "3 of 4, 1 of 2 here: Open MPI");
  BOOST_TEST(announced({{"PMI_SIZE", "4"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "4"}, {"MPI_LOCALRANKID", "1"}}) == "1 of 4, 1 of 4 here: MPICH (PMI)");
  BOOST_TEST(announced({{"PMI_SIZE", "8"}, {"PMI_RANK", "5"}, {"SLURM_STEP_ID", "0"}, {"SLURM_TASKS_PER_NODE", "4(x2)"}, {"SLURM_LOCALID", "1"}}) ==
             "5 of 8, 1 of 4 here: Slurm (PMI)");
  BOOST_TEST(announced({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "5"}, {"SLURM_STEP_ID", "0"}, {"SLURM_TASKS_PER_NODE", "4(x2)"}, {"SLURM_LOCALID", "1"}, {"PMIX_RANK", "5"}}) ==
             "5 of 8, 1 of 4 here: Slurm");
  BOOST_TEST(announced({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_TASKS_PER_NODE", "4(x2)"}}) == "0 of 0, 0 of 0 here: ");  // a batch script
  BOOST_TEST(announced({{"OMPI_COMM_WORLD_SIZE", "many"}}) == "0 of 0, 0 of 0 here: ");
}

}  // namespace
}  // namespace quire::test
