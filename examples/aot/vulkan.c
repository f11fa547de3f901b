/* Runs kernels of a module for Vulkan, without Python: see docs/aot.md. The library is loaded when the program starts.

       cc -O2 -o aot_vulkan vulkan.c -ldl

   It needs the headers of Vulkan 1.2 or newer. AOT_DEVICE chooses among several devices, by number. */

#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <stdint.h>
#include <vulkan/vulkan.h>

#include "module.h"

#define STAGING_BYTES ((size_t)1 << 22)

/* Every function that is called. Those of the first list are the same for all devices. */
#define OF_INSTANCE(f) f(EnumeratePhysicalDevices) f(GetPhysicalDeviceProperties) f(GetPhysicalDeviceProperties2) \
    f(GetPhysicalDeviceFeatures2) f(GetPhysicalDeviceMemoryProperties) f(GetPhysicalDeviceQueueFamilyProperties) \
    f(EnumerateDeviceExtensionProperties) f(CreateDevice) f(GetDeviceProcAddr)
#define OF_DEVICE(f) f(GetDeviceQueue) f(CreateCommandPool) f(AllocateCommandBuffers) f(CreateFence) f(CreateBuffer) \
    f(GetBufferMemoryRequirements) f(AllocateMemory) f(BindBufferMemory) f(MapMemory) f(GetBufferDeviceAddress) f(CreateShaderModule) \
    f(CreatePipelineLayout) f(CreateComputePipelines) f(BeginCommandBuffer) f(EndCommandBuffer) f(QueueSubmit) f(WaitForFences) \
    f(ResetFences) f(ResetCommandBuffer) f(CmdPipelineBarrier) f(CmdFillBuffer) f(CmdCopyBuffer) f(CmdPushConstants) f(CmdBindPipeline) \
    f(CmdDispatch)
#define DECLARE(name) PFN_vk##name name;
static struct {
    OF_INSTANCE(DECLARE)
    OF_DEVICE(DECLARE)
} vk;

static VkInstance instance;
static VkPhysicalDevice physical;
static VkPhysicalDeviceLimits limits;
static VkDevice device;
static VkQueue queue;
static VkCommandBuffer commands_of_device;
static VkFence fence;
static VkPipelineLayout layout;
static Buffer *staging;
static char *staged;
static uint32_t push_limit;
static int recording;

typedef struct VulkanBuffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
} VulkanBuffer;

static void check(VkResult result, const char *what) {
    if (result != VK_SUCCESS) die("Vulkan cannot %s: error %d", what, (int)result);
}

/* --- the device -------------------------------------------------------------------------------------------------------------------- */

static PFN_vkGetInstanceProcAddr load_library(void) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW);
    if (!library) die("there is no libvulkan.so.1: %s", dlerror());
    void *found = dlsym(library, "vkGetInstanceProcAddr");
    PFN_vkGetInstanceProcAddr get_function;
    if (!found) die("libvulkan.so.1 has no vkGetInstanceProcAddr");
    memcpy(&get_function, &found, sizeof found);
    return get_function;
}

static void open_instance(void) {
    PFN_vkGetInstanceProcAddr get_function = load_library();
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)get_function(NULL, "vkCreateInstance");
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = 1 << 22 | 2 << 12};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    check(create(&info, NULL, &instance), "create an instance");
#define LOAD(name) if (!(vk.name = (PFN_vk##name)get_function(instance, "vk" #name))) die("the driver has no vk" #name);
    OF_INSTANCE(LOAD)
#undef LOAD
    VkPhysicalDevice found[16];
    uint32_t count = 16, chosen = getenv("AOT_DEVICE") ? (uint32_t)atoi(getenv("AOT_DEVICE")) : 0;
    VkResult result = vk.EnumeratePhysicalDevices(instance, &count, found);
    if (result != VK_INCOMPLETE) check(result, "list devices");
    if (chosen >= count) die("there are %u Vulkan devices, and number %u is asked for", count, chosen);
    physical = found[chosen];
}

/* VkPhysicalDeviceCooperativeMatrixFeaturesKHR, which headers have from 1.3.255 on. */
typedef struct MatrixFeatures {
    VkStructureType sType;
    void *pNext;
    VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
} MatrixFeatures;

typedef struct Features {
    VkPhysicalDeviceFeatures2 core;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceShaderAtomicFloatFeaturesEXT atomic;
    VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT atomic2;
    MatrixFeatures matrix;
} Features;

/* Extensions, and whether the device has them. */
enum { EXTENSIONS = 3 };
static const char *extensions[EXTENSIONS] = {
    "VK_EXT_shader_atomic_float", "VK_EXT_shader_atomic_float2", "VK_KHR_cooperative_matrix"};
static int offers[EXTENSIONS];

