// The communicator of devices between two processes that share one device, where NCCL allows it: it refuses two ranks of one host on one device, and is told by
// NCCL_HOSTID that they are two hosts, so that traffic takes its sockets (tools/gpu_report sets the environment). What is seen is that calls work and bring the
// right values; not how fast.
#include "bench/gpu/phases.h"
#include "bench/gpu/timing.h"
#include "parallel/communicator.h"
#include "runtime/error.h"
#include "runtime/tensor.h"

namespace quire::gpu_report {

namespace {

std::vector<float> values_of(int rank, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>((i * 7 + rank * 13) % 101));
  return values;
}

}  // namespace

void connect_both_ways(Communicator& world, Rank& rank) {
  const std::array<int, 2> both_ways[] = {{0, 1}, {1, 0}};
  world.connect(rank, both_ways);
}

void try_communication(Communicator& world, Rank& rank, const PhaseOptions& options, PhaseReport& report) {
  const int me = world.rank(), other = 1 - me;
  std::vector<Column> columns = {{"call", "call"}, {"bytes", "bytes"}, {"right", "right"}, {"bandwidth", "GB/s each way"}};
  add_time_columns(columns);
  report.table("communication", fmt::format("Two ranks, {}; each call five times, one after the other, of which the last three are timed. Bandwidth: bytes that one rank sends, by the median.", world.name()), std::move(columns));
  for (const int64_t count : {int64_t{1000}, options.tiny ? int64_t{3000} : int64_t{1} << 20, options.tiny ? int64_t{40000} : int64_t{1} << 24}) {
    const std::vector<float> mine = values_of(me, count), theirs = values_of(other, count);
    std::vector<float> summed;
    for (size_t i = 0; i < mine.size(); ++i) summed.push_back(mine[i] + theirs[i]);
    const Tensor from = Tensor::from<float>(rank, {count}, mine), to = Tensor::zeros(rank, {count}, DType::f32);
    const auto line = [&](const char* name, const std::vector<float>& expected, const std::function<void()>& work) {
      // As many samples as are asked for, whatever the time: both ranks call as often.
      const std::vector<double> seconds = device_seconds(rank, {1, 3, 1e9}, work);
      const bool right = to.to_vector<float>() == expected;
      std::vector<Cell> cells = {name, Cell(static_cast<double>(count) * 4, 0), right ? "yes" : "no", Cell(static_cast<double>(count) * 4e-9 / bench::median_of(seconds), 3)};
      add_times(cells, seconds);
      report.row(std::move(cells));
      if (!right) report.failure(fmt::format("rank {}: {} of {} bytes gave other values than the two ranks hold", me, name, count * 4));
    };
    line("send and receive, each through its channel", theirs, [&] {
      const Request sent = world.send(from, other, {}), received = world.receive(to, other, {});
      received.wait();
      sent.wait();
    });
    fill_zero(rank, to);
    line("sends and receives in one group", theirs, [&] {
      Request sent, received;
      world.together([&] {
        received = world.receive(to, other, {});
        sent = world.send(from, other, {});
      });
      received.wait();
      sent.wait();
    });
    line("all-reduce", summed, [&] {
      copy(rank, from, to);
      world.all_reduce(rank, to, Reduction::sum);
    });
  }
  world.barrier();
}

}  // namespace quire::gpu_report
