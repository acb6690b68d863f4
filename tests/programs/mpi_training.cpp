// A program for the tests of MPI: mpi_training WORD..., started by mpirun. Trains a few steps in the layout that the words say; rank 0 prints what they leave.
#include "training_bits.h"

using namespace quire;
using namespace quire::test;

int main(int argc, char** argv) {
  std::unique_ptr<Communicator> world;
  try {
    world = join_mpi({.watchdog_seconds = 60});
    const std::vector<std::string> words(argv + 2, argv + argc);
    const std::string bits = training_bits(config_from_words(words), world.get(), std::string(argv[1]) == "split", 3);
    world->barrier();
    if (world->rank() == 0) std::fputs(bits.c_str(), stdout);
    world.reset();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  if (world) world->abort("");
  return 1;
}
