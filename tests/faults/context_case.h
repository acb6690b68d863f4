// What tests of faults under context parallelism share.
#pragma once
#include "faults/layout_case.h"
#include "run/ranks_layout.h"

namespace quire::test {

/// Every layout with every exchange it can have.
inline const std::vector<std::pair<std::string, std::string>> context_layouts{{"contiguous", "ring"}, {"contiguous", "gather"}, {"contiguous", "heads"}, {"zigzag", "ring"},
                                                                             {"zigzag", "gather"},     {"balanced", "ring"},   {"balanced", "gather"}};

/// A small model in f64 with heads for any number of ranks used here.
inline Config context_config(int64_t cp, const std::string& layout, const std::string& exchange, int64_t pp = 1) {
  Config config = product_config();
  config.model.n_layers = 2 * pp;
  config.model.n_heads = 24;
  config.model.n_kv_heads = 24;
  config.model.head_dim = 2;
  config.train.global_batch_size = 4;
  config.train.microbatch_size = 2;
  config.train.mixed_precision = "f64";
  config.distributed.pp = pp;
  config.distributed.cp = cp;
  config.distributed.cp_layout = layout;
  config.distributed.cp_exchange = exchange;
  return resolved(config);
}

inline std::string name_of(const Config& config) {
  const Config::Distributed& d = config.distributed;
  return fmt::format("pp {} dp {} cp {} {} {}", d.pp, d.dp_replicate, d.cp, d.cp_layout, d.cp_exchange);
}

/// A config's model and the probes through its layout.
struct Probing {
  explicit Probing(const Config& given)
      : config(given), rank(poisoned(given)), model(rank, given.model, given.dtype()), single(rank, model, {}),
        ranks(poisoned(given), initialized(), cut_into_stages(given.model, "1f1b", given.distributed.pp, 1, {}), {}, context_sharing(given)) {}
  static RankOptions poisoned(const Config& config) {
    RankOptions options = rank_options(config);
    options.poison = true;
    return options;
  }
  Model& initialized() {
    model.initialize(rank, 1);
    return model;
  }
  Config config;
  Rank rank;
  Model model;
  SingleLayout single;
  RanksLayout ranks;
};

}  // namespace quire::test
