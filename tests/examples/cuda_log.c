/* A stand-in for libcuda.so.1: memory is the host's, and launches are written to standard error: name, groups, threads, argument block. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;

R cuInit(unsigned flags) { return flags != 0; }
R cuDeviceGet(int *device, int ordinal) { *device = 7; return ordinal ? 101 : 0; }
R cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 5 ? 0x7fffffff : -1;
    return device != 7 || *value < 0;
}
R cuDevicePrimaryCtxRetain(void **context, int device) { *context = malloc(1); return device != 7; }
R cuCtxSetCurrent(void *context) { return context == NULL; }
R cuCtxSynchronize(void) { return 0; }
R cuMemAlloc_v2(uint64_t *address, size_t size) {
    *address = (uint64_t)(uintptr_t)malloc(size);
    fprintf(stderr, "memory %llu %zu\n", (unsigned long long)*address, size);
    return 0;
}
R cuMemsetD8_v2(uint64_t address, unsigned char byte, size_t size) { memset((void *)(uintptr_t)address, byte, size); return 0; }
R cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)(uintptr_t)to, from, size); return 0; }
R cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)(uintptr_t)from, size); return 0; }
R cuModuleLoadData(void **module, const void *image) {
    *module = strdup(image);
    return strstr(image, ".version") == NULL || strstr(image, ".target sm_") == NULL ? 218 : 0;
}
R cuModuleGetFunction(void **function, void *module, const char *name) {
    char entry[512];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    *function = strdup(name);
    return strstr(module, entry) ? 0 : 500;
}
R cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                 void **parameters, void **extra) {
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || parameters || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4])
        return 1;
    fprintf(stderr, "launch %s %u %u ", (char *)function, gx, bx);
    for (size_t k = 0; k < *(size_t *)extra[3]; k++) fprintf(stderr, "%02x", ((unsigned char *)extra[1])[k]);
    fprintf(stderr, "\n");
    return 0;
}
R cuGetErrorName(R code, const char **name) { *name = code == 500 ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR"; return 0; }
