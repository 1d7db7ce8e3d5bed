/* Graph nodes that were padded, with what the program asked for.
 *
 * Attributes come after the node: one that needs all blocks at once takes the pad off again. A node that no longer has a
 * place here keeps its pad. */
#include "shim.h"

#include <string.h>

enum { NODES = 4096 };

static struct padded_node table[NODES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void nodes_before_fork(void) {
    pthread_mutex_lock(&lock);
}

void nodes_after_fork(void) {
    pthread_mutex_unlock(&lock);
}

static struct padded_node *place_of(const void *node) {
    return &table[kernels_place(node, NULL) % NODES];
}

void nodes_remember(struct padded_node padded) {
    pthread_mutex_lock(&lock);
    *place_of(padded.node) = padded;
    pthread_mutex_unlock(&lock);
}

struct padded_node nodes_find(const void *node) {
    pthread_mutex_lock(&lock);
    struct padded_node there = *place_of(node);
    pthread_mutex_unlock(&lock);
    return there.node == node ? there : (struct padded_node){0};
}

void nodes_forget(void) {
    pthread_mutex_lock(&lock);
    memset(table, 0, sizeof table);
    pthread_mutex_unlock(&lock);
}
