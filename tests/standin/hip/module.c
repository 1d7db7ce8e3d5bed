// Modules, functions, and functions that a compiled program registers by the address of their host stub.
#include "standin_hip.h"

#include <stdlib.h>
#include <string.h>

hipError_t module_load(struct module **out, const void *data)
{
    if (!hip_ready())
        return hipErrorNoDevice;
    if (!out || !data)
        return hipErrorInvalidValue;
    struct image image;
    hipError_t result = image_read(&image, data);
    standin_record("{\"module\": {\"kernels\": %zu, \"arch\": 0, \"error\": %d}}", image.count, result);
    if (result != hipSuccess)
        return result;
    struct module *module = standin_new(sizeof *module, TAG_MODULE);
    module->image = image;
    module->functions = calloc(image.count + 1, sizeof *module->functions);
    for (size_t i = 0; i < image.count; i++) {
        module->functions[i] = standin_new(sizeof **module->functions, TAG_FUNCTION);
        module->functions[i]->code = &module->image.codes[i];
    }
    *out = module;
    return hipSuccess;
}

struct function *module_find(const struct module *module, const char *name)
{
    for (size_t i = 0; i < module->image.count; i++)
        if (!strcmp(module->image.codes[i].name, name))
            return module->functions[i];
    return NULL;
}

hipError_t hipModuleLoadData(hipModule_t *module, const void *data)
{
    return hip_result(module_load((struct module **)module, data));
}

hipError_t hipModuleLoadDataEx(hipModule_t *module, const void *data, unsigned int count, hipJitOption *options,
                               void **values)
{
    (void)count, (void)options, (void)values;
    return hip_result(module_load((struct module **)module, data));
}

hipError_t hipModuleUnload(hipModule_t handle)
{
    struct module *module = (struct module *)handle;
    if (!standin_is(module, TAG_MODULE))
        return hip_result(hipErrorInvalidResourceHandle);
    for (size_t i = 0; i < module->image.count; i++)
        standin_end(module->functions[i]);
    standin_end(module);
    return hipSuccess;
}

hipError_t hipModuleGetFunction(hipFunction_t *out, hipModule_t module, const char *name)
{
    if (!out || !name || !standin_is(module, TAG_MODULE))
        return hip_result(hipErrorInvalidValue);
    *out = (hipFunction_t)module_find((const struct module *)module, name);
    return hip_result(*out ? hipSuccess : hipErrorNotFound);
}

// --- attributes -----------------------------------------------------------------------------------

hipError_t hipFuncGetAttribute(int *value, hipFunction_attribute attribute, hipFunction_t handle)
{
    const struct function *function = (const struct function *)handle;
    if (!value)
        return hip_result(hipErrorInvalidValue);
    if (!standin_is(function, TAG_FUNCTION))
        return hip_result(hipErrorInvalidDeviceFunction);
    switch (attribute) {
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = function->code->static_bytes; return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = function->code->max_threads; return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = function->code->private_bytes; return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_NUM_REGS: *value = function->code->registers; return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = standin_needed("smem_block_bytes") - function->code->static_bytes;
        return hipSuccess;
    default: return hip_result(hipErrorInvalidValue);
    }
}

hipError_t hipFuncSetAttribute(const void *host, hipFuncAttribute attribute, int value)
{
    struct function *function = registered_function(host);
    bool refused = standin_refuses("func-attribute");
    hipError_t result = !function                        ? hipErrorInvalidDeviceFunction
                        : refused                        ? hipErrorInvalidValue
                        : value < 0                      ? hipErrorInvalidValue
                        : attribute >= hipFuncAttributeMax ? hipErrorInvalidValue
                                                         : hipSuccess;
    if (function && attribute == hipFuncAttributeMaxDynamicSharedMemorySize
        && value > standin_needed("smem_block_bytes") - function->code->static_bytes)
        result = hipErrorInvalidValue;
    if (result == hipSuccess)
        atomic_store(&function->max_dynamic_bytes, value);
    if (function)
        standin_record("{\"attribute\": {\"kernel\": \"%s\", \"attribute\": %d, \"value\": %d, \"error\": %d, "
                       "\"refused\": %s}}",
                       function->code->name, attribute, value, result, refused ? "true" : "false");
    return hip_result(result);
}

// --- registration by compiled programs ------------------------------------------------------------

struct wrapper { uint32_t magic, version; const void *data; void *unused; };
struct registered { const void *host; struct function *function; };

static struct registered table[256];
static atomic_size_t table_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct function *registered_function(const void *host)
{
    size_t count = atomic_load_explicit(&table_count, memory_order_acquire);
    for (size_t i = 0; i < count; i++)
        if (table[i].host == host)
            return table[i].function;
    return NULL;
}

struct module **__hipRegisterFatBinary(const void *data)
{
    const struct wrapper *wrapper = data;
    struct module **handle = calloc(1, sizeof *handle);
    hip_result(module_load(handle, wrapper->data));
    return handle;
}

void __hipUnregisterFatBinary(struct module **handle)
{
    if (*handle)
        hipModuleUnload((hipModule_t)*handle);
    free(handle);
}

void __hipRegisterFunction(struct module **handle, const void *host, char *name, const char *device_name,
                           unsigned int threads, void *tid, void *bid, void *block, void *grid, int *warp)
{
    (void)name, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    struct function *function = *handle ? module_find(*handle, device_name) : NULL;
    pthread_mutex_lock(&lock);
    size_t count = atomic_load(&table_count);
    if (function && count < sizeof table / sizeof *table) {
        table[count] = (struct registered){host, function};
        atomic_store_explicit(&table_count, count + 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

hipError_t hipGetFuncBySymbol(hipFunction_t *out, const void *host)
{
    *out = (hipFunction_t)registered_function(host);
    return hip_result(*out ? hipSuccess : hipErrorInvalidDeviceFunction);
}

hipError_t hipFuncGetAttributes(struct hipFuncAttributes *out, const void *host)
{
    const struct function *function = registered_function(host);
    if (!out || !function)
        return hip_result(out ? hipErrorInvalidDeviceFunction : hipErrorInvalidValue);
    const struct code *code = function->code;
    *out = (struct hipFuncAttributes){
        .localSizeBytes = (size_t)code->private_bytes,
        .maxDynamicSharedSizeBytes = standin_needed("smem_block_bytes") - code->static_bytes,
        .maxThreadsPerBlock = code->max_threads,
        .numRegs = code->registers,
        .sharedSizeBytes = (size_t)code->static_bytes,
    };
    return hipSuccess;
}

const char *hipKernelNameRef(const hipFunction_t f)
{
    return standin_is(f, TAG_FUNCTION) ? ((const struct function *)f)->code->name : NULL;
}

const char *hipKernelNameRefByPtr(const void *host, hipStream_t stream)
{
    (void)stream;
    return hipKernelNameRef((hipFunction_t)registered_function(host));
}
