/* A stand-in for the CUDA driver: device memory in host memory, work that is queued and done later, calls that are counted.

   Device addresses are host addresses plus OFFSET, so that neither can be taken for the other. Work runs in the order of the calls: one
   piece at each query, and where much waits, unless `standin_hold` keeps it back. Copies from and to host memory that is not pinned, memory that is not allocated
   or was freed, and calls without the context current are errors. Kernels are known by the names of their entries. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef uint64_t u64;
typedef uint32_t u32;
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201, BAD_PTX = 218, BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
       ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719 };
#define OFFSET ((u64)1 << 62)
#define MOST 4096
#define MOST_WORK (1 << 20)

typedef struct { u64 at; size_t size; int live; } Range;          /* `live` 2: freed, the free is still to come */
typedef struct { int live; u64 until; } Event;
typedef struct { int live; char *text; } Module;
typedef struct { char name[256]; Module *module; } Function;
typedef struct { char name[256]; u32 grid, block; unsigned char bytes[256]; size_t size; } Launch;
typedef struct { int kind; u64 a, b; size_t n; u32 word; Launch *launch; } Work;
enum { COPY_IN, COPY_OUT, COPY, FILL, FREE, LAUNCH };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Range memory[MOST], pinned_memory[MOST];
static int memories, pinneds, live_streams, live_pools, retained, held, sticky, device_count = 1, capability = 90;
static size_t total = (size_t)1 << 30, reserved;
static Event events[MOST];
static Module modules[MOST];
static Function functions[MOST];
static Launch launches[MOST];
static int event_count, module_count, function_count, launch_count;
static Work *work;
static u64 queued, finished;
static int contexts[8], streams[8], pools[8];
static __thread void *stack[16];
static __thread int depth;

typedef struct { const char *symbol; int calls, code, times; } Counter;
static Counter counters[128];
static int counter_count;

static Counter *counter(const char *symbol) {
  for (int i = 0; i < counter_count; i++)
    if (!strcmp(counters[i].symbol, symbol)) return &counters[i];
  counters[counter_count].symbol = strdup(symbol);
  return &counters[counter_count++];
}

static R count(const char *symbol) {
  Counter *c = counter(symbol);
  c->calls++;
  if (c->times > 0) { c->times--; return c->code; }
  return sticky;
}

#define ENTER() pthread_mutex_lock(&lock); R result = count(__func__); if (result) goto out
#define LEAVE() out: pthread_mutex_unlock(&lock); return result
#define FAIL(code) do { result = (code); goto out; } while (0)
#define CONTEXT() if (!depth || !stack[depth - 1]) FAIL(NO_CONTEXT)

/* --- what tests ask and set --- */

void standin_reset(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < memories; i++) if (memory[i].live) free((void *)(memory[i].at - OFFSET));
  memories = pinneds = live_streams = live_pools = retained = held = sticky = 0;
  device_count = 1; capability = 90; total = (size_t)1 << 30; reserved = 0;
  event_count = module_count = function_count = launch_count = 0;
  queued = finished = 0;
  memset(counters, 0, sizeof counters);
  counter_count = 0;
  if (!work) work = malloc(sizeof(Work) * MOST_WORK);
  pthread_mutex_unlock(&lock);
}
void standin_hold(int on) { held = on; }
void standin_fail(const char *symbol, int code, int times) { Counter *c = counter(symbol); c->code = code; c->times = times; }
int standin_calls(const char *symbol) { return counter(symbol)->calls; }
void standin_machine(int devices, int sm, size_t bytes) { device_count = devices; capability = sm; total = bytes; }
u64 standin_pending(void) { return queued - finished; }
int standin_launches(void) { return launch_count; }
Launch *standin_launch(int i) { return &launches[i]; }
int standin_live(const char *what) {
  int n = 0;
  if (!strcmp(what, "memory")) for (int i = 0; i < memories; i++) n += memory[i].live == 1;
  if (!strcmp(what, "pinned")) for (int i = 0; i < pinneds; i++) n += pinned_memory[i].live;
  if (!strcmp(what, "events")) for (int i = 0; i < event_count; i++) n += events[i].live;
  if (!strcmp(what, "modules")) for (int i = 0; i < module_count; i++) n += modules[i].live;
  if (!strcmp(what, "streams")) n = live_streams;
  if (!strcmp(what, "pools")) n = live_pools;
  if (!strcmp(what, "contexts")) n = retained;
  return n;
}

