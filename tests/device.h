// Where this program's tests compute: on the CPU, or, in test_cuda, on an emulated device, for which some of the other programs' tests are compiled again.
#pragma once
#include <boost/test/unit_test.hpp>
#include <initializer_list>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/rank.h"

namespace quire::test {

extern const Device test_device;
inline bool on_cpu() { return test_device.kind == DeviceKind::cpu; }

/// The same options on the program's device; f64 is the CPU's alone.
inline RankOptions on_device(RankOptions options = {}, DType dtype = DType::f32) {
  if (dtype != DType::f64) options.device = test_device;
  return options;
}

/// Those of `all` in which the device computes.
inline std::vector<DType> device_dtypes(std::initializer_list<DType> all) {
  std::vector<DType> list(all);
  if (!on_cpu()) std::erase(list, DType::f64);
  return list;
}
inline std::vector<const char*> device_backends() { return on_cpu() ? std::vector<const char*>{"block", "dense"} : std::vector<const char*>{"block"}; }

inline boost::test_tools::assertion_result computes_on_cpu(boost::unit_test::test_unit_id) { return on_cpu(); }
/// For a case that says nothing about another device.
inline boost::unit_test::precondition cpu_only() { return boost::unit_test::precondition(computes_on_cpu); }

}  // namespace quire::test
