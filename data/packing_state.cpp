// The texts of packing: names of its settings, and the state that a checkpoint keeps.
#include <nlohmann/json.hpp>

#include "data/packing.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {

namespace {

[[noreturn]] void unknown(std::string_view what, std::string_view name, const std::vector<std::string>& known) {
  std::string all;
  for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
  const std::string near = nearest(name, known);
  fail<ConfigError>("packing", "unknown {} '{}'; known: {}{}", what, name, all,
                    near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

}  // namespace

std::string_view name_of(PackingStrategy strategy) {
  switch (strategy) {
    case PackingStrategy::concat: return "concat";
    case PackingStrategy::bfd: return "bfd";
    case PackingStrategy::single: return "single";
  }
  return "";
}

std::string_view name_of(Overflow overflow) {
  switch (overflow) {
    case Overflow::split: return "split";
    case Overflow::truncate: return "truncate";
    case Overflow::refuse: return "refuse";
  }
  return "";
}

PackingStrategy packing_strategy_from(std::string_view name) {
  for (const PackingStrategy s : {PackingStrategy::concat, PackingStrategy::bfd, PackingStrategy::single})
    if (name == name_of(s)) return s;
  unknown("strategy", name, {"concat", "bfd", "single"});
}

Overflow overflow_from(std::string_view name) {
  for (const Overflow o : {Overflow::split, Overflow::truncate, Overflow::refuse})
    if (name == name_of(o)) return o;
  unknown("overflow", name, {"split", "truncate", "refuse"});
}

std::string PackingState::to_json() const {
  return nlohmann::ordered_json({{"fingerprint", to_hex(fingerprint)},
                                 {"step", step},
                                 {"epoch", epoch},
                                 {"position", position},
                                 {"offset", offset},
                                 {"row", row}})
      .dump();
}

PackingState PackingState::from_json(std::string_view text) {
  PackingState state;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    state.fingerprint = from_hex(json.at("fingerprint").get<std::string>());
    for (const auto& [key, value] :
         {std::pair("step", &state.step), std::pair("epoch", &state.epoch), std::pair("position", &state.position),
          std::pair("offset", &state.offset), std::pair("row", &state.row)}) {
      if (!json.at(key).is_number_integer())
        fail<DataError>("packing", "the loader's state has {} for '{}', no integer", json.at(key).dump(), key);
      *value = json.at(key).get<int64_t>();
    }
  } catch (const nlohmann::json::exception& error) {
    fail<DataError>("packing", "the loader's state can not be read: {}", error.what());
  }
  return state;
}

}  // namespace quire