/* --- memory and work --- */

static unsigned char *host(u64 address, size_t n) {
  for (int i = 0; i < memories; i++)
    if (memory[i].live && address >= memory[i].at && address + n <= memory[i].at + memory[i].size) return (unsigned char *)(address - OFFSET);
  sticky = ILLEGAL_ADDRESS;
  return NULL;
}

static int is_pinned(u64 address, size_t n) {
  for (int i = 0; i < pinneds; i++)
    if (pinned_memory[i].live && address >= pinned_memory[i].at && address + n <= pinned_memory[i].at + pinned_memory[i].size) return 1;
  return 0;
}

static void run_kernel(Launch *l) {
  unsigned char block[256];
  memcpy(block, l->bytes, l->size);
  if (strstr(l->name, "_by_address")) {
    u64 at;
    memcpy(&at, l->bytes, 8);
    unsigned char *p = host(at, 16);
    if (!p) return;
    memcpy(block, p, 16);
  }
  if (!strncmp(l->name, "k_", 2)) return; /* by the code generator: not run */
  u64 data; u32 n, a;
  memcpy(&data, block, 8); memcpy(&n, block + 8, 4); memcpy(&a, block + 12, 4);
  if (!strncmp(l->name, "trap", 4)) { sticky = LAUNCH_FAILED; return; }
  u64 threads = (u64)l->grid * l->block;
  u32 *x = (u32 *)host(data, 4);
  if (!x) return;
  for (u64 t = 0; t < threads && t < n; t++)
    for (u64 i = t; i < n; i += threads) {
      if (!strncmp(l->name, "scale", 5)) { if (!host(data + 4 * i, 4)) return; x[i] = x[i] * 2 + a + (u32)i; }
      else if (!strncmp(l->name, "count", 5)) x[0] += a;
    }
}

static void step(void) {
  Work *w = &work[finished % MOST_WORK];
  unsigned char *p, *q;
  switch (w->kind) {
    case COPY_IN: if ((p = host(w->a, w->n))) memcpy(p, (void *)w->b, w->n); break;
    case COPY_OUT: if ((p = host(w->b, w->n))) memcpy((void *)w->a, p, w->n); break;
    case COPY: if ((p = host(w->a, w->n)) && (q = host(w->b, w->n))) memmove(p, q, w->n); break;
    case FILL: if ((p = host(w->a, 4 * w->n))) for (size_t i = 0; i < w->n; i++) ((u32 *)p)[i] = w->word; break;
    case FREE: for (int i = 0; i < memories; i++) if (memory[i].live == 2 && memory[i].at == w->a) {
      reserved -= memory[i].size; free((void *)(memory[i].at - OFFSET)); memory[i].live = 0; } break;
    case LAUNCH: run_kernel(w->launch); break;
  }
  finished++;
}

static void enqueue(Work w) { work[queued++ % MOST_WORK] = w; while (!held && queued - finished > 500) step(); }
static R progress(u64 until) {
  if (!held && finished < queued) step();
  return sticky ? sticky : finished < until ? NOT_READY : 0;
}

/* --- the driver --- */

