#include <cuda_runtime_api.h>

#include "device/cuda_check.h"
#include "fastfd/device/cuda.h"

namespace fastfd::device {
namespace {

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using UniqueGraph = std::unique_ptr<CUgraph_st, GraphDeleter>;

}  // namespace

void DeviceGraph::Deleter::operator()(CUgraphExec_st* graph) const { cudaGraphExecDestroy(graph); }

Result<DeviceGraph> DeviceGraph::capture(const DeviceStream& stream,
                                         const std::function<Status()>& enqueue) {
  const CudaStream handle = stream.handle();
  if (Status status = to_status(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal),
                                "beginning a capture");
      !status) {
    return status;
  }
  Status enqueued = enqueue();
  cudaGraph_t captured = nullptr;
  Status ended = to_status(cudaStreamEndCapture(handle, &captured), "ending a capture");
  const UniqueGraph graph(captured);
  if (!enqueued || !ended) {
    cudaGetLastError();  // an invalidated capture is no error of the next call
    return enqueued ? ended : enqueued;
  }

  DeviceGraph result;
  Status status = to_status(cudaGraphGetNodes(captured, nullptr, &result.num_nodes_), "a graph");
  cudaGraphExec_t executable = nullptr;
  if (status) {
    status = to_status(cudaGraphInstantiate(&executable, captured, 0), "instantiating a graph");
  }
  if (!status) {
    return status;
  }
  result.handle_.reset(executable);
  // So that the first launch allocates nothing.
  status = to_status(cudaGraphUpload(executable, handle), "uploading a graph");
  if (status) {
    status = stream.synchronize();
  }
  if (!status) {
    return status;
  }
  return result;
}

Status DeviceGraph::launch(CudaStream stream) const {
  return to_status(cudaGraphLaunch(handle_.get(), stream), "launching a graph");
}

}  // namespace fastfd::device
