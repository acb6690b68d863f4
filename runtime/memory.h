// Memory: a caching allocator with counters by category, and a step stack for workspaces.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// What memory is for. Counters and the memory table are kept per category.
enum class Category : uint8_t { parameters, gradients, optimizer, activations, workspace, data, other };
constexpr int category_count = 7;
std::string_view name_of(Category c);

struct MemoryCounters {
  int64_t current = 0;  ///< bytes handed out now
  int64_t peak = 0;     ///< most bytes handed out at once
  int64_t blocks = 0;   ///< blocks handed out so far (all calls)
};

/// Where an allocator's segments come from.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// At least 256-byte aligned; null where there is no room.
  virtual void* map(int64_t bytes) = 0;
  virtual void unmap(void* segment, int64_t bytes) noexcept = 0;
  /// Fills memory, in the order of the work on it.
  virtual void fill(void* to, unsigned char byte, int64_t bytes) = 0;
  /// Bytes that a segment should have at least where `reserved` are taken already, so that blocks of many sizes find room in it.
  virtual int64_t smallest_segment(int64_t reserved) const;
  /// Limit of an allocator that is given none; 0: none.
  virtual int64_t usual_limit() const { return 0; }
  /// Whose memory it is, for errors; "" for the host's.
  virtual std::string place() const { return {}; }
};

/// Best fit over large segments, with splitting and coalescing; memory is kept for reuse and never given back before destruction.
/// Thread-safe. A counting allocator (`backed = false`) gives addresses that must not be touched: the null device plans memory with it.
class Allocator {
 public:
  /// limit: bytes that may be reserved from the system, 0 for the source's own, if any. `poison` fills every block with 0xff (NaN) when handed out.
  explicit Allocator(bool backed = true, int64_t limit = 0, bool poison = false);
  /// The same over another memory than the host's.
  Allocator(std::shared_ptr<MemorySource> source, int64_t limit, bool poison);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// 64-byte aligned; bytes 0 gives a valid, distinct block. Throws OutOfMemoryError naming the biggest users,
  /// ShapeError for negative sizes.
  void* allocate(int64_t bytes, Category category);
  void release(void* block) noexcept;

  MemoryCounters counters(Category category) const;
  int64_t reserved() const;     ///< bytes taken from the system
  int64_t in_use() const;       ///< bytes handed out, all categories
  int64_t system_calls() const; ///< how often the system was asked for memory (constant in steady state)
  void reset_peaks();
  /// One line per category: bytes now and at most.
  std::string table() const;
  bool backed() const { return source_ != nullptr; }
  int64_t limit() const { return limit_; }  ///< bytes, 0 for none
  /// Where the allocator poisons: makes a block NaN that is handed out again.
  void poison_block(void* block, int64_t bytes);

 private:
  struct Block { int64_t bytes; bool free; int64_t segment; Category category; };
  void* take(std::map<char*, Block>::iterator it, int64_t bytes, Category category);
  /// Another segment that holds `bytes`, as a free block; false where there is no room.
  bool add_segment(int64_t bytes);
  [[noreturn]] void refuse(int64_t bytes, Category category) const;

  const std::shared_ptr<MemorySource> source_;  ///< null where addresses are only counted
  const bool poison_;
  const int64_t limit_;
  mutable std::mutex mutex_;
  std::map<char*, Block> blocks_;                 ///< by address
  std::set<std::pair<int64_t, char*>> free_;      ///< by size, then address
  std::vector<std::pair<char*, int64_t>> segments_;
  std::array<MemoryCounters, category_count> counters_{};
  int64_t reserved_ = 0;
};

/// Workspaces of one step: taken in order, given back in reverse, reused by the next operation.
/// Not thread-safe: only a rank's main thread takes (and shares what it took with its pool).
class StepStack {
 public:
  explicit StepStack(std::shared_ptr<Allocator> allocator);
  ~StepStack();
  int64_t peak() const { return peak_; }  ///< most bytes in use at once

 private:
  friend class Workspace;
  struct Chunk { char* data; int64_t bytes; };
  void* take(int64_t bytes);
  std::shared_ptr<Allocator> allocator_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;
  int64_t offset_ = 0, used_ = 0, peak_ = 0;
};

/// A scope on the step stack: everything taken through it is given back when it ends.
class Workspace {
 public:
  explicit Workspace(StepStack& stack);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  /// `count` elements, 64-byte aligned, uninitialised (poisoned where the allocator poisons).
  template <class T> T* take(int64_t count) { return static_cast<T*>(stack_.take(count * static_cast<int64_t>(sizeof(T)))); }

 private:
  StepStack& stack_;
  size_t chunk_;
  int64_t offset_, used_;
};

}  // namespace quire
