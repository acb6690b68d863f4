#include "parallel/mesh.h"

#include "runtime/error.h"

namespace quire {

MeshPlace Mesh::place(int64_t rank) const {
  if (rank < 0 || rank >= shape_.ranks())
    fail<StateError>("Mesh::place", "rank {} of a mesh of {} ranks ({})", rank, shape_.ranks(), name());
  MeshPlace place;
  place.tp = rank % shape_.tp;
  rank /= shape_.tp;
  place.cp = rank % shape_.cp;
  rank /= shape_.cp;
  place.dp = rank % shape_.dp;
  place.pp = rank / shape_.dp;
  return place;
}

int64_t Mesh::rank_at(const MeshPlace& place) const {
  const auto inside = [](int64_t coordinate, int64_t size) { return coordinate >= 0 && coordinate < size; };
  if (!inside(place.pp, shape_.pp) || !inside(place.dp, shape_.dp) || !inside(place.cp, shape_.cp) || !inside(place.tp, shape_.tp))
    fail<StateError>("Mesh::rank_at", "place pp {}, dp {}, cp {}, tp {} lies outside the mesh ({})", place.pp, place.dp, place.cp, place.tp,
                     name());
  return ((place.pp * shape_.dp + place.dp) * shape_.cp + place.cp) * shape_.tp + place.tp;
}

int Mesh::colour(int64_t rank, MeshAxis axis) const {
  MeshPlace first = place(rank);
  switch (axis) {
    case MeshAxis::pp: first.pp = 0; break;
    case MeshAxis::dp: first.dp = 0; break;
    case MeshAxis::cp: first.cp = 0; break;
    case MeshAxis::tp: first.tp = 0; break;
  }
  return static_cast<int>(rank_at(first));  // the group's first rank: one group's colour is no other's
}

std::string Mesh::name() const {
  std::string text;
  const auto add = [&](const char* axis, int64_t size) {
    if (size != 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis, size);
  };
  add("pp", shape_.pp);
  add("dp", shape_.dp);
  add("cp", shape_.cp);
  add("tp", shape_.tp);
  return text.empty() ? "one rank" : text;
}

void check_world_size(const MeshShape& shape, int64_t ranks) {
  if (shape.pp < 1 || shape.dp < 1 || shape.cp < 1 || shape.tp < 1)
    fail<ConfigError>("distributed", "pp {}, dp {}, cp {}, tp {}: each must be 1 or more", shape.pp, shape.dp, shape.cp, shape.tp);
  if (shape.ranks() == ranks) return;
  const int64_t replica = shape.pp * shape.cp * shape.tp;
  const std::string way_out = ranks > 0 && ranks % replica == 0
                                  ? fmt::format("or set distributed.dp_replicate to {} / {} = {}", ranks, replica, ranks / replica)
                                  : fmt::format("or change distributed.pp, dp_replicate or cp; one replica takes {}", replica);
  fail<ConfigError>("distributed", "pp {} x dp {} x cp {} x tp {} = {} rank{}, but the world has {}; start {} (--ranks {}), {}", shape.pp,
                    shape.dp, shape.cp, shape.tp, shape.ranks(), shape.ranks() == 1 ? "" : "s", ranks, shape.ranks(), shape.ranks(), way_out);
}

}  // namespace quire
