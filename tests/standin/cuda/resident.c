// Kernels that stay for a while: launches occupy room on simulated SMs on a virtual clock, so that room, waves and hangs
// exist. Off unless MAKEWAY_STANDIN_RUN is set (build.py). Nothing is computed; only the record shows it.
//
// The rules, and where each was read:
// - A block needs warps, a warp's registers in one partition, shared memory in allocation units and a slot:
//   cuda_occupancy.h, cudaOccMaxActiveBlocksPerMultiprocessor, whose own functions give the units and sizes.
// - Blocks of one kernel are placed before those of the next (head of line), a higher priority first, each on the SM with
//   most room, and stay until they end: Amert et al., "GPU Scheduling on the NVIDIA TX2", RTSS 2017 (rules X1, R1, R2);
//   Gilman et al., "Demystifying the Placement Policies of the NVIDIA GPU Thread Block Scheduler", 2020.
//   "back-fill" switches the head of line off, since newer GPUs are unconfirmed.
// - An SM's shared memory is as large as the kernel asks for (carve-out), or as small as holds its full residency, and
//   changes only while the SM is empty: CUDA C++ Programming Guide, "Unified Data/L1/Texture cache"; developer forum 320732.
// - Kernels of a stream run in order; other streams do not wait for them (the default stream neither: a simplification).
#include "standin.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAUNCH_NS 1000        // between two launches of the host
#define DEFAULT_BLOCK_NS 1000
#define PARTITIONS 8
#define NEVER UINT64_MAX

struct work {
    char *name;
    unsigned stream;
    int priority;
    bool waits;  // its blocks wait for each other
    uint64_t arrives_ns, block_ns, grid, placed, ended, resident, peak, start_ns, end_ns, first_end_ns, last_start_ns;
    unsigned carve_out_waits;
    struct block_needs needs;
    struct work *before;  // of its stream
    bool done, counted;
    int peak_per_sm;
};

struct sm {
    int registers[PARTITIONS], warps[PARTITIONS], blocks;  // in use
    size_t smem_bytes, configured_bytes;
};

struct block { struct work *work; int sm; uint64_t ends_ns; signed char warps[PARTITIONS]; };

static struct work **queue;
static struct block *blocks;
static size_t queued, queue_room, block_count, block_room;
static struct sm *sms;
static uint64_t clock_ns;
static const char *asked;
static bool back_fill;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void finish(void)
{
    if (asked)
        resident_synchronize();
}

static void read_settings(void)
{
    asked = getenv("MAKEWAY_STANDIN_RUN");
    if (!asked)
        return;
    back_fill = strstr(asked, "back-fill") != NULL;
    sms = calloc((size_t)standin_device()->sms, sizeof *sms);
    if (!sms || standin_device()->partitions > PARTITIONS)
        abort();
    atexit(finish);
}

// "PATTERN=NS" or "PATTERN=NS,waits", separated by ";": the first that matches.
static void duration_of(struct work *work)
{
    work->block_ns = DEFAULT_BLOCK_NS;
    char *copy = strdup(asked), *rest = copy;
    for (char *clause; (clause = strsep(&rest, ";"));) {
        char *value = strchr(clause, '=');
        if (!value)
            continue;
        *value++ = 0;
        if (fnmatch(clause, work->name, 0))
            continue;
        work->block_ns = strtoull(value, &value, 10);
        work->waits |= !strcmp(value, ",waits");
        break;
    }
    free(copy);
}

void resident_launch(const struct launch *launch, unsigned stream, int priority, bool cooperative, int carve_out)
{
    pthread_once(&once, read_settings);
    if (!asked)
        return;
    struct work *work = calloc(1, sizeof *work);
    if (!work || !(work->name = strdup(launch->function->code->name)))
        abort();
    work->stream = stream;
    work->priority = priority;
    work->waits = cooperative;
    work->grid = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    work->start_ns = work->first_end_ns = NEVER;
    duration_of(work);
    int threads = (int)(launch->block[0] * launch->block[1] * launch->block[2]);
    work->needs = occupancy_needs(launch->function, threads, launch->smem_bytes, carve_out);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < queued; i++)
        if (queue[i]->stream == stream)
            work->before = queue[i];
    queue = standin_grow(queue, queued, &queue_room, sizeof *queue);
    work->arrives_ns = clock_ns + LAUNCH_NS * queued;
    queue[queued++] = work;
    pthread_mutex_unlock(&lock);
}

