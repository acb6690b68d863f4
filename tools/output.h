// What the programs share about their output.
#pragma once
#include <cstdio>

#include "runtime/error.h"

/// Throws FileError where something that was printed did not arrive (a full disk): a program that lost output must not say that all went well.
inline void finish_output(const char* program) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) quire::fail<quire::FileError>(program, "standard output can not be written");
}
