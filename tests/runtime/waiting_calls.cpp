// No operation, layer or layout waits for a device: the sources name no call that does.
#include <filesystem>
#include <fstream>
#include <map>

#include "check.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Calls of CUDA's runtime that wait, and its copies that do.
std::vector<std::string> waiting_calls(const std::string& text) {
  std::vector<std::string> found;
  for (const char* call : {"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMemcpy2D", "cudaMemcpy3D", "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol",
                           "cudaMemset", "cudaMemset2D", "cuCtxSynchronize", "cuStreamSynchronize", "cuMemcpy"}) {
    const std::string name = call;
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
      const size_t after = text.find_first_not_of(" \n", at + name.size());
      const bool whole = at == 0 || !(std::isalnum(static_cast<unsigned char>(text[at - 1])) || text[at - 1] == '_');
      if (whole && after != std::string::npos && text[after] == '(') found.push_back(name);
    }
  }
  return found;
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(waiting_for_a_device)

BOOST_AUTO_TEST_CASE(no_source_above_the_device_layer_waits) {
  int64_t files = 0, kernels = 0;
  for (const char* folder : {"ops", "model", "parallel", "data", "run", "tools"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(std::filesystem::path(QUIRE_SOURCE_ROOT) / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".h" && extension != ".cu") continue;
      ++files;
      kernels += extension == ".cu";
      for (const std::string& call : waiting_calls(contents(entry.path()))) BOOST_ERROR(entry.path().string() << " calls " << call);
    }
  BOOST_TEST(files > 250);
  BOOST_TEST(kernels > 3);
}

// In the device layer: one wait for the stream where `synchronize` is asked for and one where a device is given back, none for a whole device.
BOOST_AUTO_TEST_CASE(the_device_layer_waits_where_it_is_asked_to) {
  std::map<std::string, int> waits;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(QUIRE_SOURCE_ROOT) / "runtime/cuda"))
    for (const std::string& call : waiting_calls(contents(entry.path()))) ++waits[entry.path().filename().string() + " " + call];
  BOOST_TEST((waits == std::map<std::string, int>{{"device.cpp cudaStreamSynchronize", 2}, {"staging.cpp cudaEventSynchronize", 2}}));
}

// Broken on purpose: each call in a source that is made up.
BOOST_AUTO_TEST_CASE(calls_that_wait_are_found) {
  BOOST_TEST(waiting_calls("check_cuda(cudaMemcpy(to, from, 4, cudaMemcpyHostToDevice), \"copy\");") == std::vector<std::string>{"cudaMemcpy"}, boost::test_tools::per_element());
  BOOST_TEST(waiting_calls("cudaDeviceSynchronize ();") == std::vector<std::string>{"cudaDeviceSynchronize"}, boost::test_tools::per_element());
  BOOST_TEST(waiting_calls("cudaMemcpyAsync(to, from, 4, cudaMemcpyDeviceToDevice, s); cudaMemsetAsync(to, 0, 4, s); my_cudaMemcpy(x);").empty());
}

BOOST_AUTO_TEST_SUITE_END()
