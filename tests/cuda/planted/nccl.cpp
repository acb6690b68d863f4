// One planted bug per run: `planted_nccl NAME` lets two ranks, threads with an emulated device each, exchange what their devices compute, with the bug of that name.
// Exit 0 and "right" where all values are, else 3 and what shows.
#include <gpu.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <latch>
#include <string>
#include <vector>

#include "emulation.h"
#include "parallel/nccl.h"
#include "runtime/add.h"
#include "runtime/dispatch.h"
#include "runtime/error.h"
#include "runtime/tensor.h"

namespace {

using namespace quire;

constexpr int64_t elements = 512;
constexpr std::array<std::array<int, 2>, 2> both_ways = {{{0, 1}, {1, 0}}};

/// Values that the device computes: `value` everywhere.
Tensor computed(Rank& rank, float value) {
  const std::vector<float> half(static_cast<size_t>(elements), value / 2);
  const Tensor tensor = Tensor::from<float>(rank, {elements}, half);
  dispatch(rank, AddArgs{DType::f32, elements, tensor.raw(), tensor.raw()});
  return tensor;
}

void expect(const Tensor& tensor, float value, const char* what) {
  for (const float found : tensor.to_vector<float>())
    if (found != value) fail<DataError>("planted", "{}: {} in place of {}", what, found, value);
}

/// Everybody's values to everybody, twice in groups of their own.
void exchange_in_groups(Rank& rank, Communicator& world, bool wrong_order) {
  const std::unique_ptr<Communicator> first = world.split(0), second = world.split(0);
  first->connect(rank);
  second->connect(rank);
  const Tensor mine = computed(rank, static_cast<float>(world.rank() + 1));
  const Tensor all = Tensor::empty(rank, {2 * elements}, DType::f32), again = Tensor::empty(rank, {2 * elements}, DType::f32);
  const bool turned = wrong_order && world.rank() == 1;
  (turned ? second : first)->all_gather(rank, mine, turned ? again : all);
  (turned ? first : second)->all_gather(rank, mine, turned ? all : again);
  for (const Tensor& gathered : {all, again})
    for (int other = 0; other < 2; ++other) expect(gathered.slice(0, other * elements, (other + 1) * elements), static_cast<float>(other + 1), "gathered");
}

/// Counts down when it ends, by an error too; null: does nothing.
struct Arrival {
  std::latch* latch;
  ~Arrival() {
    if (latch != nullptr) latch->count_down();
  }
};

/// A message of values that are computed late, into memory that is read late. The sender asks nothing more of its device until the receiver has looked: what it
/// asks next could make it compute the values in time.
void pass_on(Rank& rank, Communicator& world, std::latch& looked) {
  if (world.rank() == 0) {
    const Tensor values = computed(rank, 4);
    world.send(values, 1, {}).wait();
    looked.wait();
    return;
  }
  const Tensor buffer = computed(rank, 8), copied = Tensor::empty(rank, {elements}, DType::f32);
  copy(rank, buffer, copied);  // what lies there before the message comes
  world.receive(buffer, 0, {}).wait();
  dispatch(rank, AddArgs{DType::f32, elements, buffer.raw(), buffer.raw()});
  expect(copied, 8, "read before the message");
  expect(buffer, 8, "the message, doubled");
}

/// Values that are computed into the memory at `address`, if it is free, else into some other.
Tensor computed_at(Rank& rank, const void* address, float value) {
  std::vector<Tensor> others;
  for (int i = 0; i < 200; ++i) {
    others.push_back(computed(rank, value));
    if (others.back().raw() == address) break;
  }
  return others.back();
}

/// Memory of a message that nobody holds but its request.
void drop_buffers(Rank& rank, Communicator& world) {
  Tensor dropped = world.rank() == 0 ? computed(rank, 4) : Tensor::empty(rank, {elements}, DType::f32);
  const void* const address = dropped.raw();
  const Request request = world.rank() == 0 ? world.send(dropped, 1, {}) : world.receive(dropped, 0, {});
  dropped = {};
  const float value = world.rank() == 0 ? 6 : 7;
  const Tensor next = computed_at(rank, address, value);
  expect(next, value, "computed before a message moves");
  world.barrier();
  request.wait();
  expect(next, value, "computed beside a message");
}

void run(const std::string& bug) {
  std::latch looked(1);
  run_local_on_devices(2, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank(RankOptions{.device = {DeviceKind::cuda, world.rank()}, .poison = true});
    world.connect(rank, both_ways);
    {
      const Arrival arrival{world.rank() == 1 ? &looked : nullptr};
      exchange_in_groups(rank, world, bug == "wrong_order");
      pass_on(rank, world, looked);
    }
    drop_buffers(rank, world);
  });
}

}  // namespace

int main(int count, char** arguments) {
  const std::string bug = count > 1 ? arguments[1] : "none";
  const std::string planted = "nccl." + bug;
  try {
    const emulation::Planted plant(planted.c_str());
    run(bug);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
  std::printf("right\n");
  return 0;
}
