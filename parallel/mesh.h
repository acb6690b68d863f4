// Ranks arranged by what they share: pipeline stages, replicas, context and tensor parallel ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace quire {

struct MeshShape {
  int64_t pp = 1, dp = 1, cp = 1, tp = 1;
  int64_t ranks() const { return pp * dp * cp * tp; }
  bool operator==(const MeshShape&) const = default;
};

/// Coordinates of a rank, each below the shape's.
struct MeshPlace {
  int64_t pp = 0, dp = 0, cp = 0, tp = 0;
  bool operator==(const MeshPlace&) const = default;
};

enum class MeshAxis : uint8_t { pp, dp, cp, tp };

/// tp varies fastest with the rank number (it exchanges most), then cp, dp, and pp slowest (least): rank = ((pp * DP + dp) * CP + cp) * TP + tp.
class Mesh {
 public:
  explicit Mesh(const MeshShape& shape = {}) : shape_(shape) {}
  const MeshShape& shape() const { return shape_; }
  MeshPlace place(int64_t rank) const;
  int64_t rank_at(const MeshPlace& place) const;
  /// Colour for `Communicator::split` of the group in which only `axis` varies; the rank's place in that group is its coordinate on the axis.
  int colour(int64_t rank, MeshAxis axis) const;
  /// `pp 2 x dp 2`, axes of 1 left out; `one rank`.
  std::string name() const;

 private:
  MeshShape shape_;
};

/// Throws ConfigError, showing the arithmetic, unless the shape has exactly `ranks` ranks.
void check_world_size(const MeshShape& shape, int64_t ranks);

}  // namespace quire
