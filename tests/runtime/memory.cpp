// The allocator against a literal model of memory, and the step stack.
#include "runtime/memory.h"

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "check.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr int64_t mebibyte = int64_t{1} << 20;

/// What is handed out, by address: the literal model.
struct Held {
  int64_t bytes;
  Category category;
  unsigned char mark;
};

int64_t rounded(int64_t bytes) { return std::max<int64_t>(64, (bytes + 63) / 64 * 64); }

void random_use(Allocator& allocator, uint64_t seed, int operations) {
  std::mt19937_64 random(seed);
  std::map<char*, Held> model;
  std::array<int64_t, category_count> current{}, peak{}, blocks{};
  const auto release = [&](std::map<char*, Held>::iterator it) {
    if (allocator.backed())
      for (int64_t i : {int64_t{0}, it->second.bytes / 2, it->second.bytes - 1})
        if (it->second.bytes > 0) BOOST_REQUIRE_EQUAL(static_cast<unsigned char>(it->first[i]), it->second.mark);  // nobody else wrote here
    current[static_cast<size_t>(it->second.category)] -= rounded(it->second.bytes);
    allocator.release(it->first);
    model.erase(it);
  };
  for (int operation = 0; operation < operations; ++operation) {
    if (model.size() < 5 || (random() % 5 < 3 && model.size() < 200)) {
      const int64_t bytes = random() % 20 == 0 ? static_cast<int64_t>(random() % static_cast<uint64_t>(20 * mebibyte)) : static_cast<int64_t>(random() % 100'000);
      const auto category = static_cast<Category>(random() % category_count);
      const auto c = static_cast<size_t>(category);
      char* block = static_cast<char*>(allocator.allocate(bytes, category));
      BOOST_REQUIRE_EQUAL(reinterpret_cast<uintptr_t>(block) % 64, 0u);
      const auto next = model.lower_bound(block);
      if (next != model.end()) BOOST_REQUIRE(block + rounded(bytes) <= next->first);
      if (next != model.begin()) BOOST_REQUIRE(std::prev(next)->first + rounded(std::prev(next)->second.bytes) <= block);
      const auto mark = static_cast<unsigned char>(random());
      if (allocator.backed()) std::memset(block, mark, static_cast<size_t>(bytes));
      model.emplace(block, Held{bytes, category, mark});
      current[c] += rounded(bytes);
      peak[c] = std::max(peak[c], current[c]);
      ++blocks[c];
    } else {
      release(std::next(model.begin(), static_cast<int64_t>(random() % model.size())));
    }
    int64_t in_use = 0;
    for (size_t c = 0; c < current.size(); ++c) {
      const MemoryCounters counters = allocator.counters(static_cast<Category>(c));
      BOOST_REQUIRE_EQUAL(counters.current, current[c]);
      BOOST_REQUIRE_EQUAL(counters.peak, peak[c]);
      BOOST_REQUIRE_EQUAL(counters.blocks, blocks[c]);
      in_use += current[c];
    }
    BOOST_REQUIRE_EQUAL(allocator.in_use(), in_use);
    BOOST_REQUIRE(allocator.reserved() >= in_use);
  }
  while (!model.empty()) release(model.begin());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(memory)

BOOST_AUTO_TEST_CASE(random_use_follows_the_model) {
  for (const bool backed : {true, false}) {
    Allocator allocator(backed);
    random_use(allocator, 1, 2000);
    BOOST_TEST(allocator.in_use() == 0);
    allocator.reset_peaks();
    for (int c = 0; c < category_count; ++c) BOOST_TEST(allocator.counters(static_cast<Category>(c)).peak == 0);
  }
}

BOOST_AUTO_TEST_CASE(released_neighbours_become_one_block_again) {
  Allocator allocator;
  // A segment is cut into blocks, freed in a scattered order, and must serve one block of its whole size.
  std::vector<void*> blocks;
  constexpr int64_t block = mebibyte / 2;
  for (int i = 0; i < 32; ++i) blocks.push_back(allocator.allocate(block, Category::other));
  BOOST_TEST(allocator.system_calls() == 1);
  for (int i = 0; i < 32; ++i) allocator.release(blocks[static_cast<size_t>(i * 13 % 32)]);
  void* whole = allocator.allocate(32 * block, Category::other);
  BOOST_TEST(allocator.system_calls() == 1);
  allocator.release(whole);
  BOOST_TEST(allocator.in_use() == 0);
}

BOOST_AUTO_TEST_CASE(the_best_fit_is_taken) {
  Allocator allocator;
  void* large = allocator.allocate(mebibyte, Category::other);
  void* wall1 = allocator.allocate(64, Category::other);
  void* small = allocator.allocate(64 * 1024, Category::other);
  void* wall2 = allocator.allocate(64, Category::other);
  allocator.release(large);
  allocator.release(small);
  BOOST_TEST(allocator.allocate(60 * 1024, Category::other) == small);
  for (void* wall : {wall1, wall2}) allocator.release(wall);
}

BOOST_AUTO_TEST_CASE(a_steady_state_asks_the_system_for_nothing) {
  Allocator allocator;
  int64_t calls = 0, reserved = 0;
  for (int step = 0; step < 200; ++step) {
    std::mt19937_64 random(7);  // every step is the same
    std::vector<void*> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(allocator.allocate(static_cast<int64_t>(random() % static_cast<uint64_t>(2 * mebibyte)), Category::activations));
    while (!blocks.empty()) {
      const size_t at = random() % blocks.size();
      allocator.release(blocks[at]);
      blocks.erase(blocks.begin() + static_cast<int64_t>(at));
    }
    if (step == 0) {
      calls = allocator.system_calls();
      reserved = allocator.reserved();
    }
    BOOST_REQUIRE_EQUAL(allocator.system_calls(), calls);
    BOOST_REQUIRE_EQUAL(allocator.reserved(), reserved);
  }
}

BOOST_AUTO_TEST_CASE(the_limit_names_the_biggest_users_first) {
  Allocator allocator(true, 64 * mebibyte);
  void* parameters = allocator.allocate(20 * mebibyte, Category::parameters);
  void* activations = allocator.allocate(30 * mebibyte, Category::activations);
  check_error<OutOfMemoryError>([&] { allocator.allocate(40 * mebibyte, Category::workspace); },
                                {"[memory]", "40.0 MiB more for workspace", "limit 64.0 MiB", "biggest users: activations 30.0 MiB, parameters 20.0 MiB"});
  allocator.release(activations);
  allocator.release(allocator.allocate(30 * mebibyte, Category::workspace));  // what was given back serves again
  allocator.release(parameters);
  BOOST_TEST(allocator.reserved() <= 64 * mebibyte);
  check_error<OutOfMemoryError>([&] { allocator.allocate(int64_t{1} << 62, Category::data); }, {"[memory]", "data"});
  check_error<ShapeError>([&] { allocator.allocate(-1, Category::data); }, {"[memory]", "-1"});
  // A limit below the usual segment is no reason to refuse what fits.
  Allocator small(true, mebibyte);
  void* block = small.allocate(1000, Category::data);
  BOOST_TEST(small.reserved() <= mebibyte);
  small.release(block);
}

BOOST_AUTO_TEST_CASE(poison_fills_reused_memory_too) {
  Allocator allocator(true, 0, true);
  for (int round = 0; round < 3; ++round) {
    unsigned char* block = static_cast<unsigned char*>(allocator.allocate(1000, Category::other));
    for (int i = 0; i < 1000; ++i) BOOST_REQUIRE_EQUAL(block[i], 0xff);
    float value;
    std::memcpy(&value, block, sizeof value);
    BOOST_TEST(std::isnan(value));
    std::memset(block, 0, 1000);
    allocator.release(block);
  }
}

BOOST_AUTO_TEST_CASE(a_counting_allocator_plans_more_than_any_machine_has) {
  Allocator allocator(false, 0, true);  // poison must not touch it either
  std::map<char*, int64_t> blocks;
  for (int i = 0; i < 64; ++i) blocks.emplace(static_cast<char*>(allocator.allocate(int64_t{1} << 40, Category::parameters)), int64_t{1} << 40);
  BOOST_TEST(blocks.size() == 64u);
  const char* end = nullptr;
  for (const auto& [block, bytes] : blocks) {
    BOOST_TEST(static_cast<const void*>(end) <= static_cast<const void*>(block));
    end = block + bytes;
  }
  BOOST_TEST(allocator.counters(Category::parameters).current == int64_t{64} << 40);
  BOOST_TEST(allocator.table().find("parameters") != std::string::npos);
  BOOST_TEST(allocator.table().find("optimizer") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(blocks_of_no_bytes_are_distinct_and_null_is_ignored) {
  Allocator allocator;
  void* a = allocator.allocate(0, Category::other);
  void* b = allocator.allocate(0, Category::other);
  BOOST_TEST(a != b);
  allocator.release(nullptr);
  allocator.release(a);
  allocator.release(b);
  BOOST_TEST(allocator.in_use() == 0);
}

BOOST_AUTO_TEST_CASE(threads_may_share_an_allocator) {
  Allocator allocator;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < 1000; ++i) {
        const int64_t bytes = 1 + static_cast<int64_t>(random() % 5000);
        auto* block = static_cast<unsigned char*>(allocator.allocate(bytes, Category::other));
        std::memset(block, t, static_cast<size_t>(bytes));
        if (block[bytes - 1] != t || block[0] != t) ++wrong;
        allocator.release(block);
      }
    });
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(wrong.load() == 0);
  BOOST_TEST(allocator.in_use() == 0);
}

BOOST_AUTO_TEST_CASE(workspaces_nest_and_give_back) {
  const auto allocator = std::make_shared<Allocator>();
  {
    StepStack stack(allocator);
    int64_t calls = 0;
    for (int step = 0; step < 20; ++step) {
      Workspace outer(stack);
      double* a = outer.take<double>(1000);
      BOOST_REQUIRE_EQUAL(reinterpret_cast<uintptr_t>(a) % 64, 0u);
      for (int i = 0; i < 1000; ++i) a[i] = step;
      const char* first_inner = nullptr;
      for (int round = 0; round < 3; ++round) {
        Workspace inner(stack);
        char* b = inner.take<char>(3);
        char* c = inner.take<char>(5 * mebibyte);  // more than a chunk
        float* d = inner.take<float>(0);
        BOOST_REQUIRE_GE(b - reinterpret_cast<char*>(a), 8000);
        BOOST_REQUIRE_GE(std::abs(c - b), 3);
        BOOST_REQUIRE(d != nullptr);
        std::memset(b, 1, 3);
        std::memset(c, 2, static_cast<size_t>(5 * mebibyte));
        if (round > 0) BOOST_REQUIRE(b == first_inner);  // the same memory again
        first_inner = b;
      }
      for (int i = 0; i < 1000; ++i) BOOST_REQUIRE_EQUAL(a[i], step);
      if (step == 0) calls = allocator->counters(Category::workspace).blocks;
      BOOST_REQUIRE_EQUAL(allocator->counters(Category::workspace).blocks, calls);
    }
    BOOST_TEST(stack.peak() >= 8000 + 5 * mebibyte);
    BOOST_TEST(stack.peak() < 8000 + 5 * mebibyte + 4 * 64);
  }
  BOOST_TEST(allocator->in_use() == 0);
}

BOOST_AUTO_TEST_CASE(workspaces_are_poisoned_every_time) {
  const auto allocator = std::make_shared<Allocator>(true, 0, true);
  StepStack stack(allocator);
  for (int round = 0; round < 3; ++round) {
    Workspace workspace(stack);
    double* values = workspace.take<double>(100);
    for (int i = 0; i < 100; ++i) {
      BOOST_REQUIRE(std::isnan(values[i]));
      values[i] = 0;
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
