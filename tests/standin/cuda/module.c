// Modules and their functions.
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int product(const unsigned sizes[3])
{
    return (int)(sizes[0] * sizes[1] * sizes[2]);
}

static struct function *function_new(struct module *module, const struct code *code)
{
    const struct device *device = standin_device();
    struct function *function = standin_new(sizeof *function, TAG_FUNCTION);
    function->code = code;
    function->module = module;
    function->context = module->context;
    int bound = product(code->required) ? product(code->required) : product(code->max_threads);
    function->bound_threads = bound && bound < device->max_threads_per_block ? bound : device->max_threads_per_block;
    // Registers are granted per warp, and a warp lives in one partition of the SM.
    int registers = code->registers > 0 ? code->registers : 1, unit = device->register_unit;
    int per_warp = (registers * device->warp_threads + unit - 1) / unit * unit;
    function->register_threads =
        device->registers / device->partitions / per_warp * device->partitions * device->warp_threads;
    int left = device->smem_default_block_bytes - code->static_bytes;
    atomic_store(&function->max_dynamic_bytes, left > 0 ? left : 0);
    atomic_store(&function->carveout, -1);
    for (int i = 0; i < 3; i++)
        atomic_store(&function->cluster[i], (int)code->cluster[i]);
    return function;
}

CUresult module_make(struct module **out, struct context *context, const struct image *image)
{
    struct module *module = standin_new(sizeof *module, TAG_MODULE);
    module->context = context;
    module->image = *image;
    module->functions = calloc(image->count ? image->count : 1, sizeof *module->functions);
    for (size_t i = 0; i < image->count; i++)
        module->functions[i] = function_new(module, &image->codes[i]);
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult load(CUmodule *out, const void *data)
{
    NEED_CONTEXT(context);
    if (!out || !data)
        return CUDA_ERROR_INVALID_VALUE;
    struct image image;
    CUresult result = image_read(&image, data);
    standin_record("{\"module\": {\"kernels\": %zu, \"arch\": %d, \"error\": %d}}", image.count, image.arch, result);
    if (result != CUDA_SUCCESS)
        return result;
    return module_make((struct module **)out, context, &image);
}

CUresult cuModuleLoadData(CUmodule *module, const void *data)
{
    return load(module, data);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *data, unsigned int count, CUjit_option *options,
                            void **values)
{
    (void)count, (void)options, (void)values;  // options steer the PTX compiler, which is not here
    return load(module, data);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *data)
{
    return load(module, data);
}

void *file_content(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *data = size >= 0 ? calloc(1, (size_t)size + 64) : NULL;
    if (data && fread(data, 1, (size_t)size, file) != (size_t)size) {
        free(data);
        data = NULL;
    }
    fclose(file);
    return data;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    void *data = path ? file_content(path) : NULL;
    if (!data)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = load(module, data);
    free(data);
    return result;
}

CUresult cuModuleUnload(CUmodule handle)
{
    NEED_READY();
    struct module *module = (struct module *)handle;
    if (!standin_is(module, TAG_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < module->image.count; i++)
        standin_end(module->functions[i]);
    standin_end(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    NEED_READY();
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
    NEED_READY();
    struct module *module = (struct module *)handle;
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!standin_is(module, TAG_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < module->image.count; i++)
        if (!strcmp(module->image.codes[i].name, name)) {
            *out = (CUfunction)module->functions[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule handle)
{
    NEED_READY();
    if (!standin_is(handle, TAG_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = (unsigned)((struct module *)handle)->image.count;
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule handle)
{
    NEED_READY();
    struct module *module = (struct module *)handle;
    if (!standin_is(module, TAG_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < module->image.count && i < count; i++)
        functions[i] = (CUfunction)module->functions[i];
    return CUDA_SUCCESS;
}
