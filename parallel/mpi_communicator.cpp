// Ranks as processes, over MPI. Nothing here blocks inside MPI once the job has been joined: waiting is done by testing, so that the watchdog works.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/watchdog.h"
#include "runtime/error.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds between_polls{20};  // MPI is asked no oftener from compute loops
constexpr int message_tag = 0;

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail<CommunicationError>("mpi", "{}: {}", call, error_text(code));
}

/// Looks away for longer, the longer a wait lasts: a moment of spinning (not where ranks share processors), then giving way, then short sleeps.
void nap(double waited, bool crowded) {
  if (waited > 5e-3) std::this_thread::sleep_for(std::chrono::microseconds(100));
  else if (crowded || waited > 50e-6) ::sched_yield();
}

struct MpiJob;

/// A message under way, in one piece or several.
class MpiOperation final : public Request::Operation {
 public:
  MpiOperation(std::shared_ptr<MpiJob> job, bool sends, int other, const MessageLabel& label, std::shared_ptr<const void> keep,
               double watchdog_seconds)
      : job_(std::move(job)), sends_(sends), other_(other), label_(label), keep_(std::move(keep)), watchdog_seconds_(watchdog_seconds) {}
  bool done() override;
  void wait() override;

  void expect_piece() { ++pending_; }
  /// One piece has ended, with this MPI error and these bytes received.
  void end_piece(int code, int64_t expected, int64_t received);

 private:
  bool finished() {
    if (pending_ > 0) return false;
    keep_.reset();
    if (!error_.empty()) fail<CommunicationError>("communicator", "{}", error_);
    return true;
  }

  const std::shared_ptr<MpiJob> job_;
  const bool sends_;
  const int other_;  ///< in the job
  const MessageLabel label_;
  std::shared_ptr<const void> keep_;
  const double watchdog_seconds_;
  int64_t pending_ = 0;
  std::string error_;
};

/// What the groups of this process share: everything under way, and the board of its machine.
struct MpiJob {
  explicit MpiJob(const CommunicatorOptions& given) : options(given) {}

  void open_board();
  /// Asks MPI once about everything under way.
  void progress();
  void poll() {
    if (!requests.empty() && Clock::now() - last_progress >= between_polls) progress();
  }
  /// Waits for what is left and for the other ranks, then ends MPI.
  void finish(double watchdog_seconds);
  [[noreturn]] void abort() {
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    ::_exit(1);
  }

  struct Piece {
    std::shared_ptr<MpiOperation> operation;
    int64_t bytes;
    bool sends;
  };

  const CommunicatorOptions options;
  const int exceptions_when_joined = std::uncaught_exceptions();
  int groups = 0, world_rank = 0;
  bool crowded = false;                 ///< more ranks than processors on this machine
  std::vector<MPI_Request> requests;    ///< of all pieces under way
  std::vector<Piece> pieces;            ///< of the same places
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;
  Clock::time_point last_progress = Clock::now();
  MPI_Comm machine = MPI_COMM_NULL;
  MPI_Win window = MPI_WIN_NULL;
  std::unique_ptr<WatchBoard> own_board;  ///< where machines can not share memory between processes
  std::optional<WatchSeat> seat;
};

void MpiJob::open_board() {
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &machine), "MPI_Comm_split_type");
  int ranks = 1, place = 0;
  MPI_Comm_size(machine, &ranks);
  MPI_Comm_rank(machine, &place);
  crowded = static_cast<unsigned>(ranks) > std::thread::hardware_concurrency();
  void* memory = nullptr;
  const MPI_Aint bytes = place == 0 ? static_cast<MPI_Aint>(sizeof(WatchBoard)) : 0;
  const int code = MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, machine, &memory, &window);
  WatchBoard* board = nullptr;
  if (code == MPI_SUCCESS) {
    MPI_Aint size = 0;
    int unit = 0;
    check(MPI_Win_shared_query(window, 0, &size, &unit, &memory), "MPI_Win_shared_query");
    board = place == 0 ? new (memory) WatchBoard : static_cast<WatchBoard*>(memory);
    check(MPI_Barrier(machine), "MPI_Barrier");
  } else {
    window = MPI_WIN_NULL;
    own_board = std::make_unique<WatchBoard>();
    board = own_board.get();
    ranks = 1;
  }
  seat.emplace(*board, static_cast<uint32_t>(ranks), world_rank, options.report, [] { return false; });
}