static void chain(Features *features) {
    memset(features, 0, sizeof *features);
    features->core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    features->v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
    features->v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
    features->atomic.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT;
    features->atomic2.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_2_FEATURES_EXT;
    features->matrix.sType = (VkStructureType)1000506000;
    features->core.pNext = &features->v11;
    features->v11.pNext = &features->v12;
    void *parts[EXTENSIONS] = {&features->atomic, &features->atomic2, &features->matrix};
    void **links[EXTENSIONS] = {&features->atomic.pNext, &features->atomic2.pNext, &features->matrix.pNext};
    void **last = &features->v12.pNext;
    for (int k = 0; k < EXTENSIONS; k++) {
        if (!offers[k]) continue;
        *last = parts[k];
        last = links[k];
    }
}

/* Switch on what the module needs, if the device has it. */
static void wanted_features(const Json *capabilities, Features *offered, Features *enabled) {
#define FEATURE(part, name, capability) {#capability, &offered->part.name, &enabled->part.name}
    struct { const char *capability; VkBool32 *there, *on; } rows[] = {
        FEATURE(core.features, shaderInt64, int64),
        FEATURE(core.features, shaderFloat64, float64),
        FEATURE(core.features, shaderInt16, int16),
        FEATURE(v11, storageBuffer16BitAccess, storage16),
        FEATURE(v12, storageBuffer8BitAccess, storage8),
        FEATURE(v12, shaderInt8, int8),
        FEATURE(v12, shaderFloat16, float16),
        FEATURE(v12, shaderBufferInt64Atomics, atomic_int64),
        FEATURE(v12, bufferDeviceAddress, buffer_address),
        FEATURE(atomic, shaderBufferFloat32AtomicAdd, atomic_f32_add),
        FEATURE(atomic, shaderSharedFloat32AtomicAdd, shared_f32_add),
        FEATURE(atomic, shaderBufferFloat64AtomicAdd, atomic_f64_add),
        FEATURE(atomic2, shaderBufferFloat32AtomicMinMax, atomic_f32_minmax),
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (!number(capabilities, rows[k].capability)) continue;
        if (!*rows[k].there) die("the device lacks `%s`, which the module needs", rows[k].capability);
        *rows[k].on = 1;
    }
    enabled->atomic.shaderBufferFloat32Atomics = offered->atomic.shaderBufferFloat32Atomics;
    enabled->atomic.shaderBufferFloat64Atomics = offered->atomic.shaderBufferFloat64Atomics;
    enabled->v12.scalarBlockLayout = offered->v12.scalarBlockLayout;
    enabled->v12.shaderSubgroupExtendedTypes = offered->v12.shaderSubgroupExtendedTypes;
    if (!get(capabilities, "matrix_shapes")->count) return;
    if (!offered->matrix.cooperativeMatrix || !offered->v12.vulkanMemoryModel || !offered->v12.vulkanMemoryModelDeviceScope)
        die("the device lacks cooperative matrices, which the module needs");
    enabled->matrix.cooperativeMatrix = 1;
    enabled->v12.vulkanMemoryModel = enabled->v12.vulkanMemoryModelDeviceScope = 1;
}

/* Drivers differ in what `load` of Python compares, too: numbers would be wrong. */
static void compare_properties(const Json *capabilities) {
    VkPhysicalDeviceVulkan12Properties v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES};
    VkPhysicalDeviceVulkan11Properties v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &v12};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &v11};
    vk.GetPhysicalDeviceProperties2(physical, &all);
    limits = all.properties.limits;
    int llvmpipe = v12.driverID == VK_DRIVER_ID_MESA_LLVMPIPE;
    if (all.properties.apiVersion < (1 << 22 | 2 << 12)) die("the device %s has no Vulkan 1.2", all.properties.deviceName);
    if (llvmpipe != !number(capabilities, "memory_barriers") || (llvmpipe && !number(capabilities, "loop_limit")))
        die("the module was %sbuilt for Mesa's llvmpipe, and the device is %s", llvmpipe ? "not " : "", all.properties.deviceName);
    if (get(capabilities, "matrix_shapes")->count && v12.driverID != VK_DRIVER_ID_NVIDIA_PROPRIETARY)
        die("the module was built for NVIDIA's driver, and the device is %s", all.properties.deviceName);
    long long lanes = number(capabilities, "subgroup_size");
    if (lanes && lanes != v11.subgroupSize) die("the module is for subgroups of %lld, and the device has %u", lanes, v11.subgroupSize);
    if ((long long)limits.maxComputeSharedMemorySize < number(capabilities, "shared_memory"))
        die("the device has too little shared memory");
    const Json *specials = get(capabilities, "exact_specials"), *subnormals = get(capabilities, "exact_subnormals");
    for (int k = 0; k < specials->count; k++) {
        long long bits = specials->items[k]->number;
        if (!(bits == 16 ? v12.shaderSignedZeroInfNanPreserveFloat16 : bits == 32 ? v12.shaderSignedZeroInfNanPreserveFloat32
              : v12.shaderSignedZeroInfNanPreserveFloat64)) die("the device does not keep infinities of %lld bits", bits);
    }
    for (int k = 0; k < subnormals->count; k++) {
        long long bits = subnormals->items[k]->number;
        if (!(bits == 16 ? v12.shaderDenormPreserveFloat16 : bits == 32 ? v12.shaderDenormPreserveFloat32
              : v12.shaderDenormPreserveFloat64)) die("the device does not keep subnormal numbers of %lld bits", bits);
    }
    push_limit = (uint32_t)number(capabilities, "max_push_constants");
    if (push_limit > limits.maxPushConstantsSize) die("the device takes %u bytes of arguments, and the module needs %u",
                                                      limits.maxPushConstantsSize, push_limit);
}

