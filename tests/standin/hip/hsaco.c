// Kernels of an AMD code object, from the msgpack metadata in its note (LLVM, AMDGPUUsage, code object V3 metadata).
#include "standin_hip.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define NOTE_METADATA 32  // NT_AMDGPU_METADATA
#define BUNDLE_MAGIC "__CLANG_OFFLOAD_BUNDLE__"

// --- msgpack --------------------------------------------------------------------------------------

struct value {
    enum { NOTHING, NUMBER, TEXT, LIST, MAP } kind;
    uint64_t number;  // of items in a list, of pairs in a map, of bytes in a text
    const unsigned char *at;
};

static uint64_t big(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static struct value sized(int kind, const unsigned char *at, int bytes)
{
    return (struct value){.kind = kind, .number = big(at + 1, bytes), .at = at + 1 + bytes};
}

// The value at `at`; lists and maps begin, texts and numbers are whole.
static struct value read_value(const unsigned char *at)
{
    unsigned char head = *at;
    if (head < 0x80)
        return (struct value){NUMBER, head, at + 1};
    if (head < 0x90)
        return (struct value){MAP, head & 15u, at + 1};
    if (head < 0xa0)
        return (struct value){LIST, head & 15u, at + 1};
    if (head < 0xc0)
        return (struct value){TEXT, head & 31u, at + 1};
    switch (head) {
    case 0xc0: case 0xc2: case 0xc3: return (struct value){NUMBER, head & 1u, at + 1};
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return sized(NUMBER, at, 1 << (head - 0xcc));
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return sized(NUMBER, at, 1 << (head - 0xd0));
    case 0xd9: case 0xda: case 0xdb: return sized(TEXT, at, 1 << (head - 0xd9));
    case 0xdc: case 0xdd: return sized(LIST, at, 2 << (head - 0xdc));
    case 0xde: case 0xdf: return sized(MAP, at, 2 << (head - 0xde));
    default: return (struct value){NOTHING, 0, at + 1};
    }
}

static const unsigned char *after(const unsigned char *at, const unsigned char *end)
{
    struct value value = read_value(at);
    if (value.kind == TEXT)
        return value.at + value.number;
    uint64_t inside = value.kind == LIST ? value.number : value.kind == MAP ? value.number * 2 : 0;
    at = value.at;
    for (uint64_t i = 0; i < inside && at < end; i++)
        at = after(at, end);
    return at;
}

static struct value field(struct value map, const unsigned char *end, const char *name)
{
    const unsigned char *at = map.at;
    for (uint64_t i = 0; map.kind == MAP && i < map.number && at < end; i++) {
        struct value key = read_value(at);
        const unsigned char *value = after(at, end);
        if (key.kind == TEXT && key.number == strlen(name) && !memcmp(key.at, name, key.number))
            return read_value(value);
        at = after(value, end);
    }
    return (struct value){0};
}

// --- metadata -------------------------------------------------------------------------------------

static void add_parameters(struct code *code, struct value list, const unsigned char *end)
{
    const unsigned char *at = list.at;
    code->parameters = calloc(list.number + 1, sizeof *code->parameters);
    for (uint64_t i = 0; i < list.number && at < end; i++, at = after(at, end)) {
        struct value map = read_value(at), kind = field(map, end, ".value_kind");
        if (kind.number >= 6 && !memcmp(kind.at, "hidden", 6))
            continue;
        code->parameters[code->parameter_count++] = (struct parameter){
            (unsigned)field(map, end, ".offset").number, (unsigned)field(map, end, ".size").number};
    }
}

static hipError_t read_kernels(struct image *image, const unsigned char *at, const unsigned char *end)
{
    struct value kernels = field(read_value(at), end, "amdhsa.kernels");
    if (kernels.kind != LIST)
        return hipErrorInvalidImage;
    const unsigned char *each = kernels.at;
    for (uint64_t i = 0; i < kernels.number && each < end; i++, each = after(each, end)) {
        struct value map = read_value(each), name = field(map, end, ".name"), args = field(map, end, ".args");
        if (name.kind != TEXT || name.at + name.number > end)
            return hipErrorInvalidImage;
        image->codes = standin_grow(image->codes, image->count, &image->room, sizeof *image->codes);
        struct code *code = &image->codes[image->count++];
        *code = (struct code){
            .name = strndup((const char *)name.at, name.number),
            .registers = (int)field(map, end, ".vgpr_count").number,
            .scalar_registers = (int)field(map, end, ".sgpr_count").number,
            .static_bytes = (int)field(map, end, ".group_segment_fixed_size").number,
            .private_bytes = (int)field(map, end, ".private_segment_fixed_size").number,
            .max_threads = (int)field(map, end, ".max_flat_workgroup_size").number,
            .argument_bytes = (unsigned)field(map, end, ".kernarg_segment_size").number,
        };
        if (args.kind == LIST)
            add_parameters(code, args, end);
    }
    return hipSuccess;
}

static bool runs_here(struct value target)
{
    // "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-": the processor stands before the features
    const char *arch = hip_arch();
    size_t length = strlen(arch);
    for (size_t i = 0; i + length <= target.number; i++)
        if (!memcmp(target.at + i, arch, length) && (i + length == target.number || target.at[i + length] == ':'))
            return true;
    return false;
}

hipError_t hsaco_read(struct image *image, const void *data, size_t size)
{
    const Elf64_Ehdr *header = data;
    const unsigned char *bytes = data;
    if (size < sizeof *header || memcmp(data, ELFMAG, SELFMAG) || header->e_machine != EM_AMDGPU
        || header->e_shoff + (uint64_t)header->e_shnum * sizeof(Elf64_Shdr) > size)
        return hipErrorInvalidImage;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes + header->e_shoff);
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_NOTE || sections[i].sh_offset + sections[i].sh_size > size)
            continue;
        const Elf64_Nhdr *note = (const Elf64_Nhdr *)(bytes + sections[i].sh_offset);
        const unsigned char *body = (const unsigned char *)(note + 1) + ((note->n_namesz + 3) & ~3u);
        if (note->n_type != NOTE_METADATA || body + note->n_descsz > bytes + size)
            continue;
        if (!runs_here(field(read_value(body), body + note->n_descsz, "amdhsa.target")))
            return hipErrorNoBinaryForGpu;
        return read_kernels(image, body, body + note->n_descsz);
    }
    return hipErrorInvalidImage;
}

