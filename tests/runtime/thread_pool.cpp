// The thread pool: every chunk once, errors, polling, many short sections.
#include "runtime/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "check.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(thread_pool)

BOOST_AUTO_TEST_CASE(every_chunk_runs_once_on_a_thread_of_the_pool) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    BOOST_TEST(pool.threads() == threads);
    for (const int64_t chunks : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> ran(static_cast<size_t>(chunks));
      std::atomic<bool> right{true};
      pool.parallel_for(chunks, [&](int64_t chunk, int thread) {
        if (thread < 0 || thread >= threads) right = false;
        ++ran.at(static_cast<size_t>(chunk));
      });
      BOOST_TEST(right);
      for (const auto& count : ran) BOOST_REQUIRE_EQUAL(count.load(), 1);
    }
    pool.parallel_for(-3, [](int64_t, int) { BOOST_ERROR("a chunk of nothing"); });
  }
}

BOOST_AUTO_TEST_CASE(workers_are_bound_one_to_a_processor) {
  cpu_set_t before;
  BOOST_REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  const int allowed = CPU_COUNT(&before);
  for (const int first : {-1, 0, 1, 5}) {
    ThreadPool pool(3, first);
    std::mutex mutex;
    std::map<int, cpu_set_t> sets;  // by thread
    std::atomic<int> inside{0};
    pool.parallel_for(3, [&](int64_t, int thread) {  // each chunk waits for the two others
      ++inside;
      while (inside < 3) std::this_thread::yield();
      std::lock_guard lock(mutex);
      sched_getaffinity(0, sizeof sets[thread], &sets[thread]);
    });
    BOOST_TEST(CPU_EQUAL(&sets.at(0), &before));  // the caller stays where it is
    for (const int worker : {1, 2}) {
      BOOST_TEST(CPU_COUNT(&sets.at(worker)) == (first < 0 ? allowed : 1));
      int place = (first + worker) % allowed, processor = 0;
      for (; first >= 0 && processor < CPU_SETSIZE; ++processor)
        if (CPU_ISSET(processor, &before) && place-- == 0) break;
      BOOST_TEST((first < 0 || CPU_ISSET(processor, &sets.at(worker))));
    }
  }
}

BOOST_AUTO_TEST_CASE(all_threads_can_work_at_once) {
  ThreadPool pool(3);
  std::atomic<int> inside{0};
  std::set<int> threads;
  std::mutex mutex;
  pool.parallel_for(3, [&](int64_t, int thread) {  // each chunk waits for the two others
    ++inside;
    while (inside < 3) std::this_thread::yield();
    std::lock_guard lock(mutex);
    threads.insert(thread);
  });
  BOOST_TEST(threads.size() == 3u);
}

BOOST_AUTO_TEST_CASE(results_are_visible_after_many_short_sections) {
  ThreadPool pool(3);
  std::vector<int64_t> values(16, 0);  // plain memory: the sections themselves must order the accesses
  for (int section = 0; section < 5000; ++section)
    pool.parallel_for(16, [&](int64_t chunk, int) { values[static_cast<size_t>(chunk)] += values[static_cast<size_t>(chunk)] % 2 + 1; });
  int64_t expected = 0;
  for (int section = 0; section < 5000; ++section) expected += expected % 2 + 1;
  for (const int64_t value : values) BOOST_REQUIRE_EQUAL(value, expected);
}

BOOST_AUTO_TEST_CASE(an_exception_is_rethrown_and_the_pool_lives_on) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> running{0};
      const auto task = [&](int64_t chunk, int) {
        ++running;
        if (chunk == round % 20) {
          --running;
          throw DataError("[task] wrong");
        }
        --running;
      };
      BOOST_CHECK_THROW(pool.parallel_for(20, task), DataError);
      BOOST_REQUIRE_EQUAL(running.load(), 0);  // nothing still runs the task that is about to be destroyed
      std::atomic<int> ran{0};
      pool.parallel_for(20, [&](int64_t, int) { ++ran; });
      BOOST_REQUIRE_EQUAL(ran.load(), 20);
    }
  }
}

BOOST_AUTO_TEST_CASE(nested_sections_are_refused) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads), other(1);
    for (const int64_t chunks : {1, 4}) {
      check_error<StateError>([&] { pool.parallel_for(chunks, [&](int64_t, int) { pool.parallel_for(1, [](int64_t, int) {}); }); },
                              {"[threads]", "parallel_for inside parallel_for"});
    }
    int ran = 0;  // another pool is fine, and the refusal left this one free
    pool.parallel_for(1, [&](int64_t, int) { other.parallel_for(1, [&](int64_t, int) { ++ran; }); });
    BOOST_TEST(ran == 1);
  }
}

BOOST_AUTO_TEST_CASE(poll_is_called_between_chunks_and_while_waiting) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> polls{0};
    bool elsewhere = false;
    pool.set_poll([&] {
      ++polls;
      elsewhere = elsewhere || std::this_thread::get_id() != caller;
    });
    pool.parallel_for(1, [](int64_t, int) {});
    BOOST_TEST(polls.load() > 0);
    if (threads > 1) {  // one thread's chunk ends only after the caller polled twice more while it waits
      std::atomic<int> waiting{0};
      pool.parallel_for(2, [&](int64_t, int thread) {
        ++waiting;
        while (waiting < 2) std::this_thread::yield();
        if (thread == 0) return;
        const int before = polls;
        while (polls < before + 2) std::this_thread::yield();
      });
    }
    BOOST_TEST(!elsewhere);
    pool.set_poll({});
    pool.poll();
  }
}

BOOST_AUTO_TEST_CASE(what_poll_throws_leaves_the_section_after_the_others_are_done) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    pool.set_poll([] { throw StateError("[poll] a peer is gone"); });
    for (int round = 0; round < 100; ++round) {
      std::atomic<int> running{0};
      BOOST_CHECK_THROW(pool.parallel_for(6,
                                          [&](int64_t, int) {
                                            ++running;
                                            std::this_thread::yield();
                                            --running;
                                          }),
                        StateError);
      BOOST_REQUIRE_EQUAL(running.load(), 0);
    }
    pool.set_poll({});
    pool.parallel_for(6, [](int64_t, int) {});
  }
}

BOOST_AUTO_TEST_CASE(pools_come_and_go) {
  for (int i = 0; i < 100; ++i) {
    ThreadPool unused(4), used(3, i % 2 == 0);
    std::atomic<int> ran{0};
    used.parallel_for(5, [&](int64_t, int) { ++ran; });
    BOOST_REQUIRE_EQUAL(ran.load(), 5);
  }
  check_error<ConfigError>([] { ThreadPool pool(0); }, {"[threads]", "0 threads", "1 or more"});
}

BOOST_AUTO_TEST_CASE(chunks_cover) {
  BOOST_TEST(chunks_of(0, 4) == 0);
  BOOST_TEST(chunks_of(1, 4) == 1);
  BOOST_TEST(chunks_of(4, 4) == 1);
  BOOST_TEST(chunks_of(5, 4) == 2);
}

BOOST_AUTO_TEST_SUITE_END()
