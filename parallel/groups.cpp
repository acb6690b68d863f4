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
  groups.replicas = group(MeshAxis::dp, shape.dp);
  return groups;
}

}  // namespace quire
