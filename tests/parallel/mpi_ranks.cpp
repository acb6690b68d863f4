// A program for the tests of MPI: mpi_ranks CASE, started by mpirun. Rank 0 prints `well` when all ranks found everything right.
#include <signal.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>

#include "collective_case.h"
#include "parallel/context_attention.h"
#include "runtime/error.h"

namespace quire::test {
namespace {

constexpr int64_t piece = 4096;

Tensor numbered(Rank& rank, int64_t elements, int64_t from) {
  std::vector<int32_t> values(static_cast<size_t>(elements));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(from + static_cast<int64_t>(i) * 3);
  return Tensor::from<int32_t>(rank, {elements}, values);
}

void collectives(Communicator& world) {
  Rank rank({.threads = 2});
  rank.pool().set_poll([&] { world.poll(); });
  const std::unique_ptr<Communicator> parity = world.split(world.rank() % 2), all = world.split(-5), alone = world.split(world.rank());
  const std::unique_ptr<Communicator> nested = all->split(world.rank() / 2);
  for (uint64_t round = 0; round < 4; ++round) {
    collective_round(rank, world, round, 20000);
    for (Communicator* group : {parity.get(), all.get(), alone.get(), nested.get()}) collective_round(rank, *group, round, 2000);
  }
  reductions_agree<float>(rank, world, 99, 300'001);
  require(world.name() == "mpi" && parity->world_rank() == world.rank(), "names and numbers");
}

/// Messages of every size around multiples of the piece, in both directions at once, some begun long before they are received.
void pieces(Communicator& world) {
  if (world.size() == 1) return;
  Rank rank;
  std::vector<int64_t> sizes;
  for (const int64_t bytes : {int64_t{0}, piece, 2 * piece, 3 * piece, 7 * piece, 200 * piece})
    for (int64_t around = -16; around <= 16; around += 4)
      if (bytes + around >= 0) sizes.push_back((bytes + around) / 4);
  const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
  std::vector<Request> requests;
  std::vector<Tensor> received;
  for (const int64_t size : sizes) requests.push_back(world.send(numbered(rank, size, 1000 * world.rank() + size), next, {MessageKind::activations}));
  for (const int64_t size : sizes) {
    received.push_back(Tensor::zeros(rank, {size}, DType::i32));
    requests.push_back(world.receive(received.back(), previous, {MessageKind::activations}));
  }
  while (!requests.back().done()) world.poll();
  for (const Request& request : requests) request.wait();
  int64_t bytes = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    require(same_bits(received[i].to_vector<int32_t>(), numbered(rank, sizes[i], 1000 * previous + sizes[i]).to_vector<int32_t>()), "a message's content");
    bytes += 4 * sizes[i];
  }
  const TrafficCounters::Entry sent = world.traffic()[MessageKind::activations];
  require(sent.messages == static_cast<int64_t>(sizes.size()) && sent.bytes == bytes, "a message counts once, however many pieces it has");
}

/// Rank 1 expects another number of bytes than rank 0 sends.
void sizes(Communicator& world, int64_t sent, int64_t expected) {
  Rank rank;
  if (world.rank() == 0) world.send(numbered(rank, sent / 4, 0), 1, {MessageKind::activations, 5, 1, 2}).wait();
  else world.receive(numbered(rank, expected / 4, 0), 0, {MessageKind::activations, 5, 1, 2}).wait();
}

/// Rank 0 is stopped; 1 waits for it, 2 for 3, and 3 for 1.
void stuck(Communicator& world) {
  Rank rank;
  const std::unique_ptr<Communicator> odd = world.split(world.rank() % 2), others = world.split(world.rank() > 0);
  if (world.rank() == 0) ::raise(SIGSTOP);
  others->barrier();
  if (world.rank() == 1) {
    world.set_watchdog(1);
    world.receive(numbered(rank, 1, 0), 0, {MessageKind::activations, 17, 1, 3}).wait();
  }
  if (world.rank() == 2) world.send(numbered(rank, 40000, 0), 3, {MessageKind::gradients, 17}).wait();
  if (world.rank() == 3) odd->barrier();
}

/// One rank fails while the others wait.
void failing(Communicator& world) {
  if (world.rank() == 1) fail<DataError>("test", "rank 1 fails");
  world.barrier();
}

void said(Communicator& world) {
  int64_t first = 0;
  for (int i = 0; i < 20; ++i) first += world.first_to_say("text " + std::to_string(i));
  Rank rank;
  const double mine = static_cast<double>(first);
  const Tensor sum = Tensor::from<double>(rank, {1}, std::span(&mine, 1));
  world.all_reduce(rank, sum, Reduction::sum);
  require(sum.to_vector<double>()[0] == 20, "every text is said by one rank");
}

/// Ends without waiting for its last send; joining twice is refused.
void ending(Communicator& world) {
  Rank rank;
  try {
    join_mpi({});
    require(false, "joined twice");
  } catch (const StateError&) {
  }
  const AnnouncedRanks announced = announced_ranks();
  require(announced.size == world.size() && announced.rank == world.rank() && announced.local_size == world.size() && announced.local_rank == world.rank(), "what mpirun announces");
  if (world.rank() == 0)
    for (int other = 1; other < world.size(); ++other) world.send(numbered(rank, 100'000, other), other, {});
  else
    world.receive(numbered(rank, 100'000, 0), 0, {}).wait();
}

/// Attention over context-parallel ranks, forward and backward, in every way that they can meet, several layers and microbatches in flight: the bits that
/// one process of threads gives are compared elsewhere; here each rank's rows with its own computation of the whole.
void context(Communicator& world) {
  Rank rank({.poison = true});
  rank.pool().set_poll([&] { world.poll(); });
  const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 8};
  const std::vector<int64_t> lengths = {1, 200, 30, 1, 1, 97, 171};
  const Documents whole = Documents::from_lengths(lengths);
  const auto values = [&](int64_t width, int salt, std::span<const int32_t> indices) {
    std::vector<double> result;
    for (const int32_t index : indices)
      for (int64_t i = 0; i < width; ++i) result.push_back(std::sin(static_cast<double>(index * 131 + i * 17 + salt)));
    return Tensor::from<double>(rank, {static_cast<int64_t>(indices.size()), width}, result);
  };
  struct Results { Tensor out, dq, dk, dv; };
  const auto run = [&](std::span<const int32_t> indices, int salt, const std::function<Value(Tape&, const Value&, const Value&, const Value&)>& attend) {
    Tape tape(rank);
    const Value q = tape.leaf(values(32, salt, indices)), k = tape.leaf(values(16, salt + 1, indices)), v = tape.leaf(values(16, salt + 2, indices));
    const Value out = attend(tape, q, k, v);
    const Tensor dout = values(32, salt + 3, indices);
    tape.backward(std::span(&out, 1), std::span(&dout, 1));
    return Results{out.tensor, tape.take_gradient(q), tape.take_gradient(k), tape.take_gradient(v)};
  };
  for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::gather, ContextExchange::heads})
    for (const ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag, ContextLayout::balanced}) {
      if (exchange == ContextExchange::heads && layout != ContextLayout::contiguous) continue;
      ContextPlanner planner(world.size(), {layout, exchange, {}});
      ContextAttention executor(rank, world, planner);
      const Documents own = executor.shard(whole);
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        Microbatch work;
        work.work = executor.begin(whole, own, 0, 0, microbatch);
        const Results many = run(own.indices(), microbatch, [&](Tape& t, const Value& q, const Value& k, const Value& v) {
          return executor.attend(t, 0, q, k, v, work, options);
        });
        const Results single = run(whole.indices(), microbatch, [&](Tape& t, const Value& q, const Value& k, const Value& v) {
          return attention(t, q, k, v, shared_runs(whole), options);
        });
        for (const auto& [mine, all] : {std::pair{many.out, single.out}, {many.dq, single.dq}, {many.dk, single.dk}, {many.dv, single.dv}}) {
          const std::vector<double> part = mine.to_vector<double>(), full = all.to_vector<double>();
          const size_t width = static_cast<size_t>(mine.size(1));
          for (size_t i = 0; i < part.size(); ++i)
            require(std::abs(part[i] - full[static_cast<size_t>(own.indices()[i / width]) * width + i % width]) < 1e-12, "attention over ranks");
        }
      }
      executor.finish();
      require(!executor.take_mismatch().has_value(), "boundaries");
    }
}

using Case = std::function<void(Communicator&)>;

Case sizes_of(int64_t sent, int64_t expected) {
  return [=](Communicator& world) { sizes(world, sent, expected); };
}

int run(const std::string& name) {
  const std::map<std::string, Case> cases = {{"collectives", collectives},
                                             {"pieces", pieces},
                                             {"context", context},
                                             {"said", said},
                                             {"ending", ending},
                                             {"stuck", stuck},
                                             {"failing", failing},
                                             {"shorter", sizes_of(12, 16)},
                                             {"longer", sizes_of(16, 12)},
                                             {"fewer_pieces", sizes_of(2 * piece, 3 * piece)},
                                             {"more_pieces", sizes_of(300 * piece, 200 * piece)},
                                             {"longer_last_piece", sizes_of(3 * piece + 4, 3 * piece)}};
  std::unique_ptr<Communicator> world;
  try {
    world = join_mpi({.watchdog_seconds = 60, .largest_piece = piece});
    cases.at(name)(*world);
    world->barrier();
    const int rank = world->rank();
    world.reset();
    if (rank == 0) std::printf("well\n");
    return 0;
  } catch (const AbortedError&) {
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  if (world) world->abort("");
  return 1;
}

}  // namespace
}  // namespace quire::test

int main(int argc, char** argv) { return argc == 2 ? quire::test::run(argv[1]) : 2; }
