// Whether CUDA is the emulation of the tests. Each kind of build has its own file with the answer.
#pragma once

namespace quire {

bool cuda_is_emulated();

}  // namespace quire