// --- placing --------------------------------------------------------------------------------------

// Puts a block's warps where most registers are left; false, with nothing changed, when they do not fit.
static bool place_warps(const struct sm *sm, const struct block_needs *needs, signed char taken[PARTITIONS])
{
    const struct device *device = standin_device();
    int partitions = device->partitions, most = device->max_threads / device->warp_threads / partitions;
    memset(taken, 0, PARTITIONS);
    for (int warp = 0; warp < needs->warps; warp++) {
        int best = -1, left = -1;
        for (int i = 0; i < partitions; i++) {
            int spare = device->registers / partitions - sm->registers[i] - (taken[i] + 1) * needs->registers_per_warp;
            if (spare >= 0 && sm->warps[i] + taken[i] < most && spare > left)
                best = i, left = spare;
        }
        if (best < 0)
            return false;
        taken[best]++;
    }
    return true;
}

// The warps left on an SM after the block, or -1 where it does not fit; counts SMs that only the carve-out closes.
static int room_after(struct work *work, struct sm *sm, signed char taken[PARTITIONS], bool *reconfigures)
{
    const struct device *device = standin_device();
    size_t configured = sm->blocks ? sm->configured_bytes : work->needs.carve_out_bytes;
    if (sm->blocks >= device->max_blocks || !place_warps(sm, &work->needs, taken))
        return -1;
    if (sm->smem_bytes + work->needs.smem_bytes > configured) {
        *reconfigures |= sm->smem_bytes + work->needs.smem_bytes <= (size_t)device->smem_bytes;
        return -1;
    }
    int warps = device->max_threads / device->warp_threads;
    for (int i = 0; i < device->partitions; i++)
        warps -= sm->warps[i] + taken[i];
    return warps;
}

static bool place_block(struct work *work)
{
    int best = -1, room = -1;
    bool reconfigures = false;
    struct block block = {.work = work};
    for (int i = 0; i < standin_device()->sms; i++) {
        signed char taken[PARTITIONS];
        int left = room_after(work, &sms[i], taken, &reconfigures);
        if (left > room) {
            best = i, room = left;
            memcpy(block.warps, taken, sizeof taken);
        }
    }
    if (best < 0) {
        work->carve_out_waits += reconfigures && !work->counted;
        work->counted |= reconfigures;
        return false;
    }
    struct sm *sm = &sms[best];
    if (!sm->blocks++)
        sm->configured_bytes = work->needs.carve_out_bytes;
    sm->smem_bytes += work->needs.smem_bytes;
    for (int i = 0; i < PARTITIONS; i++) {
        sm->warps[i] += block.warps[i];
        sm->registers[i] += block.warps[i] * work->needs.registers_per_warp;
    }
    block.sm = best;
    block.ends_ns = work->waits ? NEVER : clock_ns + work->block_ns;
    blocks = standin_grow(blocks, block_count, &block_room, sizeof *blocks);
    blocks[block_count++] = block;
    work->placed++;
    if (++work->resident > work->peak)
        work->peak = work->resident;
    int here = 0;
    for (size_t i = 0; i < block_count; i++)
        here += blocks[i].work == work && blocks[i].sm == best;
    work->peak_per_sm = here > work->peak_per_sm ? here : work->peak_per_sm;
    work->start_ns = work->start_ns == NEVER ? clock_ns : work->start_ns;
    work->last_start_ns = clock_ns;
    if (work->waits && work->placed == work->grid)  // all are there: the barrier opens
        for (size_t i = 0; i < block_count; i++)
            if (blocks[i].work == work)
                blocks[i].ends_ns = clock_ns + work->block_ns;
    return true;
}

