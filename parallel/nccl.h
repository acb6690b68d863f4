// Tensors of CUDA devices between ranks: NCCL, beside a communicator that carries host memory.
//
// A rank's device messages go through two kinds of NCCL communicators, all made by `connect` before the first of them, so that no message waits for one on the host:
//
// - A message of one ordered pair of ranks goes through the pair's channel: a communicator of these two ranks with a stream of its own on both. So messages of a
//   pair go one after the other, and those of different pairs never wait for each other: plans that are right under synchronous sends are right here.
// - What is posted in `together` (all collectives do that) goes out as one group of NCCL's through a communicator of the whole group of ranks. All groups of a
//   rank (context, replicas, world, ...) use one stream for it, in the order of the program, which is the same on all of their ranks: with any two of them in
//   flight, those that both have come in the same order to every rank that has both, so that none waits for one behind it.
//
// Each of them first waits, on its device, for the work that was submitted before it was posted. NCCL's kernels occupy few multiprocessors while they wait, and a
// bounded number: communicators are made with a limit of thread blocks, and `prepare_cuda_connections` gives every stream a hardware queue of its own.
//
// A thread beside each rank asks NCCL for errors and devices for messages that have been waiting longer than the watchdog's time: it says so as for host messages,
// then ends NCCL's kernels (ncclCommAbort), so that nothing hangs; the rank's next call throws.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "parallel/communicator.h"

namespace quire {

/// Whether NCCL's headers were there when this was built.
bool nccl_is_built();
/// Of the library that is found, `2.28.9`. Throws UnsupportedError where there is none (or no NCCL in this build) or it is too old.
std::string nccl_version();

/// The same group as `control`, which carries host memory, for tensors of devices too (see `Communicator::connect`). Not collective. `control` itself where NCCL is not built.
std::unique_ptr<Communicator> with_device_memory(std::unique_ptr<Communicator> control);

/// `run_local` with ranks that also carry tensors of their devices (a device each, which `body` makes).
void run_local_on_devices(int ranks, const CommunicatorOptions& options, const std::function<void(Communicator& world)>& body);

/// Lets all streams of this process's devices work independently of each other (CUDA_DEVICE_MAX_CONNECTIONS, where the environment does not say otherwise). Before the first
/// use of a device and of other threads.
void prepare_cuda_connections();

}  // namespace quire
