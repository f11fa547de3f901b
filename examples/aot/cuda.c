/* Runs kernels of a module for CUDA, without Python: see docs/aot.md. The driver is loaded when the program starts; there is nothing of
   NVIDIA's toolkit in it.

       cc -O2 -o aot_cuda cuda.c -ldl

   AOT_DEVICE chooses among several devices, by number. The functions are those of the CUDA Driver API Reference Manual. */

#include <dlfcn.h>
#include <stdint.h>

#include "module.h"

typedef int Result;       /* CUresult; 0: success */
typedef uint64_t Address; /* CUdeviceptr */

#define FUNCTIONS(f) \
    f(Init, "cuInit", (unsigned)) \
    f(DeviceGet, "cuDeviceGet", (int *, int)) \
    f(DeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int)) \
    f(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int)) \
    f(CtxSetCurrent, "cuCtxSetCurrent", (void *)) \
    f(MemAlloc, "cuMemAlloc_v2", (Address *, size_t)) \
    f(MemsetD8, "cuMemsetD8_v2", (Address, unsigned char, size_t)) \
    f(MemcpyHtoD, "cuMemcpyHtoD_v2", (Address, const void *, size_t)) \
    f(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *, Address, size_t)) \
    f(ModuleLoadData, "cuModuleLoadData", (void **, const void *)) \
    f(ModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *)) \
    f(LaunchKernel, "cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, \
                                       void **)) \
    f(CtxSynchronize, "cuCtxSynchronize", (void)) \
    f(GetErrorName, "cuGetErrorName", (Result, const char **))
#define DECLARE(name, symbol, arguments) Result (*name) arguments;
static struct { FUNCTIONS(DECLARE) } cu;

enum { MAX_GRID = 5, MAJOR = 75, MINOR = 76 };                /* CUdevice_attribute */
enum { BUFFER_POINTER = 1, BUFFER_SIZE = 2, BUFFER_END = 0 }; /* of the last argument of a launch */

static int max_groups;

static void check(Result result, const char *what) {
    const char *name = "unknown";
    if (!result) return;
    cu.GetErrorName(result, &name);
    die("CUDA cannot %s: %s (%d)", what, name, result);
}

static void device_open(const Json *capabilities) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int ordinal = getenv("AOT_DEVICE") ? atoi(getenv("AOT_DEVICE")) : 0, handle, major, minor;
    if (!library) die("there is no libcuda.so.1: %s", dlerror());
#define LOAD(name, symbol, arguments) { \
        void *found = dlsym(library, symbol); \
        if (!found) die("the driver has no %s", symbol); \
        memcpy(&cu.name, &found, sizeof found); \
    }
    FUNCTIONS(LOAD)
    check(cu.Init(0), "start");
    check(cu.DeviceGet(&handle, ordinal), "find the device");
    check(cu.DeviceGetAttribute(&major, MAJOR, handle), "ask the device");
    check(cu.DeviceGetAttribute(&minor, MINOR, handle), "ask the device");
    check(cu.DeviceGetAttribute(&max_groups, MAX_GRID, handle), "ask the device");
    int wanted = atoi(text(capabilities, "cpu_name") + strlen("sm_"));
    if (10 * major + minor < wanted)
        die("the module is for compute capability %d.%d, and the device has %d.%d", wanted / 10, wanted % 10, major, minor);
    check(cu.PrimaryCtxRetain(&context, handle), "create a context");
    check(cu.CtxSetCurrent(context), "use the context");
}

static Buffer *device_allocate(size_t size) {
    Buffer *made = take(sizeof *made);
    made->size = (size + 15) / 16 * 16 + 16 * !size;
    check(cu.MemAlloc(&made->address, made->size), "allocate memory");
    check(cu.MemsetD8(made->address, 0, made->size), "clear memory");
    return made;
}

static void device_upload(Buffer *to, const void *data, size_t size) {
    if (size) check(cu.MemcpyHtoD(to->address, data, size), "copy to the device");
}

static void device_download(Buffer *from, void *data, size_t size) {
    if (size) check(cu.MemcpyDtoH(data, from->address, size), "copy from the device");
}

static uint32_t device_max_groups(void) { return (uint32_t)max_groups; }

/* All tasks of a kernel are in one file of PTX, which ends where its text does. */
static void *device_load(const Json *task, const char *code, size_t size) {
    static const char *last;
    static void *module;
    void *function;
    if (code != last) {
        char *ptx = take(size + 1);
        memcpy(ptx, code, size);
        check(cu.ModuleLoadData(&module, ptx), "compile a kernel");
        free(ptx);
        last = code;
    }
    check(cu.ModuleGetFunction(&function, module, text(task, "entry")), "find a kernel");
    return function;
}

static void device_launch(void *pipeline, const Json *task, const void *block, size_t size, uint32_t groups) {
    uint64_t nothing = 0;
    void *extra[] = {(void *)BUFFER_POINTER, size ? (void *)(uintptr_t)block : &nothing, (void *)BUFFER_SIZE, &size, (void *)BUFFER_END};
    unsigned threads = number(task, "group_size") > 1 ? (unsigned)number(task, "group_size") : 1;
    check(cu.LaunchKernel(pipeline, groups, 1, 1, threads, 1, 1, 0, NULL, NULL, extra), "launch a kernel");
}

int main(int count, char **given) {
    commands(count, given, "cuda");
    check(cu.CtxSynchronize(), "finish its work");
    return 0;
}
