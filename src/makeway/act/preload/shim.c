/* Start-up: environment, rules file, fork. Nothing happens until the program looks up a driver function. */
#define _GNU_SOURCE
#include "shim.h"
#include "mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct rules shim_rules;
_Atomic uint32_t shim_set;
bool shim_logs, shim_plain_occupancy;

static char rules_path[4096];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool on;

void shim_log(const char *format, ...) {
    if (!shim_logs)
        return;
    char letters[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(letters, sizeof letters, format, arguments);
    va_end(arguments);
    dprintf(STDERR_FILENO, "makeway: %s\n", letters);
}

/* Never freed: the launch rules point into it. */
static const char *load_rules(void) {
    struct stat facts;
    int file = open(rules_path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return strerror(errno);
    bool fits = fstat(file, &facts) == 0 && facts.st_size > 0 && facts.st_size <= LARGEST_FILE;
    uint8_t *data = fits ? malloc((size_t)facts.st_size) : NULL;
    ssize_t got = data ? read(file, data, (size_t)facts.st_size) : -1;
    close(file);
    if (!data || got != facts.st_size)
        return "it is empty, too large or cannot be read";
    return rules_parse(&shim_rules, data, (size_t)got);
}

static void start(void) {
    const char *wrong = load_rules();
    if (wrong)
        receipts_note("%s: %s; the launches of this program are left as they are", rules_path, wrong);
    on = !wrong;
}

bool shim_on(void) {
    if (!rules_path[0])
        return false;
    pthread_once(&once, start);
    return on;
}

/* --- rule sets that take turns (called by rule_sets.py in this process) --------------------------- */

uint32_t makeway_rule_sets(void) {
    return shim_on() ? shim_rules.sets : 0;
}

int makeway_use_rules(uint32_t set) {
    if (set >= makeway_rule_sets())
        return -1;
    atomic_store(&shim_set, set);
    kernels_decide_anew();
    return 0;
}

uint64_t makeway_graph_launches(void) {
    return receipts_graph_launches();
}

static void before_fork(void) {
    symbols_before_fork();
    kernels_before_fork();
    nodes_before_fork();
    code_before_fork();
    receipts_before_fork();
}

static void after_fork_parent(void) {
    receipts_after_fork(false);
    code_after_fork();
    nodes_after_fork();
    kernels_after_fork(false);
    symbols_after_fork();
}

static void after_fork_child(void) {
    receipts_after_fork(true);
    code_after_fork();
    nodes_after_fork();
    kernels_after_fork(true);
    symbols_after_fork();
}

__attribute__((constructor)) static void capture(void) {
    const char *path = getenv("MAKEWAY_RULES"), *logs = getenv("MAKEWAY_LOG"), *whose = getenv("MAKEWAY_OCCUPANCY");
    if (!path || strlen(path) >= sizeof rules_path)
        return;
    shim_plain_occupancy = whose && strcmp(whose, "driver") == 0;
    shim_logs = logs && strcmp(logs, "1") == 0;
    mapped_capture();
    strcpy(rules_path, path);
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}
