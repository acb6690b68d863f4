// Runs a program as a user does: its own process, its output read from pipes, and an end to its patience.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "check.h"

namespace quire::test {

struct ProgramOptions {
  std::string folder;                     ///< current directory; "" = the test's own
  std::optional<rlim_t> largest_file;     ///< bytes that a file may grow to (writing on fails with EFBIG)
  std::optional<uid_t> user;              ///< who runs it, where the test is root
  int patience_seconds = 300;             ///< then it is killed and the test fails
};

struct ProgramResult {
  int status = -1;       ///< exit status, or minus the signal that ended it
  std::string out, err;
};

/// `name` in the build tree's tools.
inline std::string tool(const std::string& name) { return std::string(QUIRE_BUILD_ROOT) + "/tools/" + name; }

/// A running program. Killed when it goes out of scope.
class Program {
 public:
  explicit Program(const std::vector<std::string>& args, const ProgramOptions& options = {}) : options_(options) {
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    deadline_ = Clock::now() + std::chrono::seconds(options.patience_seconds);
    child_ = ::fork();
    if (child_ == 0) become(args, out[1], err[1]);
    ::close(out[1]);
    ::close(err[1]);
    pipes_[0] = out[0];
    pipes_[1] = err[0];
    if (child_ < 0) throw std::runtime_error("no child process");
  }
  ~Program() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    for (const int pipe : pipes_)
      if (pipe >= 0) ::close(pipe);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return child_; }
  void send(int signal) { ::kill(child_, signal); }

  /// Reads until standard output holds `text`; false when it ended without.
  bool wait_for(const std::string& text) {
    while (result_.out.find(text) == std::string::npos)
      if (!read_some()) return false;
    return true;
  }

  /// Standard output as far as it was read.
  const std::string& output() const { return result_.out; }

  /// Reads to the end and returns what the program left.
  ProgramResult wait() {
    while (read_some()) {
    }
    int status = 0;
    if (child_ > 0) ::waitpid(child_, &status, 0);
    child_ = -1;
    result_.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return result_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] void become(const std::vector<std::string>& args, int out, int err) {
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);  // which nohup, for one, has ignored
    if (options_.largest_file) {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{*options_.largest_file, *options_.largest_file};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (!options_.folder.empty() && ::chdir(options_.folder.c_str()) != 0) ::_exit(126);
    if (options_.user && (::setgid(*options_.user) != 0 || ::setuid(*options_.user) != 0)) ::_exit(126);
    std::vector<char*> pointers;
    for (const std::string& arg : args) pointers.push_back(const_cast<char*>(arg.c_str()));
    pointers.push_back(nullptr);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }

  /// False when both pipes are at their end.
  bool read_some() {
    pollfd entries[2] = {{pipes_[0], POLLIN, 0}, {pipes_[1], POLLIN, 0}};  // a negative descriptor is passed over
    if (pipes_[0] < 0 && pipes_[1] < 0) return false;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    if (left <= 0 || ::poll(entries, 2, static_cast<int>(left)) == 0) {
      ::kill(child_, SIGKILL);
      throw std::runtime_error("a program did not end in time; it printed: " + result_.out + result_.err);
    }
    for (int i = 0; i < 2; ++i) {
      if (entries[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = ::read(pipes_[i], buffer, sizeof buffer);
      if (count > 0) {
        (i == 0 ? result_.out : result_.err).append(buffer, static_cast<size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        ::close(pipes_[i]);
        pipes_[i] = -1;
      }
    }
    return true;
  }

  ProgramOptions options_;
  Clock::time_point deadline_;
  pid_t child_ = -1;
  int pipes_[2] = {-1, -1};
  ProgramResult result_;
};

inline ProgramResult run_program(const std::vector<std::string>& args, const ProgramOptions& options = {}) { return Program(args, options).wait(); }

/// The program ended well; its result.
inline ProgramResult run_well(const std::vector<std::string>& args, const ProgramOptions& options = {}) {
  const ProgramResult result = run_program(args, options);
  BOOST_TEST(result.status == 0, args[0] << " ended with " << result.status << ": " << result.err);
  return result;
}

}  // namespace quire::test
