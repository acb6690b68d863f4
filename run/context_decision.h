// What `auto` of cp_layout and cp_exchange stands for in a run.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "data/corpus.h"
#include "parallel/communicator.h"
#include "parallel/context_plan.h"
#include "run/config.h"

namespace quire {

/// Most microbatches of step 1 that are looked at.
constexpr size_t context_decision_microbatches = 8;

struct ContextDecision {
  std::string layout, exchange;                ///< as the keys are written
  std::string line;                            ///< for the log: what and why
  std::map<std::string, std::string> choices;  ///< for choices.json: context.layout, context.exchange, context.ranks, context.speeds
};

/// The config with what was decided for it.
Config with_decision(Config config, const ContextDecision& decision);
/// What the config asks for: nothing where it says auto.
std::optional<ContextLayout> asked_layout(const Config& config);
std::optional<ContextExchange> asked_exchange(const Config& config);
/// Whether there is anything to decide.
bool is_context_open(const Config& config);

/// What `choices` of the config's run folder say, where they are of as many context ranks and do not contradict a key that is given. Throws DataError,
/// naming file and key, for values that can not be in force.
bool recorded_decision(const Config& config, const std::map<std::string, std::string>& choices, ContextDecision& decision);

/// Measures speeds and decides for the first microbatches of `corpus`: rank 0's speeds count. `choices`: rank 0's run folder's, replayed where they can be.
/// Collective over `world`, which has the config's ranks; every rank gets the same.
ContextDecision decide_context(const Config& config, Rank& rank, Communicator& world, const std::shared_ptr<const Corpus>& corpus,
                               const std::map<std::string, std::string>& choices);

}  // namespace quire
