// One rank's place in the mesh and the groups it talks in.
#pragma once
#include <memory>

#include "parallel/communicator.h"
#include "parallel/mesh.h"

namespace quire {

struct Groups {
  Mesh mesh;
  MeshPlace place;
  Communicator* world = nullptr;           ///< all ranks; outlives this value
  std::unique_ptr<Communicator> pipeline;  ///< the stages of this replica; rank = place.pp
  std::unique_ptr<Communicator> context;   ///< the ranks that share this stage's microbatches; rank = place.cp
  std::unique_ptr<Communicator> replicas;  ///< all ranks with this stage's parameters; rank = place.dp * cp + place.cp
};

/// Collective over `world`. Throws ConfigError unless the shape has as many ranks as the world.
Groups make_groups(Communicator& world, const MeshShape& shape);

}  // namespace quire
