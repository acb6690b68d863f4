// Ranks as processes with a connection between every two. One thread moves all bytes, whenever it is asked to: nothing here blocks in a read or a write.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <thread>

#include "parallel/tcp.h"
#include "parallel/tcp_start.h"
#include "parallel/watchdog.h"
#include "runtime/error.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds between_polls{20};
constexpr int looks_before_a_pause = 20;
constexpr double time_to_say_abort = 2;  ///< seconds

enum class FrameKind : uint32_t { message, abort, goodbye, unwanted };

struct MessageHeader {
  uint64_t group, bytes;
  FrameKind what;
  uint32_t kind;  ///< MessageKind
};

struct TcpJob;

class TcpOperation final : public Request::Operation {
 public:
  TcpOperation(std::shared_ptr<TcpJob> job, bool sends, std::byte* data, int64_t bytes, int other, const MessageLabel& label, std::shared_ptr<const void> keep, double watchdog_seconds)
      : job_(std::move(job)), sends_(sends), data_(data), bytes_(bytes), other_(other), label_(label), keep_(std::move(keep)), watchdog_seconds_(watchdog_seconds) {}
  bool done() override;
  void wait() override;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Of what the other side sends: why it is not what was expected; "" where it is.
  std::string misfit(const MessageHeader& header) const;
  void end(std::string error) {
    error_ = std::move(error);
    over_ = true;
  }

 private:
  bool finished();

  const std::shared_ptr<TcpJob> job_;
  const bool sends_;
  std::byte* const data_;
  const int64_t bytes_;
  const int other_;  ///< in the job
  const MessageLabel label_;
  std::shared_ptr<const void> keep_;
  const double watchdog_seconds_;
  bool over_ = false;
  std::string error_;
};

/// Bytes on their way out: a header, then a message's own memory or a text.
struct Outgoing {
  MessageHeader header;
  std::shared_ptr<TcpOperation> operation;
  std::string text;
  int64_t sent = 0;
  const char* body() const { return operation ? reinterpret_cast<const char*>(operation->data()) : text.data(); }
};

/// A message that came before anybody asked for it.
struct Early {
  MessageHeader header;
  std::vector<std::byte> data;
};

struct Peer {
  Socket socket;
  std::deque<Outgoing> out;
  MessageHeader header{};
  int64_t got = 0;  ///< bytes of header and body
  std::shared_ptr<TcpOperation> receiver;  ///< of the body that is being read; null where it is kept or thrown away
  std::vector<std::byte> kept;
  bool gone = false, ended = false;  ///< without, after its goodbye
};

/// Messages of one group from one rank.
struct Inbox {
  std::deque<std::shared_ptr<TcpOperation>> expected;
  std::deque<Early> early;
  /// The first early message.
  void give(TcpOperation& receiver) {
    const Early message = std::move(early.front());
    early.pop_front();
    std::string problem = receiver.misfit(message.header);
    if (problem.empty() && !message.data.empty()) std::memcpy(receiver.data(), message.data.data(), message.data.size());
    receiver.end(std::move(problem));
  }
};

/// What the groups of this process share.
struct TcpJob {
  TcpJob(int own, std::vector<Socket> sockets, const CommunicatorOptions& options)
      : rank(own), peers(sockets.size()), seat(board, 1, own, options.report, [this] { return aborted.load(); }) {
    for (size_t i = 0; i < sockets.size(); ++i) peers[i].socket = std::move(sockets[i]);
  }

  void progress() {
    last_progress = Clock::now();
    for (size_t i = 0; i < peers.size(); ++i) {
      write(peers[i]);
      read(static_cast<int>(i), peers[i]);
    }
  }
  void poll() {
    if (Clock::now() - last_progress >= between_polls) progress();
    check();
  }
  /// Throws where a rank is gone that has neither ended nor said why.
  void check_peers() const {
    for (size_t i = 0; i < peers.size(); ++i)
      if (peers[i].gone && !peers[i].ended) fail<CommunicationError>("communicator", "rank {} is gone: it was killed, or has ended without a word", i);
  }
  void check() const {
    if (aborted) fail<AbortedError>("communicator", "the ranks were ended: {}", reason);
  }
  void send(int to, Outgoing out) {
    Peer& peer = peers[static_cast<size_t>(to)];
    peer.out.push_back(std::move(out));
    write(peer);
  }
  /// Until a socket can be read (or written, where there is something to write), or so long.
  void pause(std::chrono::milliseconds limit);
  bool all_written() const {
    return std::all_of(peers.begin(), peers.end(), [](const Peer& peer) { return peer.out.empty() || peer.gone; });
  }
  void write(Peer& peer);
  void read(int from, Peer& peer);
  void begin_body(int from, Peer& peer);
  void end_body(int from, Peer& peer);
  void abort(const std::string& why);
  /// Waits for the other ranks.
  void finish(double watchdog_seconds);

  const int rank;
  std::vector<Peer> peers;  ///< by rank in the job
  std::map<std::pair<uint64_t, int>, Inbox> inboxes;  ///< by group and rank in the job
  WatchBoard board;
  std::atomic<bool> aborted{false};
  std::string reason;
  WatchSeat seat;
  int groups = 0;
  const int exceptions_when_joined = std::uncaught_exceptions();
  Clock::time_point last_progress = Clock::now();
};

