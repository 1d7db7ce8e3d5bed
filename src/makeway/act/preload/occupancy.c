/* The program's own questions about occupancy, answered for the launch that will really happen: with the pad.
 *
 * A program that sizes its grid by the unpadded answer would run in two waves or, where blocks wait for each other, never
 * end. MAKEWAY_OCCUPANCY=driver leaves the driver's answers alone. */
#include "cuda_driver.h"

static bool would_pad(void *function, int threads, size_t smem, uint32_t *given) {
    if (shim_plain_occupancy || threads < 1 || smem > INT32_MAX)
        return false;
    struct kernel *kernel = cuda_kernel(function);
    return kernel && cuda_would_pad(kernel, (uint32_t)threads, (uint32_t)smem, given);
}

mw_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t smem) {
    mw_active real = REAL(mw_active, ACTIVE);
    uint32_t given;
    if (!real)
        return MW_NOT_FOUND;
    return real(blocks, function, threads, would_pad(function, threads, smem, &given) ? given : smem);
}

mw_result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void *function, int threads, size_t smem,
                                                               uint32_t flags) {
    mw_active_flags real = REAL(mw_active_flags, ACTIVE_FLAGS);
    uint32_t given;
    if (!real)
        return MW_NOT_FOUND;
    return real(blocks, function, threads, would_pad(function, threads, smem, &given) ? given : smem, flags);
}

/* What is left for the program once the pad is taken off. */
mw_result cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, void *function, int blocks, int threads) {
    mw_available real = REAL(mw_available, AVAILABLE);
    mw_result result = real ? real(bytes, function, blocks, threads) : MW_NOT_FOUND;
    uint32_t given;
    if (result == MW_SUCCESS && bytes && would_pad(function, threads, 0, &given))
        *bytes = *bytes > given ? *bytes - given : 0;
    return result;
}

/* The driver asks back how much memory a block of so many threads takes. */
static _Thread_local struct {
    mw_bytes_of theirs;
    void *function;
    size_t smem;
} asking;

static size_t with_pad(int threads) {
    size_t smem = asking.theirs ? asking.theirs(threads) : asking.smem;
    uint32_t given;
    return would_pad(asking.function, threads, smem, &given) ? given : smem;
}

static mw_bytes_of ask_back(void *function, mw_bytes_of theirs, size_t smem) {
    uint32_t given;
    if (!would_pad(function, 32, 0, &given))
        return theirs;
    asking.theirs = theirs;
    asking.function = function;
    asking.smem = smem;
    return with_pad;
}

mw_result cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *function, mw_bytes_of smem_of, size_t smem,
                                           int most) {
    mw_potential real = REAL(mw_potential, POTENTIAL);
    return real ? real(grid, block, function, ask_back(function, smem_of, smem), smem, most) : MW_NOT_FOUND;
}

mw_result cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *function, mw_bytes_of smem_of,
                                                    size_t smem, int most, uint32_t flags) {
    mw_potential_flags real = REAL(mw_potential_flags, POTENTIAL_FLAGS);
    return real ? real(grid, block, function, ask_back(function, smem_of, smem), smem, most, flags) : MW_NOT_FOUND;
}

static mw_result clusters(int symbol, int *count, void *function, const struct mw_config *config) {
    mw_clusters real = REAL(mw_clusters, symbol);
    if (!real || !config)
        return real ? real(count, function, config) : MW_NOT_FOUND;
    struct mw_config padded = *config;
    int threads = (int)(config->block[0] * config->block[1] * config->block[2]);
    would_pad(function, threads, config->smem_bytes, &padded.smem_bytes);
    return real(count, function, &padded);
}

mw_result cuOccupancyMaxActiveClusters(int *count, void *function, const struct mw_config *config) {
    return clusters(ACTIVE_CLUSTERS, count, function, config);
}

mw_result cuOccupancyMaxPotentialClusterSize(int *count, void *function, const struct mw_config *config) {
    return clusters(POTENTIAL_CLUSTER, count, function, config);
}
