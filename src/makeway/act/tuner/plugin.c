/* The plugin that NCCL and RCCL load by NCCL_TUNER_PLUGIN: channels, algorithm and protocol from makeway's rules.
 *
 * Whatever goes wrong, NCCL's own choice stands and the result is success. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi.h"
#include "channels.h"
#include "mapped.h"
#include "tally.h"

#define EXPORT __attribute__((visibility("default")))

static const char NAME[] = "makeway";
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* One communicator. Its calls come in the same order on all of its ranks. */
struct communicator {
    _Atomic uint64_t calls;
    _Atomic uint32_t seen; /* generations of rules */
};

/* --- start and end ------------------------------------------------------------------------- */

static void after_fork_parent(void) {
    tally_after_fork(false);
}

static void after_fork_child(void) {
    tally_after_fork(true);
}

static void start(void) {
    const char *path = getenv("MAKEWAY_TUNER_RULES");
    mapped_capture();
    pthread_atfork(tally_before_fork, after_fork_parent, after_fork_child);
    const char *wrong = path ? channels_open(path) : "MAKEWAY_TUNER_RULES is not set";
    if (!wrong)
        return;
    tally_note(NO_RULES);
    dprintf(STDERR_FILENO, "makeway: %s%s%s; NCCL chooses channels, algorithms and protocols itself\n",
            path ? path : "", path ? ": " : "", wrong);
}

static mw_result begin(uint32_t interface, size_t ranks, void **context) {
    pthread_once(&once, start);
    *context = calloc(1, sizeof(struct communicator));
    tally_communicator(interface, (uint32_t)ranks);
    return MW_SUCCESS;
}

static mw_result end(void *context) {
    free(context);
    return MW_SUCCESS;
}

/* --- one call ------------------------------------------------------------------------------ */

/* What NCCL takes by itself: the cheapest entry that is available, the first of equals. */
static int cheapest(const float *table, int algorithms, int protocols) {
    float least = 0;
    int choice = -1;
    for (int at = 0; at < algorithms * protocols; at++)
        if (table[at] >= 0 && (choice < 0 || table[at] < least)) {
            least = table[at];
            choice = at;
        }
    return choice < 0 ? UNKNOWN_CHOICE : choice;
}

/* Generations that this communicator has not seen yet. */
static uint32_t generations_for(struct communicator *communicator, uint64_t call) {
    uint32_t published = channels_generations();
    uint32_t seen = atomic_load_explicit(&communicator->seen, memory_order_relaxed);
    if (__builtin_expect(seen < published, 0) &&
        atomic_compare_exchange_strong(&communicator->seen, &seen, published))
        tally_generations(published, channels_late(seen, published, call));
    return published;
}

static const struct channel_rule *rule_for(struct communicator *communicator, int kind, size_t bytes, uint64_t *calls) {
    if (!communicator)
        return NULL;
    uint64_t call = atomic_fetch_add_explicit(&communicator->calls, 1, memory_order_relaxed);
    *calls = call + 1;
    return channels_find(generations_for(communicator, call), call, kind, bytes);
}

static struct answer answer_of(const struct channel_rule *rule, int own_choice) {
    struct answer answer = {0, 0, AS_IT_IS, AS_IT_IS};
    if (!rule)
        return answer;
    if (rule->flags & ONLY_SIMPLE && own_choice != UNKNOWN_CHOICE && own_choice % MW_PROTOCOLS != MW_SIMPLE) {
        answer.changes = 1u << LEFT_TO_LL;
        return answer;
    }
    answer.channels = rule->channels;
    answer.changes = rule->channels ? 1u << CHANNELS_SET : 0;
    answer.algorithm = rule->algorithm;
    answer.protocol = rule->protocol;
    return answer;
}

