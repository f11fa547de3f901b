/* A stand-in for the driver of a GPU: libcuda, or libamdhip64 with -DHIP. Device memory is host memory, work is queued and done later, calls
   are counted by the names that `Driver` has for them.

   Device addresses are host addresses plus OFFSET, so that neither can be taken for the other. Each stream does its work in the order of the
   calls; streams go on independently, but for events: one piece of work at each query, and where much waits, unless `standin_hold` keeps a
   stream or all of them back. Copies from and to host memory that is not pinned, memory that is not allocated yet or was freed, and calls
   without the context (CUDA) or the device (HIP) current are errors. Kernels are known by the names of their entries. Small numbers are
   streams of other libraries. Graphs do their work in the order in which it was recorded; what must be joined before the end of a recording
   is checked. */

#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HIP
#define F(cuda, hip) hip
#define LAUNCH_END ((void *)3)
#else
#define F(cuda, hip) cuda
#define LAUNCH_END ((void *)0)
#endif

typedef int R;
typedef uint64_t u64;
typedef uint32_t u32;
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, BAD_DEVICE = 101, NO_CONTEXT = 201, BAD_IMAGE = F(218, 209), BAD_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719, RECORDING = 900 };
#define OFFSET ((u64)1 << 62)
#define MOST 4096
#define MOST_WORK (1 << 16)
#define STREAMS 32
#define MOST_RECORDS (1 << 20)
#define OTHERS 16 /* streams of other libraries: 0 to 15 */

enum { NONE, LIVE, FREED, COMING };                               /* FREED: the free is still to come; COMING: so is the allocation */
typedef struct { u64 at; size_t size; int live; } Range;
struct Stream;
typedef struct { int live; u64 recorded, time; struct Stream *of; u64 place; } Event; /* the number of its last record; 0: none. Of a stream that is recorded: where */
typedef struct { int live, device; char *image; size_t size; } Module;
typedef struct { char name[256]; Module *module; long parameters; int registers, local, shared; } Function;
typedef struct { char name[256]; u32 grid, block; unsigned char bytes[4096]; size_t size; u64 stream; } Launch;
struct Graph;
typedef struct { int kind; u64 a, b; size_t n; u32 word; Launch *launch; Event *event; struct Graph *body; } Work;
typedef struct Graph { int live; size_t count; Work *work; void *end; } Graph; /* one that is recorded, and executable ones; its last node */
/* recorder: what the work is recorded into; origin: of the stream whose recording this one joined; given, joined: work since then */
typedef struct Stream { int live, device, held; Work *work; u64 queued, finished; Graph *recorder; struct Stream *origin; u64 given, joined; } Stream;
enum { COPY_IN, COPY_OUT, COPY, FILL, ALLOCATE, FREE, LAUNCH, RECORD, WAIT, LOOP };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Range memory[MOST], pinned_memory[MOST];
static int memories, pinneds, live_pools, retained, held, sticky, device_count = 1;
static char architecture[64];
static size_t total = (size_t)1 << 30, reserved;
static Event events[MOST];
static Module modules[MOST];
static Function functions[MOST];
static Launch launches[MOST];
static Stream streams[STREAMS];
static Graph graphs[MOST];
static u32 conditions[MOST]; /* values of handles, which are their numbers */
static int condition_count = 1, branches;
static int event_count, graph_count, module_count, function_count, launch_count, stream_count = OTHERS, turn;
static int pools[8];
static u64 records; /* a wait is for a record, not for the event: that may be recorded anew meanwhile */
static unsigned char records_done[MOST_RECORDS];
static u64 now;
#ifndef HIP
static int contexts[8];
static __thread void *stack[16];
#endif
static __thread int depth, current_device, last_error;

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

#define ENTER(name) pthread_mutex_lock(&lock); R result = count(name); if (result) goto out
#define LEAVE() out: if (result) last_error = result; pthread_mutex_unlock(&lock); return result
#define FAIL(code) do { result = (code); goto out; } while (0)
/* What is destroyed is gone, whatever has failed before. */
#define DESTROY(name, statement) pthread_mutex_lock(&lock); R result = count(name); statement; pthread_mutex_unlock(&lock); return result
#ifdef HIP
#define CONTEXT()
#define ON(device) if (current_device != (device)) FAIL(BAD_HANDLE)
#else
#define CONTEXT() if (!depth || !stack[depth - 1]) FAIL(NO_CONTEXT)
#define ON(device)
#endif
#define STREAM(handle) Stream *s = stream_of(handle); if (!s || !s->live) FAIL(BAD_HANDLE); if (s - streams >= OTHERS) { ON(s->device); }

static Stream *stream_of(void *handle) {
  if ((u64)handle < OTHERS) return &streams[(u64)handle];
  Stream *s = handle;
  return s >= streams && s < streams + stream_count ? s : NULL;
}

