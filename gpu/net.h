/* The network that NCCL uses between nodes. For code outside gpu/: it includes no CUDA header. */
#pragma once

#include <stdbool.h>

struct gpu_net {
  char plugin[64]; /* the network of the plug-in that NCCL would load; "": none loads */
  char lacks[200]; /* why none loads, in the words of the dynamic loader */
  char chosen[64]; /* the network that NCCL chose: "Socket" (TCP), "IB", a plug-in's; "": unknown */
};
/* asks: start NCCL on the first GPU, whose context takes about 500 MB, because NCCL names its
 * choice nowhere but in its log. If the user set NCCL_DEBUG, the log is the user's, and the choice
 * stays unknown. Local. */
void gpu_net_read(bool asks, struct gpu_net *out);
