#include "fastfd/core/dtype.h"
#include "fastfd/core/ids.h"
#include "fastfd/core/load_format.h"
#include "fastfd/core/request.h"

namespace fastfd {

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat8E4M3:
      return "float8_e4m3";
  }
  return "unknown";
}

const char* to_string(Precision precision) {
  return precision == Precision::kFloat32 ? "float32" : "bf16";
}

const char* to_string(LoadFormat format) { return format == LoadFormat::kDummy ? "dummy" : "auto"; }

const char* to_string(Role role) {
  switch (role) {
    case Role::kCoordinator:
      return "coordinator";
    case Role::kAttention:
      return "attention";
    case Role::kFfn:
      return "ffn";
  }
  return "unknown";
}

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

}  // namespace fastfd
