// What nearly every test includes, compiled once for each test program.
// (A precompiled header is a main file: no #pragma once.)
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>
