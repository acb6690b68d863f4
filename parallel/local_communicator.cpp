// Ranks as threads of one process. A message is copied by whichever side comes second, straight from tensor to tensor.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "parallel/communicator.h"
#include "parallel/watchdog.h"
#include "runtime/error.h"

namespace quire {
namespace {

/// One side of a message. Its memory is owned by the rank that posted it.
struct Post {
  enum State : uint8_t { posted, copying, done, failed };
  std::atomic<State> state{posted};
  std::byte* data = nullptr;
  int64_t bytes = 0;
  MessageLabel label;
  bool sends = false;
  int rank = 0, other = 0;  ///< in the job
  std::string error;        ///< written before `failed`
};

/// Posts from one rank to another that wait for their other side.
struct Channel {
  std::deque<std::shared_ptr<Post>> sends, receives;
};

struct Group {
  explicit Group(std::vector<int> ranks) : world_ranks(std::move(ranks)), channels(world_ranks.size() * world_ranks.size()) {}
  const std::vector<int> world_ranks;
  std::vector<Channel> channels;  ///< [from * size + to]
  size_t joined = 0;
};

/// What all threads of one `run_local` share.
struct Job {
  explicit Job(int ranks) : wake(static_cast<size_t>(ranks)) {}

  std::mutex mutex;                           ///< over groups, reason and every change of a post's state
  std::deque<std::condition_variable> wake;   ///< of each rank
  std::map<std::tuple<const Group*, int64_t, int>, std::shared_ptr<Group>> splits;  ///< by parent, number and colour, until all have joined
  std::atomic<bool> aborted{false};
  std::string reason;
  std::exception_ptr real_error, aborted_error;  ///< the first of either kind
  WatchBoard board;
  std::mutex report_mutex;

  void abort(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (!aborted) reason = why;
    aborted = true;
    for (std::condition_variable& rank : wake) rank.notify_all();
  }
  [[noreturn]] void fail_aborted() {
    const std::lock_guard lock(mutex);
    fail<AbortedError>("communicator", "the ranks were ended: {}", reason);
  }
  /// Called in a handler: keeps the error that is handled.
  void keep_error() {
    bool only_aborted = false;
    std::string text = "an unknown error";
    try {
      throw;
    } catch (const AbortedError& error) {
      only_aborted = true;
      text = error.what();
    } catch (const std::exception& error) {
      text = error.what();
    } catch (...) {
    }
    {
      const std::lock_guard lock(mutex);
      std::exception_ptr& kept = only_aborted ? aborted_error : real_error;
      if (!kept) kept = std::current_exception();
    }
    abort(text);
  }
};

class LocalOperation;

/// One rank's part of the job, shared by its groups. Used by its thread only.
struct Member {
  Member(std::shared_ptr<Job> of, int rank, int ranks, std::function<void(const std::string&)> report)
      : job(std::move(of)), seat(job->board, static_cast<uint32_t>(ranks), rank, std::move(report),
             [shared = job.get()] { return shared->aborted.load(); }) {}
  std::condition_variable& wake() { return job->wake[static_cast<size_t>(seat.world_rank())]; }

  const std::shared_ptr<Job> job;
  WatchSeat seat;
  std::vector<std::shared_ptr<LocalOperation>> active;  ///< they keep memory alive while their requests may be gone
};

/// The posting rank's handle: the only one that owns the memory, so that it is freed by its own thread.
class LocalOperation final : public Request::Operation {
 public:
  LocalOperation(std::shared_ptr<Member> member, std::shared_ptr<Group> group, std::shared_ptr<Post> post, std::shared_ptr<const void> keep,
                 double watchdog_seconds)
      : member_(std::move(member)), group_(std::move(group)), post_(std::move(post)), keep_(std::move(keep)), watchdog_seconds_(watchdog_seconds) {}

  bool done() override {
    switch (post_->state.load(std::memory_order_acquire)) {
      case Post::done: keep_.reset(); return true;
      case Post::failed: fail<CommunicationError>("communicator", "{}", post_->error);
      case Post::copying: return false;
      case Post::posted: break;
    }
    if (member_->job->aborted) member_->job->fail_aborted();
    return false;
  }

  void wait() override {
    if (done()) return;
    Watch watch(member_->seat, post_->sends ? Watch::Waits::to_send : Watch::Waits::to_receive, post_->other, post_->label, watchdog_seconds_);
    do {
      {
        std::unique_lock lock(member_->job->mutex);
        member_->wake().wait_for(lock, watch.nap(), [&] {
          const Post::State state = post_->state;
          return state == Post::done || state == Post::failed || (state == Post::posted && member_->job->aborted);
        });
      }
      if (done()) return;
      watch.check();
    } while (true);
  }

  /// Without errors: whether nobody will touch the memory any more.
  bool settled() const {
    const Post::State state = post_->state.load(std::memory_order_acquire);
    return state == Post::done || state == Post::failed;
  }
  bool belongs_to(const Group* group) const { return group_.get() == group; }
  const std::shared_ptr<Post>& post() const { return post_; }

 private:
  const std::shared_ptr<Member> member_;
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Post> post_;
  std::shared_ptr<const void> keep_;
  const double watchdog_seconds_;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Member> member, std::shared_ptr<Group> group, int rank, double watchdog_seconds)
      : Communicator(rank, group->world_ranks, watchdog_seconds), member_(std::move(member)), group_(std::move(group)) {}

