// mpirun: whose it is, its environment, and what is made of its own output.
#include "run/mpirun.h"

#include <algorithm>
#include <random>

#include "check.h"
#include "run/mpirun_output.h"

using namespace quire;

namespace {

const std::string rule(74, '-'), hydra_rule(83, '=');

const std::string killed = rule + "\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n" + rule + "\n" + rule +
                           "\nmpirun noticed that process rank 11 with PID 0 on node vm exited on signal 9 (Killed).\n" + rule + "\n";
const std::string left = rule + "\nmpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n"
                                "  Process name: [[18705,1],2]\n  Exit code:    3\n" + rule + "\n";
const std::string aborted = rule + "\nMPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n\nNOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
                                   "You may or may not see output from other processes, depending on\nexactly when Open MPI kills them.\n" + rule +
                            "\n[vm:09698] [[18716,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file ../../../orte/util/show_help.c at line 501\n"
                            "[vm:09698] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
                            "[vm:09698] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\n";
const std::string hydra = "\n" + hydra_rule + "\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 9 RUNNING AT vm\n=   EXIT CODE: 9\n=   CLEANING UP REMAINING PROCESSES\n"
                          "=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n" + hydra_rule + "\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
                          "This typically refers to a problem with your application.\nPlease see the FAQ page for debugging suggestions\n";
const std::string unknown = rule + "\nThere are not enough slots available in the system to satisfy the 3\nslots that were requested by the application:\n\n  train\n" + rule + "\n";

struct SeenOutput {
  std::string shown;
  int rank, signal, status;
};

/// The text in pieces of at most `most` characters.
SeenOutput seen(const std::string& text, std::mt19937_64& random, size_t most) {
  MpirunOutput output;
  SeenOutput result{};
  for (size_t at = 0, count = 0; at < text.size(); at += count) {
    count = 1 + random() % most;
    result.shown += output.take(std::string_view(text).substr(at, count));
  }
  result.shown += output.finish();
  result.rank = output.dead_rank();
  result.signal = output.dead_signal();
  result.status = output.dead_status();
  return result;
}

bool holds(const std::vector<std::string>& environment, const std::string& entry) { return std::find(environment.begin(), environment.end(), entry) != environment.end(); }

}  // namespace

BOOST_AUTO_TEST_SUITE(mpirun)

BOOST_AUTO_TEST_CASE(banners_become_facts_and_everything_else_is_passed_on) {
  std::mt19937_64 random(5);
  for (const size_t most : {1, 3, 50, 100000}) {
    const SeenOutput by_signal = seen(killed, random, most), by_status = seen(left, random, most), by_abort = seen(aborted, random, most), by_hydra = seen(hydra, random, most);
    for (const SeenOutput* each : {&by_signal, &by_status, &by_abort, &by_hydra}) BOOST_TEST(each->shown == "");
    BOOST_TEST(by_signal.rank == 11);
    BOOST_TEST(by_signal.signal == 9);
    BOOST_TEST(by_status.rank == 2);
    BOOST_TEST(by_status.signal == 0);
    BOOST_TEST(by_status.status == 3);
    BOOST_TEST(by_abort.rank == -1);
    BOOST_TEST(by_abort.signal == 0);
    BOOST_TEST(by_hydra.signal == 9);
    const SeenOutput passed = seen("train: error while loading shared libraries\n" + unknown, random, most);
    BOOST_TEST(passed.shown == "train: error while loading shared libraries\n" + unknown);
    BOOST_TEST(passed.rank == -1);
    BOOST_TEST(seen("one\n" + killed + "two\n" + aborted + unknown + left + "three", random, most).shown == "one\ntwo\n" + unknown + "three\n");
    BOOST_TEST(seen("[vm:23267] Read -1, expected 16512, errno = 3\n\n", random, most).shown == "");
    BOOST_TEST(seen(rule + "\nnever closed\n", random, most).shown == rule + "\nnever closed\n");
    BOOST_TEST(seen(killed + left, random, most).rank == 11);  // the first is kept
  }
}

BOOST_AUTO_TEST_CASE(an_mpirun_is_known_by_its_version) {
  BOOST_TEST(mpi_family("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n") == "Open MPI");
  BOOST_TEST(mpi_family("mpirun (PRRTE) 3.0.3\n") == "Open MPI");
  BOOST_TEST(mpi_family("HYDRA build details:\n    Version:                                 4.0.2\n") == "MPICH");
  BOOST_TEST(mpi_family("MPICH 4.0.2") == "MPICH");
  BOOST_TEST(mpi_family("srun 22.05") == "");
}

BOOST_AUTO_TEST_CASE(the_environment_keeps_what_the_user_chose_and_asks_no_batch_system) {
  const std::vector<std::string> made = mpirun_environment({"HOME=/root", "OMPI_MCA_btl=tcp,self", "SLURM_JOB_ID=5", "PBS_JOBID=1", "OMPI_MCA_btl_tcp_if=lo"}, "/folder");
  for (const std::string entry : {"HOME=/root", "OMPI_MCA_btl=tcp,self", "OMPI_MCA_pml=ob1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                  "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_hwloc_base_binding_policy=none", "OMPI_MCA_orte_tmpdir_base=/folder"})
    BOOST_TEST(holds(made, entry), entry);
  BOOST_TEST(!holds(made, "OMPI_MCA_btl=self,vader"));
  BOOST_TEST(std::none_of(made.begin(), made.end(), [](const std::string& entry) { return entry.starts_with("SLURM_") || entry.starts_with("PBS_"); }));
  BOOST_TEST(holds(mpirun_environment({}, "/f"), "OMPI_MCA_btl=self,vader"));
}

BOOST_AUTO_TEST_SUITE_END()
