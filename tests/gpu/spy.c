/* No test, but a library that looks at a program from outside, for tests/cli/cuda_spy.sh. It
 * records the calls of CUDA that allocate memory, free it or make a thread wait. It also records
 * the ranges that the program shows to profilers, each with its time and thread. CUDA's driver
 * loads the library in CUDA_INJECTION64_PATH, and NVTX the one in NVTX_INJECTION64_PATH. Both must
 * name this library.
 *
 * SPY_RECORD names the record. The number of the process is added to it. SPY_CUPTI is the path of
 * libcupti, if the loader does not find it. A line of the record has nanoseconds, thread, what and
 * which, with tabs between them. The words for what:
 *
 *   alloc, free, sync  The begin of a call of the driver or the runtime, by name. If a call makes
 *                      other calls, only the outer one is recorded.
 *   push, pop          A range of the thread begins or ends.
 *   watch              The number of watched functions.
 *   absent, broken     The reason for a record without calls: CUPTI is missing, or it failed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>
#if __has_include(<cupti.h>)
#include <cupti.h>
#endif

int InitializeInjection(void);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

/* --- the record ---------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static FILE *record;

static void open_record(void)
{
  char path[4096];
  const char *name = getenv("SPY_RECORD");
  if (!name)
    return;
  snprintf(path, sizeof path, "%s.%ld", name, (long)getpid());
  record = fopen(path, "ae");
  if (record)
    (void)setvbuf(record, NULL, _IOLBF, 1 << 16); /* whole lines, whatever becomes of the process */
  else
    perror(path);
}

static void note(const char *what, const char *which)
{
  static _Thread_local long thread;
  struct timespec now;
  (void)pthread_once(&once, open_record);
  if (!record)
    return;
  if (!thread)
    thread = syscall(SYS_gettid);
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  fprintf(record, "%" PRId64 "\t%ld\t%s\t%s\n", (int64_t)now.tv_sec * 1000000000 + now.tv_nsec,
          thread, what, which);
}

/* --- ranges -------------------------------------------------------------- */

static int push(const char *message)
{
  note("push", message ? message : "");
  return NVTX_NO_PUSH_POP_TRACKING;
}

static int push_attributes(const nvtxEventAttributes_t *attributes)
{
  return push(attributes->messageType == NVTX_MESSAGE_TYPE_ASCII ? attributes->message.ascii : "?");
}

static int push_wide(const wchar_t *message)
{
  (void)message;
  return push("?");
}

static int pop(void)
{
  note("pop", "");
  return NVTX_NO_PUSH_POP_TRACKING;
}

/* Every library that was built with NVTX asks for itself. Ranges of domains are those of libraries,
 * and not looked at. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table)
{
  const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
      size <= NVTX_CBID_CORE_RangePop)
    return 0;
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE_RangePushEx] = (NvtxFunctionPointer)push_attributes;
  *table[NVTX_CBID_CORE_RangePushW] = (NvtxFunctionPointer)push_wide;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  return 1;
}

/* --- calls --------------------------------------------------------------- */

#if __has_include(<cupti.h>)

/* The beginnings of names of the driver's and the runtime's functions, after cu, cu64 or cuda. */
static const char *const kinds[][2] = {
    {"alloc", "MemAlloc MemHostAlloc MemHostRegister MemCreate MemMap MemAddressReserve MemImport "
              "MemPoolCreate MemPoolImport MulticastCreate IpcOpenMemHandle ArrayCreate "
              "Array3DCreate MipmappedArrayCreate GraphAddMemAllocNode Malloc HostAlloc "
              "HostRegister"},
    {"free", "MemFree MemHostUnregister MemRelease MemUnmap MemAddressFree MemPoolDestroy "
             "MemPoolTrimTo IpcCloseMemHandle ArrayDestroy MipmappedArrayDestroy Free "
             "HostUnregister"},
    {"sync", "CtxSynchronize StreamSynchronize EventSynchronize DeviceSynchronize "
             "ThreadSynchronize Memcpy Memset"}};

