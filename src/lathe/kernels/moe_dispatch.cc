#include "lathe/kernels/moe_dispatch.h"

#include "lathe/kernels/access.h"

namespace lathe {

void check_moe_sort(const MoeSortParams& params, ConstView expert, ConstView offsets, ConstView slot_of_row,
                    ConstView row_of_slot, ConstView wanted) {
  LATHE_CHECK(params.first >= 0 && params.count >= 0 && params.first + params.count <= params.experts,
              "moe_sort: window {} + {} of {} experts", params.first, params.count, params.experts);
  check_shape("moe_sort", "offsets", offsets, {params.count + 1});
  check_shape("moe_sort", "slot_of_row", slot_of_row, {slot_of_row.size()});
  LATHE_CHECK(row_of_slot.size() == expert.size(), "moe_sort: {} slots, {} places", expert.size(),
              row_of_slot.size());
  if (!wanted.empty()) check_shape("moe_sort", "wanted", wanted, {1});
}

}  // namespace lathe
