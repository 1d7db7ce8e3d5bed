// cuGetProcAddress by the version table that build.py makes of cudaTypedefs.h, and names of errors.
#include "standin.h"

#include <string.h>

struct symbol {
    const char *name;
    int version;
    bool per_thread;
    void *address;
};

struct error { int code; const char *name, *words; };

extern const struct symbol standin_symbols[];  // sorted by name, then version
extern const struct error standin_errors[];

// The newest version that is not newer than asked; the per-thread form where there is one and it is wanted.
static void *best(const char *name, int version, bool per_thread, bool *known)
{
    void *plain = NULL, *threaded = NULL;
    *known = false;
    for (const struct symbol *symbol = standin_symbols; symbol->name; symbol++) {
        if (strcmp(symbol->name, name))
            continue;
        *known = true;
        if (symbol->version <= version)
            *(symbol->per_thread ? &threaded : &plain) = symbol->address;
    }
    return per_thread && threaded ? threaded : plain;
}

static CUresult look_up(const char *name, void **out, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    if (!name || !out || version > standin_driver_version())
        return CUDA_ERROR_INVALID_VALUE;
    bool known;
    *out = best(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
    if (status)
        *status = *out    ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;  // a name that is not there is a null pointer, not an error
}

CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    return look_up(name, out, version, flags, status);
}

CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags)
{
    return look_up(name, out, version, flags, NULL);
}

CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    if (table)
        *table = NULL;
    return CUDA_ERROR_NOT_FOUND;  // private tables of NVIDIA's own runtime are none of our business
}

static CUresult error_text(CUresult code, const char **out, bool words)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    for (const struct error *error = standin_errors; error->name && !*out; error++)
        if (error->code == (int)code)
            *out = words ? error->words : error->name;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **out)
{
    return error_text(code, out, false);
}

CUresult cuGetErrorString(CUresult code, const char **out)
{
    return error_text(code, out, true);
}