// The kernel whose blocks are placed next: it arrived, its stream is free, the highest priority, the earliest.
static struct work *next_work(const struct work *beyond)
{
    struct work *next = NULL;
    for (size_t i = 0; i < queued; i++) {
        struct work *work = queue[i];
        if (work->done || work->placed == work->grid || work->arrives_ns > clock_ns || (work->before && !work->before->done))
            continue;
        bool after = !beyond || work->priority > beyond->priority
                     || (work->priority == beyond->priority && work->arrives_ns > beyond->arrives_ns);
        if (after && (!next || work->priority < next->priority))
            next = work;
    }
    return next;
}

static void place_all(void)
{
    for (struct work *work = next_work(NULL); work; work = next_work(work)) {
        while (work->placed < work->grid && place_block(work))
            ;
        if (work->placed < work->grid && !back_fill)
            return;  // what is behind waits, too
    }
}

// --- the clock ------------------------------------------------------------------------------------

static void end_block(size_t index)
{
    struct block block = blocks[index];
    struct work *work = block.work;
    struct sm *sm = &sms[block.sm];
    sm->blocks--;
    sm->smem_bytes -= work->needs.smem_bytes;
    for (int i = 0; i < PARTITIONS; i++) {
        sm->warps[i] -= block.warps[i];
        sm->registers[i] -= block.warps[i] * work->needs.registers_per_warp;
    }
    blocks[index] = blocks[--block_count];
    work->resident--;
    work->first_end_ns = work->first_end_ns == NEVER ? clock_ns : work->first_end_ns;
    work->end_ns = clock_ns;
    work->done = ++work->ended == work->grid;
}

static bool advance(void)
{
    uint64_t next = NEVER;
    for (size_t i = 0; i < block_count; i++)
        next = blocks[i].ends_ns < next ? blocks[i].ends_ns : next;
    for (size_t i = 0; i < queued; i++)
        if (!queue[i]->done && queue[i]->arrives_ns > clock_ns && queue[i]->arrives_ns < next)
            next = queue[i]->arrives_ns;
    if (next == NEVER)
        return false;
    clock_ns = next;
    for (size_t i = block_count; i-- > 0;)
        if (blocks[i].ends_ns <= clock_ns)
            end_block(i);
    return true;
}

static void record(const struct work *work)
{
    struct text text;
    if (!standin_recording())
        return;
    text_begin(&text);
    text_add(&text, "{\"%s\": {\"kernel\": ", work->done ? "ran" : "hang");
    text_name(&text, work->name);
    text_add(&text, ", \"stream\": %u, \"grid\": %llu, \"resident\": %llu, \"carve_out_waits\": %u", work->stream,
             (unsigned long long)work->grid, (unsigned long long)(work->done ? work->peak : work->placed - work->ended),
             work->carve_out_waits);
    if (work->done)
        text_add(&text,
                 ", \"start_ns\": %llu, \"end_ns\": %llu, \"last_start_ns\": %llu, \"first_end_ns\": %llu, "
                 "\"peak_per_sm\": %d, \"waves\": %llu",
                 (unsigned long long)work->start_ns, (unsigned long long)work->end_ns,
                 (unsigned long long)work->last_start_ns, (unsigned long long)work->first_end_ns, work->peak_per_sm,
                 (unsigned long long)((work->grid + work->peak - 1) / work->peak));
    text_add(&text, "}}");
    text_end(&text);
}

// Runs all that was launched to its end. A hang is recorded, and the SMs are empty again; a real driver would not return.
CUresult resident_synchronize(void)
{
    pthread_once(&once, read_settings);
    if (!asked)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    do
        place_all();
    while (advance());
    bool hangs = false;
    for (size_t i = 0; i < queued; i++) {
        record(queue[i]);
        hangs |= !queue[i]->done;
    }
    for (size_t i = 0; i < queued; i++) {
        free(queue[i]->name);
        free(queue[i]);
    }
    queued = block_count = 0;
    memset(sms, 0, (size_t)standin_device()->sms * sizeof *sms);
    pthread_mutex_unlock(&lock);
    return hangs ? CUDA_ERROR_LAUNCH_TIMEOUT : CUDA_SUCCESS;
}
