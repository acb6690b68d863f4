// Pipeline schedules as plain values: which rank computes what in which order, and the sends and receives that follow from it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

enum class ActionKind : uint8_t {
  forward,          ///< F
  backward,         ///< B: input and weight gradients
  backward_input,   ///< I: input gradients only
  backward_weight,  ///< W: the weight gradients that I left
};

/// One computation. PyTorch writes it as `2F0`: stage 2, forward, microbatch 0.
struct Action {
  ActionKind kind = ActionKind::forward;
  int64_t stage = 0, microbatch = 0;
  bool operator==(const Action&) const = default;
};
std::string to_string(const Action& action);

/// Which rank holds which stage and what each rank computes, in order.
struct PipelineSchedule {
  std::string name;
  int64_t ranks = 1, stages = 1, microbatches = 0;
  std::vector<int64_t> rank_of_stage;         ///< [stages]
  std::vector<std::vector<Action>> actions;   ///< [ranks]
};
/// One line per rank, `0F0,0F1,0B0,0B1`: PyTorch's compute-only CSV.
std::string describe(const PipelineSchedule& schedule);

/// The rank of each stage of a schedule [ranks * chunks]: stage s on rank s mod ranks; for zb_v down the ranks and back up, 0 1 2 2 1 0.
/// Throws ConfigError for fewer than 1 rank or chunk.
std::vector<int64_t> place_stages(std::string_view schedule, int64_t ranks, int64_t chunks);

/// gpipe (Huang et al., 2019), 1f1b (PipeDream-Flush: Narayanan et al., 2021), interleaved_1f1b with `chunks` stages per rank (Megatron-LM: Narayanan
/// et al., 2021), zb_h1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023) and zb_v with two stages per rank (there, and Qi et al., "Pipeline
/// Parallelism with Controllable Memory", 2024), the last two with split backward; stages as `place_stages` places them. Any number of microbatches, 0
/// and fewer than stages included. Each stage does its passes of every kind in ascending order of microbatches. Throws ConfigError for an unknown name,
/// and for chunks that the schedule can not have.
PipelineSchedule make_schedule(std::string_view name, int64_t ranks, int64_t chunks, int64_t microbatches);
/// Forward passes only, stage s on rank s mod ranks: evaluation.
PipelineSchedule forward_schedule(int64_t ranks, int64_t chunks, int64_t microbatches);
/// The same over any placement of stages [stages] on the ranks 0 to `ranks` - 1. Throws ScheduleError for another rank.
PipelineSchedule forward_schedule(const std::vector<int64_t>& rank_of_stage, int64_t ranks, int64_t microbatches);
/// Every B as I right there and its W as late as possible, without keeping more than `delay` of them back on a rank: for tests of split backward.
PipelineSchedule split_backward(const PipelineSchedule& schedule, int64_t delay);

/// Throws ScheduleError naming rank and action unless every stage forwards every microbatch once and (where any backward is there) backwards it
/// once, by B or by I then W, after its forward, on the rank that holds the stage, and the order can be carried out.
void check_schedule(const PipelineSchedule& schedule);
/// Most microbatches of a stage that each rank keeps at once [ranks]: from a forward until its B is done, or its W.
std::vector<int64_t> most_kept(const PipelineSchedule& schedule);
/// Throws ScheduleError naming rank and action where a rank would keep more than `most`. Of a schedule that `check_schedule` accepts.
void check_kept(const PipelineSchedule& schedule, int64_t most);
/// Whether each stage's gradients come in ascending order of microbatches, those of matrices (B and W) and of all other weights (B and I): then
/// the bits are those of one process.
bool keeps_gradient_order(const PipelineSchedule& schedule);

/// What one rank does with one message or computation.
enum class InstructionKind : uint8_t {
  compute,       ///< action
  post_receive,  ///< gets ready for a message: never blocks
  await,         ///< waits until it is there
  send,          ///< starts a message as soon as its content is computed: never blocks
};

/// `action` is the computation itself, for messages the one that consumes what is received (its stage: the receiver's), and for a send the
/// one that consumes it on the other side. The message is activations where the consumer is a forward, else their gradients.
struct Instruction {
  InstructionKind kind = InstructionKind::compute;
  Action action;
  int64_t peer = -1;  ///< rank on the other side; -1 for compute
  bool operator==(const Instruction&) const = default;
};
/// `compute 2F0`, `receive for 2F0 from rank 1`, `await 2F0 from rank 1`, `send for 2F0 to rank 1`
std::string to_string(const Instruction& instruction);

/// A schedule with its communication, one list per rank. Stages that follow each other on one rank hand over without a message.
struct PipelineProgram {
  PipelineSchedule schedule;
  std::vector<std::vector<Instruction>> instructions;  ///< [ranks]
};

/// Lowers a schedule that `check_schedule` accepts: every send stands right after the computation that makes its content, every receive is posted at least one
/// computation before the one that needs it (at the start where there is none), and in the order in which the peer sends. Proved by `check_program`.
PipelineProgram lower(const PipelineSchedule& schedule);

/// Throws ScheduleError unless, for every pair of ranks, sends and receives agree in order, and the program ends even where a send is complete only
/// once its receive is posted and each rank has one unfinished send per peer at most.
void check_program(const PipelineProgram& program);

/// Messages that reach their rank later than needed: sends with a computation between making and sending. 0 for what `lower` makes.
int64_t late_sends(const PipelineProgram& program);
/// Receives posted with no computation of the receiving rank between posting and awaiting, though one was there: transfers that overlap nothing.
int64_t unoverlapped_receives(const PipelineProgram& program);

/// Stages of consecutive layers: first layer of each stage, and the number of layers at the end, so `stage s` holds [result[s], result[s + 1]).
/// The largest stage's cost is as small as can be, then the sum of squares. Every stage gets a layer. Throws ConfigError for more stages than layers.
std::vector<int64_t> partition_layers(const std::vector<double>& costs, int64_t stages);

}  // namespace quire
