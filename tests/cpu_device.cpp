#include "device.h"

namespace quire::test {

const Device test_device = {};

}  // namespace quire::test
