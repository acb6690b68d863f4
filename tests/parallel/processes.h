// Ranks as processes of a test: forks, each with torchrun's variables, and what each comes to.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "parallel/tcp_sockets.h"

namespace quire::test {

struct ProcessOutcome {
  int exit_code;     ///< 128 + signal where one ended it
  std::string text;  ///< what its body returned, or the text of what it threw
};

/// Runs `body(rank)` in a process for each rank, and waits for all of them.
inline std::vector<ProcessOutcome> run_processes(int ranks, const std::function<std::string(int rank)>& body) {
  std::vector<std::array<int, 2>> pipes(static_cast<size_t>(ranks));
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    BOOST_TEST_REQUIRE(::pipe(pipes[static_cast<size_t>(rank)].data()) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(120);
      std::string text;
      int status = 0;
      try {
        text = body(rank);
      } catch (const std::exception& error) {
        text = error.what();
        status = 1;
      }
      if (::write(pipes[static_cast<size_t>(rank)][1], text.data(), text.size()) < 0) status = 2;
      ::_exit(status);
    }
    ::close(pipes[static_cast<size_t>(rank)][1]);
    children.push_back(child);
  }
  std::vector<ProcessOutcome> outcomes;
  for (int rank = 0; rank < ranks; ++rank) {
    std::string text;
    char part[4096];
    for (ssize_t got = 0; (got = ::read(pipes[static_cast<size_t>(rank)][0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
    ::close(pipes[static_cast<size_t>(rank)][0]);
    int status = 0;
    ::waitpid(children[static_cast<size_t>(rank)], &status, 0);
    outcomes.push_back({WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text});
  }
  return outcomes;
}

inline int free_port() { return port_of(listen_on(0)); }

/// As torchrun does.
inline void announce(int rank, int size, int port) {
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", std::to_string(size).c_str(), 1);
  ::setenv("MASTER_ADDR", "localhost", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
}

}  // namespace quire::test
