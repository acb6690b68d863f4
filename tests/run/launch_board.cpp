// What a launcher and its ranks share: board, folder, connection.
#include "run/launch_board.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "check.h"
#include "run/launch_folder.h"
#include "run/launch_link.h"
#include "run/scratch.h"
#include "runtime/error.h"

using namespace quire;
using quire::test::check_error;
using quire::test::Scratch;

BOOST_AUTO_TEST_SUITE(launch_board)

BOOST_AUTO_TEST_CASE(a_rank_writes_its_entry_and_the_launcher_reads_it) {
  const Scratch scratch;
  LaunchBoard launcher = LaunchBoard::create(scratch.path("board"), 3);
  BOOST_TEST(launcher.ranks() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    BOOST_TEST(launcher.step(rank) == -1);
    BOOST_TEST(launcher.pid(rank) == 0);
    BOOST_TEST((launcher.state(rank) == RankState::absent));
  }
  {
    LaunchBoard rank = LaunchBoard::open(scratch.path("board"), 1);
    rank.set_pid(77);
    rank.set_state(RankState::running);
    rank.set_step(int64_t{1} << 40);
  }
  BOOST_TEST(launcher.step(1) == int64_t{1} << 40);  // outlives its writer
  BOOST_TEST(launcher.pid(1) == 77);
  BOOST_TEST((launcher.state(1) == RankState::running));
  BOOST_TEST(launcher.step(0) == -1);
  BOOST_TEST(launcher.step(2) == -1);
  check_error<StateError>([&] { launcher.set_step(1); }, {"no entry of its own"});
  check_error<StateError>([&] { launcher.step(3); }, {"no rank 3 of 3"});
}

BOOST_AUTO_TEST_CASE(ranks_write_at_the_same_time_without_disturbing_each_other) {
  const Scratch scratch;
  const LaunchBoard launcher = LaunchBoard::create(scratch.path("board"), 4);
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([&, number] {
      LaunchBoard rank = LaunchBoard::open(scratch.path("board"), number);
      for (int64_t step = 0; step <= 20000; ++step) rank.set_step(step * 4 + number);
    });
  int64_t before = 0;
  for (int i = 0; i < 10000; ++i) {
    const int64_t step = launcher.step(2);
    BOOST_REQUIRE((step == -1 || (step % 4 == 2 && step >= before)));
    before = step;
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 4; ++rank) BOOST_TEST(launcher.step(rank) == 80000 + rank);
}

BOOST_AUTO_TEST_CASE(what_is_no_board_is_refused) {
  const Scratch scratch;
  check_error<FileError>([&] { LaunchBoard::open(scratch.path("board"), 0); }, {"board", "opened"});
  std::ofstream(scratch.path("short")) << "quire";
  check_error<DataError>([&] { LaunchBoard::open(scratch.path("short"), 0); }, {"no board"});
  LaunchBoard::create(scratch.path("board"), 2);
  check_error<FileError>([&] { LaunchBoard::create(scratch.path("board"), 2); }, {"made"});
  check_error<DataError>([&] { LaunchBoard::open(scratch.path("board"), 2); }, {"2 ranks", "rank 2"});
  std::filesystem::resize_file(scratch.path("board"), 100);
  check_error<DataError>([&] { LaunchBoard::open(scratch.path("board"), 0); }, {"no board"});
}

BOOST_AUTO_TEST_CASE(a_folder_goes_with_its_launcher_and_abandoned_ones_with_the_next) {
  std::string abandoned, parent;
  {
    const LaunchFolder living;
    parent = std::filesystem::path(living.path()).parent_path().string();
    BOOST_TEST(std::filesystem::is_directory(living.path()));
    BOOST_TEST((std::filesystem::status(living.path()).permissions() == std::filesystem::perms::owner_all));
    const pid_t child = ::fork();  // a launcher that is killed
    if (child == 0) {
      const LaunchFolder folder;
      std::ofstream(living.path() + "/other") << folder.path();
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    std::ifstream(living.path() + "/other") >> abandoned;
    BOOST_TEST(std::filesystem::exists(abandoned + "/lock"));
    {
      const LaunchFolder next;
      BOOST_TEST(!std::filesystem::exists(abandoned));
      BOOST_TEST(std::filesystem::exists(living.path()));
      BOOST_TEST(next.path() != living.path());
    }
    abandoned = living.path();
  }
  BOOST_TEST(!std::filesystem::exists(abandoned));
}

BOOST_AUTO_TEST_CASE(a_connected_rank_has_the_launchers_output_and_its_end_is_seen) {
  const LaunchFolder folder;
  const int listener = listen_for_ranks(folder.path(), 2);
  int pipe[2];
  BOOST_REQUIRE(::pipe(pipe) == 0);
  std::cout.flush();  // else the child may write what this process has said so far
  const pid_t launcher = ::fork();  // so that the test's own output stays what it is
  if (launcher == 0) {
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(pipe[1], STDERR_FILENO);
    const pid_t rank = ::fork();
    if (rank == 0) {
      const int null = ::open("/dev/null", O_WRONLY);
      for (const int stream : {1, 2}) ::dup2(null, stream);
      connect_to_launcher(folder.path(), 1);
      const bool written = ::write(STDOUT_FILENO, "out", 3) == 3 && ::write(STDERR_FILENO, "err", 3) == 3;
      ::_exit(written ? 0 : 1);
    }
    pollfd waiting{listener, POLLIN, 0};
    ::poll(&waiting, 1, 60000);
    const RankLink link = accept_rank(listener, 2);
    pollfd end{link.descriptor, POLLIN, 0};
    const bool right = link.rank == 1 && link.pid == rank && ::poll(&end, 1, 60000) == 1;
    char byte;
    ::_exit(right && ::read(link.descriptor, &byte, 1) == 0 ? 0 : 1);
  }
  ::close(pipe[1]);
  std::string text;
  char buffer[16];
  for (ssize_t count; (count = ::read(pipe[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(count));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(launcher, &status, 0);
  BOOST_TEST(status == 0);
  BOOST_TEST(text == "outerr");
  BOOST_TEST(accept_rank(listener, 2).rank == -1);  // nobody waits
  ::close(listener);
  check_error<FileError>([&] { connect_to_launcher(folder.path(), 0); }, {"launcher", "can not be reached"});
}

BOOST_AUTO_TEST_SUITE_END()
