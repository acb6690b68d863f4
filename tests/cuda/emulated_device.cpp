#include "device.h"

namespace quire::test {

const Device test_device = {DeviceKind::cuda, 0};

}  // namespace quire::test
