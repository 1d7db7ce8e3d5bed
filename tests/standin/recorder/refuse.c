// Refusals that a test asks for in MAKEWAY_STANDIN_REFUSE (the rules are listed in build.py).
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rule {
    long launch, launch_every, smem_above, every;  // -1: not given
    char word[32];
    atomic_long seen;
};

static struct rule rules[8];
static int rule_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_clause(struct rule *rule, const char *clause)
{
    if (sscanf(clause, "launch:%ld", &rule->launch) == 1 || sscanf(clause, "launch-every:%ld", &rule->launch_every) == 1
        || sscanf(clause, "smem-above:%ld", &rule->smem_above) == 1 || sscanf(clause, "every:%ld", &rule->every) == 1)
        return;
    if (strcmp(clause, "func-attribute") && strcmp(clause, "node-attribute") && strcmp(clause, "node-params")) {
        standin_say("MAKEWAY_STANDIN_REFUSE: '%s' is no rule", clause);
        abort();
    }
    snprintf(rule->word, sizeof rule->word, "%s", clause);
}

static void read_rules(void)
{
    const char *asked = getenv("MAKEWAY_STANDIN_REFUSE");
    char *copy = asked ? strdup(asked) : NULL, *rest = copy;
    for (char *one; copy && rule_count < 8 && (one = strsep(&rest, ";"));) {
        if (!*one)
            continue;
        struct rule *rule = &rules[rule_count++];
        rule->launch = rule->launch_every = rule->smem_above = rule->every = -1;
        for (char *clause; (clause = strsep(&one, ","));)
            read_clause(rule, clause);
    }
    free(copy);
}

// What was refused stays refused, however this thread repeats it, until it asks for less.
static bool above(struct rule *rule, unsigned smem_bytes)
{
    static _Thread_local const struct rule *refusing;
    bool asks_for_more = rule->smem_above >= 0 && (long)smem_bytes > rule->smem_above;
    if (refusing == rule && asks_for_more)
        return true;
    bool refuses = asks_for_more && (rule->every <= 0 || (atomic_fetch_add(&rule->seen, 1) + 1) % rule->every == 0);
    if (refuses || refusing == rule)
        refusing = refuses ? rule : NULL;
    return refuses;
}

bool standin_refuses_launch(unsigned smem_bytes)
{
    pthread_once(&once, read_rules);
    bool refused = false;
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (rule->launch > 0)
            refused |= atomic_fetch_add(&rule->seen, 1) + 1 == rule->launch;
        else if (rule->launch_every > 0)
            refused |= (atomic_fetch_add(&rule->seen, 1) + 1) % rule->launch_every == 0;
        else
            refused |= above(rule, smem_bytes);
    }
    return refused;
}

bool standin_refuses_node(unsigned smem_bytes)
{
    pthread_once(&once, read_rules);
    bool refused = standin_refuses("node-params");
    for (int i = 0; i < rule_count; i++)
        refused |= above(&rules[i], smem_bytes);
    return refused;
}

bool standin_refuses(const char *what)
{
    pthread_once(&once, read_rules);
    for (int i = 0; i < rule_count; i++)
        if (!strcmp(rules[i].word, what))
            return true;
    return false;
}