/* --- what tests ask and set --- */

__attribute__((constructor)) void standin_reset(void) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < memories; i++) if (memory[i].live) free((void *)(memory[i].at - OFFSET));
  memories = pinneds = live_pools = retained = held = sticky = 0;
  device_count = 1; total = (size_t)1 << 30; reserved = 0;
  strcpy(architecture, F("90", "gfx1100"));
  event_count = graph_count = module_count = function_count = launch_count = turn = 0;
  stream_count = OTHERS;
  for (int i = 0; i < STREAMS; i++) {
    if (!streams[i].work) streams[i].work = malloc(sizeof(Work) * MOST_WORK);
    streams[i] = (Stream){i < OTHERS, 0, 0, streams[i].work};
  }
  memset(counters, 0, sizeof counters);
  counter_count = branches = 0;
  condition_count = 1;
  depth = current_device = last_error = 0;
  pthread_mutex_unlock(&lock);
}
void standin_hold(int on) { held = on; }
void standin_hold_stream(u64 handle, int on) { stream_of((void *)handle)->held = on; }
void standin_fail(const char *symbol, int code, int times) { Counter *c = counter(symbol); c->code = code; c->times = times; }
int standin_calls(const char *symbol) { return counter(symbol)->calls; }
void standin_machine(int devices, const char *of_device_0, size_t bytes) { device_count = devices; strcpy(architecture, of_device_0); total = bytes; }
u64 standin_pending(void) { u64 n = 0; for (int i = 0; i < stream_count; i++) n += streams[i].queued - streams[i].finished; return n; }
int standin_launches(void) { return launch_count; }
Launch *standin_launch(int i) { return &launches[i % MOST]; }
int standin_branches(void) { return branches; } /* streams that joined a recording */
int standin_depth(void) { return F(depth, current_device); }
int standin_last_error(void) { return last_error; }
int standin_live(const char *what) {
  int n = 0;
  if (!strcmp(what, "memory") && !sticky) for (int i = 0; i < memories; i++) n += memory[i].live == LIVE || memory[i].live == COMING;
  if (!strcmp(what, "pinned")) for (int i = 0; i < pinneds; i++) n += pinned_memory[i].live;
  if (!strcmp(what, "events")) for (int i = 0; i < event_count; i++) n += events[i].live;
  if (!strcmp(what, "modules")) for (int i = 0; i < module_count; i++) n += modules[i].live;
  if (!strcmp(what, "streams")) for (int i = OTHERS; i < stream_count; i++) n += streams[i].live;
  if (!strcmp(what, "graphs")) for (int i = 0; i < graph_count; i++) n += graphs[i].live;
  if (!strcmp(what, "pools")) n = live_pools;
  if (!strcmp(what, "contexts")) n = retained;
  return n;
}

/* --- memory and work --- */

static unsigned char *host(u64 address, size_t n) {
  for (int i = 0; i < memories; i++)
    if ((memory[i].live == LIVE || memory[i].live == FREED) && address >= memory[i].at && address + n <= memory[i].at + memory[i].size)
      return (unsigned char *)(address - OFFSET);
  sticky = ILLEGAL_ADDRESS;
  return NULL;
}

static int is_pinned(u64 address, size_t n) {
  for (int i = 0; i < pinneds; i++)
    if (pinned_memory[i].live && address >= pinned_memory[i].at && address + n <= pinned_memory[i].at + pinned_memory[i].size) return 1;
  return 0;
}

static Range *range(u64 address, int live) {
  for (int i = 0; i < memories; i++) if (memory[i].at == address && memory[i].live == live) return &memory[i];
  return NULL;
}