static int has_extension(const char *name) {
    uint32_t count = 0;
    check(vk.EnumerateDeviceExtensionProperties(physical, NULL, &count, NULL), "list extensions");
    VkExtensionProperties *found = take(count * sizeof *found);
    check(vk.EnumerateDeviceExtensionProperties(physical, NULL, &count, found), "list extensions");
    int there = 0;
    for (uint32_t k = 0; k < count; k++) there |= !strcmp(found[k].extensionName, name);
    free(found);
    return there;
}

static uint32_t compute_family(void) {
    VkQueueFamilyProperties families[16];
    uint32_t count = 16;
    vk.GetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
    for (uint32_t k = 0; k < count; k++)
        if (families[k].queueFlags & VK_QUEUE_COMPUTE_BIT) return k;
    die("the device has no queue for compute work");
    return 0;
}

static void create_device(const Json *capabilities) {
    static Features offered, enabled;
    const char *names[EXTENSIONS];
    uint32_t count = 0;
    for (int k = 0; k < EXTENSIONS; k++)
        if ((offers[k] = has_extension(extensions[k]))) names[count++] = extensions[k];
    chain(&offered);
    chain(&enabled);
    vk.GetPhysicalDeviceFeatures2(physical, &offered.core);
    wanted_features(capabilities, &offered, &enabled);
    float priority = 1;
    uint32_t family = compute_family();
    VkDeviceQueueCreateInfo of_queue = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueFamilyIndex = family, .queueCount = 1, .pQueuePriorities = &priority};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &enabled.core, .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &of_queue, .enabledExtensionCount = count, .ppEnabledExtensionNames = names};
    check(vk.CreateDevice(physical, &info, NULL, &device), "open the device");
#define LOAD(name) if (!(vk.name = (PFN_vk##name)vk.GetDeviceProcAddr(device, "vk" #name))) die("the driver has no vk" #name);
    OF_DEVICE(LOAD)
#undef LOAD
    vk.GetDeviceQueue(device, family, 0, &queue);
    VkCommandPool pool;
    VkCommandPoolCreateInfo of_pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                       .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, .queueFamilyIndex = family};
    check(vk.CreateCommandPool(device, &of_pool, NULL, &pool), "create a command pool");
    VkCommandBufferAllocateInfo of_commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool,
                                               .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    check(vk.AllocateCommandBuffers(device, &of_commands, &commands_of_device), "allocate a command buffer");
    VkFenceCreateInfo of_fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    check(vk.CreateFence(device, &of_fence, NULL, &fence), "create a fence");
    VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = push_limit};
    VkPipelineLayoutCreateInfo of_layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .pushConstantRangeCount = 1, .pPushConstantRanges = &range};
    check(vk.CreatePipelineLayout(device, &of_layout, NULL, &layout), "create a pipeline layout");
}

/* --- work -------------------------------------------------------------------------------------------------------------------------- */

/* The open command buffer; what is recorded next sees the effects of all before. */
static VkCommandBuffer ordered(void) {
    if (!recording) {
        VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
        check(vk.BeginCommandBuffer(commands_of_device, &info), "record work");
        recording = 1;
    }
    VkPipelineStageFlags stages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    VkAccessFlags writes = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = writes,
                               .dstAccessMask = writes | VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT};
    vk.CmdPipelineBarrier(commands_of_device, stages, stages, 0, 1, &barrier, 0, NULL, 0, NULL);
    return commands_of_device;
}

static void finish(void) {
    if (!recording) return;
    VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                               .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    vk.CmdPipelineBarrier(commands_of_device, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, NULL, 0, NULL);
    check(vk.EndCommandBuffer(commands_of_device), "record work");
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands_of_device};
    check(vk.QueueSubmit(queue, 1, &info, fence), "submit work");
    check(vk.WaitForFences(device, 1, &fence, 1, UINT64_MAX), "finish its work");
    check(vk.ResetFences(device, 1, &fence), "reset a fence");
    check(vk.ResetCommandBuffer(commands_of_device, 0), "reset a command buffer");
    recording = 0;
}

