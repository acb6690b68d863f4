// What a process that starts others asks of the system.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <set>
#include <string>

#include "run/descriptor.h"

namespace quire {

/// SIGTERM, SIGINT, SIGTSTP, SIGCHLD and, unless it is ignored (nohup), SIGHUP as something to poll, blocked for its lifetime.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// Readable while signals wait.
  int descriptor() const { return descriptor_.number(); }
  /// The next one that has come; 0 for none.
  int next() const;
  /// The mask from before, for children.
  const sigset_t& mask_before() const { return before_; }

 private:
  sigset_t before_;
  Descriptor descriptor_;
};

/// Children of this process's first thread; empty where the system does not say.
std::set<pid_t> children_of_this_process();

/// Path of the program that this process runs. Throws FileError.
std::string own_executable();

/// On a terminal or anything else, in one piece; what can not be written is lost.
void write_error(const std::string& text);

}  // namespace quire