R cuInit(u32 flags) { ENTER(); if (!work) work = malloc(sizeof(Work) * MOST_WORK); LEAVE(); }
R cuDriverGetVersion(int *version) { ENTER(); *version = 13000; LEAVE(); }
R cuGetErrorName(int code, const char **name) {
  *name = code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" :
          code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" :
          code == BAD_PTX ? "CUDA_ERROR_INVALID_PTX" : code == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : NULL;
  return *name ? 0 : INVALID_VALUE;
}
R cuGetErrorString(int code, const char **text) { *text = code == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : NULL; return 0; }
R cuDeviceGetCount(int *n) { ENTER(); *n = device_count; LEAVE(); }
R cuDeviceGet(int *device, int ordinal) { ENTER(); if (ordinal >= device_count) FAIL(101); *device = ordinal + 10; LEAVE(); }
R cuDeviceGetName(char *name, int n, int device) { ENTER(); snprintf(name, n, "Stand-in %c", 'A' + device - 10); LEAVE(); }
R cuDeviceTotalMem_v2(size_t *bytes, int device) { ENTER(); *bytes = total; LEAVE(); }
R cuDeviceGetAttribute(int *value, int attribute, int device) {
  ENTER();
  switch (attribute) {
    case 1: *value = 1024; break;
    case 5: *value = 0x7fffffff; break;
    case 8: *value = 49152; break;
    case 10: *value = 32; break;
    case 16: *value = 132; break;
    case 18: *value = 0; break;
    case 75: *value = device == 10 ? capability / 10 : 9; break;
    case 76: *value = device == 10 ? capability % 10 : 0; break;
    case 115: *value = 1; break;
    default: FAIL(INVALID_VALUE);
  }
  LEAVE();
}
/* The numbers that devices have are not those of their handles: callers must ask for the handle. */
R cuDevicePrimaryCtxRetain(void **context, int device) { ENTER(); if (device < 10) FAIL(101); *context = &contexts[device - 10]; retained++; LEAVE(); }
R cuDevicePrimaryCtxRelease_v2(int device) { pthread_mutex_lock(&lock); if (device >= 10) retained--; pthread_mutex_unlock(&lock); return 0; }
R cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : NULL; return 0; }
R cuCtxPushCurrent_v2(void *context) { ENTER(); stack[depth++] = context; LEAVE(); }
R cuCtxPopCurrent_v2(void **context) { if (!depth) return NO_CONTEXT; *context = stack[--depth]; return 0; }
R cuCtxSetCurrent(void *context) { ENTER(); if (!depth) depth = 1; stack[depth - 1] = context; LEAVE(); }
void standin_forget_context(void) { depth = 0; }
int standin_depth(void) { return depth; }

R cuStreamCreate(void **stream, u32 flags) { ENTER(); CONTEXT(); *stream = &streams[0]; live_streams++; LEAVE(); }
/* What is destroyed is gone, whatever has failed before. */
#define DESTROY(statement) pthread_mutex_lock(&lock); R result = count(__func__); statement; pthread_mutex_unlock(&lock); return result
R cuStreamDestroy_v2(void *stream) { DESTROY(live_streams--); }
R cuStreamQuery(void *stream) { ENTER(); CONTEXT(); if (stream != &streams[0]) FAIL(BAD_HANDLE); result = progress(queued); LEAVE(); }
R cuStreamWaitEvent(void *stream, Event *event, u32 flags) { ENTER(); CONTEXT(); if (!event->live) FAIL(BAD_HANDLE); LEAVE(); }
R cuPointerGetAttribute(int *value, int attribute, u64 address) {
  ENTER();
  if (attribute != 9 || address < OFFSET) FAIL(INVALID_VALUE);
  *value = 0;
  LEAVE();
}
R cuEventCreate(void **event, u32 flags) {
  ENTER(); CONTEXT();
  events[event_count] = (Event){1, 0};
  *event = &events[event_count++];
  LEAVE();
}
R cuEventDestroy_v2(Event *event) { DESTROY(event->live = 0); }
R cuEventRecord(Event *event, void *stream) { ENTER(); CONTEXT(); if (!event->live) FAIL(BAD_HANDLE); event->until = queued; LEAVE(); }
R cuEventQuery(Event *event) { ENTER(); CONTEXT(); if (!event->live) FAIL(BAD_HANDLE); result = progress(event->until); LEAVE(); }

