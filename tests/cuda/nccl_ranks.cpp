// One rank of a test, a process of its own with an emulated device: `nccl_ranks MODE`, started with torchrun's variables. Prints "well", or what it threw (exit 1).
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "cuda/nccl_case.h"
#include "parallel/collective_case.h"
#include "parallel/tcp.h"

namespace {

using namespace quire;
using namespace quire::test;

void collectives(Rank& rank, Communicator& world) {
  for (uint64_t round = 0; round < 3; ++round) collective_round(rank, world, round, 3000);
  const std::unique_ptr<Communicator> half = world.split(world.rank() % 2);
  if (half->size() > 1) collective_round(rank, *half, 7, 3000);
}

void messages(Rank& rank, Communicator& world) {
  // Round the ring, both ways, more than one piece of what the emulation hands over at a time.
  const int next = (world.rank() + 1) % world.size(), before = (world.rank() + world.size() - 1) % world.size();
  for (const int64_t elements : {1, 5000, 40000}) {
    const std::vector<float> own(static_cast<size_t>(elements), static_cast<float>(world.rank() + 1));
    const Tensor mine = Tensor::from<float>(rank, {elements}, own), left = Tensor::empty(rank, {elements}, DType::f32), right = Tensor::empty(rank, {elements}, DType::f32);
    std::vector<Request> requests{world.send(mine, next, {}), world.send(mine, before, {})};
    requests.push_back(world.receive(left, before, {}));
    requests.push_back(world.receive(right, next, {}));
    for (const Request& request : requests) request.wait();
    require(left.to_vector<float>() == std::vector<float>(own.size(), static_cast<float>(before + 1)), "from the rank before");
    require(right.to_vector<float>() == std::vector<float>(own.size(), static_cast<float>(next + 1)), "from the next rank");
  }
}

/// Rank 1 is killed while the others' devices wait for it.
void killed(Rank& rank, Communicator& world) {
  world.barrier();
  if (world.rank() == 1) ::kill(::getpid(), SIGKILL);
  const Tensor into = Tensor::zeros(rank, {64}, DType::f32);
  world.receive(into, 1, {.kind = MessageKind::activations, .step = 3}).wait();
  into.to_vector<float>();
  for (;; ::usleep(1000)) world.poll();
}

}  // namespace

int main(int, char** arguments) {
  ::alarm(120);
  const std::string mode = arguments[1];
  change_settings([&](emulation::Settings& settings) {
    settings.ranks_are_processes = true;
    if (mode == "killed") settings.communication_patience = 0;
  });
  std::unique_ptr<Communicator> world;
  try {
    world = with_device_memory(join_tcp({.watchdog_seconds = 60}, 60));
    Rank rank(on_device(announced_ranks().local_rank));
    world->connect(rank, all_pairs(world->size()));
    if (mode == "collectives") collectives(rank, *world);
    else if (mode == "messages") messages(rank, *world);
    else killed(rank, *world);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    if (world) world->abort(error.what());  // as a program does: this rank's end is not the news
    ::_exit(1);
  }
  std::printf("well\n");
  return 0;
}
