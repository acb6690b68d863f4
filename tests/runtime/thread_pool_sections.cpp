// Sections of changing length, one right after the other: a thread that comes late to one section must never run a chunk of it, or of the next, twice.
// (It once could, between the end of a section and the start of a longer one; this test died within seconds then.)
#include <atomic>

#include "check.h"
#include "runtime/thread_pool.h"

using namespace quire;

BOOST_AUTO_TEST_SUITE(thread_pool_sections)

BOOST_AUTO_TEST_CASE(every_chunk_once_in_many_sections_of_changing_length) {
  for (int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> hits(64);
    std::atomic<int64_t> wrong{0};
    for (int section = 0; section < 60000; ++section) {
      const int chunks = section % 3 == 0 ? 2 : section % 3 == 1 ? 3 : std::min(section % 64 + 2, 64);
      for (int i = 0; i < chunks; ++i) hits[static_cast<size_t>(i)] = 0;
      const int marker = section;  // lives in this frame: a chunk that runs later sees another value or dies
      pool.parallel_for(chunks, [&](int64_t chunk, int) {
        if (marker != section) ++wrong;
        ++hits[static_cast<size_t>(chunk)];
      });
      for (int i = 0; i < chunks; ++i) wrong += hits[static_cast<size_t>(i)] != 1;
    }
    BOOST_TEST(wrong == 0, threads << " threads: " << wrong << " wrong chunks");
  }
}

BOOST_AUTO_TEST_SUITE_END()