  /// Takes back what nobody has answered, so that no other rank reaches into memory that is gone.
  ~LocalCommunicator() override {
    std::unique_lock lock(member_->job->mutex);
    for (Channel& channel : group_->channels)
      for (auto* posts : {&channel.sends, &channel.receives})
        std::erase_if(*posts, [&](const std::shared_ptr<Post>& post) {
          if (post->rank != world_rank()) return false;
          post->error = "its group of ranks is gone";
          post->state = Post::failed;
          return true;
        });
    const auto ours = [&](const auto& operation) { return operation->belongs_to(group_.get()); };
    member_->wake().wait(lock, [&] {
      return std::none_of(member_->active.begin(), member_->active.end(),
                          [&](const auto& operation) { return ours(operation) && !operation->settled(); });
    });
    lock.unlock();
    std::erase_if(member_->active, ours);
  }

  std::string_view name() const override { return "local"; }

  void poll() override {
    if (member_->job->aborted) member_->job->fail_aborted();
  }

  std::unique_ptr<Communicator> split(int colour) override {
    const std::vector<int> members = ranks_of_colour(colour);
    std::shared_ptr<Group> group;
    {
      const std::lock_guard lock(member_->job->mutex);
      const auto key = std::make_tuple(static_cast<const Group*>(group_.get()), splits_, colour);
      std::shared_ptr<Group>& entry = member_->job->splits[key];
      if (!entry) {
        std::vector<int> ranks;
        for (const int member : members) ranks.push_back(world_rank(member));
        entry = std::make_shared<Group>(std::move(ranks));
      }
      group = entry;
      if (++group->joined == members.size()) member_->job->splits.erase(key);
    }
    ++splits_;
    const int place = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
    return std::make_unique<LocalCommunicator>(member_, group, place, watchdog_seconds_);
  }

  void abort(const std::string& reason) override { member_->job->abort(reason); }
  bool first_to_say(std::string_view text) override { return member_->job->board.first_to_say(text); }
  WatchSeat* watch_seat() override { return &member_->seat; }

 private:
  Request start_send(Message message) override { return start(std::move(message), true); }
  Request start_receive(Message message) override { return start(std::move(message), false); }

  Request start(Message message, bool sends) {
    poll();
    std::erase_if(member_->active, [](const auto& operation) { return operation->settled(); });
    const auto post = std::make_shared<Post>();
    post->data = message.data;
    post->bytes = message.bytes;
    post->label = message.label;
    post->sends = sends;
    post->rank = world_rank();
    post->other = world_rank(message.other);
    const auto operation = std::make_shared<LocalOperation>(member_, group_, post, std::move(message.keep), watchdog_seconds_);

    const int from = sends ? rank_ : message.other, to = sends ? message.other : rank_;
    Channel& channel = group_->channels[static_cast<size_t>(from) * static_cast<size_t>(size_) + static_cast<size_t>(to)];
    std::shared_ptr<Post> other;
    {
      const std::lock_guard lock(member_->job->mutex);
      auto& others = sends ? channel.receives : channel.sends;
      if (others.empty()) {
        (sends ? channel.sends : channel.receives).push_back(post);
      } else {
        other = others.front();
        others.pop_front();
        post->state = other->state = Post::copying;
      }
    }
    if (other) meet(sends ? *post : *other, sends ? *other : *post);
    if (!operation->settled()) member_->active.push_back(operation);
    return Request(operation);
  }

  /// Copies, and wakes the side that came first.
  void meet(Post& send, Post& receive) {
    const bool fits = send.bytes == receive.bytes && send.label.kind == receive.label.kind;
    if (fits) {
      if (send.bytes > 0) std::memcpy(receive.data, send.data, static_cast<size_t>(send.bytes));
    } else {
      receive.error = fmt::format("rank {} expects {} of {} bytes from rank {}, which sends {} of {} bytes", receive.rank, to_string(receive.label),
                                  receive.bytes, send.rank, to_string(send.label), send.bytes);
    }
    const std::lock_guard lock(member_->job->mutex);
    send.state = Post::done;
    receive.state = fits ? Post::done : Post::failed;
    for (const Post* side : {&send, &receive}) member_->job->wake[static_cast<size_t>(side->rank)].notify_all();
  }

  const std::shared_ptr<Member> member_;
  const std::shared_ptr<Group> group_;
  int64_t splits_ = 0;
};

void run_rank(const std::shared_ptr<Job>& job, const std::shared_ptr<Group>& world, int rank, const CommunicatorOptions& options,
              const std::function<void(Communicator&)>& body) {
  std::function<void(const std::string&)> report;
  if (options.report)
    report = [job, say = options.report](const std::string& sentence) {
      const std::lock_guard lock(job->report_mutex);
      say(sentence);
    };
  try {
    const auto member = std::make_shared<Member>(job, rank, static_cast<int>(world->world_ranks.size()), std::move(report));
    LocalCommunicator communicator(member, world, rank, options.watchdog_seconds);
    try {
      body(communicator);
    } catch (...) {
      job->keep_error();
    }
  } catch (...) {
    job->keep_error();
  }
}

}  // namespace

void run_local(int ranks, const CommunicatorOptions& options, const std::function<void(Communicator& world)>& body) {
  if (ranks < 1) fail<StateError>("communicator", "{} ranks; allowed: 1 or more", ranks);
  const auto job = std::make_shared<Job>(ranks);
  std::vector<int> numbers;
  for (int rank = 0; rank < ranks; ++rank) numbers.push_back(rank);
  const auto world = std::make_shared<Group>(std::move(numbers));
  {
    std::vector<std::jthread> threads;
    try {
      for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { run_rank(job, world, rank, options, body); });
    } catch (...) {  // a thread could not be started
      job->keep_error();
    }
  }
  if (job->real_error) std::rethrow_exception(job->real_error);
  if (job->aborted_error) std::rethrow_exception(job->aborted_error);
}

}  // namespace quire
