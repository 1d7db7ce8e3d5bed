// What a cubin says of its kernels: ELF sections, symbols and .nv.info attributes.
// Attribute numbers are those that `cuobjdump -elf` names EIATTR_...
#include "standin.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_THREADS = 0x05, REQUIRED_THREADS = 0x10, FRAME_SIZE = 0x11, PARAMETER = 0x17, PARAMETER_BYTES = 0x19,
    REGISTERS = 0x2f, CLUSTER = 0x3d, PARAMETER_V2 = 0x45, BARRIERS = 0x4c,
};
#define HAS_PAYLOAD 4
#define KERNEL_MARK 0x10  // STO_CUDA_ENTRY in st_other
#define MACHINE_CUDA 190
#define SYSTEM_BYTES 1024
#define FIRST_ARCH_WITH_SYSTEM_BYTES 90

struct cubin {
    const unsigned char *data;
    size_t size;
    const Elf64_Shdr *sections;
    unsigned section_count;
    const char *names;
    size_t names_size;
    const Elf64_Sym *symbols;
    size_t symbol_count;
    const char *symbol_names;
    size_t symbol_names_size;
};

static bool inside(const struct cubin *cubin, uint64_t offset, uint64_t size)
{
    return offset <= cubin->size && size <= cubin->size - offset;
}

static const char *name_at(const char *names, size_t size, uint32_t at)
{
    return at < size && memchr(names + at, 0, size - at) ? names + at : "";
}

static const Elf64_Shdr *section(const struct cubin *cubin, const char *prefix, const char *rest)
{
    size_t length = strlen(prefix);
    for (unsigned i = 0; i < cubin->section_count; i++) {
        const char *name = name_at(cubin->names, cubin->names_size, cubin->sections[i].sh_name);
        if (!strncmp(name, prefix, length) && !strcmp(name + length, rest))
            return &cubin->sections[i];
    }
    return NULL;
}

static bool open_tables(struct cubin *cubin)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)cubin->data;
    if (header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shstrndx >= header->e_shnum
        || !inside(cubin, header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr)))
        return false;
    cubin->sections = (const Elf64_Shdr *)(cubin->data + header->e_shoff);
    cubin->section_count = header->e_shnum;
    for (unsigned i = 0; i < cubin->section_count; i++)
        if (cubin->sections[i].sh_type != SHT_NOBITS
            && !inside(cubin, cubin->sections[i].sh_offset, cubin->sections[i].sh_size))
            return false;
    const Elf64_Shdr *names = &cubin->sections[header->e_shstrndx];
    cubin->names = (const char *)cubin->data + names->sh_offset;
    cubin->names_size = names->sh_size;
    const Elf64_Shdr *table = section(cubin, ".symtab", "");
    if (!table || table->sh_link >= cubin->section_count)
        return false;
    cubin->symbols = (const Elf64_Sym *)(cubin->data + table->sh_offset);
    cubin->symbol_count = table->sh_size / sizeof(Elf64_Sym);
    const Elf64_Shdr *strings = &cubin->sections[table->sh_link];
    cubin->symbol_names = (const char *)cubin->data + strings->sh_offset;
    cubin->symbol_names_size = strings->sh_size;
    return true;
}

// Calls `see` for each record: format, attribute, then 16 bits that are the value or its length.
static void walk(const struct cubin *cubin, const Elf64_Shdr *info, void *with,
                 void (*see)(void *with, int attribute, const unsigned char *value, unsigned size))
{
    const unsigned char *at = cubin->data + info->sh_offset, *end = at + info->sh_size;
    while (end - at >= 4) {
        unsigned word = at[2] | at[3] << 8;
        if (at[0] != HAS_PAYLOAD) {
            see(with, at[1], at + 2, 2);
            at += 4;
        } else if (word <= (size_t)(end - at - 4)) {
            see(with, at[1], at + 4, word);
            at += 4 + word;
        } else
            return;
    }
}

static unsigned word(const unsigned char *at)
{
    unsigned value;
    memcpy(&value, at, 4);
    return value;
}

static void add_parameter(struct code *code, const unsigned char *value)
{
    // index u32, ordinal u16, offset u16, then alignment, space, bank and from bit 18 the size
    unsigned ordinal = value[4] | value[5] << 8;
    if (ordinal >= 4096)
        return;
    if (ordinal >= code->parameter_count) {
        code->parameters = realloc(code->parameters, (ordinal + 1) * sizeof *code->parameters);
        memset(code->parameters + code->parameter_count, 0,
               (ordinal + 1 - code->parameter_count) * sizeof *code->parameters);
        code->parameter_count = ordinal + 1;
    }
    code->parameters[ordinal].offset = value[6] | value[7] << 8;
    code->parameters[ordinal].size = word(value + 8) >> 18;
}

