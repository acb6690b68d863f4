// How ranks talk: explicit sends and receives in an order that both ends know from a plan. Local threads, MPI and (later) NCCL implement it.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor.h"

namespace quire {

/// What a message carries; traffic is counted by it.
enum class MessageKind : uint8_t {
  boundaries,            ///< a microbatch's documents
  activations,           ///< hidden states [T, dim] to the next stage
  activation_gradients,  ///< their gradients, to the stage before
  tied_gradients,        ///< of a table that two stages hold
  gradients,             ///< parts of reductions over replicas
  control,               ///< everything small: scalars, texts, barriers
};
constexpr int message_kinds = 6;
std::string_view name_of(MessageKind kind);

/// Where a message belongs; what a watchdog or a dead rank's neighbours report. -1: does not apply.
struct MessageLabel {
  MessageKind kind = MessageKind::control;
  int64_t step = -1, stage = -1, microbatch = -1;
};
/// `activations for stage 2, microbatch 3, step 17`
std::string to_string(const MessageLabel& label);

/// Messages and bytes sent by this rank, by kind.
struct TrafficCounters {
  struct Entry { int64_t messages = 0, bytes = 0; };
  std::array<Entry, message_kinds> sent;
  const Entry& operator[](MessageKind kind) const { return sent[static_cast<size_t>(kind)]; }
};

/// A send or receive under way. It keeps its tensor alive; the tensor is not to be written (send) or touched (receive) until done. A default-made one is
/// done. Copies refer to the same operation. Use from the rank's own thread.
class Request {
 public:
  class Operation {
   public:
    virtual ~Operation() = default;
    virtual bool done() = 0;   ///< makes progress, does not block
    virtual void wait() = 0;   ///< blocks under the watchdog
  };
  Request() = default;
  explicit Request(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  /// Whether it is complete. Throws CommunicationError after a failure or an abort.
  bool done() const { return !operation_ || operation_->done(); }
  /// Returns when complete. Throws AbortedError when the group was aborted, CommunicationError when the watchdog's time is over.
  void wait() const { if (operation_) operation_->wait(); }

 private:
  std::shared_ptr<Operation> operation_;
};

enum class Reduction : uint8_t { sum, max };

struct CommunicatorOptions {
  double watchdog_seconds = 600;                    ///< longest wait for one message
  std::function<void(const std::string&)> report;  ///< where the watchdog's sentence goes; stderr where empty
};

/// A group of ranks seen by one of them. Between two ranks messages arrive in the order in which they were sent and are matched with receives in the order
/// in which those were posted: no tags; sizes are known to both ends and never negotiated (a receive of another size than its send is a
/// CommunicationError on the receiving rank). Not thread-safe: one thread uses it, but all groups split from one may be used by that thread in any order.
///
/// Collectives are built on sends and receives here, once for every implementation. Sums are added in the order of ranks, so their bits are the same on
/// every rank, in every run and with every implementation. Every rank of the group calls them in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual std::string_view name() const = 0;  ///< local, mpi, single
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Starts sending a contiguous tensor to `to`; never blocks. Done when the tensor may be written again, which may be as late as when the other side
  /// has posted its receive (plans must be right under synchronous sends).
  virtual Request send(const Tensor& from, int to, const MessageLabel& label) = 0;
  /// Starts receiving into a contiguous tensor; never blocks.
  virtual Request receive(const Tensor& into, int from, const MessageLabel& label) = 0;
  /// Lets operations under way progress; cheap enough for the thread pool's `set_poll`. Throws AbortedError when the group was aborted.
  virtual void poll() = 0;
  /// The ranks that gave the same colour, in the order of this group. Collective.
  virtual std::unique_ptr<Communicator> split(int colour) = 0;
  /// Makes every rank's pending and later operations fail with AbortedError (local) or ends every process of the job with status 1 (MPI: does not return). The first reason
  /// given is kept; printing it is the caller's.
  virtual void abort(const std::string& reason) = 0;
  /// Whether this text is said here for the first time on this machine, by any rank of the job: several ranks that meet one error print it once.
  virtual bool first_to_say(std::string_view text) = 0;

  /// In place: every rank gets the sum (added in the order of ranks) or the largest value. f64, f32 (and i64 for max).
  void all_reduce(Rank& rank, const Tensor& values, Reduction reduction, const MessageLabel& label = {});
  /// `all` [size() * n] gets every rank's `mine` [n], in the order of ranks.
  void all_gather(Rank& rank, const Tensor& mine, const Tensor& all, const MessageLabel& label = {});
  /// `mine` [n] gets part rank() of the sum of every rank's `all` [size() * n].
  void reduce_scatter(Rank& rank, const Tensor& all, const Tensor& mine, const MessageLabel& label = {});
  void broadcast(Rank& rank, const Tensor& values, int root, const MessageLabel& label = {});
  void barrier(const MessageLabel& label = {});
  /// Every rank's text, in the order of ranks; any lengths. For start-up, errors and logs.
  std::vector<std::string> gather_texts(const std::string& mine, const MessageLabel& label = {});
  /// The largest of the ranks' values: how ranks agree on a flag.
  int64_t agree_on_largest(int64_t value, const MessageLabel& label = {});

  const TrafficCounters& traffic() const { return traffic_; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank_, size_;
  TrafficCounters traffic_;
};

/// The group of one rank: collectives return at once, messages have nobody to go to (StateError).
std::unique_ptr<Communicator> single_communicator();

/// Runs `body` on `ranks` threads, each with its communicator of one group, and returns when all have ended. When a body throws, the group is aborted
/// and the error of the rank that failed first is thrown on; ranks that were only aborted say nothing. Sends are synchronous: done only once received.
void run_local(int ranks, const CommunicatorOptions& options, const std::function<void(Communicator& world)>& body);

/// Whether MPI is built in; without it the functions below say so by UnsupportedError.
bool mpi_is_built();
/// Library and version that it was built for, `Open MPI 4.1.4`; "" without.
std::string mpi_version();
/// Number of ranks and this process's number as a starter (mpirun, srun) announced them through the environment; size 0 where no starter did.
struct AnnouncedRanks {
  int size = 0, rank = 0;
  int local_size = 0;   ///< on this machine; 0 where not announced
  std::string starter;  ///< for people: `Open MPI`, `MPICH or Slurm (PMI)`
};
AnnouncedRanks announced_ranks();
/// Joins the job that mpirun or srun started; one per process. Throws UnsupportedError where MPI is absent or another one started the process
/// (the announced number of ranks is not what MPI finds).
std::unique_ptr<Communicator> join_mpi(const CommunicatorOptions& options);

}  // namespace quire
