#include "runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "runtime/error.h"

namespace quire {

namespace {

constexpr int64_t alignment = 64;
constexpr int64_t huge_page = int64_t{2} << 20;  ///< segments are whole huge pages
constexpr int64_t smallest_host_segment = int64_t{16} << 20;
constexpr int64_t page = 4096;
constexpr int64_t largest_block = int64_t{1} << 60;
constexpr int64_t first_counted_address = int64_t{1} << 44;

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Memory from the system, null where there is none. It begins at a huge page and asks for huge pages: rows of a matrix that are pages apart would
/// otherwise take one entry each of the processor's address cache.
void* map_memory(int64_t bytes) {
  const int64_t mapped = bytes + huge_page;
  void* const data = ::mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(data);
  const int64_t before = (huge_page - reinterpret_cast<int64_t>(begin) % huge_page) % huge_page;
  if (before > 0) ::munmap(begin, static_cast<size_t>(before));
  ::munmap(begin + before + bytes, static_cast<size_t>(huge_page - before));
  ::madvise(begin + before, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: ordinary pages do as well
  return begin + before;
}

class HostMemory final : public MemorySource {
 public:
  void* map(int64_t bytes) override { return map_memory(bytes); }
  void unmap(void* segment, int64_t bytes) noexcept override { ::munmap(segment, static_cast<size_t>(bytes)); }
  void fill(void* to, unsigned char byte, int64_t bytes) override { std::memset(to, byte, static_cast<size_t>(bytes)); }
};

/// A source that is asked for no memory: addresses that are only counted come in the host's segments.
const HostMemory host_memory{};

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace

int64_t MemorySource::smallest_segment(int64_t) const { return smallest_host_segment; }

std::string_view name_of(Category c) {
  constexpr std::string_view names[category_count] = {"parameters", "gradients", "optimizer", "activations", "workspace", "data", "other"};
  return names[static_cast<int>(c)];
}

Allocator::Allocator(bool backed, int64_t limit, bool poison) : Allocator(backed ? std::make_shared<HostMemory>() : nullptr, limit, poison) {}

Allocator::Allocator(std::shared_ptr<MemorySource> source, int64_t limit, bool poison) : source_(std::move(source)), poison_(poison),
      limit_(limit > 0 || !source_ ? limit : source_->usual_limit()) {}

Allocator::~Allocator() {
  if (source_)
    for (const auto& [data, bytes] : segments_) source_->unmap(data, bytes);
}

void* Allocator::take(std::map<char*, Block>::iterator it, int64_t bytes, Category category) {
  auto& [address, block] = *it;
  free_.erase({block.bytes, address});
  if (block.bytes - bytes >= alignment) {
    char* rest = address + bytes;
    blocks_.emplace(rest, Block{block.bytes - bytes, true, block.segment, category});
    free_.insert({block.bytes - bytes, rest});
    block.bytes = bytes;
  }
  block.free = false;
  block.category = category;
  MemoryCounters& counters = counters_[static_cast<size_t>(category)];
  counters.current += bytes;
  counters.peak = std::max(counters.peak, counters.current);
  ++counters.blocks;
  return address;
}

bool Allocator::add_segment(int64_t bytes) {
  const MemorySource& source = source_ ? *source_ : static_cast<const MemorySource&>(host_memory);
  const auto map = [&](int64_t segment) -> void* {
    if (limit_ > 0 && reserved_ + segment > limit_) return nullptr;
    return source_ ? source_->map(segment) : reinterpret_cast<void*>(first_counted_address + 2 * reserved_);  // gaps: no two segments touch
  };
  int64_t segment = round_up(std::max(bytes, source.smallest_segment(reserved_)), huge_page);
  void* data = map(segment);
  if (data == nullptr) {  // near the limit: no more than needed
    segment = round_up(bytes, page);
    data = map(segment);
  }
  if (data == nullptr) return false;
  char* const address = static_cast<char*>(data);
  blocks_.emplace(address, Block{segment, true, static_cast<int64_t>(segments_.size()), Category::other});
  segments_.emplace_back(address, segment);
  reserved_ += segment;
  free_.insert({segment, address});
  return true;
}

void Allocator::refuse(int64_t bytes, Category category) const {
  std::vector<std::pair<int64_t, std::string>> users;
  for (int c = 0; c < category_count; ++c)
    if (counters_[static_cast<size_t>(c)].current > 0)
      users.emplace_back(counters_[static_cast<size_t>(c)].current, std::string(name_of(static_cast<Category>(c))));
  std::sort(users.rbegin(), users.rend());
  std::string list;
  for (const auto& [used, name] : users) list += fmt::format("{}{} {}", list.empty() ? "" : ", ", name, mebibytes(used));
  const std::string place = source_ ? source_->place() : std::string();
  fail<OutOfMemoryError>("memory", "{} more for {} does not fit{}: {} reserved{}; biggest users: {}{}", mebibytes(bytes), name_of(category),
                         place.empty() ? "" : " in the memory of " + place, mebibytes(reserved_), limit_ > 0 ? ", limit " + mebibytes(limit_) : "",
                         list.empty() ? "none" : list, free_.empty() ? "" : "; largest free block: " + mebibytes(free_.rbegin()->first));
}

void* Allocator::allocate(int64_t bytes, Category category) {
  if (bytes < 0) fail<ShapeError>("memory", "{} bytes asked for", bytes);
  if (bytes > largest_block) fail<OutOfMemoryError>("memory", "{} bytes for {}: no machine has that", bytes, name_of(category));
  bytes = std::max(alignment, round_up(bytes, alignment));
  void* result = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto fit = free_.lower_bound({bytes, nullptr});
    // Of whole free segments the one taken first from the system: the last one may have pages that were never touched.
    if (fit != free_.end() && fit->first >= smallest_host_segment)
      for (auto it = std::next(fit); it != free_.end() && it->first == fit->first; ++it)
        if (blocks_.at(it->second).segment < blocks_.at(fit->second).segment) fit = it;
    if (fit == free_.end()) {
      if (!add_segment(bytes)) refuse(bytes, category);
      fit = free_.lower_bound({bytes, nullptr});
    }
    result = take(blocks_.find(fit->second), bytes, category);
  }
  poison_block(result, bytes);
  return result;
}

void Allocator::poison_block(void* block, int64_t bytes) {
  if (poison_ && source_) source_->fill(block, 0xff, bytes);
}

void Allocator::release(void* pointer) noexcept {
  if (pointer == nullptr) return;
  std::lock_guard lock(mutex_);
  auto it = blocks_.find(static_cast<char*>(pointer));
  if (it == blocks_.end() || it->second.free) return;
  counters_[static_cast<size_t>(it->second.category)].current -= it->second.bytes;
  it->second.free = true;
  const auto next = std::next(it);
  if (next != blocks_.end() && next->second.free && next->second.segment == it->second.segment) {
    free_.erase({next->second.bytes, next->first});
    it->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (it != blocks_.begin()) {
    const auto previous = std::prev(it);
    if (previous->second.free && previous->second.segment == it->second.segment) {
      free_.erase({previous->second.bytes, previous->first});
      previous->second.bytes += it->second.bytes;
      blocks_.erase(it);
      it = previous;
    }
  }
  free_.insert({it->second.bytes, it->first});
}

MemoryCounters Allocator::counters(Category category) const {
  std::lock_guard lock(mutex_);
  return counters_[static_cast<size_t>(category)];
}

int64_t Allocator::reserved() const {
  std::lock_guard lock(mutex_);
  return reserved_;
}

int64_t Allocator::in_use() const {
  std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const MemoryCounters& c : counters_) total += c.current;
  return total;
}

int64_t Allocator::system_calls() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(segments_.size());
}

void Allocator::reset_peaks() {
  std::lock_guard lock(mutex_);
  for (MemoryCounters& c : counters_) c.peak = c.current;
}

std::string Allocator::table() const {
  std::string text;
  for (int c = 0; c < category_count; ++c) {
    const MemoryCounters counters_now = counters(static_cast<Category>(c));
    if (counters_now.peak > 0)
      text += fmt::format("{:<12} {:>12} now {:>12} at most\n", name_of(static_cast<Category>(c)), mebibytes(counters_now.current), mebibytes(counters_now.peak));
  }
  return text + fmt::format("{:<12} {:>12}\n", "reserved", mebibytes(reserved()));
}

StepStack::StepStack(std::shared_ptr<Allocator> allocator) : allocator_(std::move(allocator)) {}

StepStack::~StepStack() {
  for (const Chunk& chunk : chunks_) allocator_->release(chunk.data);
}

void* StepStack::take(int64_t bytes) {
  bytes = std::max(alignment, round_up(bytes, alignment));
  while (chunk_ < chunks_.size() && offset_ + bytes > chunks_[chunk_].bytes) {
    ++chunk_;
    offset_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const int64_t size = std::max(bytes, int64_t{1} << 20);
    chunks_.push_back({static_cast<char*>(allocator_->allocate(size, Category::workspace)), size});
    offset_ = 0;
  }
  char* result = chunks_[chunk_].data + offset_;
  offset_ += bytes;
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  allocator_->poison_block(result, bytes);
  return result;
}

Workspace::Workspace(StepStack& stack) : stack_(stack), chunk_(stack.chunk_), offset_(stack.offset_), used_(stack.used_) {}

Workspace::~Workspace() {
  stack_.chunk_ = chunk_;
  stack_.offset_ = offset_;
  stack_.used_ = used_;
}

}  // namespace quire
