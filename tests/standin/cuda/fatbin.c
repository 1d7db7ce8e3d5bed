// The best cubin of a fatbin for this device. The layout is not documented by NVIDIA; it was read off
// real files. Compressed entries are refused loudly: no client here makes them.
#include "standin.h"

#include <string.h>

#define FATBIN_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u
#define KIND_ELF 2
#define COMPRESSED 0xa000u  // LZ4 or zstd

struct wrapper { uint32_t magic, version; const void *data; };
struct region { uint32_t magic; uint16_t version, header; uint64_t size; };
struct entry {
    uint16_t kind, version;
    uint32_t header;
    uint64_t size;
    uint32_t packed, unused;
    uint16_t minor, major;
    uint32_t arch, name, name_size;
    uint64_t flags, zero, unpacked;
} __attribute__((packed));

CUresult fatbin_read(struct image *image, const void *data)
{
    uint32_t magic;
    memcpy(&magic, data, sizeof magic);
    if (magic == WRAPPER_MAGIC)
        data = ((const struct wrapper *)data)->data;
    struct region region;
    memcpy(&region, data, sizeof region);
    if (region.magic != FATBIN_MAGIC) {
        standin_say("an image is neither a cubin nor a fatbin (PTX is not compiled here)");
        return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    }
    const unsigned char *at = (const unsigned char *)data + region.header, *end = at + region.size;
    const unsigned char *best = NULL;
    struct entry chosen = {0}, entry;
    for (; (size_t)(end - at) >= sizeof entry; at += entry.header + entry.size) {
        memcpy(&entry, at, sizeof entry);
        if (entry.header < sizeof entry || entry.header + entry.size > (size_t)(end - at))
            return CUDA_ERROR_INVALID_IMAGE;
        if (entry.kind == KIND_ELF && image_runs_here((int)entry.arch) && entry.arch >= chosen.arch) {
            chosen = entry;
            best = at + entry.header;
        }
    }
    if (!best)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (chosen.flags & COMPRESSED)
        return standin_unknown("a compressed fatbin");
    return cubin_read(image, best, chosen.size);
}
