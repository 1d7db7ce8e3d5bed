// Function attributes: what the cubin says, and what a program may set.
#include "standin.h"

CUresult function_of(CUfunction handle, struct function **out)
{
    const struct object *object = (const struct object *)handle;
    if (object && object->tag == TAG_FUNCTION) {
        *out = (struct function *)handle;
        return standin_is(object, TAG_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    if (!standin_is(object, TAG_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    NEED_CONTEXT(context);
    return kernel_function((struct kernel *)handle, context, out);
}

CUresult function_get(const struct function *function, CUfunction_attribute attribute, int *value)
{
    const struct code *code = function->code;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = function->bound_threads < function->register_threads ? function->bound_threads
                                                                      : function->register_threads;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = code->static_bytes; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = code->const_bytes; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = code->local_bytes; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = code->registers; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = code->arch; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = atomic_load(&function->max_dynamic_bytes);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = atomic_load(&function->carveout);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
        *value = atomic_load(&function->must_set_cluster);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        *value = atomic_load(&function->cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH]);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        *value = atomic_load(&function->non_portable_cluster);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        *value = atomic_load(&function->scheduling);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE:
        *value = atomic_load(&function->smem_mode);
        return standin_number("smem_modes", 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

int function_most_bytes(const struct function *function, int launch_mode)
{
    const struct device *device = standin_device();
    int mode = launch_mode ? launch_mode : atomic_load_explicit(&function->smem_mode, memory_order_relaxed);
    if (mode == CU_SHARED_MEMORY_MODE_DEFAULT)
        return atomic_load_explicit(&function->max_dynamic_bytes, memory_order_relaxed);
    bool portable = mode == CU_SHARED_MEMORY_MODE_REQUIRE_PORTABLE;  // no device here has oversized shared memory
    return (portable ? device->smem_default_block_bytes : device->smem_block_bytes) - function->code->static_bytes;
}

static CUresult set(struct function *function, CUfunction_attribute attribute, int value)
{
    const struct device *device = standin_device();
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > device->smem_block_bytes - function->code->static_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        atomic_store(&function->max_dynamic_bytes, value);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        atomic_store(&function->carveout, value);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        atomic_store(&function->non_portable_cluster, value != 0);
        return device->max_cluster > 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
        atomic_store(&function->must_set_cluster, value != 0);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        if (function->code->cluster[0] || value < 0 || value > device->max_cluster)
            return CUDA_ERROR_NOT_PERMITTED;  // fixed when it was compiled
        atomic_store(&function->cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH], value);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        atomic_store(&function->scheduling, value);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE:  // since CUDA 13.3; older drivers do not know the number
        if (!standin_number("smem_modes", 1) || value < 0 || value > CU_SHARED_MEMORY_MODE_PREFER_OVERSIZED_SHARED_MEMORY)
            return CUDA_ERROR_INVALID_VALUE;
        atomic_store(&function->smem_mode, value);
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult function_set(struct function *function, CUfunction_attribute attribute, int value)
{
    bool refused = standin_refuses("func-attribute");
    CUresult result = refused ? CUDA_ERROR_INVALID_VALUE : set(function, attribute, value);
    struct text text;
    if (standin_recording()) {
        text_begin(&text);
        text_add(&text, "{\"attribute\": {\"kernel\": ");
        text_name(&text, function->code->name);
        text_add(&text, ", \"attribute\": %d, \"value\": %d, \"error\": %d, \"refused\": %s}}", attribute, value, result,
                 refused ? "true" : "false");
        text_end(&text);
    }
    return result;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    struct function *function;
    CUresult result = value ? function_of(handle, &function) : CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? function_get(function, attribute, value) : result;
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    struct function *function;
    CUresult result = function_of(handle, &function);
    return result == CUDA_SUCCESS ? function_set(function, attribute, value) : result;
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config)
{
    struct function *function;
    CUresult result = function_of(handle, &function);
    if (result == CUDA_SUCCESS)
        atomic_store(&function->cache, (int)config);
    return result;
}

CUresult cuFuncGetName(const char **name, CUfunction handle)
{
    struct function *function;
    CUresult result = name ? function_of(handle, &function) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *name = function->code->name;
    return result;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
    struct function *function;
    CUresult result = module ? function_of(handle, &function) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *module = (CUmodule)function->module;
    return result;
}

static CUresult parameter_info(const struct code *code, size_t index, size_t *offset, size_t *size)
{
    if (index >= code->parameter_count || !offset)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = code->parameters[index].offset;
    if (size)
        *size = code->parameters[index].size;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    struct function *function;
    CUresult result = function_of(handle, &function);
    return result == CUDA_SUCCESS ? parameter_info(function->code, index, offset, size) : result;
}

CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size)
{
    if (!standin_is(handle, TAG_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    const struct kernel *kernel = (const struct kernel *)handle;
    return parameter_info(&kernel->library->image.codes[kernel->index], index, offset, size);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
    struct function *function;
    CUresult result = function_of(handle, &function);
    if (result == CUDA_SUCCESS)
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return result;
}

CUresult cuFuncLoad(CUfunction handle)
{
    struct function *function;
    return function_of(handle, &function);
}
