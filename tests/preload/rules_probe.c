/* The C side of the rules file, for ctypes; with FUZZ a program: probe SEEDS COUNT SEED. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rules.h"

static struct rules rules;
static uint8_t *kept;

const char *probe_parse(const uint8_t *data, size_t size) {
    kept = realloc(kept, size ? size : 1); /* exactly as large, so that a step too far is seen */
    memcpy(kept, data, size);
    return rules_parse(&rules, kept, size);
}

int probe_comm(const char *name) {
    return rules_comm(&rules, name);
}

int probe_launch(const char *name) {
    return rules_find(&rules, 0, name, NULL) != NULL;
}

#ifdef FUZZ
static uint64_t state;

static uint32_t chance(uint32_t below) { /* xorshift64 */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % below;
}

static size_t mutate(uint8_t *data, size_t size) {
    static const uint8_t telling[] = {0, 1, 2, 16, 127, 128, 255, '*', '[', '{', '}', '!', ','};
    for (uint32_t left = 1 + chance(4); left--;)
        data[chance((uint32_t)size)] = chance(2) ? telling[chance(sizeof telling)] : (uint8_t)chance(256);
    if (chance(4) == 0)
        size = 24 + chance((uint32_t)size - 24);
    if (chance(8)) { /* past the checks of the header, most of the time */
        uint32_t length = (uint32_t)size;
        uint64_t checksum = rules_hash(data + 24, size - 24);
        memcpy(data, "MKWRULES\2\0\0\0", 12);
        memcpy(data + 12, &length, 4);
        memcpy(data + 16, &checksum, 8);
    }
    return size;
}

int main(int count, char **words) {
    static uint8_t file[1 << 20], data[1 << 16];
    FILE *seeds = count == 4 ? fopen(words[1], "rb") : NULL;
    size_t total = seeds ? fread(file, 1, sizeof file, seeds) : 0;
    int read = 0, refused = 0;
    state = seeds ? strtoull(words[3], NULL, 10) | 1 : 1;
    for (int left = seeds ? atoi(words[2]) : 0; left--;) {
        uint32_t size, at = 0;
        for (uint32_t skip = chance(9);; skip--) {
            memcpy(&size, file + at, 4);
            if (!skip || at + 4 + size >= total)
                break;
            at += 4 + size;
        }
        memcpy(data, file + at + 4, size);
        if (probe_parse(data, mutate(data, size)))
            refused++;
        else
            read++;
        probe_comm("_Z24ncclDevKernel_AllReduce_Sum_f32_RING_LL");
        probe_launch("gemmq_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    }
    printf("%d %d\n", read, refused);
    if (seeds)
        fclose(seeds);
    free(kept);
    return seeds ? 0 : 2;
}
#endif
