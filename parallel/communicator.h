// How ranks talk: explicit sends and receives in an order that both ends know from a plan. Local threads and MPI implement it for host memory; NCCL beside
// them for that of CUDA devices (parallel/nccl.h).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor.h"

namespace quire {

class WatchSeat;

/// What a message carries; traffic is counted by it.
enum class MessageKind : uint8_t {
  boundaries,            ///< a microbatch's documents
  activations,           ///< hidden states [T, dim] to the next stage
  activation_gradients,  ///< their gradients, to the stage before
  tied_gradients,        ///< of a table that two stages hold
  keys_values,           ///< keys and values [rows, 2 * kv_heads * head_dim] of other context ranks' documents
  key_value_gradients,   ///< their gradients, back to their owner
  head_parts,            ///< queries, keys, values and outputs by heads
  gradients,             ///< parts of reductions over replicas
  control,               ///< everything small: scalars, texts, barriers
};
constexpr int message_kinds = 9;
std::string_view name_of(MessageKind kind);

/// Where a message belongs; what a watchdog or a dead rank's neighbours report. -1: does not apply.
struct MessageLabel {
  MessageKind kind = MessageKind::control;
  int64_t step = -1, stage = -1, microbatch = -1;
  const char* purpose = "";  ///< a literal that says more than the kind: `barrier`; collectives name themselves where it is empty
};
/// `activations for stage 2, microbatch 3, step 17`, `control messages (barrier)`
std::string to_string(const MessageLabel& label);
/// The label, with this purpose where it has none.
MessageLabel with_purpose(MessageLabel label, const char* purpose);

/// Messages and bytes sent by this rank in one group, by kind.
struct TrafficCounters {
  struct Entry { int64_t messages = 0, bytes = 0; };
  std::array<Entry, message_kinds> sent;
  const Entry& operator[](MessageKind kind) const { return sent[static_cast<size_t>(kind)]; }
};

/// A send or receive under way. It keeps its tensor alive; the tensor is not to be written (send) or touched (receive) until done. A default-made one is
/// done. Copies refer to the same operation. Use from the rank's own thread.
///
/// Of tensors on a device, `wait` makes the device's later work wait, and returns at once: nothing waits on the host. `done` asks whether the device is there.
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
  double watchdog_seconds = 600;                    ///< longest wait for one message; 0: no end
  std::function<void(const std::string&)> report;  ///< where the watchdog's sentence goes; stderr where empty. Of local ranks one speaks at a time
  int64_t largest_piece = int64_t{1} << 30;         ///< bytes, 1024 or more; MPI sends longer messages in pieces
};

/// A group of ranks seen by one of them. Between two ranks messages arrive in the order in which they were sent and are matched with receives in the order
/// in which those were posted: no tags; sizes are known to both ends and never negotiated (a receive of another size than its send is a
/// CommunicationError on the receiving rank; local ranks also compare the kinds). Not thread-safe: one thread uses it, but all groups split from one may be used by that thread in any order.
///
/// Tensors on a device are carried where `carries_device_memory()`: a send begins when the work before it on its device is over, and so does a receive,
/// whose memory that work may still read. Messages of different ordered pairs do not wait for each other there either, except those posted in `together`:
/// of all groups of a rank, these go one after the other in the program's order, which must be the same on all of their ranks.
///
/// Collectives are built on sends and receives here, once for every implementation. Sums are added in the order of ranks, so their bits are the same on
/// every rank, in every run and with every implementation. Every rank of the group calls them in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual std::string_view name() const = 0;  ///< local, mpi, tcp, single
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Number in the whole job of a rank of this group; messages for people use it.
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  int world_rank() const { return world_rank(rank_); }

  /// Starts sending a contiguous tensor to `to`; never blocks. Done when the tensor may be written again, which may be as late as when the other side
  /// has posted its receive (plans must be right under synchronous sends).
  virtual Request send(const Tensor& from, int to, const MessageLabel& label);
  /// Starts receiving into a contiguous tensor; never blocks.
  virtual Request receive(const Tensor& into, int from, const MessageLabel& label);
  virtual bool carries_device_memory() const { return false; }
  /// Collective. Makes what messages of the rank's device from pairs[i][0] to pairs[i][1] (ranks of this group) need, and what `together` does. To be called
  /// before the first of them, again for further pairs or another device; cheap where nothing is to be made. Waits for the other ranks. Does nothing for a rank without a device.
  virtual void connect(Rank& rank, std::span<const std::array<int, 2>> pairs = {});
  /// Calls `posts`, whose sends and receives in this group belong together: none of them waits for another, on the host or on a device, where they begin when
  /// `posts` returns. Between all ranks of the group, `connect` or not. Every rank of the group does this as often and in the same order; each of these messages is in
  /// the same one on both of its ends.
  template <class Posts>
  void together(Posts&& posts) {
    begin_together();
    posts();
    end_together();
  }
  virtual void begin_together() {}
  virtual void end_together() {}
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

  /// Longest wait for one message from now on, of this group and of those split from it later; 0: no end. A wait that lasts longer is reported in one
  /// sentence, the other waiting ranks of the machine say what they wait for, and all of these waits fail: CommunicationError on the rank whose time
  /// was over first, AbortedError on the others. Time in which the process itself was stopped does not count.
  void set_watchdog(double seconds) { watchdog_seconds_ = seconds; }
  double watchdog() const { return watchdog_seconds_; }
  /// This rank's place at the watchdog's board; null where nobody is waited for. For communicators that stand beside this one.
  virtual WatchSeat* watch_seat() { return nullptr; }

 protected:
  struct Message {
    std::byte* data = nullptr;  ///< read by sends, written by receives
    int64_t bytes = 0;
    int other = 0;              ///< rank in this group
    MessageLabel label;
    std::shared_ptr<const void> keep;  ///< owns `data`; let go by the rank's own thread
    bool on_device = false;
  };
  Communicator(int rank, std::vector<int> world_ranks, double watchdog_seconds)
      : rank_(rank), size_(static_cast<int>(world_ranks.size())), world_ranks_(std::move(world_ranks)), watchdog_seconds_(watchdog_seconds) {}

  virtual Request start_send(Message message) = 0;
  virtual Request start_receive(Message message) = 0;

  /// `mine` of every rank (all have as many bytes), in the order of ranks.
  std::vector<std::byte> exchange(std::span<const std::byte> mine, const MessageLabel& label);
  /// Ranks of this group that gave the same colour: what `split` begins with.
  std::vector<int> ranks_of_colour(int colour);

  int rank_, size_;
  std::vector<int> world_ranks_;  ///< of every rank of the group
  double watchdog_seconds_;
  TrafficCounters traffic_;

 private:
  void check_message(std::string_view what, const Tensor& tensor, int other) const;
  Request send_message(Message message);
  void all_reduce_small(Rank& rank, const Tensor& values, Reduction reduction, const MessageLabel& label);
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
  int local_rank = 0;   ///< among those on this machine
  std::string starter;  ///< for people: `Open MPI`, `MPICH or Slurm (PMI)`
};
AnnouncedRanks announced_ranks();
/// Joins the job that mpirun or srun started; one per process. Throws UnsupportedError where MPI is absent or another one started the process
/// (the announced number of ranks is not what MPI finds). When the last of its groups is gone, the process waits for the other ranks and ends MPI;
/// after an error, `abort` instead.
std::unique_ptr<Communicator> join_mpi(const CommunicatorOptions& options);

}  // namespace quire