typedef struct { int allocation_type, handle_types, location_type, location; void *security; size_t max_size; unsigned short usage; unsigned char rest[54]; } PoolProps;
R cuMemPoolCreate(void **pool, PoolProps *p) {
  ENTER();
  if (sizeof(PoolProps) != 88 || p->allocation_type != 1 || p->location_type != 1) FAIL(INVALID_VALUE);
  *pool = &pools[0];
  live_pools++;
  LEAVE();
}
R cuMemPoolDestroy(void *pool) {
  pthread_mutex_lock(&lock);
  live_pools--;
  for (int i = 0; i < memories; i++) if (memory[i].live) { free((void *)(memory[i].at - OFFSET)); memory[i].live = 0; }
  pthread_mutex_unlock(&lock);
  return 0;
}
R cuMemPoolSetAttribute(void *pool, int attribute, u64 *value) { ENTER(); if (attribute != 4 || *value != total / 8) FAIL(INVALID_VALUE); LEAVE(); }
R cuMemPoolTrimTo(void *pool, size_t keep) { ENTER(); LEAVE(); }
R cuMemAllocFromPoolAsync(u64 *address, size_t n, void *pool, void *stream) {
  ENTER(); CONTEXT();
  if (reserved + n > total) FAIL(OUT_OF_MEMORY);
  unsigned char *p = aligned_alloc(256, (n + 255) & ~(size_t)255);
  memset(p, 0xCD, n);
  int i = 0;
  while (i < memories && memory[i].live) i++;
  if (i == memories) memories++;
  memory[i] = (Range){(u64)p + OFFSET, n, 1};
  reserved += n;
  *address = (u64)p + OFFSET;
  LEAVE();
}
R cuMemFreeAsync(u64 address, void *stream) {
  ENTER(); CONTEXT();
  for (int i = 0; i < memories; i++)
    if (memory[i].live == 1 && memory[i].at == address) {
      memory[i].live = 2;
      enqueue((Work){.kind = FREE, .a = address});
      goto out;
    }
  result = INVALID_VALUE;
  LEAVE();
}
R cuMemHostAlloc(void **p, size_t n, u32 flags) {
  ENTER(); CONTEXT();
  *p = malloc(n);
  memset(*p, 0xAB, n);
  pinned_memory[pinneds++] = (Range){(u64)*p, n, 1};
  LEAVE();
}
R cuMemFreeHost(void *p) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < pinneds; i++) if (pinned_memory[i].live && pinned_memory[i].at == (u64)p) { pinned_memory[i].live = 0; free(p); }
  pthread_mutex_unlock(&lock);
  return 0;
}
R cuMemcpyHtoDAsync_v2(u64 to, void *of, size_t n, void *stream) {
  ENTER(); CONTEXT();
  if (!is_pinned((u64)of, n)) FAIL(INVALID_VALUE);
  enqueue((Work){.kind = COPY_IN, .a = to, .b = (u64)of, .n = n});
  LEAVE();
}
R cuMemcpyDtoHAsync_v2(void *to, u64 of, size_t n, void *stream) {
  ENTER(); CONTEXT();
  if (!is_pinned((u64)to, n)) FAIL(INVALID_VALUE);
  enqueue((Work){.kind = COPY_OUT, .a = (u64)to, .b = of, .n = n});
  LEAVE();
}
R cuMemcpyDtoDAsync_v2(u64 to, u64 of, size_t n, void *stream) { ENTER(); CONTEXT(); enqueue((Work){.kind = COPY, .a = to, .b = of, .n = n}); LEAVE(); }
R cuMemsetD32Async(u64 to, u32 word, size_t n, void *stream) { ENTER(); CONTEXT(); enqueue((Work){.kind = FILL, .a = to, .n = n, .word = word}); LEAVE(); }