void TcpJob::write(Peer& peer) {
  constexpr int64_t head = sizeof(MessageHeader);
  while (!peer.out.empty() && peer.socket.open()) {
    Outgoing& out = peer.out.front();
    const int64_t bytes = static_cast<int64_t>(out.header.bytes);
    while (out.sent < head + bytes) {
      const Transfer put = out.sent < head ? write_some(peer.socket, reinterpret_cast<const char*>(&out.header) + out.sent, head - out.sent)
                                           : write_some(peer.socket, out.body() + out.sent - head, head + bytes - out.sent);
      if (put.closed) {
        peer.gone = true;
        return;
      }
      if (put.bytes == 0) return;
      out.sent += put.bytes;
    }
    if (out.operation) out.operation->end({});
    peer.out.pop_front();
  }
}

void TcpJob::read(int from, Peer& peer) {
  constexpr int64_t head = sizeof(MessageHeader);
  while (peer.socket.open() && !peer.gone && !peer.ended) {
    const int64_t bytes = static_cast<int64_t>(peer.header.bytes);
    Transfer got;
    if (peer.got < head) {
      got = read_some(peer.socket, reinterpret_cast<char*>(&peer.header) + peer.got, head - peer.got);
    } else if (peer.got < head + bytes) {
      std::byte* const into = peer.receiver ? peer.receiver->data() : peer.kept.data();
      got = read_some(peer.socket, into + peer.got - head, head + bytes - peer.got);
    }
    peer.got += got.bytes;
    if (got.closed) {
      peer.gone = true;
      return;
    }
    if (got.bytes == 0) return;
    if (peer.got == head) begin_body(from, peer);
    if (peer.got == head + static_cast<int64_t>(peer.header.bytes)) end_body(from, peer);
  }
}

void TcpJob::begin_body(int from, Peer& peer) {
  peer.receiver.reset();
  if (peer.header.what == FrameKind::message) {
    Inbox& inbox = inboxes[{peer.header.group, from}];
    if (!inbox.expected.empty()) {
      std::shared_ptr<TcpOperation> receiver = std::move(inbox.expected.front());
      inbox.expected.pop_front();
      if (std::string problem = receiver->misfit(peer.header); problem.empty()) peer.receiver = std::move(receiver);
      else receiver->end(std::move(problem)), peer.header.what = FrameKind::unwanted;
      if (!peer.receiver) peer.kept.resize(peer.header.bytes);
      return;
    }
  }
  peer.kept.resize(peer.header.bytes);
}

void TcpJob::end_body(int from, Peer& peer) {
  peer.got = 0;
  if (peer.receiver) {
    std::exchange(peer.receiver, nullptr)->end({});
  } else if (peer.header.what == FrameKind::message) {
    Inbox& inbox = inboxes[{peer.header.group, from}];
    inbox.early.push_back({peer.header, std::exchange(peer.kept, {})});
    if (inbox.expected.empty()) return;
    const std::shared_ptr<TcpOperation> receiver = std::move(inbox.expected.front());  // asked for while it came
    inbox.expected.pop_front();
    inbox.give(*receiver);
  } else if (peer.header.what == FrameKind::abort) {
    if (!aborted) reason.assign(reinterpret_cast<const char*>(peer.kept.data()), peer.kept.size());
    aborted = true;
  } else if (peer.header.what == FrameKind::goodbye) {
    peer.ended = true;
  }
}

void TcpJob::pause(std::chrono::milliseconds limit) {
  std::vector<pollfd> entries;
  for (const Peer& peer : peers)
    if (peer.socket.open() && !peer.gone && !peer.ended)
      entries.push_back({peer.socket.number(), static_cast<short>(POLLIN | (peer.out.empty() ? 0 : POLLOUT)), 0});
  ::poll(entries.data(), entries.size(), static_cast<int>(limit.count()));
}

void TcpJob::abort(const std::string& why) {
  if (aborted.exchange(true)) return;
  reason = why;
  for (Peer& peer : peers) {
    // What had not begun to be sent is not worth sending any more.
    while (!peer.out.empty() && peer.out.back().sent == 0) peer.out.pop_back();
    peer.out.push_back({{0, why.size(), FrameKind::abort, 0}, nullptr, why});
  }
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time_to_say_abort));
  for (progress(); !all_written() && Clock::now() < end; progress()) pause(std::chrono::milliseconds(10));
}