// --- bundles --------------------------------------------------------------------------------------

static hipError_t bundle_read(struct image *image, const unsigned char *data)
{
    uint64_t count, entry[3];
    memcpy(&count, data + strlen(BUNDLE_MAGIC), sizeof count);
    const unsigned char *at = data + strlen(BUNDLE_MAGIC) + sizeof count;
    for (uint64_t i = 0; i < count; i++, at += sizeof entry + entry[2]) {
        memcpy(entry, at, sizeof entry);  // offset, size, length of the target's name
        struct value target = {TEXT, entry[2], at + sizeof entry};
        if (runs_here(target))
            return hsaco_read(image, data + entry[0], entry[1]);
    }
    return hipErrorNoBinaryForGpu;
}

hipError_t image_read(struct image *image, const void *data)
{
    *image = (struct image){0};
    if (!memcmp(data, BUNDLE_MAGIC, strlen(BUNDLE_MAGIC)))
        return bundle_read(image, data);
    const Elf64_Ehdr *header = data;  // the call gives no size: sections end the file
    if (memcmp(data, ELFMAG, SELFMAG))
        return hipErrorInvalidImage;
    size_t size = header->e_shoff + (size_t)header->e_shnum * sizeof(Elf64_Shdr);
    return hsaco_read(image, data, size);
}
