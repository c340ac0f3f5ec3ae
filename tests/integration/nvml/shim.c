/* A libnvidia-ml.so.1 without a driver: as many alike GPUs as the environment says, and what may be wrong with them.

   SHIM_GPUS   number of GPUs
   SHIM_INIT   return code of the initialisation (9: driver not loaded)
   SHIM_LOST   index of a GPU that has fallen off the bus
   SHIM_HANGS  "1": the call for a GPU's UUID never returns, as on a sick one */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OK 0
#define INVALID_ARGUMENT 2
#define GPU_IS_LOST 15

static int setting(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static unsigned index_of(void *device) { return (unsigned)((size_t)device - 1); }
static int is_lost(void *device) { return (int)index_of(device) == setting("SHIM_LOST", -1); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return setting("SHIM_INIT", OK); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
  switch (code) {
    case OK: return "Success";
    case 9: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}

int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)setting("SHIM_GPUS", 0); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if ((int)index >= setting("SHIM_GPUS", 0)) return INVALID_ARGUMENT;
  *device = (void *)(size_t)(index + 1);
  return OK;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
  while (setting("SHIM_HANGS", 0)) pause();
  snprintf(text, size, "GPU-5a1d0000-0000-0000-0000-%012u", index_of(device));
  return OK;
}

int nvmlDeviceGetName(void *device, char *text, unsigned size) {
  (void)device;
  snprintf(text, size, "Shim 80GB");
  return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *info) {
  if (is_lost(device)) return GPU_IS_LOST;
  info[0] = info[1] = 80ULL << 30;
  info[2] = 0;
  return OK;
}
