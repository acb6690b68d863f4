#include "runtime/dtype.h"

#include "runtime/error.h"

namespace quire {

std::string_view name_of(DType t) {
  switch (t) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
  }
  return "?";
}

DType dtype_from(std::string_view name) {
  std::vector<std::string> known;
  for (DType t : {DType::f64, DType::f32, DType::bf16, DType::i32, DType::i64}) {
    if (name_of(t) == name) return t;
    known.emplace_back(name_of(t));
  }
  const std::string near = nearest(name, known);
  fail<ConfigError>("dtype", "unknown dtype '{}'; allowed: f64, f32, bf16, i32, i64{}", name, near.empty() ? "" : "; nearest: " + near);
}

DType accumulator_of(DType t) {
  switch (t) {
    case DType::f64: return DType::f64;
    case DType::f32: case DType::bf16: return DType::f32;
    default: fail<DTypeError>("dtype", "{} has no accumulator type; allowed: f64, f32, bf16", name_of(t));
  }
}

}  // namespace quire
