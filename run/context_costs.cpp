#include "run/context_costs.h"

#include <algorithm>

#include "run/trainer.h"

namespace quire {

ContextCosts context_costs(const Config& config) {
  const ModelConfig& model = config.model;
  ContextCosts costs;
  costs.windows.clear();
  for (int64_t layer = 0; layer < model.n_layers; ++layer) {
    const int64_t window = model.window(layer);
    const auto known = std::ranges::find(costs.windows, window, &LayerWindow::window);
    if (known != costs.windows.end())
      ++known->layers;
    else
      costs.windows.push_back({window, 1});
  }
  costs.token_cost = static_cast<int64_t>(step_flops(model, 1, 0) / step_flops(model, 0, 1));
  return costs;
}

ContextOptions context_options(const Config& config) {
  const Config::Distributed& d = config.distributed;
  ContextOptions options;
  if (d.cp_layout != "auto") options.layout = context_layout_from(d.cp_layout);
  if (d.cp_exchange != "auto") options.exchange = context_exchange_from(d.cp_exchange);
  options.costs = context_costs(config);
  return options;
}

}  // namespace quire