/* NULL: not looked at. */
static const char *kind_of(const char *name)
{
  const char *rest = strncmp(name, "cuda", 4) == 0   ? name + 4
                     : strncmp(name, "cu64", 4) == 0 ? name + 4
                     : strncmp(name, "cu", 2) == 0   ? name + 2
                                                     : "";
  for (int k = 0; k < 3; k++)
    for (const char *word = kinds[k][1]; *word; word += strspn(word, " ")) {
      const size_t length = strcspn(word, " ");
      if (strncmp(rest, word, length) == 0)
        return k == 2 && strstr(rest, "Async") ? NULL : kinds[k][0];
      word += length;
    }
  return NULL;
}

static void on_call(void *userdata, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                    const void *data)
{
  static _Thread_local int inside; /* calls that are looked at: the runtime makes the driver's */
  const CUpti_CallbackData *call = data;
  (void)userdata, (void)domain, (void)id;
  if (call->callbackSite == CUPTI_API_EXIT) {
    inside -= inside > 0;
    return;
  }
  const char *kind = kind_of(call->functionName);
  if (inside++ == 0)
    note(kind ? kind : "broken", call->functionName);
}

struct cupti {
  CUptiResult (*subscribe)(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback,
                           void *userdata);
  CUptiResult (*enable)(uint32_t enable, CUpti_SubscriberHandle subscriber,
                        CUpti_CallbackDomain domain, CUpti_CallbackId id);
  CUptiResult (*name)(CUpti_CallbackDomain domain, uint32_t id, const char **name);
};

static bool load(struct cupti *out)
{
  char name[32];
  snprintf(name, sizeof name, "libcupti.so.%d", CUDA_VERSION / 1000);
  const char *path = getenv("SPY_CUPTI");
  void *library = dlopen(path ? path : name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    note("absent", dlerror());
    return false;
  }
  *(void **)&out->subscribe = dlsym(library, "cuptiSubscribe");
  *(void **)&out->enable = dlsym(library, "cuptiEnableCallback");
  *(void **)&out->name = dlsym(library, "cuptiGetCallbackName");
  if (out->subscribe && out->enable && out->name)
    return true;
  note("broken", "libcupti lacks a function");
  return false;
}

/* How many; -1: it failed. Functions that this CUPTI does not know have no name. */
static int watch(const struct cupti *cupti, CUpti_SubscriberHandle subscriber,
                 CUpti_CallbackDomain domain, uint32_t ids)
{
  int watched = 0;
  for (uint32_t id = 1; id < ids; id++) {
    const char *name = NULL;
    if (cupti->name(domain, id, &name) || !name || !kind_of(name))
      continue;
    if (cupti->enable(1, subscriber, domain, id))
      return -1;
    watched++;
  }
  return watched;
}

static void watch_all(void)
{
  struct cupti cupti;
  CUpti_SubscriberHandle subscriber = NULL;
  char text[64];
  if (!load(&cupti))
    return;
  const CUptiResult error = cupti.subscribe(&subscriber, on_call, NULL);
  if (error) {
    snprintf(text, sizeof text, "cuptiSubscribe: error %d", (int)error);
    note("broken", text);
    return;
  }
  const int driver =
      watch(&cupti, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_SIZE);
  const int runtime =
      watch(&cupti, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_SIZE);
  snprintf(text, sizeof text, "%d of the driver, %d of the runtime", driver, runtime);
  note(driver < 0 || runtime < 0 ? "broken" : "watch", text);
}

#else

static void watch_all(void)
{
  note("absent", "this library was built without cupti.h");
}

#endif

__attribute__((visibility("default"))) int InitializeInjection(void)
{
  static pthread_once_t watching = PTHREAD_ONCE_INIT;
  (void)pthread_once(&watching, watch_all);
  return 1;
}
