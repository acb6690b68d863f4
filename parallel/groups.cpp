#include "parallel/groups.h"

namespace quire {

Groups make_groups(Communicator& world, const MeshShape& shape) {
  check_world_size(shape, world.size());
  Groups groups;
  groups.mesh = Mesh(shape);
  groups.place = groups.mesh.place(world.rank());
  groups.world = &world;
  const auto group = [&](MeshAxis axis, int64_t size) {
    return size == 1 ? single_communicator() : world.split(groups.mesh.colour(world.rank(), axis));
  };
  groups.pipeline = group(MeshAxis::pp, shape.pp);
  groups.context = group(MeshAxis::cp, shape.cp);
  const MeshPlace& place = groups.place;
  groups.replicas = shape.dp * shape.cp == 1 ? single_communicator() : world.split(static_cast<int>(groups.mesh.rank_at({.pp = place.pp, .tp = place.tp})));
  return groups;
}

}  // namespace quire
