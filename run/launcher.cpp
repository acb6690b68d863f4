#include "run/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "parallel/communicator.h"
#include "run/launch_board.h"
#include "run/launch_folder.h"
#include "run/launch_link.h"
#include "run/mpirun.h"
#include "run/mpirun_output.h"
#include "run/process_tools.h"
#include "runtime/error.h"

extern char** environ;

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
// What has not ended by itself after another rank's end is killed. After a failure the others may still have something to say, and mpirun gives them a second
// or two; after a death they can only wait in vain. mpirun is to say what it saw.
constexpr std::chrono::milliseconds grace_after_failure{4000}, grace_after_death{500}, grace_of_mpirun{2000};

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options)
      : options_(options), mpirun_path_(find_mpirun()), board_(LaunchBoard::create(board_path(folder_.path()), options.ranks)),
        listener_(listen_for_ranks(folder_.path(), options.ranks)), links_(static_cast<size_t>(options.ranks)), children_before_(children_of_this_process()) {}

  int run() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // ranks whose mpirun is gone become children of this process, which ends them
    start_mpirun();
    const std::chrono::duration<double> patience(std::min(options_.watchdog_seconds, 1e8));
    const Clock::time_point together = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
    while (mpirun_ > 0) {
      const std::optional<Clock::time_point> until = kill_at_ ? kill_at_ : all_together() ? std::nullopt : std::optional(together);
      watch(until);
      if (until && Clock::now() >= *until) kill_at_ ? kill_now() : give_up_start();
    }
    end_remaining();
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    return verdict();
  }

 private:
  struct Link {
    Descriptor descriptor;
    pid_t pid = 0;
  };

  void start_mpirun();
  [[noreturn]] void become_mpirun(char* const* arguments, char* const* environment, int out, int err, pid_t parent) const;
  void watch(std::optional<Clock::time_point> until);
  void take_signal(int signal);
  void suspend();
  void take_rank();
  void rank_is_gone(int rank);
  void read_from_mpirun(Descriptor& pipe, MpirunOutput& output);
  bool all_together();
  void give_up_start();
  void kill_ranks();
  void kill_now();
  void end_remaining();
  int verdict();
  void say(const std::string& text) const;
  std::string hint() const { return options_.resume_hint.empty() ? "" : "; " + options_.resume_hint; }
  std::optional<int> first_failed() const;
  bool all_ended() const;

  const LaunchOptions options_;
  const std::string mpirun_path_;
  const LaunchFolder folder_;
  const SignalQueue signals_;
  LaunchBoard board_;
  Descriptor listener_;
  std::vector<Link> links_;  ///< [ranks]
  const std::set<pid_t> children_before_;
  pid_t mpirun_ = -1;
  int mpirun_status_ = 0, mpirun_signal_ = 0;
  Descriptor pipes_[2];
  MpirunOutput outputs_[2];
  int stop_signal_ = 0;
  bool interrupted_twice_ = false, together_ = false, start_given_up_ = false, killed_ = false;
  int first_dead_ = -1;
  std::optional<Clock::time_point> kill_at_;
};

void Launch::start_mpirun() {
  const std::string executable = options_.executable.empty() ? own_executable() : options_.executable;
  std::vector<std::string> arguments = {mpirun_path_, "-n", fmt::format("{}", options_.ranks), executable, "--launched-from", folder_.path()};
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  environment = mpirun_environment(environment, folder_.path());
  const std::vector<char*> argument_pointers = pointers_to(arguments), environment_pointers = pointers_to(environment);
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC | O_NONBLOCK) != 0) fail<FileError>("launch", "no pipe: {}", std::strerror(errno));
  pipes_[0] = Descriptor(out[0]);
  const Descriptor out_end(out[1]);
  if (::pipe2(err, O_CLOEXEC | O_NONBLOCK) != 0) fail<FileError>("launch", "no pipe: {}", std::strerror(errno));
  pipes_[1] = Descriptor(err[0]);
  const Descriptor err_end(err[1]);
  const pid_t parent = ::getpid();
  mpirun_ = ::fork();
  if (mpirun_ == 0) become_mpirun(argument_pointers.data(), environment_pointers.data(), out[1], err[1], parent);
  if (mpirun_ < 0) fail<StateError>("launch", "mpirun can not be started: {}", std::strerror(errno));
}