void MpiJob::progress() {
  const int count = static_cast<int>(requests.size());
  indices.resize(requests.size());
  statuses.resize(requests.size());
  int ended = 0;
  const int code = MPI_Testsome(count, requests.data(), &ended, indices.data(), statuses.data());
  last_progress = Clock::now();
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
  if (ended == MPI_UNDEFINED || ended == 0) return;
  for (int i = 0; i < ended; ++i) {
    const size_t place = static_cast<size_t>(indices[static_cast<size_t>(i)]);
    const MPI_Status& status = statuses[static_cast<size_t>(i)];
    Piece& piece = pieces[place];
    int received = 0;
    if (!piece.sends) MPI_Get_count(&status, MPI_BYTE, &received);
    piece.operation->end_piece(code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS, piece.bytes, received);
    piece.operation.reset();
    requests[place] = MPI_REQUEST_NULL;
  }
  std::erase_if(pieces, [](const Piece& piece) { return piece.operation == nullptr; });
  std::erase(requests, MPI_REQUEST_NULL);
}

void MpiJob::finish(double watchdog_seconds) {
  // After an error MPI is left as it is: ending it would wait for ranks that may never come. The process ends soon, and the starter ends the others.
  if (std::uncaught_exceptions() > exceptions_when_joined) return;
  try {
    const MessageLabel label{.purpose = "end of the job"};
    Watch watch(*seat, Watch::Waits::to_receive, -1, label, watchdog_seconds);
    MPI_Request all_are_here = MPI_REQUEST_NULL;
    bool posted = false;
    for (int done = 0; done == 0;) {
      if (!requests.empty()) {
        progress();
      } else {
        if (!posted) check(MPI_Ibarrier(MPI_COMM_WORLD, &all_are_here), "MPI_Ibarrier");
        posted = true;
        check(MPI_Test(&all_are_here, &done, MPI_STATUS_IGNORE), "MPI_Test");
      }
      if (done != 0) break;
      watch.check();
      nap(watch.waited(), crowded);
    }
  } catch (const AbortedError&) {
    abort();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    abort();
  }
  seat.reset();
  if (window != MPI_WIN_NULL) MPI_Win_free(&window);
  MPI_Comm_free(&machine);
  MPI_Finalize();
}

void MpiOperation::end_piece(int code, int64_t expected, int64_t received) {
  --pending_;
  if (!error_.empty()) return;
  const auto describe = [&] {
    return sends_ ? fmt::format("sending {} to rank {}", to_string(label_), other_)
                  : fmt::format("receiving {} from rank {}", to_string(label_), other_);
  };
  int kind = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_TRUNCATE || (code == MPI_SUCCESS && !sends_ && received != expected))
    error_ = fmt::format("rank {} expects {} bytes when {}, which sends {}", job_->world_rank, expected, describe(),
                         kind == MPI_ERR_TRUNCATE ? "more" : fmt::format("{} bytes", received));
  else if (code != MPI_SUCCESS)
    error_ = fmt::format("rank {}, {}: {}", job_->world_rank, describe(), error_text(code));
}

bool MpiOperation::done() {
  if (pending_ > 0) job_->poll();
  return finished();
}