static void run_kernel(Launch *l) {
  unsigned char block[16];
  memcpy(block, l->bytes, 16);
  if (strstr(l->name, "_by_address")) {
    u64 at;
    memcpy(&at, l->bytes, 8);
    unsigned char *p = host(at, 16);
    if (!p) return;
    memcpy(block, p, 16);
  }
  if (!strncmp(l->name, "k_", 2)) return; /* by the code generator: not run */
  u64 data; u32 n, a;
  if (!strcmp(l->name, "sg_set_condition")) {
    u64 handle, flag;
    memcpy(&handle, block, 8); memcpy(&flag, block + 8, 8);
    u32 *word = flag ? (u32 *)host(flag, 4) : NULL;
    if (handle && handle < (u64)condition_count && (word || !flag)) conditions[handle] = !flag || *word; else sticky = ILLEGAL_ADDRESS;
    return;
  }
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

/* 0 if the piece of work cannot be done yet. */
static int do_work(Work *w) {
  unsigned char *p, *q;
  Range *r;
  switch (w->kind) {
    case COPY_IN: if ((p = host(w->a, w->n))) memcpy(p, (void *)w->b, w->n); break;
    case COPY_OUT: if ((p = host(w->b, w->n))) memcpy((void *)w->a, p, w->n); break;
    case COPY: if ((p = host(w->a, w->n)) && (q = host(w->b, w->n))) memmove(p, q, w->n); break;
    case FILL: if ((p = host(w->a, 4 * w->n))) for (size_t i = 0; i < w->n; i++) ((u32 *)p)[i] = w->word; break;
    case ALLOCATE: if ((r = range(w->a, COMING))) r->live = LIVE; break;
    case FREE: if ((r = range(w->a, FREED))) { reserved -= r->size; free((void *)(r->at - OFFSET)); r->live = NONE; } break;
    case LAUNCH: run_kernel(w->launch); break;
    case RECORD: records_done[w->a % MOST_RECORDS] = 1; w->event->time = ++now; break;
    case WAIT: if (w->a && !records_done[w->a % MOST_RECORDS]) return 0; break;
    case LOOP: while (conditions[w->a] && !sticky) for (size_t i = 0; i < w->body->count; i++) do_work(&w->body->work[i]); break;
  }
  return 1;
}

/* The first piece of work of a stream; 0 if it cannot be done yet. */
static int step_of(Stream *s) {
  if (s->held || s->finished == s->queued) return 0;
  int done = do_work(&s->work[s->finished % MOST_WORK]);
  s->finished += done;
  return done;
}

static int step(void) {
  for (int i = 0; !held && i < stream_count; i++)
    if (step_of(&streams[++turn % stream_count])) return 1;
  return 0;
}
static void enqueue(Stream *s, Work w) {
  if (s->recorder) {
    s->recorder->work[s->recorder->count++] = w;
    s->given++;
    return;
  }
  s->work[s->queued++ % MOST_WORK] = w;
  while (s->queued - s->finished > 500 && step());
  if (s->queued - s->finished > MOST_WORK - 1) abort();
}

/* --- the driver: start, devices --- */

R F(cuInit, hipInit)(u32 flags) { ENTER("init"); LEAVE(); }
R F(cuDriverGetVersion, hipDriverGetVersion)(int *version) { ENTER("driver_version"); *version = F(13000, 60342131); LEAVE(); }
#define NAME(code, cuda, hip) case code: return F(cuda, hip)
static const char *error_name(int code) {
  switch (code) {
    NAME(INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue");
    NAME(OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory");
    NAME(ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress");
    NAME(LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure");
    NAME(BAD_IMAGE, "CUDA_ERROR_INVALID_PTX", "hipErrorNoBinaryForGpu");
    NAME(NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound");
  }
  return NULL;
}
static const char *error_text(int code) { return code == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : NULL; }
#ifdef HIP
const char *hipGetErrorName(int code) { return error_name(code); }
const char *hipGetErrorString(int code) { return error_text(code); }
R hipGetLastError(void) { R code = last_error; last_error = 0; return code; }
R hipGetDevice(int *device) { *device = current_device; return 0; }
R hipSetDevice(int device) { ENTER("context_push"); if (device >= device_count) FAIL(BAD_DEVICE); current_device = device; LEAVE(); }
#ifdef HIP5
#define PROPERTIES hipGetDeviceProperties
#define ARCHITECTURE_AT 396
#else
#define PROPERTIES hipGetDevicePropertiesR0600
#define ARCHITECTURE_AT 1160
#endif
R PROPERTIES(char *properties, int device) {
  ENTER("device_properties");
  if (device >= device_count) FAIL(BAD_DEVICE);
  memset(properties, 0, ARCHITECTURE_AT + 256);
  snprintf(properties + ARCHITECTURE_AT, 256, "%s:sramecc+:xnack-", device ? "gfx90a" : architecture);
  LEAVE();
}
#define HANDLE 0
#else
R cuGetErrorName(int code, const char **name) { *name = error_name(code); return *name ? 0 : INVALID_VALUE; }
R cuGetErrorString(int code, const char **text) { *text = error_text(code); return 0; }
/* The numbers that devices have are not those of their handles: callers must ask for the handle. */
#define HANDLE 10
R cuDevicePrimaryCtxRetain(void **context, int device) { ENTER("context_retain"); if (device < HANDLE) FAIL(BAD_DEVICE); *context = &contexts[device - HANDLE]; retained++; LEAVE(); }
R cuDevicePrimaryCtxRelease_v2(int device) { pthread_mutex_lock(&lock); if (device >= HANDLE) retained--; pthread_mutex_unlock(&lock); return 0; }
R cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : NULL; return 0; }
R cuCtxPushCurrent_v2(void *context) { ENTER("context_push"); stack[depth++] = context; LEAVE(); }
R cuCtxPopCurrent_v2(void **context) { if (!depth) return NO_CONTEXT; *context = stack[--depth]; return 0; }
R cuCtxSetLimit(int limit, size_t value) { ENTER("context_limit"); CONTEXT(); if (limit || value < 1024) FAIL(1); LEAVE(); }
R cuCtxSetCurrent(void *context) { ENTER("context_set"); if (!depth) depth = 1; stack[depth - 1] = context; LEAVE(); }
#endif
R F(cuDeviceGetCount, hipGetDeviceCount)(int *n) { ENTER("device_count"); *n = device_count; LEAVE(); }
R F(cuDeviceGet, hipDeviceGet)(int *device, int ordinal) { ENTER("device_get"); if (ordinal >= device_count) FAIL(BAD_DEVICE); *device = ordinal + HANDLE; LEAVE(); }
R F(cuDeviceGetName, hipDeviceGetName)(char *name, int n, int device) { ENTER("device_name"); snprintf(name, n, "Stand-in %c", 'A' + device - HANDLE); LEAVE(); }
R F(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t *bytes, int device) { ENTER("device_memory"); *bytes = total; LEAVE(); }
R F(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *value, int attribute, int device) {
  ENTER("device_attribute");
  switch (attribute) {
    case F(1, 56): *value = 1024; break;
    case F(5, 29): *value = 0x7fffffff; break;
    case F(8, 74): *value = F(49152, 65536); break;
    case F(10, 87): *value = 32; break;
    case F(16, 63): *value = 132; break;
    case F(18, 16): *value = 0; break;
    case F(115, 88): *value = 1; break;
#ifndef HIP
    case 13: *value = 1980000; break;
    case 75: *value = device == HANDLE ? atoi(architecture) / 10 : 9; break;
    case 76: *value = device == HANDLE ? atoi(architecture) % 10 : 0; break;
#endif
    default: FAIL(INVALID_VALUE);
  }
  LEAVE();
}

/* --- streams and events --- */

R F(cuStreamCreate, hipStreamCreateWithFlags)(void **stream, u32 flags) {
  ENTER("stream_create"); CONTEXT();
  if (stream_count == STREAMS) FAIL(OUT_OF_MEMORY);
  Stream *s = &streams[stream_count++];
  *s = (Stream){1, current_device, 0, s->work};
  *stream = s;
  LEAVE();
}
R F(cuStreamDestroy_v2, hipStreamDestroy)(Stream *s) { DESTROY("stream_destroy", s->live = 0); }
R F(cuStreamQuery, hipStreamQuery)(void *stream) {
  ENTER("stream_query"); CONTEXT(); STREAM(stream);
  if (s->recorder) FAIL(RECORDING);
  step();
  result = sticky ? sticky : s->finished < s->queued ? NOT_READY : 0;
  LEAVE();
}
R F(cuCtxSynchronize, hipDeviceSynchronize)(void) { ENTER("synchronize"); CONTEXT(); while (step()); result = sticky; LEAVE(); }
R F(cuStreamWaitEvent, hipStreamWaitEvent)(void *stream, Event *event, u32 flags) {
  ENTER("stream_wait"); CONTEXT(); STREAM(stream);
  if (!event->live) FAIL(BAD_HANDLE);
  if (event->of && event->of->recorder) { /* an edge of a graph; a stream that waits for a recorded one joins the recording */
    if (s->recorder && s->recorder != event->of->recorder) FAIL(RECORDING);
    if (!s->recorder) { s->recorder = event->of->recorder; s->origin = event->of->origin; s->given = s->joined = 0; branches++; }
    if (s == event->of->origin && event->place == event->of->given) event->of->joined = event->place;
    goto out;
  }
  if (event->of || s->recorder) FAIL(RECORDING); /* the event of a recording that has ended, or another one in a recording */
  enqueue(s, (Work){.kind = WAIT, .event = event, .a = event->recorded});
  LEAVE();
}

/* --- graphs: work that is recorded, and done each time the graph is launched --- */

R F(cuStreamBeginCapture_v2, hipStreamBeginCapture)(void *stream, int mode) {
  ENTER("capture_begin"); CONTEXT(); STREAM(stream);
  if (s->recorder || mode != 2) FAIL(INVALID_VALUE);
  s->recorder = &graphs[graph_count++];
  *s->recorder = (Graph){1, 0, malloc(sizeof(Work) * MOST)};
  s->origin = s;
  LEAVE();
}
static R end_recording(Stream *origin) {
  R result = 0;
  for (int i = 0; i < stream_count; i++) {
    Stream *s = &streams[i];
    if (!s->recorder || s->origin != origin) continue;
    if (s != origin && s->given != s->joined) result = RECORDING;
    s->recorder = NULL;
    s->origin = NULL;
  }
  return result;
}
R F(cuStreamEndCapture, hipStreamEndCapture)(void *stream, Graph **graph) { /* ends it, whatever has failed */
  DESTROY("capture_end", Stream *s = stream_of(stream); Graph *made = s->recorder; R joined = end_recording(s); if (!result) result = joined; if (result) made->live = 0; else *graph = made);
}
R F(cuStreamIsCapturing, hipStreamIsCapturing)(void *stream, int *state) {
  ENTER("capture_state"); CONTEXT(); STREAM(stream);
  *state = s->recorder != NULL;
  LEAVE();
}
#ifndef HIP
typedef struct { int type, reserved0[3]; u64 handle; int kind; u32 size; Graph **graphs; void *context; long long rest[25], reserved2; } NodeParams;
static Graph *new_graph(void) { graphs[graph_count] = (Graph){1, 0, malloc(sizeof(Work) * MOST)}; return &graphs[graph_count++]; }
R cuGraphCreate(Graph **graph, u32 flags) { ENTER("graph_create"); *graph = new_graph(); LEAVE(); }
/* Whether `after` is the last node, which it is if graphs are built from their begin to their end. */
static int follows(Graph *graph, void **after, size_t n) { return graph->end ? n == 1 && after[0] == graph->end : !n; }
R cuStreamBeginCaptureToGraph(void *stream, Graph *graph, void **after, void *edges, size_t n, int mode) {
  ENTER("capture_to"); CONTEXT(); STREAM(stream);
  if (s->recorder || mode != 2 || edges || !follows(graph, after, n)) FAIL(INVALID_VALUE);
  s->recorder = graph;
  s->origin = s;
  LEAVE();
}
R cuStreamGetCaptureInfo_v2(Stream *s, int *state, u64 *number, Graph **graph, void ***after, size_t *n) {
  ENTER("capture_info"); CONTEXT();
  if (!s->recorder) FAIL(INVALID_VALUE);
  *state = 1; *number = 1; *graph = s->recorder;
  if (s->recorder->count) s->recorder->end = &s->recorder->work[s->recorder->count - 1];
  *after = &s->recorder->end;
  *n = s->recorder->end != NULL;
  LEAVE();
}
R cuGraphConditionalHandleCreate(u64 *handle, Graph *graph, void *context, u32 value, u32 flags) {
  ENTER("condition_create");
  if (context != stack[depth - 1] || value || flags) FAIL(INVALID_VALUE);
  *handle = condition_count++;
  LEAVE();
}
R cuGraphAddNode(void **node, Graph *graph, void **after, size_t n, NodeParams *p) {
  ENTER("graph_add");
  if (sizeof *p != 256 || p->type != 13 || p->kind != 1 || p->size != 1 || p->context != stack[depth - 1] || !follows(graph, after, n)) FAIL(INVALID_VALUE);
  static Graph *bodies[1];
  bodies[0] = new_graph();
  bodies[0]->live = 0; /* goes with the graph around it */
  p->graphs = bodies;
  graph->work[graph->count] = (Work){.kind = LOOP, .a = p->handle, .body = bodies[0]};
  *node = graph->end = &graph->work[graph->count++];
  LEAVE();
}
#endif
static Graph *copied(Graph *graph) {
  Graph *made = &graphs[graph_count++];
  *made = *graph;
  made->live = 0; /* bodies go with the graph around them */
  made->work = malloc(sizeof(Work) * MOST);
  memcpy(made->work, graph->work, sizeof(Work) * graph->count);
  for (size_t i = 0; i < made->count; i++) {
    if (made->work[i].kind == LOOP) made->work[i].body = copied(made->work[i].body);
    if (made->work[i].kind != LAUNCH) continue;
    Launch *l = malloc(sizeof(Launch)); /* the other one's place is used again */
    *l = *made->work[i].launch;
    made->work[i].launch = l;
  }
  return made;
}
R F(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(Graph **executable, Graph *graph, u64 flags) {
  ENTER("graph_make"); CONTEXT();
  if (!graph->live || flags) FAIL(BAD_HANDLE);
  Graph *made = copied(graph);
  made->live = 1;
  *executable = made;
  LEAVE();
}
R F(cuGraphLaunch, hipGraphLaunch)(Graph *graph, void *stream) {
  ENTER("graph_launch"); CONTEXT(); STREAM(stream);
  if (!graph->live) FAIL(BAD_HANDLE);
  if (s->recorder) FAIL(RECORDING);
  for (size_t i = 0; i < graph->count; i++) enqueue(s, graph->work[i]);
  LEAVE();
}
R F(cuGraphDestroy, hipGraphDestroy)(Graph *graph) { DESTROY("graph_destroy", if (!graph->live) result = BAD_HANDLE; graph->live = 0); }
R F(cuGraphExecDestroy, hipGraphExecDestroy)(Graph *graph) { DESTROY("graph_unload", if (!graph->live) result = BAD_HANDLE; graph->live = 0); }

R F(cuPointerGetAttribute, hipPointerGetAttribute)(int *value, int attribute, u64 address) {
  ENTER("pointer_attribute");
  if (attribute != 9 || address < OFFSET) FAIL(INVALID_VALUE);
  *value = 0;
  LEAVE();
}
R F(cuEventCreate, hipEventCreateWithFlags)(void **event, u32 flags) {
  ENTER("event_create"); CONTEXT();
  events[event_count] = (Event){1};
  *event = &events[event_count++];
  LEAVE();
}
R F(cuEventDestroy_v2, hipEventDestroy)(Event *event) { DESTROY("event_destroy", event->live = 0); }
R F(cuEventRecord, hipEventRecord)(Event *event, void *stream) {
  ENTER("event_record"); CONTEXT(); STREAM(stream);
  if (!event->live) FAIL(BAD_HANDLE);
  event->of = s->recorder ? s : NULL;
  event->place = s->given;
  if (s->recorder) goto out;
  event->recorded = ++records;
  records_done[records % MOST_RECORDS] = 0;
  enqueue(s, (Work){.kind = RECORD, .event = event, .a = event->recorded});
  LEAVE();
}
R F(cuEventElapsedTime, hipEventElapsedTime)(float *milliseconds, Event *begin, Event *end) { /* an event takes a nanosecond */
  ENTER("event_elapsed"); CONTEXT();
  if (!begin->live || !end->live) FAIL(BAD_HANDLE);
  if (!records_done[begin->recorded % MOST_RECORDS] || !records_done[end->recorded % MOST_RECORDS]) FAIL(NOT_READY);
  *milliseconds = ((float)end->time - (float)begin->time) * 1e-6f;
  LEAVE();
}
R F(cuEventQuery, hipEventQuery)(Event *event) {
  ENTER("event_query"); CONTEXT();
  if (!event->live) FAIL(BAD_HANDLE);
  step();
  result = sticky ? sticky : event->recorded && !records_done[event->recorded % MOST_RECORDS] ? NOT_READY : 0;
  LEAVE();
}

/* --- memory --- */

typedef struct { int allocation_type, handle_types, location_type, location; void *security; unsigned char rest[64]; } PoolProps;
R F(cuMemPoolCreate, hipMemPoolCreate)(void **pool, PoolProps *p) {
  ENTER("pool_create");
  if (sizeof(PoolProps) != 88 || p->allocation_type != 1 || p->location_type != 1) FAIL(INVALID_VALUE);
  for (int i = 0; i < 64; i++) if (p->rest[i]) FAIL(INVALID_VALUE);
  *pool = &pools[0];
  live_pools++;
  LEAVE();
}
R F(cuMemPoolDestroy, hipMemPoolDestroy)(void *pool) {
  pthread_mutex_lock(&lock);
  live_pools--; /* memory that was not freed stays */
  if (!live_pools) while (step());
  pthread_mutex_unlock(&lock);
  return 0;
}
R F(cuMemPoolSetAttribute, hipMemPoolSetAttribute)(void *pool, int attribute, u64 *value) { ENTER("pool_set"); if (attribute != 4 || *value != total / 8) FAIL(INVALID_VALUE); LEAVE(); }
R F(cuMemPoolTrimTo, hipMemPoolTrimTo)(void *pool, size_t keep) { ENTER("pool_trim"); LEAVE(); }
R F(cuMemAllocFromPoolAsync, hipMallocFromPoolAsync)(u64 *address, size_t n, void *pool, void *stream) {
  ENTER("allocate_from_pool"); CONTEXT(); STREAM(stream);
  if (reserved + n > total) FAIL(OUT_OF_MEMORY);
  unsigned char *p = aligned_alloc(256, (n + 255) & ~(size_t)255);
  memset(p, 0xCD, n);
  int i = 0;
  while (i < memories && memory[i].live) i++;
  if (i == memories) memories++;
  memory[i] = (Range){(u64)p + OFFSET, n, COMING};
  reserved += n;
  *address = (u64)p + OFFSET;
  enqueue(s, (Work){.kind = ALLOCATE, .a = *address});
  LEAVE();
}
R F(cuMemFreeAsync, hipFreeAsync)(u64 address, void *stream) {
  ENTER("free_on_stream"); CONTEXT(); STREAM(stream);
  Range *r = range(address, LIVE);
  if (!r) r = range(address, COMING);
  if (!r) FAIL(INVALID_VALUE);
  r->live = FREED;
  enqueue(s, (Work){.kind = FREE, .a = address});
  LEAVE();
}
R F(cuMemHostAlloc, hipHostMalloc)(void **p, size_t n, u32 flags) {
  ENTER("host_allocate"); CONTEXT();
  *p = malloc(n);
  memset(*p, 0xAB, n);
  pinned_memory[pinneds++] = (Range){(u64)*p, n, LIVE};
  LEAVE();
}
R F(cuMemFreeHost, hipHostFree)(void *p) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < pinneds; i++) if (pinned_memory[i].live && pinned_memory[i].at == (u64)p) { pinned_memory[i].live = NONE; free(p); }
  pthread_mutex_unlock(&lock);
  return 0;
}
R F(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(u64 to, void *of, size_t n, void *stream) {
  ENTER("copy_to_device"); CONTEXT(); STREAM(stream);
  if (!is_pinned((u64)of, n)) FAIL(INVALID_VALUE);
  enqueue(s, (Work){.kind = COPY_IN, .a = to, .b = (u64)of, .n = n});
  LEAVE();
}
R F(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void *to, u64 of, size_t n, void *stream) {
  ENTER("copy_to_host"); CONTEXT(); STREAM(stream);
  if (!is_pinned((u64)to, n)) FAIL(INVALID_VALUE);
  enqueue(s, (Work){.kind = COPY_OUT, .a = (u64)to, .b = of, .n = n});
  LEAVE();
}
R F(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(u64 to, u64 of, size_t n, void *stream) {
  ENTER("copy"); CONTEXT(); STREAM(stream);
  enqueue(s, (Work){.kind = COPY, .a = to, .b = of, .n = n});
  LEAVE();
}
R F(cuMemsetD32Async, hipMemsetD32Async)(u64 to, u32 word, size_t n, void *stream) {
  ENTER("fill"); CONTEXT(); STREAM(stream);
  enqueue(s, (Work){.kind = FILL, .a = to, .n = n, .word = word});
  LEAVE();
}

/* --- kernels: text of PTX; the magic of ELF and then such text; or code objects of AMDGPU --- */

static int is_elf(const char *image) { return !strncmp(image, "\x7f" "ELF", 4); }
static int is_code_object(const char *image) { return is_elf(image) && image[4] == ELFCLASS64; }

/* The descriptor of a kernel in a code object (AMDGPU's user guide in LLVM's documentation, "Kernel Descriptor"), or NULL. */
static const u32 *descriptor(Module *m, const char *name) {
  Elf64_Ehdr *header = (Elf64_Ehdr *)m->image;
  Elf64_Shdr *sections = (Elf64_Shdr *)(m->image + header->e_shoff);
  Elf64_Phdr *segments = (Elf64_Phdr *)(m->image + header->e_phoff);
  char wanted[300];
  snprintf(wanted, sizeof wanted, "%s.kd", name);
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    Elf64_Sym *symbols = (Elf64_Sym *)(m->image + sections[i].sh_offset);
    const char *names = m->image + sections[sections[i].sh_link].sh_offset;
    for (u64 k = 0; k < sections[i].sh_size / sizeof *symbols; k++) {
      if (strcmp(names + symbols[k].st_name, wanted)) continue;
      for (int p = 0; p < header->e_phnum; p++)
        if (segments[p].p_type == PT_LOAD && symbols[k].st_value >= segments[p].p_vaddr && symbols[k].st_value < segments[p].p_vaddr + segments[p].p_filesz)
          return (const u32 *)(m->image + segments[p].p_offset + symbols[k].st_value - segments[p].p_vaddr);
    }
  }
  return NULL;
}
/* What the parameters of an entry take, as its text declares them; -1: there is no such entry. */
static long parameter_bytes(const char *text, const char *name) {
  char wanted[300];
  snprintf(wanted, sizeof wanted, ".entry %s(", name);
  const char *at = strstr(text, wanted);
  if (!at) return -1;
  at += strlen(wanted);
  const char *end = strchr(at, ')'), *size = strchr(at, '[');
  return size && size < end ? strtol(size + 1, NULL, 10) : strstr(at, ".param") && strstr(at, ".param") < end ? 8 : 0;
}

static R load(Module **module, const char *image) {
  Elf64_Ehdr *header = (Elf64_Ehdr *)image;
  size_t size = is_code_object(image) ? header->e_shoff + (size_t)header->e_shnum * header->e_shentsize : strlen(image) + 1;
  if (!is_code_object(image) && !strstr(image, ".entry")) return BAD_IMAGE;
#ifdef HIP
  if (!is_elf(image)) return BAD_IMAGE;
#endif
  char *copy = malloc(size);
  memcpy(copy, image, size);
  modules[module_count] = (Module){1, current_device, copy, size};
  *module = &modules[module_count++];
  return 0;
}
#ifdef HIP
R hipModuleLoadData(Module **module, const char *image) { ENTER("module_load"); result = load(module, image); LEAVE(); }
#else
static void write_log(u32 n, int *options, void **values, const char *text) {
  for (u32 i = 0; i < n; i++) if (options[i] == 5) strcpy(values[i], text);
}
R cuModuleLoadDataEx(Module **module, const char *image, u32 n, int *options, void **values) {
  ENTER("module_load"); CONTEXT();
  result = load(module, image);
  if (result) write_log(n, options, values, "ptxas application ptx input, line 3; fatal: Parsing error near 'nonsense'");
  LEAVE();
}
#endif
R F(cuModuleUnload, hipModuleUnload)(Module *module) { DESTROY("module_unload", if (!module->live) result = BAD_HANDLE; module->live = 0); }
R F(cuModuleGetFunction, hipModuleGetFunction)(Function **function, Module *module, const char *name) {
  ENTER("module_function"); CONTEXT();
  Function f = {.module = module, .registers = 24, .local = 8, .shared = 128};
  snprintf(f.name, sizeof f.name, "%s", name);
  if (is_code_object(module->image)) {
    const u32 *d = descriptor(module, name);
    f.parameters = d ? (long)d[2] : -1;
    if (d) { f.shared = d[0]; f.local = d[1]; }
  } else f.parameters = parameter_bytes(module->image + (is_elf(module->image) ? 4 : 0), name);
  if (f.parameters < 0) FAIL(NOT_FOUND);
  functions[function_count] = f;
  *function = &functions[function_count++];
  LEAVE();
}
R F(cuFuncGetAttribute, hipFuncGetAttribute)(int *value, int attribute, Function *f) {
  ENTER("function_attribute");
  *value = attribute == 4 ? f->registers : attribute == 3 ? f->local : attribute == 1 ? f->shared : -1;
  LEAVE();
}
R F(cuOccupancyMaxActiveBlocksPerMultiprocessor, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor)(int *groups, Function *f, int group_size, size_t shared) {
  ENTER("occupancy");
  *groups = 2048 / group_size;
  LEAVE();
}
R F(cuLaunchKernel, hipModuleLaunchKernel)(Function *f, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, void *stream, void **parameters, void **extra) {
  ENTER("launch"); CONTEXT(); STREAM(stream);
  if (!gx || gx > 0x7fffffff || gy != 1 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || shared || parameters) FAIL(INVALID_VALUE);
  if (!f->module->live) FAIL(BAD_HANDLE);
  ON(f->module->device);
  Launch *l = &launches[launch_count++ % MOST];
  memset(l, 0, sizeof *l);
  strcpy(l->name, f->name);
  l->grid = gx; l->block = bx; l->stream = (u64)stream;
  if (!extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != LAUNCH_END) FAIL(INVALID_VALUE);
  l->size = *(size_t *)extra[3];
  if ((long)l->size != f->parameters && !(f->parameters == 0 && l->size == 1)) FAIL(INVALID_VALUE);
  if (l->size > sizeof l->bytes) FAIL(INVALID_VALUE);
  memcpy(l->bytes, extra[1], l->size);
  enqueue(s, (Work){.kind = LAUNCH, .launch = l});
  LEAVE();
}

#ifndef HIP
typedef struct { char *image; u32 n; int *options; void **values; } Link;
R cuLinkCreate_v2(u32 n, int *options, void **values, Link **link) {
  ENTER("link_create"); CONTEXT();
  *link = calloc(1, sizeof(Link));
  **link = (Link){NULL, n, options, values};
  LEAVE();
}
R cuLinkAddData_v2(Link *link, int kind, const char *data, size_t size, const char *name, u32 n, void *options, void *values) {
  ENTER("link_add"); CONTEXT();
  if (kind != 1 || strlen(data) + 1 != size) FAIL(INVALID_VALUE);
  if (!strstr(data, ".entry")) { write_log(link->n, link->options, link->values, "ptxas application ptx input, line 3; fatal: Parsing error"); FAIL(BAD_IMAGE); }
  link->image = malloc(size + 4);
  memcpy(link->image, "\x7f" "ELF", 4);
  memcpy(link->image + 4, data, size);
  LEAVE();
}
R cuLinkComplete(Link *link, void **cubin, size_t *size) { ENTER("link_complete"); CONTEXT(); *cubin = link->image; *size = strlen(link->image); LEAVE(); }
R cuLinkDestroy(Link *link) { ENTER("link_destroy"); free(link->image); free(link); LEAVE(); }
#endif
