#include "lathe/kernels/device.h"

#include "lathe/kernels/onednn_gemm.h"

namespace lathe {

Device::Device(const DeviceOptions& device_options)
    : options(device_options),
      memory(device_options.name == "plan" ? make_counting_memory()
                                           : make_host_memory(device_options.poison)),
      queue(make_queue(device_options.threads)) {
  if (options.name == "ref") {
    kernels = ref_kernel_table();
  } else if (options.name == "cpu") {
    LATHE_CHECK(options.float_type == DType::kF32, "cpu computes in f32, not {}",
                dtype_name(options.float_type));
    if (options.isa_is_settled) settle_isa(options.isa);
  } else if (options.name == "plan") {
    kernels = plan_kernel_table();
  } else {
    config_error("run.device", fmt::format("unknown device '{}'", options.name), "use cpu or ref");
  }
}

void Device::settle_isa(Isa isa) {
  LATHE_CHECK(options.name == "cpu" && isa <= options.isa, "{} from {} to {}", options.name,
              isa_name(options.isa), isa_name(isa));
  options.isa = isa;
  options.isa_is_settled = true;
  cap_onednn_isa(isa);
  kernels = cpu_kernel_table(isa);
}

}  // namespace lathe