/// Between fork and exec: only what signal-safety(7) allows.
void Launch::become_mpirun(char* const* arguments, char* const* environment, int out, int err, pid_t parent) const {
  ::setpgid(0, 0);                       // the terminal's Ctrl-C is the launcher's alone
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);    // a killed launcher leaves nobody behind
  if (::getppid() != parent) ::_exit(1);
  const int null = ::open("/dev/null", O_RDONLY);
  for (const int end : {out, err}) ::fcntl(end, F_SETFL, ::fcntl(end, F_GETFL) & ~O_NONBLOCK);
  ::dup2(null, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  for (const int signal : {SIGTERM, SIGINT, SIGTSTP, SIGCHLD}) ::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &signals_.mask_before(), nullptr);
  ::execve(arguments[0], arguments, environment);
  ::_exit(127);
}

void Launch::watch(std::optional<Clock::time_point> until) {
  std::vector<pollfd> entries;  // those below 0 are passed over
  for (const int descriptor : {signals_.descriptor(), listener_.number(), pipes_[0].number(), pipes_[1].number()}) entries.push_back({descriptor, POLLIN, 0});
  for (const Link& link : links_) entries.push_back({link.descriptor.number(), POLLIN, 0});
  int64_t wait = -1;
  if (until) wait = std::clamp<int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(*until - Clock::now()).count() + 1, 0, 1'000'000);
  if (!together_ && !kill_at_) wait = wait < 0 ? 100 : std::min<int64_t>(wait, 100);  // the board tells nobody that it has changed
  if (::poll(entries.data(), entries.size(), static_cast<int>(wait)) <= 0) return;
  for (size_t rank = 0; rank < links_.size(); ++rank)
    if (entries[4 + rank].revents != 0) rank_is_gone(static_cast<int>(rank));
  if (entries[1].revents != 0) take_rank();
  for (size_t i = 0; i < 2; ++i)
    if (entries[2 + i].revents != 0) read_from_mpirun(pipes_[i], outputs_[i]);
  if (entries[0].revents != 0)
    while (const int signal = signals_.next()) take_signal(signal);
}

void Launch::take_signal(int signal) {
  if (signal == SIGCHLD) {
    if (int status = 0; mpirun_ > 0 && ::waitpid(mpirun_, &status, WNOHANG) == mpirun_) {
      mpirun_ = -1;
      mpirun_status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      mpirun_signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    }
    return;
  }
  if (signal == SIGTSTP) return suspend();
  if (stop_signal_ == 0) {
    stop_signal_ = signal == SIGHUP ? SIGTERM : signal;  // a terminal that is gone: save as for any other end
    if (links_[0].descriptor.open()) ::kill(links_[0].pid, stop_signal_);
  } else if (signal == SIGINT) {
    interrupted_twice_ = true;
    kill_now();
  }
}

/// Ctrl-Z: the ranks stop with this process, and go on with it.
void Launch::suspend() {
  const auto send = [&](int signal) {
    for (const Link& link : links_)
      if (link.descriptor.open()) ::kill(link.pid, signal);
  };
  send(SIGSTOP);
  ::kill(::getpid(), SIGSTOP);
  send(SIGCONT);
}

void Launch::take_rank() {
  const RankLink link = accept_rank(listener_.number(), options_.ranks);
  if (link.rank < 0) return;
  links_[static_cast<size_t>(link.rank)] = {Descriptor(link.descriptor), link.pid};
  if (link.rank == 0 && stop_signal_ != 0) ::kill(link.pid, stop_signal_);
  if (killed_) ::kill(link.pid, SIGKILL);
}

std::optional<int> Launch::first_failed() const {
  for (int rank = 0; rank < options_.ranks; ++rank)
    if (board_.state(rank) == RankState::failed) return rank;
  return std::nullopt;
}

bool Launch::all_ended() const {
  for (int rank = 0; rank < options_.ranks; ++rank)
    if (board_.state(rank) != RankState::ended) return false;
  return true;
}

void Launch::rank_is_gone(int rank) {
  links_[static_cast<size_t>(rank)].descriptor.close();
  if (board_.state(rank) == RankState::ended) return;
  const bool failed = first_failed().has_value();
  if (!failed && !killed_ && first_dead_ < 0) first_dead_ = rank;
  if (!kill_at_) kill_at_ = Clock::now() + (failed ? grace_after_failure : grace_after_death);
}