static mw_result decide(void *context, int kind, size_t bytes, float **collective_table, int algorithms, int protocols,
                        int *channels) {
    if (kind < 0 || kind >= MW_KINDS) {
        tally_other();
        return MW_SUCCESS;
    }
    float *table = (float *)collective_table;
    bool known = table && algorithms == MW_ALGORITHMS && protocols == MW_PROTOCOLS;
    int own = known ? cheapest(table, algorithms, protocols) : UNKNOWN_CHOICE;
    uint64_t calls = 0;
    struct answer answer = answer_of(rule_for(context, kind, bytes, &calls), own);
    if (answer.algorithm != AS_IT_IS) {
        int wanted = answer.algorithm * MW_PROTOCOLS + answer.protocol;
        bool available = known && table[wanted] >= 0; /* what NCCL cannot do is -1, and stays so */
        if (available)
            table[wanted] = 0;
        else
            answer.algorithm = answer.protocol = AS_IT_IS;
        answer.changes |= 1u << (available ? STEERED : UNAVAILABLE);
    }
    if (answer.channels)
        *channels = answer.channels;
    tally_call(kind, bytes, own, &answer, calls);
    return MW_SUCCESS;
}

static mw_result decide_v2(void *context, int kind, size_t bytes, int collnet, int nvls, int operations, int *algorithm,
                           int *protocol, int *channels) {
    (void)collnet, (void)nvls, (void)operations;
    if (kind < 0 || kind >= MW_KINDS) {
        tally_other();
        return MW_SUCCESS;
    }
    uint64_t calls = 0;
    struct answer answer = answer_of(rule_for(context, kind, bytes, &calls), UNKNOWN_CHOICE);
    if (answer.algorithm != AS_IT_IS) { /* NCCL ignores one that is not available */
        *algorithm = answer.algorithm;
        *protocol = answer.protocol;
        answer.changes |= 1u << STEERED;
    }
    if (answer.channels)
        *channels = answer.channels;
    tally_call(kind, bytes, UNKNOWN_CHOICE, &answer, calls);
    return MW_SUCCESS;
}

static mw_result decide_v3(void *context, int kind, size_t bytes, int operations, float **table, int algorithms,
                           int protocols, int *channels) {
    (void)operations;
    return decide(context, kind, bytes, table, algorithms, protocols, channels);
}

static mw_result decide_v4(void *context, int kind, size_t bytes, int operations, float **table, int algorithms,
                           int protocols, int registered, int *channels) {
    (void)operations, (void)registered;
    return decide(context, kind, bytes, table, algorithms, protocols, channels);
}

/* --- the versions -------------------------------------------------------------------------- */

#define BEGIN_OLD(version)                                                                          \
    static mw_result begin_v##version(size_t ranks, size_t nodes, mw_logger log, void **context) { \
        (void)nodes, (void)log;                                                                     \
        return begin(version, ranks, context);                                                      \
    }

#define BEGIN_NEW(version)                                                                                              \
    static mw_result begin_v##version(void **context, uint64_t communicator, size_t ranks, size_t nodes, mw_logger log, \
                                      void *domains, void *constants) {                                                 \
        (void)communicator, (void)nodes, (void)log, (void)domains, (void)constants;                                     \
        return begin(version, ranks, context);                                                                          \
    }

BEGIN_OLD(2)
BEGIN_OLD(3)
BEGIN_OLD(4)
BEGIN_NEW(5)
BEGIN_NEW(6)
BEGIN_NEW(7)

EXPORT const struct mw_tuner_v2 ncclTunerPlugin_v2 = {NAME, begin_v2, decide_v2, end};
EXPORT const struct mw_tuner_v3 ncclTunerPlugin_v3 = {NAME, begin_v3, decide_v3, end};
EXPORT const struct mw_tuner_v4 ncclTunerPlugin_v4 = {NAME, begin_v4, decide_v4, end};
EXPORT const struct mw_tuner_v5 ncclTunerPlugin_v5 = {NAME, begin_v5, decide_v4, end};
EXPORT const struct mw_tuner_v6 ncclTunerPlugin_v6 = {{NAME, begin_v6, decide_v4, end}, NULL};
EXPORT const struct mw_tuner_v6 ncclTunerPlugin_v7 = {{NAME, begin_v7, decide_v4, end}, NULL};
