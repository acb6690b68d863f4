// A sample of layouts over MPI: the bits of one process and of threads. Passed over, with a message, where MPI is not built in or mpirun is missing.
#include <fmt/format.h>

#include "ranks.h"
#include "training_bits.h"

using namespace quire;
using namespace quire::test;

namespace {

std::string over_mpi(int64_t ranks, bool split, const std::vector<std::string>& words) {
  std::vector<std::string> args = {"/usr/bin/env", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader", "mpirun", "--quiet", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np",
                                   std::to_string(ranks), std::string(QUIRE_BUILD_ROOT) + "/tests/programs/mpi_training", split ? "split" : "whole"};
  args.insert(args.end(), words.begin(), words.end());
  const ProgramResult result = run_program(args, {.patience_seconds = 120});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(result.err == "");
  return result.out;
}

std::string over_threads(const Config& config, bool split) {
  std::string bits;
  run_local(static_cast<int>(mesh_shape(config).ranks()), {}, [&](Communicator& world) {
    const std::string text = training_bits(config, &world, split, 3);
    if (world.rank() == 0) bits = text;
  });
  return bits;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mpi_layouts)

BOOST_AUTO_TEST_CASE(layouts_over_mpi_have_the_bits_of_one_process, *boost::unit_test::precondition(can_start_ranks)) {
  struct Sample {
    bool split;
    std::vector<std::string> layout, rest;
  };
  for (const Sample& sample : {Sample{false, {"pp=4", "schedule=1f1b"}, {"precision=f32", "tied=yes"}},
                               {false, {"pp=2", "schedule=gpipe"}, {"precision=bf16", "tied=no", "recomputation=full", "packing=bfd"}},
                               {false, {"pp=3", "schedule=interleaved_1f1b 3"}, {"precision=f64", "tied=yes", "backend=dense", "recomputation=attention"}},
                               {true, {"pp=2", "schedule=interleaved_1f1b 2"}, {"precision=f32", "tied=no", "threads=2", "rows=3"}},
                               {false, {"pp=2", "schedule=zb_v"}, {"precision=bf16", "tied=yes", "recomputation=full"}},
                               {false, {"dp=2", "pp=2", "schedule=1f1b"}, {"precision=f32", "tied=yes"}},
                               {true, {"dp=3", "schedule=1f1b"}, {"precision=bf16", "rows=3"}},
                               {false, {"cp=3", "context=balanced ring"}, {"precision=f32", "tied=yes", "rows=2"}},
                               {false, {"cp=2", "context=contiguous heads"}, {"precision=f64", "recomputation=full"}},
                               {true, {"cp=2", "pp=2", "context=zigzag gather"}, {"precision=bf16", "backend=dense", "threads=2"}}}) {
    std::vector<std::string> words = sample.layout;
    words.insert(words.end(), sample.rest.begin(), sample.rest.end());
    const Config config = config_from_words(words);
    const MeshShape shape = mesh_shape(config);
    const std::string mpi = over_mpi(shape.ranks(), sample.split, words), one = training_bits(config_from_words(sample.rest), nullptr, false, 3);
    const std::string name = fmt::format("{} {}", fmt::join(words, " "), sample.split ? "split" : "");
    BOOST_TEST(mpi == over_threads(config, sample.split), name << ": other bits than threads");
    if (shape.dp * shape.cp == 1) BOOST_TEST(mpi == one, name << ": other bits than one process");
    else BOOST_TEST(mpi != one, name << ": control: another order of additions has other bits");
    BOOST_TEST(std::count(mpi.begin(), mpi.end(), '\n') == std::count(one.begin(), one.end(), '\n'), name);
  }
}

BOOST_AUTO_TEST_SUITE_END()
