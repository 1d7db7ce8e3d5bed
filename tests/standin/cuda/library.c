// Libraries: code that belongs to no context; its kernels become functions in each context that asks.
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUresult cuLibraryLoadData(CUlibrary *out, const void *data, CUjit_option *jit, void **jit_values, unsigned jit_count,
                           CUlibraryOption *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    NEED_READY();
    if (!out || !data)
        return CUDA_ERROR_INVALID_VALUE;
    struct image image;
    CUresult result = image_read(&image, data);
    standin_record("{\"module\": {\"kernels\": %zu, \"arch\": %d, \"error\": %d}}", image.count, image.arch, result);
    if (result != CUDA_SUCCESS)
        return result;
    struct library *library = standin_new(sizeof *library, TAG_LIBRARY);
    library->image = image;
    library->kernels = calloc(image.count ? image.count : 1, sizeof *library->kernels);
    for (size_t i = 0; i < image.count; i++) {
        library->kernels[i] = standin_new(sizeof **library->kernels, TAG_KERNEL);
        library->kernels[i]->library = library;
        library->kernels[i]->index = i;
    }
    *out = (CUlibrary)library;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *jit, void **jit_values,
                               unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
    void *data = path ? file_content(path) : NULL;
    if (!data)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = cuLibraryLoadData(out, data, jit, jit_values, jit_count, options, values, count);
    free(data);
    return result;
}

CUresult cuLibraryUnload(CUlibrary handle)
{
    NEED_READY();
    struct library *library = (struct library *)handle;
    if (!standin_is(library, TAG_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < library->image.count; i++)
        standin_end(library->kernels[i]);
    for (size_t i = 0; i < library->module_count; i++)
        cuModuleUnload((CUmodule)library->modules[i]);
    standin_end(library);
    return CUDA_SUCCESS;
}

static struct module *module_in(struct library *library, struct context *context)
{
    for (size_t i = 0; i < library->module_count; i++)
        if (library->modules[i]->context == context)
            return library->modules[i];
    struct module *module;
    module_make(&module, context, &library->image);
    module->library = library;
    for (size_t i = 0; i < library->image.count; i++)
        module->functions[i]->kernel = library->kernels[i];
    library->modules = standin_grow(library->modules, library->module_count, &library->module_room, sizeof module);
    library->modules[library->module_count++] = module;
    return module;
}

CUresult kernel_function(struct kernel *kernel, struct context *context, struct function **out)
{
    *out = atomic_load_explicit(&kernel->last, memory_order_acquire);
    if (*out && (*out)->context == context)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&standin_lock);
    struct module *module = module_in(kernel->library, context);
    pthread_mutex_unlock(&standin_lock);
    *out = module->functions[kernel->index];
    atomic_store_explicit(&kernel->last, *out, memory_order_release);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name)
{
    NEED_READY();
    struct library *library = (struct library *)handle;
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!standin_is(library, TAG_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < library->image.count; i++)
        if (!strcmp(library->image.codes[i].name, name)) {
            *out = (CUkernel)library->kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle)
{
    NEED_READY();
    if (!standin_is(handle, TAG_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = (unsigned)((struct library *)handle)->image.count;
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary handle)
{
    NEED_READY();
    struct library *library = (struct library *)handle;
    if (!standin_is(library, TAG_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < library->image.count && i < count; i++)
        kernels[i] = (CUkernel)library->kernels[i];
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle)
{
    NEED_CONTEXT(context);
    if (!standin_is(handle, TAG_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&standin_lock);
    *out = (CUmodule)module_in((struct library *)handle, context);
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *out, CUkernel handle)
{
    NEED_CONTEXT(context);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!standin_is(handle, TAG_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    return kernel_function((struct kernel *)handle, context, (struct function **)out);
}

CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel handle)
{
    NEED_READY();
    if (!standin_is(handle, TAG_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = (CUlibrary)((struct kernel *)handle)->library;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel handle)
{
    NEED_READY();
    if (!standin_is(handle, TAG_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    const struct kernel *kernel = (const struct kernel *)handle;
    *name = kernel->library->image.codes[kernel->index].name;
    return CUDA_SUCCESS;
}

// A kernel's attributes are kept per device: here those of its function in the primary context.
static CUresult on_device(CUkernel handle, CUdevice device, struct function **out)
{
    NEED_READY();
    if (!standin_is(handle, TAG_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    if (device < 0 || device >= standin_device()->count)
        return CUDA_ERROR_INVALID_DEVICE;
    return kernel_function((struct kernel *)handle, standin_primary(device), out);
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle, CUdevice device)
{
    struct function *function;
    CUresult result = value ? on_device(handle, device, &function) : CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? function_get(function, attribute, value) : result;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice device)
{
    struct function *function;
    CUresult result = on_device(handle, device, &function);
    return result == CUDA_SUCCESS ? function_set(function, attribute, value) : result;
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device)
{
    struct function *function;
    CUresult result = on_device(handle, device, &function);
    if (result == CUDA_SUCCESS)
        atomic_store(&function->cache, (int)config);
    return result;
}