static void write_log(u32 n, int *options, void **values, const char *text) {
  for (u32 i = 0; i < n; i++) if (options[i] == 5) strcpy(values[i], text);
}
R cuModuleLoadDataEx(Module **module, const char *image, u32 n, int *options, void **values) {
  ENTER(); CONTEXT();
  if (!strncmp(image, "\x7f" "ELF", 4)) image += 4;
  if (!strstr(image, ".entry")) { write_log(n, options, values, "ptxas application ptx input, line 3; fatal: Parsing error near 'nonsense'"); FAIL(BAD_PTX); }
  modules[module_count] = (Module){1, strdup(image)};
  *module = &modules[module_count++];
  LEAVE();
}
R cuModuleUnload(Module *module) { DESTROY(if (!module->live) result = BAD_HANDLE; module->live = 0); }
R cuModuleGetFunction(Function **function, Module *module, const char *name) {
  ENTER(); CONTEXT();
  char wanted[300];
  snprintf(wanted, sizeof wanted, ".entry %s(", name);
  if (!strstr(module->text, wanted)) FAIL(NOT_FOUND);
  Function *f = &functions[function_count++];
  snprintf(f->name, sizeof f->name, "%s", name);
  f->module = module;
  *function = f;
  LEAVE();
}
R cuFuncGetAttribute(int *value, int attribute, Function *function) {
  ENTER();
  *value = attribute == 4 ? 24 : attribute == 3 ? 8 : attribute == 1 ? 128 : -1;
  LEAVE();
}
R cuOccupancyMaxActiveBlocksPerMultiprocessor(int *groups, Function *function, int group_size, size_t shared) {
  ENTER();
  *groups = 2048 / group_size;
  LEAVE();
}
/* What the parameters of an entry take, as its text declares them. */
static size_t parameter_bytes(Function *f) {
  char wanted[300];
  snprintf(wanted, sizeof wanted, ".entry %s(", f->name);
  const char *at = strstr(f->module->text, wanted) + strlen(wanted), *end = strchr(at, ')'), *size = strchr(at, '[');
  return size && size < end ? strtoul(size + 1, NULL, 10) : strstr(at, ".param") && strstr(at, ".param") < end ? 8 : 0;
}
R cuLaunchKernel(Function *f, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, void *stream, void **parameters, void **extra) {
  ENTER(); CONTEXT();
  if (!gx || gx > 0x7fffffff || gy != 1 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || shared || parameters || stream != &streams[0]) FAIL(INVALID_VALUE);
  if (!f->module->live) FAIL(BAD_HANDLE);
  Launch *l = &launches[launch_count++ % MOST];
  memset(l, 0, sizeof *l);
  strcpy(l->name, f->name);
  l->grid = gx; l->block = bx;
  if (extra) {
    if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) FAIL(INVALID_VALUE);
    l->size = *(size_t *)extra[3];
    if (l->size != parameter_bytes(f)) FAIL(INVALID_VALUE);
    memcpy(l->bytes, extra[1], l->size < 256 ? l->size : 256);
  }
  enqueue((Work){.kind = LAUNCH, .launch = l});
  LEAVE();
}

typedef struct { char *image; u32 n; int *options; void **values; } Link;
R cuLinkCreate_v2(u32 n, int *options, void **values, Link **link) {
  ENTER(); CONTEXT();
  *link = calloc(1, sizeof(Link));
  **link = (Link){NULL, n, options, values};
  LEAVE();
}
R cuLinkAddData_v2(Link *link, int kind, const char *data, size_t size, const char *name, u32 n, void *options, void *values) {
  ENTER(); CONTEXT();
  if (kind != 1 || strlen(data) + 1 != size) FAIL(INVALID_VALUE);
  if (!strstr(data, ".entry")) { write_log(link->n, link->options, link->values, "ptxas application ptx input, line 3; fatal: Parsing error"); FAIL(BAD_PTX); }
  link->image = malloc(size + 4);
  memcpy(link->image, "\x7f" "ELF", 4);
  memcpy(link->image + 4, data, size);
  LEAVE();
}
R cuLinkComplete(Link *link, void **cubin, size_t *size) { ENTER(); CONTEXT(); *cubin = link->image; *size = strlen(link->image); LEAVE(); }
R cuLinkDestroy(Link *link) { ENTER(); free(link->image); free(link); LEAVE(); }
