// Files for tests: text in any file system, and the models and references made outside, where they are present.
#pragma once
#include <span>
#include <string>

#include "check.h"
#include "runtime/file.h"

namespace quire::test {

inline void put_text(FileSystem& fs, const std::string& path, const std::string& text) { fs.create(path)->write(std::as_bytes(std::span(text))); }

/// The folder of models and references that were made outside.
inline const std::string cases = std::string(QUIRE_SOURCE_ROOT) + "/../shared/cases";

/// Whether they are there; says that the test is skipped where not.
inline bool cases_present() {
  if (disk().exists(cases + "/README.md")) return true;
  BOOST_TEST_MESSAGE("skipped: " << cases << " is absent");
  return false;
}

}  // namespace quire::test