static uint32_t memory_type(uint32_t allowed, VkMemoryPropertyFlags wanted) {
    VkPhysicalDeviceMemoryProperties properties;
    vk.GetPhysicalDeviceMemoryProperties(physical, &properties);
    for (uint32_t k = 0; k < properties.memoryTypeCount; k++)
        if (allowed >> k & 1 && (properties.memoryTypes[k].propertyFlags & wanted) == wanted) return k;
    die("the device has no memory of the kind that is needed");
    return 0;
}

static Buffer *create_buffer(size_t size, VkMemoryPropertyFlags kind) {
    Buffer *made = take(sizeof *made);
    VulkanBuffer *own = made->handle = take(sizeof *own);
    made->size = (size + 15) / 16 * 16 + 16 * !size;
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = made->size,
                               .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                        VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT};
    check(vk.CreateBuffer(device, &info, NULL, &own->buffer), "create a buffer");
    VkMemoryRequirements needs;
    vk.GetBufferMemoryRequirements(device, own->buffer, &needs);
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateInfo of_memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &flags, .allocationSize = needs.size,
                                      .memoryTypeIndex = memory_type(needs.memoryTypeBits, kind)};
    check(vk.AllocateMemory(device, &of_memory, NULL, &own->memory), "allocate memory");
    check(vk.BindBufferMemory(device, own->buffer, own->memory, 0), "bind memory");
    VkBufferDeviceAddressInfo of_address = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = own->buffer};
    made->address = vk.GetBufferDeviceAddress(device, &of_address);
    return made;
}

static VkBuffer handle(Buffer *buffer) { return ((VulkanBuffer *)buffer->handle)->buffer; }

static void copy(Buffer *from, size_t from_at, Buffer *to, size_t to_at, size_t size) {
    VkBufferCopy region = {.srcOffset = from_at, .dstOffset = to_at, .size = size};
    vk.CmdCopyBuffer(ordered(), handle(from), handle(to), 1, &region);
}

static void device_open(const Json *capabilities) {
    open_instance();
    compare_properties(capabilities);
    create_device(capabilities);
    staging = create_buffer(STAGING_BYTES, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
    void *mapped;
    check(vk.MapMemory(device, ((VulkanBuffer *)staging->handle)->memory, 0, STAGING_BYTES, 0, &mapped), "map memory");
    staged = mapped;
}

static Buffer *device_allocate(size_t size) {
    Buffer *made = create_buffer(size, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    vk.CmdFillBuffer(ordered(), handle(made), 0, made->size, 0);
    return made;
}

static void device_upload(Buffer *to, const void *data, size_t size) {
    for (size_t at = 0; at < size; at += STAGING_BYTES) {
        size_t part = size - at < STAGING_BYTES ? size - at : STAGING_BYTES;
        finish();
        memcpy(staged, (const char *)data + at, part);
        copy(staging, 0, to, at, part);
    }
    finish();
}

static void device_download(Buffer *from, void *data, size_t size) {
    for (size_t at = 0; at < size; at += STAGING_BYTES) {
        size_t part = size - at < STAGING_BYTES ? size - at : STAGING_BYTES;
        copy(from, at, staging, 0, part);
        finish();
        memcpy((char *)data + at, staged, part);
    }
}

static uint32_t device_max_groups(void) { return limits.maxComputeWorkGroupCount[0]; }

static void *device_load(const Json *task, const char *code, size_t size) {
    uint32_t *words_of_code = take(size), group = (uint32_t)number(task, "group_size");
    if (group > limits.maxComputeWorkGroupInvocations) die("%s has workgroups of %u invocations", text(task, "name"), group);
    memcpy(words_of_code, code, size);
    VkShaderModule module;
    VkShaderModuleCreateInfo of_module = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = size, .pCode = words_of_code};
    check(vk.CreateShaderModule(device, &of_module, NULL, &module), "load a SPIR-V module");
    VkComputePipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, .layout = layout};
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module;
    info.stage.pName = text(task, "entry");
    VkPipeline *made = take(sizeof *made);
    check(vk.CreateComputePipelines(device, 0, 1, &info, NULL, made), "compile a kernel");
    free(words_of_code);
    return made;
}

static void device_launch(void *pipeline, const Json *task, const void *block, size_t size, uint32_t groups) {
    (void)task;
    VkCommandBuffer into = ordered();
    if (size) vk.CmdPushConstants(into, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, (uint32_t)size, block);
    vk.CmdBindPipeline(into, VK_PIPELINE_BIND_POINT_COMPUTE, *(VkPipeline *)pipeline);
    vk.CmdDispatch(into, groups, 1, 1);
}

int main(int count, char **given) {
    commands(count, given, "vulkan");
    finish();
    return 0;
}