void MpiOperation::wait() {
  if (finished()) return;
  Watch watch(*job_->seat, sends_ ? Watch::Waits::to_send : Watch::Waits::to_receive, other_, label_, watchdog_seconds_);
  for (;;) {
    job_->progress();
    if (finished()) return;
    watch.check();
    nap(watch.waited(), job_->crowded);
  }
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiJob> job, MPI_Comm group, int rank, std::vector<int> world_ranks, double watchdog_seconds)
      : Communicator(rank, std::move(world_ranks), watchdog_seconds), job_(std::move(job)), group_(group) {
    ++job_->groups;
  }
  /// The last group of the process ends MPI. Communicators of MPI are left to that: freeing one is collective.
  ~MpiCommunicator() override {
    if (--job_->groups == 0) job_->finish(watchdog_seconds_);
  }

  std::string_view name() const override { return "mpi"; }
  void poll() override { job_->poll(); }

  std::unique_ptr<Communicator> split(int colour) override {
    // After this every rank is here or soon will be, so MPI's own split, which blocks, does not block for long.
    const std::vector<int> members = ranks_of_colour(colour);
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(world_rank(member));
    const int place = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
    MPI_Comm group = MPI_COMM_NULL;
    check(MPI_Comm_split(group_, members.front(), rank_, &group), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(job_, group, place, std::move(ranks), watchdog_seconds_);
  }

  void abort(const std::string&) override { job_->abort(); }
  bool first_to_say(std::string_view text) override { return job_->seat->board().first_to_say(text); }
  WatchSeat* watch_seat() override { return &*job_->seat; }

 private:
  Request start_send(Message message) override { return start(std::move(message), true); }
  Request start_receive(Message message) override { return start(std::move(message), false); }

  Request start(Message message, bool sends) {
    const auto operation =
        std::make_shared<MpiOperation>(job_, sends, world_rank(message.other), message.label, std::move(message.keep), watchdog_seconds_);
    const auto start_piece = [&](int64_t begin, int64_t bytes) {
      MPI_Request request = MPI_REQUEST_NULL;
      std::byte* const data = message.data + begin;
      if (sends) check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, message.other, message_tag, group_, &request), "MPI_Isend");
      else check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, message.other, message_tag, group_, &request), "MPI_Irecv");
      operation->expect_piece();
      job_->requests.push_back(request);
      job_->pieces.push_back({operation, bytes, sends});
    };
    const int64_t largest = job_->options.largest_piece;
    if (message.bytes <= largest) {
      start_piece(0, message.bytes);
      return Request(operation);
    }
    // The size of the first piece, an odd number, tells how many there are: two ends that do not agree on it find out at that piece.
    int64_t pieces = 2;
    const auto first = [&] { return largest - 2 * pieces - 1; };
    while (first() + (pieces - 1) * largest < message.bytes) ++pieces;
    if (first() <= 0) fail<StateError>("mpi", "{} bytes can not be sent in pieces of {}", message.bytes, largest);
    start_piece(0, first());
    for (int64_t begin = first(); begin < message.bytes; begin += largest) start_piece(begin, std::min(largest, message.bytes - begin));
    return Request(operation);
  }

  const std::shared_ptr<MpiJob> job_;
  const MPI_Comm group_;
};

}  // namespace

bool mpi_is_built() { return true; }

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  // `Open MPI v4.1.4, package ...`, `MPICH Version:  4.0.2`
  std::istringstream words(std::string(text, static_cast<size_t>(length)).substr(0, std::string_view(text).find_first_of(",\n")));
  std::string version;
  for (std::string word; words >> word;) {
    if (word == "Version:") continue;
    const bool numbered = word.size() > 1 && word[0] == 'v' && word[1] >= '0' && word[1] <= '9';
    version += fmt::format("{}{}", version.empty() ? "" : " ", std::string_view(word).substr(numbered ? 1 : 0));
  }
  return version;
}

std::unique_ptr<Communicator> join_mpi(const CommunicatorOptions& options) {
  int joined = 0;
  MPI_Initialized(&joined);
  if (joined != 0) fail<StateError>("mpi", "this process has joined before; it can do so once");
  if (options.largest_piece < 1024 || options.largest_piece > (int64_t{1} << 30) || options.largest_piece % 2 != 0)
    fail<StateError>("mpi", "pieces of {} bytes; allowed: even numbers from 1024 to 2^30", options.largest_piece);
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const AnnouncedRanks announced = announced_ranks();
  if (provided < MPI_THREAD_FUNNELED || (announced.size > 0 && announced.size != size)) {
    MPI_Finalize();
    if (provided < MPI_THREAD_FUNNELED) fail<UnsupportedError>("mpi", "{} was built without support for threads", mpi_version());
    fail<UnsupportedError>("mpi",
                           "{} announces {} ranks, but {}, which this Quire was built for, finds {}: started by another MPI than built for. "
                           "Start with the mpirun of {}, or build Quire again with the MPI that starts it",
                           announced.starter, announced.size, mpi_version(), size, mpi_version());
  }
  const auto job = std::make_shared<MpiJob>(options);
  job->world_rank = rank;
  job->open_board();
  MPI_Comm world = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) ranks[static_cast<size_t>(i)] = i;
  return std::make_unique<MpiCommunicator>(job, world, rank, std::move(ranks), options.watchdog_seconds);
}

}  // namespace quire
