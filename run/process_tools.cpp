#include "run/process_tools.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>

#include "runtime/error.h"

namespace quire {

SignalQueue::SignalQueue() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGTSTP, SIGCHLD}) ::sigaddset(&set, signal);
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) ::sigaddset(&set, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &set, &before_);
  descriptor_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (descriptor_.open()) return;
  const int reason = errno;
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  fail<StateError>("launch", "signals can not be watched: {}", std::strerror(reason));
}

SignalQueue::~SignalQueue() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int SignalQueue::next() const {
  signalfd_siginfo info{};
  return ::read(descriptor_.number(), &info, sizeof info) == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

std::set<pid_t> children_of_this_process() {
  std::ifstream file(fmt::format("/proc/self/task/{}/children", ::getpid()));
  std::set<pid_t> all;
  for (pid_t pid; file >> pid;) all.insert(pid);
  return all;
}

std::string own_executable() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == static_cast<ssize_t>(sizeof path)) fail<FileError>("/proc/self/exe", "this program's own path can not be read");
  return std::string(path, static_cast<size_t>(length));
}

void write_error(const std::string& text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) {
  }  // an error stream that is gone changes nothing
}

}  // namespace quire