void Launch::read_from_mpirun(Descriptor& pipe, MpirunOutput& output) {
  char buffer[4096];
  for (;;) {
    const ssize_t count = ::read(pipe.number(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    const std::string shown = count > 0 ? output.take({buffer, static_cast<size_t>(count)}) : output.finish();
    // Ranks speak for themselves: after one has failed or died all that comes from mpirun is about its own end.
    if (!shown.empty() && first_dead_ < 0 && !killed_ && !first_failed()) write_error(shown);
    if (count > 0) continue;
    pipe.close();
    return;
  }
}

bool Launch::all_together() {
  for (int rank = 0; rank < options_.ranks && !together_; ++rank)
    if (board_.state(rank) < RankState::running) return false;
  return together_ = true;
}

void Launch::give_up_start() {
  start_given_up_ = true;
  std::string states;
  for (int rank = 0; rank < options_.ranks; ++rank) states += fmt::format("{}rank {} {}", rank == 0 ? "" : ", ", rank, name_of(board_.state(rank)));
  say(fmt::format("the ranks have not come together within {:g} s: {}", options_.watchdog_seconds, states));
  kill_now();
}

void Launch::kill_ranks() {
  for (Link& link : links_) {
    pollfd entry{link.descriptor.number(), POLLIN, 0};
    if (link.descriptor.open() && ::poll(&entry, 1, 0) == 0) ::kill(link.pid, SIGKILL);  // its number is its own: its process still lives
  }
}

/// The ranks at once; mpirun gets time to say what it saw, unless it had that already or nobody wants to know.
void Launch::kill_now() {
  const bool again = killed_;
  killed_ = true;
  kill_ranks();
  if ((again || interrupted_twice_) && mpirun_ > 0) ::kill(mpirun_, SIGKILL);
  kill_at_ = Clock::now() + grace_of_mpirun;
}

/// mpirun is gone: so will everybody be, those included who never connected.
void Launch::end_remaining() {
  listener_.close();
  for (const Clock::time_point end = Clock::now() + std::chrono::seconds(5); Clock::now() < end;) {
    kill_ranks();
    bool left = false;
    for (const pid_t child : children_of_this_process()) {
      if (children_before_.contains(child)) continue;
      ::kill(child, SIGKILL);
      left = ::waitpid(child, nullptr, WNOHANG) != child || left;
    }
    for (size_t rank = 0; rank < links_.size(); ++rank) {
      pollfd entry{links_[rank].descriptor.number(), POLLIN, 0};
      if (!links_[rank].descriptor.open()) continue;
      if (::poll(&entry, 1, 0) > 0) links_[rank].descriptor.close();
      else left = true;
    }
    if (!left) break;
    ::usleep(2000);
  }
  for (size_t i = 0; i < 2; ++i)
    if (pipes_[i].open()) read_from_mpirun(pipes_[i], outputs_[i]);
}

int Launch::verdict() {
  if (interrupted_twice_) return 130;
  if (all_ended()) return 0;  // whatever became of mpirun meanwhile
  if (start_given_up_ || (first_dead_ < 0 && first_failed())) return 1;
  const MpirunOutput& seen = outputs_[1].dead_rank() >= 0 || outputs_[1].dead_signal() > 0 ? outputs_[1] : outputs_[0];
  // Several deaths may be seen at once here: mpirun knows the first, unless it only saw those killed after the grace.
  const bool named = seen.dead_rank() >= 0 && seen.dead_rank() < options_.ranks && !(killed_ && first_dead_ >= 0);
  const int dead = named ? seen.dead_rank() : first_dead_;
  if (mpirun_signal_ > 0 && !killed_) {
    say(fmt::format("mpirun was killed by signal {}{}", mpirun_signal_, hint()));
  } else if (dead >= 0) {
    const bool same = seen.dead_rank() < 0 || seen.dead_rank() == dead;
    int signal = same ? seen.dead_signal() : 0;
    const int status = same && signal == 0 ? seen.dead_status() : 0;
    if (signal == 0 && status == 0 && mpirun_status_ > 128) signal = mpirun_status_ - 128;
    const std::string how = signal > 0 ? fmt::format("killed by signal {}", signal) : status > 0 ? fmt::format("ended with status {}", status) : "ended too early";
    const int64_t step = board_.step(dead);
    say(fmt::format("rank {} {} {}{}", dead, how, step >= 0 ? fmt::format("at step {}", step) : "before its first step", hint()));
  } else {
    say(fmt::format("mpirun ended with status {} before the ranks{}", mpirun_status_, hint()));
  }
  return 1;
}

void Launch::say(const std::string& text) const {
  // Above what rank 0 had left of its progress bar.
  write_error(fmt::format("{}[{}] {}\n", ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "", options_.program, text));
}

}  // namespace

int launch_ranks(const LaunchOptions& options) {
  if (const AnnouncedRanks announced = announced_ranks(); announced.size > 0)
    fail<UnsupportedError>("launch", "--ranks {} starts ranks, but {} has started this process as one of {} already; allowed: one of the two", options.ranks,
                           announced.starter, announced.size);
  return Launch(options).run();
}

}  // namespace quire
