// Memory between two pages that nobody may touch: one byte read or written before or after it ends the process.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <system_error>

namespace quire::test {

/// Room for values of T. What is taken of it ends at the last byte before a fence, or begins at the first byte after one.
template <class T>
class Fenced {
 public:
  explicit Fenced(int64_t most) : page_(::sysconf(_SC_PAGESIZE)), bytes_((most * static_cast<int64_t>(sizeof(T)) + page_ - 1) / page_ * page_) {
    map_ = static_cast<char*>(::mmap(nullptr, static_cast<size_t>(bytes_ + 2 * page_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    if (::mprotect(map_ + page_, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE) != 0) throw std::system_error(errno, std::generic_category(), "mprotect");
  }
  ~Fenced() { ::munmap(map_, static_cast<size_t>(bytes_ + 2 * page_)); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  /// Values are undefined; those taken before are no more.
  T* take(int64_t count, bool at_end = true) {
    const int64_t size = count * static_cast<int64_t>(sizeof(T));
    if (size > bytes_) throw std::length_error("more than the fenced memory holds");
    return reinterpret_cast<T*>(map_ + page_ + (at_end ? bytes_ - size : 0));
  }
  T* take(std::span<const T> values, bool at_end = true) {
    T* const to = take(static_cast<int64_t>(values.size()), at_end);
    std::copy(values.begin(), values.end(), to);
    return to;
  }

 private:
  int64_t page_, bytes_;
  char* map_;
};

}  // namespace quire::test