void TcpJob::finish(double watchdog_seconds) {
  if (aborted || std::uncaught_exceptions() > exceptions_when_joined) return;
  for (size_t i = 0; i < peers.size(); ++i)
    if (peers[i].socket.open()) send(static_cast<int>(i), {{0, 0, FrameKind::goodbye, 0}, nullptr, {}});
  try {
    const MessageLabel label{.purpose = "end of the job"};
    Watch watch(seat, Watch::Waits::to_receive, -1, label, watchdog_seconds);
    const auto all_ended = [&] { return std::all_of(peers.begin(), peers.end(), [](const Peer& peer) { return !peer.socket.open() || peer.gone || peer.ended; }); };
    for (progress(); !aborted && !(all_written() && all_ended()); progress()) {
      watch.check();
      pause(std::chrono::milliseconds(10));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
}

std::string TcpOperation::misfit(const MessageHeader& header) const {
  const auto kind = static_cast<MessageKind>(header.kind);
  if (static_cast<int64_t>(header.bytes) == bytes_ && kind == label_.kind) return {};
  return fmt::format("rank {} expects {} of {} bytes from rank {}, which sends {} of {} bytes", job_->rank, to_string(label_), bytes_, other_, name_of(kind), header.bytes);
}

bool TcpOperation::finished() {
  if (over_) {
    keep_.reset();
    if (!error_.empty()) fail<CommunicationError>("communicator", "{}", error_);
    return true;
  }
  job_->check();
  const Peer& peer = job_->peers[static_cast<size_t>(other_)];
  if (peer.gone || (peer.ended && !sends_))
    fail<CommunicationError>("communicator", "rank {} waits {} {} {} rank {}, which is gone", job_->rank, sends_ ? "to send" : "for", to_string(label_), sends_ ? "to" : "from", other_);
  return false;
}

bool TcpOperation::done() {
  if (!over_) job_->progress();
  return finished();
}

void TcpOperation::wait() {
  if (over_ && finished()) return;
  Watch watch(job_->seat, sends_ ? Watch::Waits::to_send : Watch::Waits::to_receive, other_, label_, watchdog_seconds_);
  for (int looks = 0;; ++looks) {
    job_->progress();
    if (finished()) return;
    watch.check();
    if (looks >= looks_before_a_pause) job_->pause(std::chrono::duration_cast<std::chrono::milliseconds>(watch.nap()));
  }
}

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(std::shared_ptr<TcpJob> job, uint64_t group, int rank, std::vector<int> world_ranks, double watchdog_seconds)
      : Communicator(rank, std::move(world_ranks), watchdog_seconds), job_(std::move(job)), group_(group) {
    ++job_->groups;
  }
  ~TcpCommunicator() override {
    if (--job_->groups == 0) job_->finish(watchdog_seconds_);
  }

  std::string_view name() const override { return "tcp"; }
  void poll() override {
    job_->poll();
    job_->check_peers();
  }

  std::unique_ptr<Communicator> split(int colour) override {
    const std::vector<int> members = ranks_of_colour(colour);
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(world_rank(member));
    const int place = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
    // A number that the group's ranks find by themselves, and no other group of them has.
    const uint64_t group = (group_ * 0x9e3779b97f4a7c15ull + ++splits_) * 0xbf58476d1ce4e5b9ull + static_cast<uint64_t>(members.front());
    return std::make_unique<TcpCommunicator>(job_, group, place, std::move(ranks), watchdog_seconds_);
  }

  void abort(const std::string& reason) override { job_->abort(reason); }
  bool first_to_say(std::string_view text) override { return job_->board.first_to_say(text); }
  WatchSeat* watch_seat() override { return &job_->seat; }

 private:
  std::shared_ptr<TcpOperation> operation(Message& message, bool sends) {
    job_->check();
    return std::make_shared<TcpOperation>(job_, sends, message.data, message.bytes, world_rank(message.other), message.label, std::move(message.keep), watchdog_seconds_);
  }

  Request start_send(Message message) override {
    const auto sending = operation(message, true);
    const MessageHeader header{group_, static_cast<uint64_t>(message.bytes), FrameKind::message, static_cast<uint32_t>(message.label.kind)};
    job_->send(world_rank(message.other), {header, sending, {}});
    return Request(sending);
  }

  Request start_receive(Message message) override {
    const auto receiving = operation(message, false);
    Inbox& inbox = job_->inboxes[{group_, world_rank(message.other)}];
    if (inbox.early.empty()) {
      inbox.expected.push_back(receiving);
      return Request(receiving);
    }
    inbox.give(*receiving);
    return Request(receiving);
  }

  const std::shared_ptr<TcpJob> job_;
  const uint64_t group_;
  uint64_t splits_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> join_tcp(const CommunicatorOptions& options, double limit_seconds) {
  Meeting meeting = meeting_of_environment();
  meeting.limit_seconds = limit_seconds;
  if (meeting.size == 1) return single_communicator();
  auto job = std::make_shared<TcpJob>(meeting.rank, meet(meeting), options);
  std::vector<int> ranks(static_cast<size_t>(meeting.size));
  for (int i = 0; i < meeting.size; ++i) ranks[static_cast<size_t>(i)] = i;
  return std::make_unique<TcpCommunicator>(std::move(job), 1, meeting.rank, std::move(ranks), options.watchdog_seconds);
}

std::unique_ptr<Communicator> join_announced(const CommunicatorOptions& options) {
  const AnnouncedRanks announced = announced_ranks();
  if (announced.size == 0) return single_communicator();
  return announced.starter == "torchrun" ? join_tcp(options) : join_mpi(options);
}

}  // namespace quire
