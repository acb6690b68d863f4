#include "run/context_decision.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/loader.h"
#include "parallel/context_choice.h"
#include "parallel/mesh.h"
#include "run/context_speeds.h"
#include "run/trainer.h"

namespace quire {

namespace {

std::vector<Documents> first_microbatches(const Config& config, const std::shared_ptr<const Corpus>& corpus) {
  LoaderSettings settings = loader_settings(config);
  settings.prefetch = 0;
  settings.content = Content::documents;
  std::vector<Documents> result;
  for (const HostBatch& batch : Loader(corpus, settings).next_step().microbatches)
    if (result.size() < context_decision_microbatches) result.push_back(batch.documents);
  return result;
}

/// Rank 0's, on every rank.
ContextSpeeds shared_speeds(const Config& config, Rank& rank, Communicator& world) {
  const std::unique_ptr<Communicator> group = world.split(Mesh(mesh_shape(config)).colour(world.rank(), MeshAxis::cp));
  const ContextSpeeds own = measure_context_speeds(rank, *group, config);
  const std::vector<double> values{own.pairs_per_second, own.flops_per_second, own.bytes_per_second, own.seconds_per_message};
  const Tensor all = Tensor::from<double>(rank, {4}, values, Category::other);
  world.broadcast(rank, all, 0, {MessageKind::control, -1, -1, -1, "speeds"});
  const std::vector<double> shared = all.to_vector<double>();
  return {shared[0], shared[1], shared[2], shared[3]};
}

}  // namespace

std::optional<ContextLayout> asked_layout(const Config& config) {
  if (config.distributed.cp_layout == "auto") return {};
  return context_layout_from(config.distributed.cp_layout);
}

std::optional<ContextExchange> asked_exchange(const Config& config) {
  if (config.distributed.cp_exchange == "auto") return {};
  return context_exchange_from(config.distributed.cp_exchange);
}

bool is_context_open(const Config& config) {
  const Config::Distributed& d = config.distributed;
  return d.cp > 1 && (d.cp_layout == "auto" || d.cp_exchange == "auto");
}

Config with_decision(Config config, const ContextDecision& decision) {
  config.distributed.cp_layout = decision.layout;
  config.distributed.cp_exchange = decision.exchange;
  return config;
}

namespace {

/// A record that was changed by hand must not decide.
void check_recorded(const Config& config, const char* key, const std::string& value, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  const std::string near = nearest(value, allowed);
  fail<DataError>(config.run.dir + "/choices.json", "{} is \"{}\"; allowed: {}{}; without the keys context.* it is decided anew", key, value, fmt::join(allowed, ", "),
                  near.empty() ? "" : "; nearest: " + near);
}

}  // namespace

bool recorded_decision(const Config& config, const std::map<std::string, std::string>& choices, ContextDecision& decision) {
  const auto value = [&](const char* key) {
    const auto found = choices.find(key);
    return found == choices.end() ? std::string() : found->second;
  };
  const Config::Distributed& d = config.distributed;
  const std::string layout = value("context.layout"), exchange = value("context.exchange");
  if (layout.empty() || exchange.empty() || value("context.ranks") != std::to_string(d.cp)) return false;
  check_recorded(config, "context.layout", layout, {"contiguous", "zigzag", "balanced"});
  const bool shared_heads = layout == "contiguous" && heads_fit(config.model.n_heads, config.model.n_kv_heads, d.cp);
  check_recorded(config, "context.exchange", exchange, shared_heads ? std::vector<std::string>{"ring", "gather", "heads"} : std::vector<std::string>{"ring", "gather"});
  if ((d.cp_layout != "auto" && d.cp_layout != layout) || (d.cp_exchange != "auto" && d.cp_exchange != exchange)) return false;
  decision = {layout, exchange, fmt::format("context: {}, {}, as this run began", layout, exchange), {}};
  for (const auto& [key, text] : choices)
    if (key.starts_with("context.")) decision.choices.emplace(key, text);
  return true;
}

ContextDecision decide_context(const Config& config, Rank& rank, Communicator& world, const std::shared_ptr<const Corpus>& corpus,
                               const std::map<std::string, std::string>& choices) {
  ContextDecision decision;
  const bool recorded = world.rank() == 0 && recorded_decision(config, choices, decision);
  if (world.agree_on_largest(recorded ? 1 : 0) == 0) {
    const ContextSpeeds speeds = shared_speeds(config, rank, world);
    const ContextChoice choice = choose_context(first_microbatches(config, corpus), config.distributed.cp, context_model(config), speeds, asked_layout(config), asked_exchange(config));
    decision.layout = name_of(choice.layout);
    decision.exchange = name_of(choice.exchange);
    decision.line = "context: " + choice.reason;
    decision.choices = {{"context.layout", decision.layout},
                        {"context.exchange", decision.exchange},
                        {"context.ranks", std::to_string(config.distributed.cp)},
                        {"context.speeds", to_string(speeds)}};
  }
  // Names, so that even an impossible difference in rounding leaves no two ranks with two plans.
  const std::string names = world.gather_texts(decision.layout + " " + decision.exchange).at(0);
  decision.layout = names.substr(0, names.find(' '));
  decision.exchange = names.substr(names.find(' ') + 1);
  return decision;
}

}  // namespace quire