static void see_kernel(void *with, int attribute, const unsigned char *value, unsigned size)
{
    struct code *code = with;
    if ((attribute == PARAMETER || attribute == PARAMETER_V2) && size >= 12)
        add_parameter(code, value);
    else if (attribute == PARAMETER_BYTES)
        code->parameter_bytes = value[0] | value[1] << 8;
    else if (attribute == BARRIERS)
        code->barriers = value[0];
    else if (size >= 12 && attribute == MAX_THREADS)
        memcpy(code->max_threads, value, 12);
    else if (size >= 12 && attribute == REQUIRED_THREADS)
        memcpy(code->required, value, 12);
    else if (size >= 12 && attribute == CLUSTER)
        memcpy(code->cluster, value, 12);
}

struct wanted { size_t symbol; struct code *code; };

static void see_module(void *with, int attribute, const unsigned char *value, unsigned size)
{
    struct wanted *wanted = with;
    if (size < 8 || word(value) != wanted->symbol)
        return;
    if (attribute == REGISTERS)
        wanted->code->registers = (int)word(value + 4);
    else if (attribute == FRAME_SIZE)
        wanted->code->local_bytes = (int)word(value + 4);
}

static bool read_kernel(const struct cubin *cubin, size_t symbol, const char *name, struct code *code)
{
    const Elf64_Shdr *module = section(cubin, ".nv.info", ""), *own = section(cubin, ".nv.info.", name);
    const Elf64_Shdr *shared = section(cubin, ".nv.shared.", name), *constant = section(cubin, ".nv.constant3", "");
    code->name = strdup(name);
    code->registers = -1;
    code->barriers = 1;
    if (module)
        walk(cubin, module, &(struct wanted){symbol, code}, see_module);
    if (own)
        walk(cubin, own, code, see_kernel);
    code->static_bytes = shared ? (int)shared->sh_size : 0;
    // From sm_90 on the section begins with the system's 1 KiB, which is not the program's: kernels that
    // ask for all 227 KB of opt-in memory (CUTLASS's sm90_smem_capacity_bytes) do run.
    if (code->arch >= FIRST_ARCH_WITH_SYSTEM_BYTES && code->static_bytes >= SYSTEM_BYTES)
        code->static_bytes -= SYSTEM_BYTES;
    code->const_bytes = constant ? (int)constant->sh_size : 0;
    return code->registers >= 0;
}

CUresult cubin_read(struct image *image, const unsigned char *data, size_t size)
{
    struct cubin cubin = {.data = data, .size = size};
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)data;
    if (size < sizeof *header || memcmp(data, ELFMAG, SELFMAG) || header->e_ident[EI_CLASS] != ELFCLASS64)
        return CUDA_ERROR_INVALID_IMAGE;
    if (header->e_machine != MACHINE_CUDA || !open_tables(&cubin))
        return CUDA_ERROR_INVALID_IMAGE;
    // ABI 8 moved the architecture up by one byte
    image->arch = header->e_ident[EI_ABIVERSION] >= 8 ? header->e_flags >> 8 & 0xff : header->e_flags & 0xff;
    size_t room = 0;
    for (size_t i = 0; i < cubin.symbol_count; i++) {
        const Elf64_Sym *symbol = &cubin.symbols[i];
        if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || !(symbol->st_other & KERNEL_MARK))
            continue;
        image->codes = standin_grow(image->codes, image->count, &room, sizeof *image->codes);
        struct code *code = &image->codes[image->count++];
        *code = (struct code){.arch = image->arch};
        const char *name = name_at(cubin.symbol_names, cubin.symbol_names_size, symbol->st_name);
        if (!read_kernel(&cubin, i, name, code))
            return CUDA_ERROR_INVALID_IMAGE;
    }
    return CUDA_SUCCESS;
}

bool image_runs_here(int arch)
{
    // Machine code runs on its own major version, same or later minor.
    const struct device *device = standin_device();
    return arch / 10 == device->major && arch % 10 <= device->minor;
}

CUresult image_read(struct image *image, const void *data)
{
    *image = (struct image){0};
    const Elf64_Ehdr *header = data;
    if (memcmp(data, ELFMAG, SELFMAG))
        return fatbin_read(image, data);
    // The call gives no size: the file says where its last part ends.
    size_t size = header->e_shoff + (size_t)header->e_shnum * sizeof(Elf64_Shdr);
    const Elf64_Shdr *sections = (const Elf64_Shdr *)((const char *)data + header->e_shoff);
    for (unsigned i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type != SHT_NOBITS && sections[i].sh_offset + sections[i].sh_size > size)
            size = sections[i].sh_offset + sections[i].sh_size;
    CUresult result = cubin_read(image, data, size);
    if (result == CUDA_SUCCESS && !image_runs_here(image->arch))
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    return result;
}
